"""How far a count is, on stderr: a bar on a terminal, else a line now and then."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LINE_EVERY_S = 10.0


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Give a callback that shows how many are done, of how many; the display ends with the block.

    Args:
        what: is counted, in plural.
    """
    if not sys.stderr.isatty():
        yield _Lines(what)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Give a callback that shows what is being done; the display ends with the block."""
    if not sys.stderr.isatty():
        with _Told() as progress:
            yield progress
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(text)


class _Lines:
    """A line every ten seconds, for logs."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._due = time.monotonic() + _LINE_EVERY_S

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _LINE_EVERY_S
            print(f"{done} of {total} {self._what}", file=sys.stderr, flush=True)


class _Told:
    """The same for words: what is said, or goes on since."""

    def __init__(self) -> None:
        self._text, self._begun = "", time.monotonic()
        self._due = self._begun + _LINE_EVERY_S
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def __call__(self, text: str) -> None:
        self._text = text
        self._say(text)

    def __enter__(self) -> "_Told":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._over.wait(max(_LINE_EVERY_S / 10, self._due - time.monotonic())):
            if self._text:
                self._say(f"{self._text} ({time.monotonic() - self._begun:.0f} s so far)")

    def _say(self, text: str) -> None:
        with self._lock:
            if (now := time.monotonic()) >= self._due:
                self._due = now + _LINE_EVERY_S
                print(text, file=sys.stderr, flush=True)
