"""From lane to lane: reductions of all lanes, and one lane spread over all.

    v = op(v, rotated by 1), by 2, by 4, by 8 within superlanes, then by superlanes

brings the result of all lanes to every lane. Where one lane is wanted on all, the others are set to
zero before they are added up.
"""

from __future__ import annotations

import numpy as np

from tilesmith.codegen.lpu.dataflow import LANES, SUPERLANE, Ints, Movement
from tilesmith.codegen.lpu.selection.state import State
from tilesmith.codegen.lpu.selection.vectors import Moved, Stored, Vectors

FUNCTIONS = {"sum": "add", "max": "maximum", "min": "minimum"}

STEPS = (1, 2, 4, 8)
"""Rotations within superlanes."""

HALVES = (10, 5)
"""Superlanes from which to which first: 20 = 2 x 2 x 5; three more steps bring five together."""


def all_lanes(state: State, name: str, reducer: str, value: Vectors, count: int) -> Vectors:
    """The reduction of all lanes, in every lane."""
    if value.dtype in ("float16", "int8", "uint8", "bool"):
        value = state.algebra.converted(value, "float32")
    for step in STEPS:
        lanes = tuple(lane - lane % SUPERLANE + (lane + step) % SUPERLANE for lane in range(LANES))
        value = _step(state, name, reducer, value, count, ("rotate", lanes))
    for step in HALVES:
        value = _step(state, name, reducer, value, count, _around(step))
    fifths = state.chains.stored(name, value, count)
    value = _step(state, name, reducer, fifths, count, _around(1))
    value = _step(state, name, reducer, value, count, _around(2))
    last = Moved("permute", fifths, _around(4)[1])
    return state.algebra.binary(FUNCTIONS[reducer], value, last)


Move = tuple[Movement, tuple[int, ...]]


def _around(superlanes: int) -> Move:
    by = superlanes * SUPERLANE
    return "permute", tuple((lane + by) % LANES for lane in range(LANES))


def _step(state: State, name: str, reducer: str, value: Vectors, count: int, move: Move) -> Vectors:
    """A value combined with itself moved; both are read at once, one from either hemisphere."""
    held = state.chains.stored(name, value, count)
    state.copied(held.tensor)
    return state.algebra.binary(FUNCTIONS[reducer], held, Moved(move[0], held, move[1]))


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
    found = all_lanes(state, name, "sum", single, len(distinct))
    found = state.algebra.converted(found, value.dtype)
    held = state.chains.stored(name, found, len(distinct))
    return Stored(held.tensor, held.numbers[places.reshape(-1)], held.dtype)
