"""How far tuning is, on stderr: a live display on a terminal, else a line now and then.

It shows the way of measuring, tasks, trials, the best so far against the untuned default, and the
time left, and below that the workloads that cost most.
"""

import io
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilesmith.display.notebook import NotebookTable, in_notebook
from tilesmith.display.output import duration
from tilesmith.search_space.results.gain import times_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

    from tilesmith.tuner.session.progress import Progress, TaskReport

_LINE_EVERY_S = 10.0
_ROWS = 8
_FEWEST = 2
_NARROWEST = 16
_COLUMNS = (("times", 60), ("trials", 70), ("default us", 90), ("best us", 0), ("gain", 40))
"""Columns, and how wide a terminal has to be for them."""


@contextmanager
def progress_display() -> "Iterator[Callable[[Progress], None]]":
    """Give a callback that shows the progress it is told; the display ends with the block. In a
    notebook it is a table in the cell's output, which stays.
    """
    if in_notebook():
        shown = NotebookTable(plain)
        yield shown
        shown.show()
        return
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
        self._doing = ""

    def __call__(self, progress: "Progress") -> None:
        if time.monotonic() < self._due and progress.doing in ("", self._doing):
            return
        self._doing = progress.doing
        self._due = time.monotonic() + _LINE_EVERY_S
        print(headline(progress), file=sys.stderr, flush=True)


def headline(progress: "Progress") -> str:
    """Everything that matters in one line."""
    started = sum(task.default_s is not None for task in progress.tasks)
    limit = "" if progress.trials_limit is None else f" of {progress.trials_limit}"
    parts = [
        progress.measured_by,
        f"{started} of {len(progress.tasks)} tasks",
        f"{progress.trials}{limit} {_unit(progress)}",
    ]
    if progress.doing:
        parts.append(progress.doing)
    if progress.workers:
        ready = sum(worker.state in ("idle", "busy") for worker in progress.workers)
        parts.append(f"{ready} of {len(progress.workers)} workers")
    if gain := progress.gain:
        times = f"{gain.times:.2f}x"
        parts.append(f"{duration(gain.default_s)} -> {duration(gain.best_s)} ({times})")
    parts.append(f"{_clock(progress.elapsed_s)} gone")
    if progress.left_s is not None:
        parts.append(f"{_clock(progress.left_s)} left")
    return ", ".join(parts)


@dataclass(frozen=True)
class Panel:
    """The headline, the workloads that cost most, and the workers, in as much room as there is.

    A workload takes two lines at most, its middle is left out where it is longer: the shape at its
    beginning and what is fused at its end tell it from others. Narrow terminals lose columns that
    follow from others.
    """

    progress: "Progress"

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> Iterator[Any]:
        from rich.table import Table
        from rich.text import Text

        width = options.max_width
        names = [name for name, least in _COLUMNS if width >= least]
        room = max(_NARROWEST, width - sum(max(len(name), 8) + 2 for name in names))
        rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        rows.add_column("workload", overflow="fold")
        for name in names:
            rows.add_column(name, justify="right", no_wrap=True)
        tasks = sorted(self.progress.tasks, key=_share, reverse=True)
        wrapped = [(_fitted(str(task.workload), room), _cells(task)) for task in tasks]
        left = console.size.height - 4 - (len(self.progress.workers[:_ROWS]) + 1)
        shown = 0
        for lines, cells in wrapped[:_ROWS]:
            if left < len(lines) and shown >= _FEWEST:
                break
            rows.add_row("\n".join(lines), *(cells[name] for name in names))
            left, shown = left - len(lines), shown + 1
        yield Text(headline(self.progress), style="bold")
        yield rows
        if len(wrapped) > shown:
            yield Text(f"and {len(wrapped) - shown} more workloads", style="dim")
        if self.progress.workers:
            yield workers(self.progress)


def panel(progress: "Progress") -> "RenderableType":
    """What a terminal shows of progress."""
    return Panel(progress)


def plain(progress: "Progress") -> str:
    """What a terminal of a hundred columns shows, as plain text."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100, height=40, record=True,
                      force_jupyter=False, force_terminal=False)  # fmt: skip
    console.print(panel(progress))
    return console.export_text()


def _fitted(text: str, width: int) -> list[str]:
    """One line or two of at most so many columns, the middle left out where they do not hold it."""
    if len(text) <= width:
        return [text]
    lines = textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)
    if len(lines) <= 2:
        return lines
    rest = text[-(width - 4) :]
    return [lines[0], f"  \N{HORIZONTAL ELLIPSIS} {rest[rest.find(' ') + 1 :]}"]


def workers(progress: "Progress") -> "Table":
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


def _share(task: "TaskReport") -> float:
    """Seconds a model spends in this task."""
    return task.weight * (task.best_s or task.default_s or 0.0)


def _cells(task: "TaskReport") -> dict[str, str]:
    """What is told of a task, by column."""
    gain = times_of(task.default_s, task.best_s)
    return {
        "times": f"{task.weight:g}",
        "trials": str(task.trials),
        "default us": "-" if task.default_s is None else f"{task.default_s * 1e6:.1f}",
        "best us": "-" if task.best_s is None else f"{task.best_s * 1e6:.1f}",
        "gain": "-" if gain is None else f"{gain:.2f}x",
    }


def _unit(progress: "Progress") -> str:
    """What is counted: trials, or what is simulated to choose them."""
    if progress.screening:
        return "simulated to choose trials"
    many = progress.trials_limit != 1 if progress.trials_limit is not None else progress.trials != 1
    return "trials" if many else "trial"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
