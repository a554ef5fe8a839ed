"""Where in the code of whoever writes a kernel something was written, and errors that name it.

A kernel's author calls the builder from files of their own; what these calls are told wrongly is
told with the line of the call, and so is what verification finds in an instruction written there.
Kernels that Tilesmith's selection writes have no such line.

Invariant: a line is the innermost one outside of the builder and of what it stands on.
"""

import sys
from pathlib import Path
from types import CodeType

from tilesmith.search_space.support.errors import CodegenError

Line = tuple[CodeType, int]
"""A function and the offset of an instruction in it: what a frame tells for nothing."""

_PACKAGE = "tilesmith."
_BUILDER = tuple(f"tilesmith.families.trainium.codegen.{room}." for room in ("kernel", "isa"))


def caller(depth: int = 1) -> Line | None:
    """The line that called, some frames up, into the builder; None if Tilesmith itself did."""
    frame = sys._getframe(depth)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(_PACKAGE):
            return (frame.f_code, frame.f_lasti)
        if not name.startswith(_BUILDER):
            return None
        frame = frame.f_back  # type: ignore[assignment]
    return None


def line_text(line: Line | None) -> str:
    """A line as people write it, "kernels/silu.py:12 (in silu)"; "" for none."""
    if line is None:
        return ""
    code, offset = line
    number = code.co_firstlineno
    for start, stop, line_number in code.co_lines():
        if start <= offset < stop and line_number is not None:
            number = line_number
    path = Path(code.co_filename)
    if path.is_absolute() and path.is_relative_to(here := Path.cwd()):
        path = path.relative_to(here)
    where = "" if code.co_name == "<module>" else f" (in {code.co_name})"
    return f"{path}:{number}{where}"


class KernelError(CodegenError):
    """What a kernel's author got wrong; the message begins with their line."""

    def __init__(self, message: str) -> None:
        line = line_text(caller(2))
        super().__init__(f"{line}: {message}" if line else message)
