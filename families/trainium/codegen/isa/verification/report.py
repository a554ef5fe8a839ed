"""What every law reads and says: columns of a stream's operands, and the error of its first breach.

A law is a row of a table: which instructions break it, a sentence, and what stands in the places of
the sentence. Laws look at all rows at once; a mask has one element a row, true where the row breaks
the law. A later law may rely on those before it, as it is only asked for once they hold.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.isa.instructions import OPERANDS, InstructionStream, Ints
from tilesmith.families.trainium.codegen.isa.text import instruction_text
from tilesmith.search_space.support.errors import VerificationError

Mask = np.ndarray

Law = tuple[Any, ...]
"""The mask, the sentence, and for each place in it a value, or a column with one a row."""

Laws = Iterator[Law]


def hold(stream: InstructionStream, laws: Iterable[Law]) -> None:
    """Check laws one after the other.

    Raises:
        VerificationError: of the first row that breaks one: the instruction, the limit and the
            value that breaks it.
    """
    for wrong, sentence, *values in laws:
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            here = (value[row] if isinstance(value, np.ndarray) else value for value in values)
            raise breach(stream, row, sentence.format(*here))


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


def column(
    stream: InstructionStream, operand: str, of: str | NDArray[Any], missing: int = -1
) -> Ints:
    """A column of an operand's accesses, or what is known of each access, one element a row;
    `missing` where a row has no such operand."""
    index = stream.rows[operand]
    values = stream.accesses[of] if isinstance(of, str) else of
    if not len(values):
        return np.full(len(index), missing, dtype=np.int64)
    return np.where(index >= 0, values[index], missing)


def partitions(stream: InstructionStream, operand: str) -> Ints:
    """Partitions of an operand in each row (0: no such operand)."""
    return column(stream, operand, stream.accesses["count"][:, 0], 0)


def users(stream: InstructionStream, wrong: Mask) -> Iterator[tuple[str, Mask]]:
    """Of each operand the rows whose access there is wrong."""
    for operand in OPERANDS:
        yield operand, column(stream, operand, wrong, 0) > 0
