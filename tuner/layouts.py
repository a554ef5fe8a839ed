"""Exploring every pair of input and output layouts, so that the compiler can settle them over a
graph.

A schedule that is best in its own layout may lose to another once conversions are counted; the
compiler can only weigh what was measured. So each layout pair of a space gets at least a few
trials with its best predicted configurations, and pairs that keep close to the best get a share of
the later ones. Pairs that the simulator puts far behind are passed over.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from search_space.config import Config
from search_space.space import SearchSpace, Subspace
from tuner.evolution import Evolution, evolve
from tuner.strategy import new_random, pick_diverse
from tuner.task import Layouts, TuningState

LayoutSpaces = Mapping[Layouts, SearchSpace]

_BREEDING = Evolution(population=96, generations=3)
_CLOSE = 1.5
"""A pair whose best is within this factor of the best of all keeps getting trials."""
_SHARE = 0.08
"""Share of all trials that a close pair gets at least."""
_HOPELESS = 3.0
"""A pair predicted slower than the best by this factor is measured once only."""


def layout_spaces(space: SearchSpace, layouts: Callable[[Config], Layouts]) -> LayoutSpaces:
    """The part of a space for each layout pair; one entry if there is nothing to choose."""
    parts: dict[Layouts, list[Subspace]] = {}
    for subspace in space.subspaces:
        for part in _fixed_layouts(subspace):
            if part.size:
                whole = SearchSpace((part,))
                any_config = whole.sample(np.random.default_rng(0))[0]
                parts.setdefault(layouts(any_config), []).append(part)
    return {pair: SearchSpace(tuple(found)) for pair, found in parts.items()}


def _fixed_layouts(subspace: Subspace) -> Iterable[Subspace]:
    """The subspace cut into one part for each combination of its layout knobs' values."""
    free = [knob for knob in subspace.knobs if knob.structural and knob.name.endswith("layout")]
    rest = tuple(knob for knob in subspace.knobs if knob not in free)
    for values in itertools.product(*(knob.values for knob in free)):
        fixed = tuple((knob.name, v) for knob, v in zip(free, values, strict=True))
        yield replace(subspace, fixed=(*subspace.fixed, *fixed), knobs=rest) if free else subspace


def propose_for_layouts(
    state: TuningState, spaces: LayoutSpaces, count: int, least: int, logarithmic: bool
) -> list[Config]:
    """Up to `count` configurations for layout pairs that have had too few trials.

    Args:
        least: trials every promising pair gets.
        logarithmic: whether scores are logarithms of seconds, so that hopeless pairs can be told.
    """
    if len(spaces) < 2:
        return []
    best = state.best_by_layouts()
    fastest = min((latency for _, latency in best.values()), default=0.0)
    tried = Counter(state.layouts(config) for config in state.results)
    proposals: list[Config] = []
    for pair, space in spaces.items():
        close = pair in best and best[pair][1] <= _CLOSE * fastest
        wanted = max(least, int(_SHARE * len(state.results))) if close else least
        if pair in best and best[pair][1] > _HOPELESS * fastest and logarithmic:
            wanted = 1
        missing = min(wanted - tried[pair], count - len(proposals))
        if missing > 0:
            proposals += _best_predicted(state.within(space), missing)
    return proposals


def _best_predicted(state: TuningState, count: int) -> list[Config]:
    """New configurations of one layout pair, best predicted first."""
    seeds = [config for config, _ in state.ranked() if config in state.space][:16]
    picked = pick_diverse(state, evolve(state, [*seeds, *state.seeds], _BREEDING), count)
    return picked + new_random(state, count - len(picked), taken=picked)
