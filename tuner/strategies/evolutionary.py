"""Evolutionary search guided by the cost model: the default.

Each round gathers candidates, cheap to score: a population bred for a few generations from the best
measured configurations, the default, starting points carried over from similar workloads and random
ones; every neighbour by a single knob of the best measured, then of what promises most, a few steps
uphill; in a small space, all of it. Of those that come to the same, as far as the judge sees, one
is a candidate, and none if one was measured: knobs that nothing depends on would else take most of
the trials. What is measured is chosen by expected improvement, where the model states its doubt,
one in eight by predicted latency.

A share of each batch is random, so that a wrong model is found out: `_FIRST_RANDOM` of the first
where no latency is known, then `_EPSILON`, fading as results come in. Where an analytical latency
is known, what is drawn is plausible by it: a configuration comes as often as it would be the
fastest if each score were off by the usual error. Half of a task's first trials are such draws: the
best by that latency are all alike, and who has seen no others does not learn what is wrong with it.
Batches are small: what a batch teaches should serve the next.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from tilesmith.search_space.spaces.config import Config
from tilesmith.tuner.search.evolution import Evolution, evolve
from tilesmith.tuner.surrogates.acquisition import batch_by_improvement, log_expected_improvement
from tilesmith.tuner.surrogates.cost_model import Floats
from tilesmith.tuner.tasks.strategy import (
    SMALLEST_BATCH,
    Strategy,
    new_random,
    pick_diverse,
    strategies,
)
from tilesmith.tuner.tasks.task import Predict, TuningState

_BREEDING = Evolution(population=320, generations=3, crossover=0.3)
_INFORMED_BREEDING = Evolution(
    population=256, generations=1, crossover=0.3, fresh=0.2, structures=12, unmet=3
)
"""Where scores rank well from the start (an analytical latency), one generation does; judging
large generations costs little more than small ones."""
_INFORMED_BATCH = 12
"""Fewest at a time where scores are informed: choosing costs by the round."""
_BATCH = 16
"""Most at a time while the model learns from nothing but the measurements."""
_EPSILON = 0.1
_FIRST_RANDOM = 0.5
"""Random share of the first batch where no latency is known: a model that learned only where a
pretrained one looked would stay there.
"""
_FADING = 100
"""Trials after which the random share is halved."""
_DRAWN = 24
"""Trials of which, where scores are informed, half are plausible draws and half starting points:
the best of the same scores, so that searching again would cost more than measuring."""
_PLAUSIBLE = Evolution(population=256, generations=0, structures=8, unmet=4)
"""What plausible draws are taken from."""
_MEASURED_SEEDS = 24
_ELITE = 8
"""Best measured configurations all of whose neighbours are candidates."""
_ALIKE = 2e-3
"""Relative difference of latencies up to which configurations count as siblings."""
_CLIMBERS, _STEPS = 6, 3
"""Candidates whose neighbours are looked at, and how many times over."""
_GREEDY = 8
"""Every how manieth pick goes by the score alone."""
_WHOLE = 2048
"""Spaces up to this size are scored as a whole."""


@strategies.register("evolutionary")
class Evolutionary(Strategy):
    """See the module's docstring. Stateless: all it needs is in the `TuningState`."""

    def batch_size(self, state: TuningState) -> int:
        growing = super().batch_size(state)
        return max(growing, _INFORMED_BATCH) if state.informed else min(growing, _BATCH)

    def propose(self, state: TuningState, count: int) -> list[Config]:
        if not count or state.exhausted:
            return []
        picked = pick_diverse(state, state.seeds, count // 2)
        left, results = count - len(picked), len(state.results)
        share = _EPSILON * _FADING / (_FADING + results)
        if not state.shown and results < SMALLEST_BATCH:
            share = _FIRST_RANDOM
        first = state.informed and results < _DRAWN
        guided = 0 if first else left - int(state.rng.binomial(left, share))
        picked += _promising(state, guided, picked) if guided else []
        return picked + _explored(state, count - len(picked), picked)


def _explored(state: TuningState, count: int, taken: Sequence[Config]) -> list[Config]:
    """Up to `count` draws: plausible ones where scores are informed, else any."""
    drawn: list[Config] = []
    if state.informed and count:
        candidates = _telling(state, evolve(state, [], _PLAUSIBLE))
        errors = state.rng.normal(0.0, state.doubt(), len(candidates))
        order = np.argsort(state.predict(candidates) + errors, kind="stable")
        drawn = pick_diverse(state, [candidates[place] for place in order], count, taken)
    return drawn + new_random(state, count - len(drawn), taken=[*taken, *drawn])


def _promising(state: TuningState, count: int, taken: Sequence[Config]) -> list[Config]:
    """Up to `count` candidates, by expected improvement and by score in turns."""
    ranked = _unlike(state)
    promise = _promise(state, ranked[:_ELITE])
    if state.space.size <= _WHOLE:
        candidates = list(state.space)
    else:
        candidates = _gathered(state, ranked, lambda c: promise(*state.estimate(c)))
    candidates = _telling(state, candidates)
    if not candidates:
        return []
    joint = state.joint(candidates)
    if not ranked or not joint.deviation.any():
        order = np.argsort(joint.mean, kind="stable").tolist()
    else:
        incumbent = float(state.predict(ranked[:_ELITE]).min())
        order = batch_by_improvement(joint, incumbent, 2 * count, _GREEDY)
    return pick_diverse(state, [candidates[place] for place in order], count, taken)


def _telling(state: TuningState, configs: Iterable[Config]) -> list[Config]:
    """New configurations, one of each behaviour that was not measured yet; where there is none,
    all new ones.
    """
    new = [config for config in configs if state.is_new(config)]
    met = set(state.behaviour(list(state.results)))
    first: dict[Hashable, Config] = {}
    for config, behaviour in zip(new, state.behaviour(new), strict=True):
        if behaviour not in met:
            first.setdefault(behaviour, config)
    return list(first.values()) or new


def _unlike(state: TuningState) -> list[Config]:
    """Measured configurations, fastest first, one of each latency: knobs that nothing depends on
    would else fill the elite with siblings.
    """
    distinct: list[Config] = []
    last = 0.0
    for config, latency in state.ranked():
        if latency > last * (1 + _ALIKE):
            distinct.append(config)
            last = latency
    return distinct


def _gathered(state: TuningState, ranked: Sequence[Config], promise: Predict) -> list[Config]:
    """Candidates of a large space: bred, and near the best measured and the most promising."""
    seeds = dict.fromkeys([*ranked[:_MEASURED_SEEDS], state.default, *state.seeds])
    breeder = state.space.breeder
    breeding = _INFORMED_BREEDING if state.informed else _BREEDING
    known = dict.fromkeys(evolve(state, list(seeds), breeding, promise))
    near = breeder.decode(breeder.neighbours(breeder.encode(ranked[:_ELITE])))
    if state.informed:  # each structure that was not met is dear to judge
        met = {state.space.structure(config) for config in known}
        near = [config for config in near if state.space.structure(config) in met]
        return list(dict.fromkeys([*known, *near]))
    candidates, best = list(known), _telling(state, known)[: 4 * _CLIMBERS]
    known.update(dict.fromkeys(near))
    scores = dict(zip(best, promise(best).tolist(), strict=True)) if best else {}
    for step in range(_STEPS):
        climbers = sorted(scores, key=scores.__getitem__)[:_CLIMBERS]
        offspring = near if not step else []
        offspring += breeder.decode(breeder.neighbours(breeder.encode(climbers)))
        new = [c for c in _telling(state, dict.fromkeys(offspring)) if c not in scores]
        if not new:
            break
        scores.update(zip(new, promise(new).tolist(), strict=True))
    return list(dict.fromkeys([*candidates, *scores]))


def _promise(state: TuningState, elite: Sequence[Config]) -> Callable[[Floats, Floats], Floats]:
    """From scores and their deviations to a candidate's promise, lower is better.

    That is the expected improvement over the elite as the model sees it; the score itself where
    there is nothing to improve on or no doubt.
    """
    incumbent = float(state.predict(elite).min()) if elite else 0.0

    def promise(mean: Floats, deviation: Floats) -> Floats:
        if not elite or not deviation.any():
            return mean
        return -log_expected_improvement(mean, deviation, incumbent)

    return promise
