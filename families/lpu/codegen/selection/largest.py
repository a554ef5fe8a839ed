"""Largest values of lanes, sixteen rows at a time.

SXM's transposers turn sixteen rows into sixteen vectors, of which VXM takes the largest lane by
lane:

    rows 16 g + i, lanes 16 s + j  ──►  vectors j, lanes 16 s + i  ──►  vector g, lane 16 s + i:
                                                          the largest of superlane s of row i

so that what is left, the superlanes, is combined in a sixteenth of the vectors, by two steps of a
few rotations. In the end lane i of every superlane holds the result of row 16 g + i, and SXM's
distributors bring it to all lanes (`spreading`). A float16 takes both transposers of a hemisphere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import LANES, SUPERLANE, ChainBuilder, Operation, Rows
from tilesmith.families.lpu.codegen.selection.graphs.chains import MOST_ROWS
from tilesmith.families.lpu.codegen.selection.graphs.vectors import SpreadNumber, Stored, Vectors
from tilesmith.families.lpu.codegen.selection.lanes import (
    FUNCTIONS,
    Move,
    combined,
    moved_onto,
    rotated,
)
from tilesmith.families.lpu.codegen.selection.state import State
from tilesmith.families.lpu.schedules.building_blocks.machine import WIDE
from tilesmith.search_space.expressions.scalar import REDUCERS

FEW = 9
"""Superlanes that two steps of two moves among themselves bring together."""

OUTPUTS = 8
"""Of sixteen vectors of a transpose that one chain takes: with all, no stream would be left for
what VXM makes of them."""

STEPS = ((80, 160, 240), (16, 32, 48, 64))
"""Rotations that bring 20 superlanes together: four times five."""

HOMES = 4
"""Of the results: so many chains that spread them run side by side."""


FEWEST_ROWS = 64
"""Rows of float16 from which on they are reduced here."""


def fits(reducer: str, count: int) -> bool:
    """Whether so many rows of float16 are reduced here."""
    return reducer in ("max", "min") and count >= FEWEST_ROWS


def largest(state: State, name: str, reducer: str, parts: Sequence[Vectors], lanes: Sequence[int],
            count: int) -> SpreadNumber:  # fmt: skip
    """The largest (or least) of all lanes of rows of float16.

    Args:
        parts: rows side by side, whose lanes that do not count hold what changes nothing; but for
            whole superlanes.
        lanes: of each part that count.
    """
    groups = -(-count // SUPERLANE)
    superlanes = [
        _of_superlanes(state, name, reducer, _striped(state, name, part, count), groups)
        for part in parts
    ]
    used = [-(-many // SUPERLANE) for many in lanes]
    if len(parts) == 1 and used[0] <= FEW:
        value = superlanes[0]
        for step in (1, 3):
            moves = [_among(used[0], step), _among(used[0], 2 * step)]
            value = moved_onto(state, name, reducer, value, groups, moves)
    else:
        masked = (
            _masked(state, reducer, v, u, groups) for v, u in zip(superlanes, used, strict=True)
        )
        value = combined(state, reducer, list(masked))
        for rotations in STEPS:
            value = rotated(state, name, reducer, value, groups, rotations)
    value = state.algebra.converted(value, "float16")
    held = state.chains.stored(name, value, groups)
    tensor = state.chains.tensors[held.tensor]
    state.chains.tensors[held.tensor] = replace(tensor, copies=HOMES, block=groups)
    return SpreadNumber(held.tensor, count)


def _striped(state: State, name: str, value: Vectors, count: int) -> Stored:
    """Rows of which sixteen neighbours are read at once."""
    tensors = state.chains.tensors
    numbers = np.arange(-(-count // SUPERLANE) * SUPERLANE, dtype=np.int64)
    numbers[count:] -= SUPERLANE  # the last sixteen are filled up with rows of those before
    if isinstance(value, Stored) and not value.frame:
        tensor, first = tensors[value.tensor], int(value.numbers[0])
        inner = tensor.role == "temporary" and tensor.rows <= MOST_ROWS * SUPERLANE
        if inner and tensor.stripes in (1, SUPERLANE) and (np.diff(value.numbers) == 1).all():
            tensors[tensor.name] = replace(tensor, stripes=SUPERLANE, block=tensor.rows)
            return Stored(value.tensor, first + numbers, value.dtype)
    rows = state.chains.temporary(f"{name}.rows", count, "float16")
    tensors[rows.name] = replace(rows, stripes=SUPERLANE, block=count)
    state.chains.write(f"{name}.rows", value, Rows.of(rows.name, 0, (count, 1)))
    return Stored(rows.name, numbers, "float16")


def _among(used: int, step: int) -> Move:
    """The first superlanes moved in a ring among themselves."""
    ring = used * SUPERLANE
    lanes = np.arange(LANES)
    lanes[:ring] = (lanes[:ring] + step * SUPERLANE) % ring
    return "permute", tuple(lanes.tolist())


def _masked(state: State, reducer: str, value: Vectors, used: int, count: int) -> Vectors:
    """Vectors whose superlanes behind the first hold what changes nothing."""
    if used * SUPERLANE == LANES:
        return value
    mask = np.zeros((1, LANES), bool)
    mask[0, : used * SUPERLANE] = True
    flags = Stored(
        state.chains.literal("position", mask, "bool"), np.zeros(count, np.int64), "bool"
    )
    return state.algebra.select(flags, value, state.algebra.number(REDUCERS[reducer], value.dtype))


def _of_superlanes(state: State, name: str, reducer: str, rows: Stored, groups: int) -> Vectors:
    """Vectors whose lane 16 s + i is the largest of superlane s of row i of their sixteen."""
    halves = []
    for first in range(0, SUPERLANE, OUTPUTS):
        builder = ChainBuilder(f"{name}.turned", groups)
        turned = builder.transpose([
            builder.read(Rows(rows.tensor, np.ascontiguousarray(rows.numbers[turn::SUPERLANE])))
            for turn in range(SUPERLANE)
        ])  # fmt: skip
        front, operations = list(range(OUTPUTS)), list[Operation]()
        while len(front) > 1:
            pairs, front = list(zip(front[::2], front[1::2], strict=True)), []
            for pair in pairs:
                operations.append(Operation(FUNCTIONS[reducer], pair, WIDE))
                front.append(OUTPUTS + len(operations) - 1)
        tensor = state.chains.temporary(f"{name}.superlanes", groups, WIDE)
        value = builder.compute(turned[first : first + OUTPUTS], *operations)
        builder.write(value, Rows.of(tensor.name, 0, (groups, 1)))
        state.chains.chains.append(builder.chain())
        halves.append(Stored(tensor.name, np.arange(groups, dtype=np.int64), WIDE))
    return combined(state, reducer, halves)
