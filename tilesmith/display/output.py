"""What commands print: one JSON object for scripts, or a table for people; notes go to stderr.

Tables are aligned columns, made to fit a terminal, whole everywhere else. Off a terminal every row
is one line, columns two blanks apart, an empty cell is "-": what `awk`, `cut` and `sort` can read.
On a terminal that is too narrow the widest columns of words leave the row: those before it stand
above, the others below, wrapped. So no number is cut, and no line wraps by itself.
"""

import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from tilesmith.display.printable import printable

DATABASE = "tilesmith.database"
"""Where a command's context keeps its database (`jobs.databases.Located`)."""


SCHEMA = 1
"""Version of the keys of all objects printed; it rises when one is taken away."""

_PRINTED = "tilesmith.printed"
_MILLISECONDS_TOO = ("median_ms", "min_ms")
"""Keys of `bench` that scripts had before latencies had one unit."""


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout, standard JSON: numbers that are not finite become null.

    A command that has a database says which, and why that one.
    """
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[_PRINTED] = True
    said = {"schema": SCHEMA, **value, **_database(context)}
    click.echo(json.dumps(_plain(said), indent=2, allow_nan=False))


def print_error(error: Mapping[str, Any], context: click.Context | None = None) -> None:
    """What failed as the one JSON object on stdout, unless the command printed its own."""
    if context is None or not context.meta.get(_PRINTED):
        click.echo(json.dumps({"schema": SCHEMA, "error": dict(error)}, indent=2))


def _database(context: click.Context | None) -> dict[str, Any]:
    database = None if context is None else context.meta.get(DATABASE)
    return {} if database is None else {"database": database.display, "database_by": database.why}


def note(text: str) -> None:
    """A line for people, on stderr."""
    click.echo(text, err=True)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table: columns aligned, numbers to the right; on a terminal as wide as that."""
    body = [[_cell(value) for value in row] for row in rows]
    columns = list(zip(header, *body, strict=True))
    right = [bool(body) and all(_is_number(cell) for cell in column[1:]) for column in columns]
    return "\n".join(aligned(header, body, right, terminal_width()))


def duration(seconds: float) -> str:
    """A time in the unit that suits it: "12.3 us", "4.567 ms", "1.234 s"."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.4g} us"
    return f"{seconds * 1e3:.4g} ms" if seconds < 1 else f"{seconds:.4g} s"


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return printable(str(value))


def _is_number(text: str) -> bool:
    if text == "-":
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def _plain(value: Any) -> Any:
    """Standard JSON of one shape: latencies in microseconds, configurations as objects."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    plain: dict[str, Any] = {}
    for key, item in value.items():
        if str(key) == "ms" or str(key).endswith("_ms"):
            plain[f"{str(key).removesuffix('ms')}us"] = _plain(_times(1e3, item))
            if key not in _MILLISECONDS_TOO:
                continue
        if key == "config" and isinstance(item, str):
            item = json.loads(item) if item else None
        plain[key] = _plain(item)
    return plain


def _times(factor: float, value: Any) -> Any:
    """The numbers of a value, however it is nested, by a factor."""
    if isinstance(value, Mapping):
        return {key: _times(factor, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_times(factor, item) for item in value]
    return value * factor if isinstance(value, int | float) else value


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
