"""Configurations in bulk: checked, grouped by structure, turned into arrays of tile sizes.

The tuner asks for thousands at a time; checking them one by one against their search space would
cost more than judging them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.programs.structures import space_of, structure_program
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu.skeleton import Skeleton, skeleton_of


@dataclass(frozen=True)
class Batch:
    """Configurations of one structure.

    Attributes:
        structure: their structural part.
        places: where they stood in the list they came from.
        tiles: tile sizes by symbol, each (n,) int64.
    """

    structure: Config
    places: list[int]
    tiles: dict[str, NDArray[np.int64]]


def batches(workload: Workload, target: Target, configs: Sequence[Config]) -> list[Batch]:
    """Group configurations by structure, in order of first appearance.

    Raises:
        ConfigError: a configuration is not in the workload's space on the target.
    """
    space = space_of(workload, target)
    structural = space.structural_knobs
    groups: dict[tuple[tuple[str, object], ...], list[int]] = {}
    for place, config in enumerate(configs):
        key = tuple(item for item in config.items_ if item[0] in structural)
        groups.setdefault(key, []).append(place)
    batches = []
    for places in groups.values():
        first = configs[places[0]]
        space.validate(first)
        names = [name for name in first if name not in structural]
        values = _values(space, configs, places, names)
        subspace = space.subspace_of(first)
        _check(space, subspace, configs, places, names, values)
        tiles = {name: values[:, column] for column, name in enumerate(names)}
        batches.append(Batch(space.structure(first), places, tiles))
    return batches


def _values(
    space: SearchSpace, configs: Sequence[Config], places: list[int], names: list[str]
) -> NDArray[np.int64]:
    """Tile sizes, (configurations, tiles); one that lacks a knob is reported by its space."""
    rows = []
    for place in places:
        items = [i for i in configs[place].items_ if i[0] not in space.structural_knobs]
        if [name for name, _ in items] != names or not all(isinstance(v, int) for _, v in items):
            space.validate(configs[place])
        rows.append([value for _, value in items])
    return np.array(rows, dtype=np.int64).reshape(len(places), len(names))


def _check(
    space: SearchSpace,
    subspace: Subspace,
    configs: Sequence[Config],
    places: list[int],
    names: list[str],
    values: NDArray[np.int64],
) -> None:
    """Let the space explain the first configuration that is not legal."""
    good = np.ones(len(places), dtype=np.bool_)
    knobs = {knob.name: knob for knob in subspace.knobs}
    tiles = {name: values[:, column] for column, name in enumerate(names)}
    for name, value in subspace.fixed:
        if isinstance(value, int):
            tiles[name] = np.full(len(places), value, dtype=np.int64)
    for column, name in enumerate(names):
        good &= np.isin(values[:, column], np.array(knobs[name].values, dtype=np.int64))
    for constraint in subspace.constraints:
        good &= np.broadcast_to(constraint.value.evaluate(tiles) <= constraint.limit, good.shape)
    for place in np.flatnonzero(~good):
        space.validate(configs[places[int(place)]])


@lru_cache(maxsize=4096)
def skeleton(workload: Workload, target: Target, structure: Config) -> Skeleton:
    """The analysed program of a structure, kept."""
    program = structure_program(workload, target, structure)
    return skeleton_of(program, frozenset(workload.constants))


__all__ = ["Batch", "batches", "skeleton"]
