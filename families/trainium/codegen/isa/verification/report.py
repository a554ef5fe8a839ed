"""What every law reads and says: columns of a stream's operands, and the error of its first breach.

Laws look at all rows at once; a mask has one element a row, true where the row breaks the law.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Ints
from tilesmith.families.trainium.codegen.isa.text import instruction_text
from tilesmith.search_space.support.errors import VerificationError

Mask = np.ndarray
Explain = Callable[[int], str]


def fail(stream: InstructionStream, wrong: Mask, explain: Explain) -> None:
    """Raise for the first row of `wrong`."""
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise breach(stream, row, explain(row))


def breach(stream: InstructionStream, row: int, why: str) -> VerificationError:
    """The error of one instruction; it begins with the line of a kernel written by hand."""
    return VerificationError(f"{told_of(stream, row)}: {why}")


def told_of(stream: InstructionStream, row: int) -> str:
    """An instruction as errors name it."""
    position = int(stream.rows["position"][row])
    line = stream.lines[position] if position < len(stream.lines) else ""
    return (
        f"{line}{': ' if line else ''}kernel '{stream.name}', instruction {row} "
        f"({instruction_text(stream, row)})"
    )


def column(stream: InstructionStream, operand: str, name: str, missing: int = -1) -> Ints:
    """A column of an operand's accesses, one element a row; `missing` where a row has none."""
    index = stream.rows[operand]
    values = stream.accesses[name]
    if not len(values):
        return np.full(len(index), missing, dtype=np.int64)
    return np.where(index >= 0, values[index], missing)


def partitions(stream: InstructionStream, operand: str) -> Ints:
    """Partitions of an operand in each row (0: no such operand)."""
    index = stream.rows[operand]
    counts = stream.accesses["count"]
    return np.where(index >= 0, counts[index, 0], 0) if len(counts) else np.zeros_like(index)
