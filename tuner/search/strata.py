"""Looking into every part of a space: each pair of layouts, and each algorithm.

A schedule that is best in its own layout may lose to another once conversions are counted; the
compiler can only weigh what was measured. So each layout pair of a space gets at least a few trials
with its best predicted configurations, and pairs that keep close to the best get a share of the
later ones. Algorithms get at least a few trials too: a model that misjudges one as a whole would
otherwise never find out. Parts that measured far behind are left alone after the
first trial.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.tuner.search.evolution import Evolution, evolve
from tilesmith.tuner.tasks.strategy import Strategy, new_random, pick_diverse
from tilesmith.tuner.tasks.task import Layouts, TuningState

_BREEDING = Evolution(population=128, generations=1, crossover=0.3, structures=4)
_INFORMED_BREEDING = Evolution(population=128, generations=0, structures=3)
"""Where scores rank well from the start, a draw does: most of what it costs is structures."""
_ALGORITHM_TRIALS = 2
_FEW = 4
"""Subspaces of one algorithm that are looked into one by one; more are variants of it."""
_CLOSE = 1.5
"""A layout pair whose best is within this factor of the best of all keeps getting trials."""
_SHARE = 0.08
"""Share of all trials that a close pair gets at least."""
_HOPELESS = 3.0
"""A part whose first trial is slower than the best by this factor is measured once only."""


@dataclass(frozen=True)
class Stratum:
    """A part of a space that must not be overlooked.

    Attributes:
        space: the part.
        least: trials it gets at least, unless it is hopeless.
        share: share of all trials it gets at least while it is close to the best.
    """

    space: SearchSpace
    least: int
    share: float = 0.0

    def holds(self, config: Config) -> bool:
        """Whether a configuration of the whole space lies in this part."""
        return any(subspace.holds(config) for subspace in self.space.subspaces)


def strata(
    space: SearchSpace, layouts: Callable[[Config], Layouts], layout_trials: int
) -> list[Stratum]:
    """The parts of a space to look into: its layout pairs and its algorithms, where it has
    several.
    """
    pairs = layout_spaces(space, layouts)
    parts = [Stratum(part, layout_trials, _SHARE) for part in pairs.values()]
    parts = parts if len(parts) > 1 else []
    algorithms = _algorithms(space)
    if len(algorithms) > 1:
        parts += [Stratum(part, _ALGORITHM_TRIALS) for part in algorithms]
    return parts


def _algorithms(space: SearchSpace) -> list[SearchSpace]:
    """The part of a space for each algorithm, by the fixed value of that name; where there is one,
    its subspaces if they are few.
    """
    parts: dict[KnobValue | None, list[Subspace]] = {}
    subspaces = [subspace for subspace in space.subspaces if subspace.size]
    for subspace in subspaces:
        parts.setdefault(dict(subspace.fixed).get("algorithm"), []).append(subspace)
    if len(parts) == 1 and len(subspaces) <= _FEW:
        return [SearchSpace((subspace,)) for subspace in subspaces]
    return [SearchSpace(tuple(parameters)) for parameters in parts.values()]


def layout_spaces(
    space: SearchSpace, layouts: Callable[[Config], Layouts]
) -> Mapping[Layouts, SearchSpace]:
    """The part of a space for each layout pair; one entry if there is nothing to choose."""
    parts: dict[Layouts, list[Subspace]] = {}
    for subspace in space.subspaces:
        for part in _fixed_layouts(subspace):
            if part.size:
                whole = SearchSpace((part,))
                any_config = whole.sample(np.random.default_rng(0))[0]
                parts.setdefault(layouts(any_config), []).append(part)
    return {pair: SearchSpace(tuple(parameters)) for pair, parameters in parts.items()}


def _fixed_layouts(subspace: Subspace) -> Iterable[Subspace]:
    """The subspace cut into one part for each combination of its layout knobs' values."""
    free = [knob for knob in subspace.knobs if knob.structural and knob.name.endswith("layout")]
    rest = tuple(knob for knob in subspace.knobs if knob not in free)
    for values in itertools.product(*(knob.values for knob in free)):
        fixed = tuple((knob.name, v) for knob, v in zip(free, values, strict=True))
        yield replace(subspace, fixed=(*subspace.fixed, *fixed), knobs=rest) if free else subspace


def propose_batch(
    state: TuningState,
    strategy: Strategy,
    parts: Sequence[Stratum],
    count: int,
    promising: Sequence[Config] | None = None,
) -> list[Config]:
    """Up to `count` configurations: the strategy's, what promises most first, then, up to half of
    them, those for parts that have had too few trials.

    Args:
        promising: parts without any of these, and without a trial, get none; None: all may.
    """
    chosen = propose_for_strata(state, parts, -(-count // 2), promising)
    return list(dict.fromkeys([*strategy.propose(state, count - len(chosen)), *chosen]))


def propose_for_strata(
    state: TuningState,
    parts: Sequence[Stratum],
    count: int,
    promising: Sequence[Config] | None = None,
) -> list[Config]:
    """Up to `count` configurations for parts that have had too few trials, best predicted first."""
    fastest = state.best[1] if state.best is not None else 0.0
    proposals: list[Config] = []
    for part in parts:
        mine = [result for config, result in state.results.items() if part.holds(config)]
        pending = sum(part.holds(config) for config in proposals)
        best = min((t for result in mine if (t := result.latency) is not None), default=None)
        wanted = part.least
        if promising is not None and not mine and not any(map(part.holds, promising)):
            wanted = 0
        if best is not None and best <= _CLOSE * fastest:
            wanted = max(wanted, int(part.share * len(state.results)))
        elif best is not None and best > _HOPELESS * fastest:
            wanted = 1
        missing = min(wanted - len(mine) - pending, count - len(proposals))
        if missing > 0:
            proposals += _best_predicted(state.within(part.space), missing, proposals)
    return proposals


def _best_predicted(state: TuningState, count: int, taken: Sequence[Config]) -> list[Config]:
    """New configurations of one part, best predicted first."""
    seeds = [config for config, _ in state.ranked() if config in state.space][:16]
    breeding = _INFORMED_BREEDING if state.informed else _BREEDING
    ordered = evolve(state, [*seeds, *state.seeds], breeding)
    picked = pick_diverse(state, ordered, count, taken)
    return picked + new_random(state, count - len(picked), taken=[*taken, *picked])
