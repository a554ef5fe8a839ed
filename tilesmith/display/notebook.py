"""Progress in notebooks: one table in the cell's output, replaced as the job goes on.

IPython is asked only where it is there already, as in a notebook; nothing needs it or widgets.
"""

import sys
import time
from collections.abc import Callable
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilesmith.tuner.session.progress import Progress

_EVERY_S = 0.5


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook (and no terminal of IPython)."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


class NotebookTable:
    """Shows the progress it is told of, at most twice a second; `text` is what it looks like."""

    def __init__(self, text: "Callable[[Progress], str]") -> None:
        self._text = text
        self._handle: Any = None
        self._due = 0.0
        self._latest: Progress | None = None

    def __call__(self, progress: "Progress") -> None:
        self._latest = progress
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _EVERY_S
            self.show()

    def show(self) -> None:
        """Put the newest progress into the cell's output."""
        if self._latest is None:
            return
        text = self._text(self._latest)
        content = {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}
        if self._handle is None:
            show = import_module("IPython.display").display
            self._handle = show(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
