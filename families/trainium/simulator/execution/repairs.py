"""Which change of one instruction makes a nest right again.

Where several instructions make an element and it is wrong, each of them is changed in one place
(its function, a number, the order of its operands, where an operand lies) and the stretch is run
again. A change after which the nest is right names the instruction, and says what is wrong with it.

Invariant: numbers that are tried are those of the nest's own expression, or are fitted to what it
should give; operands are those of other instructions of the stream.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.kit.simulation.fitting import fitted
from tilesmith.families.trainium.codegen.isa.instructions import (
    ACTIVATIONS,
    OPERATIONS,
    AccessPattern,
    Instruction,
    InstructionStream,
    Opcode,
)
from tilesmith.families.trainium.codegen.isa.text import access_text
from tilesmith.families.trainium.simulator.execution.replaying import Replay
from tilesmith.search_space.expressions.scalar import constants
from tilesmith.search_space.ir.program import Block

Array = NDArray[Any]
Looks = tuple[Replay, Callable[[], bool], Callable[[], Array]]
"""The memory; whether the nest is right now; how far its wrong elements are away."""

TRIES = 400
"""Changes that are tried in all."""

PLACES = 24
"""Other places of an operand that are tried."""

_OPERATING = (
    Opcode.TENSOR_TENSOR, Opcode.TENSOR_SCALAR, Opcode.SCALAR_TENSOR_TENSOR, Opcode.REDUCE,
    Opcode.SCAN,
    Opcode.TENSOR_SCALAR_REDUCE,
)  # fmt: skip
_TWO = (Opcode.TENSOR_SCALAR, Opcode.SCALAR_TENSOR_TENSOR, Opcode.SCAN, Opcode.TENSOR_SCALAR_REDUCE)
_NUMBERS = {
    Opcode.ACTIVATION: 2, Opcode.TENSOR_SCALAR: 2, Opcode.SCALAR_TENSOR_TENSOR: 1,
    Opcode.MEMSET: 1, Opcode.SELECT: 1,
    Opcode.TENSOR_SCALAR_REDUCE: 1,
}  # fmt: skip


def repairs(
    stream: InstructionStream,
    stretch: Sequence[Instruction],
    among: Sequence[int],
    block: Block,
    looks: Looks,
) -> list[tuple[int, str]]:
    """The rows of `among` that a change makes right, in order, with the change in words."""
    replay, right, _ = looks
    changes: dict[int, str] = {}
    left = TRIES
    for number in among:
        place = next(i for i, row in enumerate(stretch) if row.index == number)
        whole = list(stretch)
        for changed, words in _changes(stream, stretch[place], block, (place, stretch, looks)):
            left -= 1
            if left <= 0:
                return list(changes.items())
            whole[place] = changed
            try:
                replay.again(whole)
            except (ValueError, KeyError, IndexError):  # outside its memory, or no such operation
                continue
            if right():
                changes[number] = words
                break
    return list(changes.items())


def _changes(
    stream: InstructionStream,
    row: Instruction,
    block: Block,
    context: tuple[int, Sequence[Instruction], Looks],
) -> Iterator[tuple[Instruction, str]]:
    """An instruction changed in one place, the likeliest first."""
    if row.op == Opcode.ACTIVATION:
        for code, name in enumerate(ACTIVATIONS):
            if code != row.function:
                yield replace(row, function=code), f"right with '{name}'"
    if row.op in _OPERATING:
        for code, name in enumerate(OPERATIONS):
            if code != row.function:
                yield replace(row, function=code), f"right with '{name}'"
            if row.op in _TWO and code != row.function2:
                yield replace(row, function2=code), f"right with '{name}' second"
    if row.op in (Opcode.TENSOR_TENSOR, Opcode.SCALAR_TENSOR_TENSOR, Opcode.MATMUL, Opcode.SCAN):
        swapped = {**row.operands, "in0": row.operands["in1"], "in1": row.operands["in0"]}
        yield replace(row, operands=swapped), "right with its operands swapped"
    if row.op == Opcode.MATMUL:
        other = 0 if row.accumulate else 1
        words = "right if it adds to what is there" if other else "right if it adds to nothing"
        yield replace(row, accumulate=other), words
    for slot in range(_NUMBERS.get(row.op, 0)):
        for value in _numbers(row, slot, block, context):
            numbers = tuple(value if n == slot else x for n, x in enumerate(row.immediates))
            yield replace(row, immediates=numbers), f"right with {value:.9g} in place of a number"
    for name, access in row.operands.items():
        for other_place in _places(stream, row, access):
            operands = {**row.operands, name: other_place}
            yield replace(row, operands=operands), f"right with {access_text(stream, other_place)}"


def _numbers(
    row: Instruction, slot: int, block: Block, context: tuple[int, Sequence[Instruction], Looks]
) -> Iterator[float]:
    """Numbers of the nest's expression, and one that fits."""
    known = {0.0, 1.0, -1.0, *constants(block.value)}
    known |= {-value for value in known} | {1 / value for value in known if value}
    old = row.immediates[slot]
    yield from sorted(value for value in known if value != old)
    place, stretch, (replay, _, gap) = context
    whole = list(stretch)

    def at(value: float) -> Array:
        numbers = tuple(value if n == slot else x for n, x in enumerate(row.immediates))
        whole[place] = replace(row, immediates=numbers)
        replay.again(whole)
        return gap()

    yield from fitted(at, old)


def _places(
    stream: InstructionStream, row: Instruction, access: AccessPattern
) -> list[AccessPattern]:
    """Operands of other instructions of the same shape, those nearest by first."""
    rows = stream.rows
    known: dict[AccessPattern, None] = dict.fromkeys(_between(stream, row, access))
    numbers = range(len(stream))
    for number in sorted(numbers, key=lambda n: abs(n - row.index))[: 40 * PLACES]:
        for name in ("in0", "in1", "in2", "out"):
            other = int(rows[name][number])
            if other < 0:
                continue
            operand = stream.access(other)
            alike = operand.shape == access.shape and operand.dtype == access.dtype
            if alike and operand.space == access.space and operand != access:
                known[operand] = None
        if len(known) >= PLACES:
            break
    return list(known)[:PLACES]


def _between(
    stream: InstructionStream, row: Instruction, access: AccessPattern
) -> list[AccessPattern]:
    """Where an operand would lie if it went on as in the instructions beside it."""
    name = next(name for name, operand in row.operands.items() if operand == access)
    column = stream.rows[name]
    alike = [
        number
        for number in np.flatnonzero((stream.rows["op"] == row.op) & (column >= 0)).tolist()
        if stream.access(int(column[number])).shape == access.shape or number == row.index
    ]
    at = alike.index(row.index)
    offsets = {
        n - at: stream.access(int(column[alike[n]])).offset
        for n in range(max(0, at - 2), min(len(alike), at + 3))
    }
    accesses = []
    for one, two, times in ((-1, 1, 0.5), (-2, -1, 2.0), (2, 1, 2.0)):
        if one in offsets and two in offsets:
            place = offsets[one] + times * (offsets[two] - offsets[one])
            if place >= 0 and place == int(place) and place != access.offset:
                accesses.append(replace(access, offset=int(place)))
    return accesses
