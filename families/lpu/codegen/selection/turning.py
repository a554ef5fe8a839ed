"""Moves that turn lanes into rows: done by MXM, which gives any lane of its weights on demand.

    y[l] = sum over k of e[k] w[l][k] = w[l][j]     for e the row that is one at j, else zero

Rows of the source are installed as weights, those that the lanes of a result come from; rows of the
identity flow past and each picks a lane of all of them. Where lanes of one result come from
different lanes, each kind of them is a product of its own, and VXM puts them together. Products
with one and zero are exact.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import LANES, Ints, Rows
from tilesmith.families.lpu.codegen.selection.graphs.vectors import (
    MxmPass,
    Stored,
    Total,
    Vectors,
    sum_type,
)
from tilesmith.families.lpu.codegen.selection.state import State
from tilesmith.families.lpu.schedules.building_blocks.machine import FLOWING, MULTIPLIED
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.ir.program import Buffer
from tilesmith.search_space.support.errors import CodegenError


@dataclass(frozen=True)
class Turned:
    """Where vectors go whose lanes come from other lanes on every row.

    Attributes:
        stage: that makes them.
        at: lane of the result that the first stands on.
        mask: True on some lanes of so many vectors.
    """

    state: State
    stage: str
    at: int
    mask: Callable[[Any, int], Vectors]


def turned(piece: Turned, buffer: Buffer, rows: Ints, lanes: Ints) -> list[tuple[Ints, Vectors]]:
    """Vectors whose lanes come from other lanes on every row.

    Args:
        buffer: they come from.
        rows, lanes: of the source, for each row and lane of the result, (rows, lanes).

    Returns:
        (which rows of the result, their vectors), every row once.

    Raises:
        CodegenError: MXM does not multiply the type, or the source flows.
    """
    if buffer.dtype not in MULTIPLIED or buffer.scope in FLOWING:
        raise CodegenError(
            f"stage '{piece.stage}' turns lanes of '{buffer.name}' into rows, which MXM does for "
            f"{', '.join(MULTIPLIED)} in memory"
        )
    groups, members = np.unique(rows, axis=0, return_inverse=True)
    pieces = []
    for number, sources in enumerate(groups):
        mine = np.flatnonzero(members.reshape(-1) == number)
        pieces.append((mine, _picked(piece, buffer, sources, lanes[mine])))
    return pieces


def _installed(piece: Turned, buffer: Buffer, sources: Ints) -> Rows:
    """Rows of the source beside each other, as weights are."""
    chains, name = piece.state.chains, f"{piece.stage}.sources"
    tensor = chains.temporary(name, len(sources), buffer.dtype)
    chains.tensors[tensor.name] = replace(tensor, block=len(sources))
    rows = Rows.of(tensor.name, 0, (len(sources), 1))
    chains.write(name, piece.state.read(buffer, sources), rows)
    return rows


def _picked(piece: Turned, buffer: Buffer, sources: Ints, lanes: Ints) -> Vectors:
    """Vectors of lanes `lanes` (rows, lanes) of the same rows each, (lanes,)."""
    state = piece.state
    kinds, members = np.unique(lanes, axis=1, return_inverse=True)
    members, one = members.reshape(-1), np.eye(LANES, dtype=to_numpy(buffer.dtype))
    identity = state.chains.literal("identity", one, buffer.dtype)
    weights = _installed(piece, buffer, np.concatenate([sources[:1].repeat(piece.at), sources]))
    vectors: Vectors | None = None
    for kind in range(kinds.shape[1]):
        numbers = np.ascontiguousarray(kinds[:, kind], np.int64)
        moving = Stored(identity, numbers, buffer.dtype)
        passes = (MxmPass(moving, weights, LANES),)
        value = state.algebra.converted(Total(passes, sum_type(buffer.dtype)), buffer.dtype)
        value = state.chains.stored(f"{piece.stage}.turned", value, len(numbers))
        mask = piece.mask(piece.at + np.flatnonzero(members == kind), len(numbers))
        vectors = value if vectors is None else state.algebra.select(mask, value, vectors)
    assert vectors is not None, "a piece has lanes"
    return vectors
