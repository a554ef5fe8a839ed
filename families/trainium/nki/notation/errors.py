"""What a kernel's author got wrong, and the line of theirs that it is told with.

Invariant: a line is the innermost one outside of Tilesmith, "kernels/silu.py:12 (in silu)".
"""

import sys

from tilesmith.families.trainium.codegen.isa.lines import line_text
from tilesmith.search_space.support.errors import CodegenError

_known: dict[tuple[int, int], str] = {}


def author_line() -> str:
    """The line of the kernel that is at work; "" if none is."""
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("tilesmith."):
            key = (id(frame.f_code), frame.f_lasti)
            if key not in _known:
                _known[key] = line_text((frame.f_code, frame.f_lasti))
            return _known[key]
        frame = frame.f_back  # type: ignore[assignment]
    return ""


class NkiError(CodegenError):
    """A kernel in NKI that cannot be read; the message begins with its author's line."""

    def __init__(self, message: str) -> None:
        line = author_line()
        super().__init__(f"{line}: {message}" if line else message)
