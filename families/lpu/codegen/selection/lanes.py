"""From lane to lane: reductions of all lanes, and one lane spread over all.

    v = op(v, rotated by 1), by 2, by 4, by 8 within superlanes, then by superlanes

brings the result of all lanes to every lane. Few rows wait for every step, so that fewer steps of
several rotations are quicker; many rows wait for units, and one rotation a step takes the fewest.
Where one lane is wanted on all, the others are set to zero before they are added up.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import LANES, SUPERLANE, Ints, Movement, Rows
from tilesmith.families.lpu.codegen.selection.graphs.vectors import (
    Moved,
    MxmPass,
    Stored,
    Total,
    Vectors,
    sum_type,
)
from tilesmith.families.lpu.codegen.selection.state import FOLLOWED, ONE_BLOCK, WIDE_ROWS, State
from tilesmith.families.lpu.schedules.building_blocks.machine import WIDE

FUNCTIONS = {"sum": "add", "max": "maximum", "min": "minimum"}

SERIES = 2
"""Passes of MXM in one chain that add up lanes."""

STEPS = (1, 2, 4, 8)
"""Rotations within superlanes."""

HALVES = (10, 5)
"""Superlanes from which to which first: 20 = 2 x 2 x 5; three more steps bring five together."""

FEW_ROWS = 16
"""Rows up to which sums and maxima are taken in float32."""


def all_lanes(state: State, name: str, reducer: str, value: Vectors, count: int) -> Vectors:
    """The reduction of all lanes, in every lane.

    The largest of float16 is one of them: so they are moved as they are, half as wide.
    """
    narrow = value.dtype == "float16" and reducer != "sum" and count > FEW_ROWS
    if value.dtype in ("int8", "uint8", "bool") or (value.dtype == "float16" and not narrow):
        value = state.algebra.converted(value, WIDE)
    if count <= WIDE_ROWS:
        for moves in ((4, 8, 12, 16), (20, 40, 60), (80, 160, 240), (1, 2, 3)):
            value = moved_onto(state, name, reducer, value, count, _rotations(moves))
        return value
    for step in STEPS:
        value = moved_onto(state, name, reducer, value, count, [_within(step)])
    for step in HALVES:
        value = moved_onto(state, name, reducer, value, count, [_around(step)])
    fifths = state.chains.stored(name, value, count)
    value = moved_onto(state, name, reducer, fifths, count, [_around(1)])
    value = moved_onto(state, name, reducer, value, count, [_around(2)])
    last = Moved("permute", fifths, _around(4)[1])
    return state.algebra.binary(FUNCTIONS[reducer], value, last)


Move = tuple[Movement, tuple[int, ...]]


def _within(step: int) -> Move:
    """A rotation within superlanes."""
    lanes = (lane - lane % SUPERLANE + (lane + step) % SUPERLANE for lane in range(LANES))
    return "rotate", tuple(lanes)


def _around(superlanes: int) -> Move:
    return "permute", _by(superlanes * SUPERLANE)


def _by(lanes: int) -> tuple[int, ...]:
    return tuple((lane + lanes) % LANES for lane in range(LANES))


def _rotations(moves: tuple[int, ...]) -> list[Move]:
    """Rotations of all lanes, by units of two kinds in turn."""
    kinds: tuple[Movement, Movement] = ("rotate", "permute")
    return [(kinds[turn % 2], _by(move)) for turn, move in enumerate(moves)]


def rotated(
    state: State, name: str, reducer: str, value: Vectors, count: int, moves: tuple[int, ...]
) -> Vectors:
    """A value combined with itself rotated by so many lanes of all."""
    return moved_onto(state, name, reducer, value, count, _rotations(moves))


def moved_onto(
    state: State, name: str, reducer: str, value: Vectors, count: int, moves: list[Move]
) -> Vectors:
    """A value combined with itself moved; all are read at once, some for SXM and one for VXM."""
    held = state.chains.stored(name, value, count)
    state.copied(held.tensor)
    tensor = state.chains.tensors[held.tensor]
    if count <= WIDE_ROWS and tensor.role == "temporary" and not tensor.block:
        block = tensor.rows if count <= ONE_BLOCK else FOLLOWED
        state.chains.tensors[held.tensor] = replace(tensor, block=block)
    parts: list[Vectors] = [held, *(Moved(kind, held, lanes) for kind, lanes in moves)]
    return state.algebra.converted(combined(state, reducer, parts), held.dtype)


def combined(state: State, reducer: str, parts: Sequence[Vectors]) -> Vectors:
    """Vectors combined in pairs."""
    while len(parts) > 1:
        pairs = [parts[at : at + 2] for at in range(0, len(parts), 2)]
        parts = [
            state.algebra.binary(FUNCTIONS[reducer], *pair) if len(pair) == 2 else pair[0]
            for pair in pairs
        ]
    return parts[0]


def summed(state: State, name: str, parts: list[tuple[Stored, int]], count: int) -> Vectors:
    """The sum of all lanes of rows of float16, in every lane: products with ones, exact but for the
    rounding of the sum.

    Args:
        parts: rows, and how many of their lanes count.
    """
    ones = state.chains.literal("ones", np.ones((LANES, LANES), np.float16), "float16")
    state.chains.tensors[ones] = replace(state.chains.tensors[ones], block=LANES)
    weights = Rows.of(ones, 0, (LANES, 1))
    passes = tuple(MxmPass(rows, weights, lanes) for rows, lanes in parts)
    return state.chains.stored(name, Total(passes, sum_type("float16"), SERIES), count)


def one_lane(state: State, name: str, value: Stored, lanes: Ints) -> Vectors:
    """Lane `lanes[i]` of vector i, in every lane of it."""
    wanted = np.stack([value.numbers, lanes], axis=1)
    distinct, places = np.unique(wanted, axis=0, return_inverse=True)
    masks, kinds = np.unique(distinct[:, 1], return_inverse=True)
    table = np.zeros((len(masks), LANES), bool)
    table[np.arange(len(masks)), masks] = True
    mask = Stored(state.chains.literal("lane", table, "bool"), kinds.reshape(-1), "bool")
    source = Stored(value.tensor, np.ascontiguousarray(distinct[:, 0]), value.dtype, value.frame)
    single = state.algebra.select(mask, source, state.algebra.number(0, value.dtype))
    spread = all_lanes(state, name, "sum", single, len(distinct))
    spread = state.algebra.converted(spread, value.dtype)
    held = state.chains.stored(name, spread, len(distinct))
    return Stored(held.tensor, held.numbers[places.reshape(-1)], held.dtype)
