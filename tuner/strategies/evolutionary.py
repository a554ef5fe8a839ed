"""Evolutionary search guided by the cost model: the default.

Each round gathers candidates, cheap to score: a population bred for a few generations from the best
measured configurations, the default, starting points carried over from similar workloads and random
ones; every neighbour by a single knob of the best measured, then of what promises most, a few steps
uphill; in a small space, all of it. Of those that come to the same, as far as the judge sees, one
is a candidate, and none if one was measured: knobs that nothing depends on would else take most of
the trials. What is measured is chosen by expected improvement, where the model states its doubt,
one in eight by predicted latency. Without doubt (the hardware's model), neighbours of the very best
get a share `_LOCAL` of the batch instead, because such a model cannot tell siblings apart.

A share of each batch is random, so that a wrong model is found out: `_FIRST_RANDOM` of the first
where no latency is known, then `_EPSILON`, fading as results come in. Batches are small: what a
batch teaches should serve the next.
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
_SCREENED = 12
"""Trials for which starting points serve alone where scores are informed: they are the best of the
same scores, and searching again would cost more than measuring."""
_LOCAL = 0.15
_MEASURED_SEEDS = 24
_ELITE = 8
"""Best measured configurations all of whose neighbours are candidates."""
_ALIKE = 2e-3
"""Relative difference of latencies up to which configurations count as siblings."""
_CLIMBERS, _STEPS = 6, 3
"""Candidates whose neighbours are looked at, and how many times over."""
_INFORMED_ELITE = 3
_NEIGHBOURS = 24
"""Neighbours drawn of each of the informed elite."""
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
        trusted = state.informed and len(state.results) < _SCREENED
        picked = pick_diverse(state, state.seeds, count if trusted else count // 2)
        share = _EPSILON * _FADING / (_FADING + len(state.results))
        if not state.shown and len(state.results) < SMALLEST_BATCH:
            share = _FIRST_RANDOM
        exploring = int(state.rng.binomial(count - len(picked), share))
        guided = count - len(picked) - exploring
        if not guided:
            return picked + new_random(state, exploring, taken=picked)
        choose = _informed if state.informed else _doubting
        picked += choose(state, guided, picked)
        return picked + new_random(state, count - len(picked), taken=picked)


def _doubting(state: TuningState, count: int, taken: Sequence[Config]) -> list[Config]:
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
    known = dict.fromkeys(evolve(state, list(seeds), _BREEDING, promise))
    near = breeder.decode(breeder.neighbours(breeder.encode(ranked[:_ELITE])))
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


def _informed(state: TuningState, count: int, taken: Sequence[Config]) -> list[Config]:
    """Up to `count` candidates, best predicted first, after a share of the elite's neighbours."""
    ranked = [config for config, _ in state.ranked()[:_MEASURED_SEEDS]]
    share = _LOCAL if len(ranked) >= _MEASURED_SEEDS else 0.0
    local = int(state.rng.binomial(count, share))
    picked = _mutants(state, ranked[:_INFORMED_ELITE], local, taken)
    seeds = list(dict.fromkeys([*ranked, state.default, *state.seeds]))
    ordered = evolve(state, seeds, _INFORMED_BREEDING)
    return picked + pick_diverse(state, ordered, count - len(picked), taken=[*taken, *picked])


def _mutants(
    state: TuningState, elite: list[Config], count: int, taken: Sequence[Config]
) -> list[Config]:
    """Up to `count` new mutants of the elite, best predicted first."""
    breeder = state.space.breeder
    parents = breeder.encode(elite)
    if not count or not len(parents):
        return []
    family = parents.take(np.repeat(np.arange(len(parents)), _NEIGHBOURS))
    mutants = list(dict.fromkeys(breeder.decode(breeder.mutate(family, state.rng))))
    order = np.argsort(state.predict(mutants), kind="stable")
    return pick_diverse(state, [mutants[i] for i in order], count, taken)
