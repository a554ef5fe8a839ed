"""Tables as text: aligned columns, made to fit a terminal, whole everywhere else.

Off a terminal every row is one line, columns two blanks apart, an empty cell is "-": what `awk`,
`cut` and `sort` can read. On a terminal that is too narrow the widest columns of words leave the
row: those before it stand above, the others below, wrapped; so no number is cut, and no line wraps
by itself.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

GAP = "  "
_NARROWEST = 20


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is; None where it is none."""
    try:
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    except ValueError:  # it is closed
        return None


def aligned(
    header: Sequence[str], body: Sequence[Sequence[str]], right: Sequence[bool], width: int | None
) -> list[str]:
    """The lines of a table.

    Args:
        body: rows of as many cells as the header has.
        right: which columns are numbers, aligned to the right.
        width: columns to fit into; None: as wide as it gets.
    """
    widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
    moved = _moved(widths, right, width)
    kept = [i for i in range(len(header)) if i not in moved]
    indent = GAP if moved else ""

    def lines(cells: Sequence[str], *, title: bool = False) -> list[str]:
        padded = (
            cells[i].rjust(widths[i]) if right[i] else cells[i].ljust(widths[i]) for i in kept
        )
        row = [(indent + GAP.join(padded)).rstrip()] if kept else []
        above = [i for i in moved if not kept or i < kept[0]]
        below = [i for i in moved if i not in above]
        rows = [line for i in above for line in _wrapped(cells[i], "", width)]
        rows += row
        deeper = indent + GAP
        rows += [
            line for i in below if cells[i] != "-" for line in _wrapped(cells[i], deeper, width)
        ]
        return [_bold(line) for line in rows] if title and width is not None else rows

    return [line for i, cells in enumerate((header, *body)) for line in lines(cells, title=i == 0)]


def _moved(widths: Sequence[int], right: Sequence[bool], width: int | None) -> list[int]:
    """Columns that leave the row, the fewest that make the others fit, the widest first."""
    moved: list[int] = []
    words = sorted((i for i in range(len(widths)) if not right[i]), key=lambda i: -widths[i])
    while width is not None and words:
        kept = [w for i, w in enumerate(widths) if i not in moved]
        indent = len(GAP) if moved else 0
        if sum(kept) + len(GAP) * (len(kept) - 1) + indent <= width:
            break
        moved.append(words.pop(0))
    return sorted(moved)


def _wrapped(text: str, indent: str, width: int | None) -> list[str]:
    assert width is not None, "only tables that have to fit are wrapped"
    room = max(width, len(indent) + _NARROWEST)
    return textwrap.wrap(
        text, room, initial_indent=indent, subsequent_indent=indent + GAP,
        break_on_hyphens=False,
    ) or [indent]  # fmt: skip


def _bold(line: str) -> str:
    return line if "NO_COLOR" in os.environ else f"\033[1m{line}\033[0m"
