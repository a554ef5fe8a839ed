"""How far tuning is, on stderr: a live display on a terminal, else a line now and then.

It shows the way of measuring, tasks, trials, the best so far against the untuned default, and the
time left, and below that the workloads that cost most.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tilesmith.display.output import duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from tilesmith.tuner.options import Progress, TaskReport

_LINE_EVERY_S = 10.0
_ROWS = 8


@contextmanager
def progress_display() -> Iterator[Callable[[Progress], None]]:
    """Give a callback that shows the progress it is told; the display ends with the block."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield lambda progress: live.update(panel(progress))


class _Lines:
    """A line at the first word and then every ten seconds, for logs."""

    def __init__(self) -> None:
        self._due = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _LINE_EVERY_S
        print(headline(progress), file=sys.stderr, flush=True)


def headline(progress: Progress) -> str:
    """Everything that matters in one line."""
    started = sum(task.default_s is not None for task in progress.tasks)
    limit = "" if progress.trials_limit is None else f" of {progress.trials_limit}"
    parts = [
        progress.measured_by,
        f"{started} of {len(progress.tasks)} tasks",
        f"{progress.trials}{limit} trials",
    ]
    if progress.workers:
        ready = sum(worker.state in ("idle", "busy") for worker in progress.workers)
        parts.append(f"{ready} of {len(progress.workers)} workers")
    if progress.default_s and progress.best_s:
        gain = progress.default_s / progress.best_s
        parts.append(f"{duration(progress.default_s)} -> {duration(progress.best_s)} ({gain:.2f}x)")
    parts.append(f"{_clock(progress.elapsed_s)} gone")
    if progress.left_s is not None:
        parts.append(f"{_clock(progress.left_s)} left")
    return ", ".join(parts)


def panel(progress: Progress) -> RenderableType:
    """The headline and the workloads that cost most."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = Table(box=None, pad_edge=False)
    rows.add_column("workload", overflow="ellipsis", no_wrap=True, ratio=1)
    for name in ("times", "trials", "default us", "best us", "gain"):
        rows.add_column(name, justify="right")
    for task in sorted(progress.tasks, key=_share, reverse=True)[:_ROWS]:
        rows.add_row(*_row(task))
    more = [workers(progress)] if progress.workers else []
    return Group(Text(headline(progress), style="bold"), rows, *more)


def workers(progress: Progress) -> Table:
    """Those who measure: the ones that are in trouble first, then the busiest."""
    from rich.table import Table

    rows = Table(box=None, pad_edge=False)
    rows.add_column("worker", overflow="ellipsis", no_wrap=True)
    for name in ("trials", "a second", "lost"):
        rows.add_column(name, justify="right")
    rows.add_column("state", overflow="ellipsis", no_wrap=True, ratio=1)
    well = ("idle", "busy")
    for one in sorted(progress.workers, key=lambda w: (w.state in well, -w.trials))[:_ROWS]:
        state = f"{one.state}: {one.message}" if one.message else one.state
        rate = one.trials / max(progress.elapsed_s, 1e-9)
        rows.add_row(one.name, str(one.trials), f"{rate:.1f}", str(one.failures), state)
    return rows


def _share(task: TaskReport) -> float:
    """Seconds a model spends in this task."""
    return task.weight * (task.best_s or task.default_s or 0.0)


def _row(task: TaskReport) -> tuple[str, ...]:
    gain = task.default_s / task.best_s if task.default_s and task.best_s else None
    return (
        str(task.workload),
        f"{task.weight:g}",
        str(task.trials),
        "-" if task.default_s is None else f"{task.default_s * 1e6:.1f}",
        "-" if task.best_s is None else f"{task.best_s * 1e6:.1f}",
        "-" if gain is None else f"{gain:.2f}x",
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
