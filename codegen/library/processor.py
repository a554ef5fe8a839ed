"""`able`: whether the processor has what a library's code needs; a status of `runtime.STATUS`."""

from __future__ import annotations

from tilesmith.search_space.target import Target

_ANY = """
define internal i32 @able() {
  ret i32 0
}
"""


def processor_text(target: Target) -> str:
    """The function, in LLVM's language."""
    return _ANY
