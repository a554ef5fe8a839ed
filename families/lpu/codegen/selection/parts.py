"""Rows of a nest that go one way: accesses begin at the same lanes, what flows moves alike."""

from collections.abc import Iterator

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import LANES
from tilesmith.families.lpu.codegen.selection.layout.accesses import LoopGrid, place
from tilesmith.families.lpu.codegen.selection.layout.nests import VectorNest
from tilesmith.families.lpu.codegen.selection.state import State
from tilesmith.families.lpu.schedules.building_blocks.machine import FLOWING
from tilesmith.search_space.expressions.expression import const
from tilesmith.search_space.expressions.scalar import Load, loads


def plain(access: Load, lanes: str) -> bool:
    """Whether an access goes along the lanes lane by lane, or not at all."""
    if not lanes or not access.indices:
        return True
    *lead, last = access.indices
    factor = last.coefficient(lanes) if lanes in last.variables() else const(1)
    step = factor is not None and factor.constant == 1
    return step and all(lanes not in index.variables() for index in lead)


def alike(
    state: State, nest: VectorNest, grid: LoopGrid, lanes: str, accesses: tuple[Load, ...]
) -> Iterator[LoopGrid]:
    """Parts of a grid on whose rows every access begins at the same lane."""
    starts = []
    for access in accesses:
        if plain(access, lanes):
            where = place(access, state.buffers[access.buffer], grid, lanes)
            if where.moves or not lanes or access == nest.block.write:
                starts.append(where.lane % LANES)
    if not starts:
        yield grid
        return
    kinds, members = np.unique(np.stack(starts), axis=1, return_inverse=True)
    if kinds.shape[1] == 1:
        yield grid
        return
    for kind in range(kinds.shape[1]):
        yield grid.of_rows(members.reshape(-1) == kind)


def turns(state: State, nest: VectorNest, grid: LoopGrid, lanes: str) -> Iterator[LoopGrid]:
    """Parts of a grid that take numbers on their way to all lanes, every sixteenth row each; what
    flows on is one part."""
    if state.buffers[nest.block.buffer].scope not in FLOWING:
        for access in loads(nest.block.value):
            buffer = state.buffers[access.buffer]
            if buffer.scope not in FLOWING or not plain(access, lanes):
                continue
            numbers = state.turns(buffer, place(access, buffer, grid, lanes).rows)
            if numbers is not None:
                for turn in np.unique(numbers).tolist():
                    yield grid.of_rows(numbers == turn)
                return
    yield grid
