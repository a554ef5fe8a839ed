"""One round of evolutionary search over predicted scores, without measuring anything.

A population is bred for a few generations; every individual is scored by the predictor once, and
all that was ever scored is handed back, best first. Strategies choose from that list what to
measure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.population import Breeder, Population
from tilesmith.tuner.tasks.task import Predict, TuningState


@dataclass(frozen=True)
class Evolution:
    """How a population is bred.

    Attributes:
        population: individuals in a generation.
        generations: how often a generation is bred.
        mutation: share of children that are mutated copies of one parent.
        crossover: share of children that cross two parents (and then may mutate as well).
        fresh: share of each generation drawn at random.
        elite: share of the best individuals that is kept unchanged.
        selection: rank-selection pressure; a parent's weight is exp(-selection * rank /
            population).
        structures: most structures in a generation (None: any number). Judging costs by the
            structure, hardly by the configuration: two thirds of these places go to the structures
            of the best, the others to random ones.
        unmet: of these, most that are new: no measured configuration has them, nor one of an
            earlier generation; more while fewer than `structures` have been met (None: any
            number). A structure is dear the first time. Each generation then has half as many
            structures as the last.
    """

    population: int = 512
    generations: int = 4
    mutation: float = 0.6
    crossover: float = 0.1
    fresh: float = 0.3
    elite: float = 0.05
    selection: float = 2.0
    structures: int | None = None
    unmet: int | None = None


def evolve(
    state: TuningState, seeds: Sequence[Config], options: Evolution, predict: Predict | None = None
) -> list[Config]:
    """Every configuration scored on the way, best predicted first (tried ones included).

    Args:
        state: gives space, generator and (unless `predict` is given) the predictor.
        seeds: individuals of the first generation; those of another space are passed over.
    """
    breeder = state.space.breeder
    predict = predict or state.predict
    start = breeder.encode(seeds[: options.population])
    missing = options.population - len(start)
    population = start.joined(breeder.sample(state.rng, missing, balanced=True))
    scores: dict[Config, float] = {}
    met = {state.space.structure(config) for config in state.results if options.unmet is not None}
    for generation in range(options.generations + 1):
        if options.structures is not None:
            halved = generation if options.unmet is not None else 0
            most = max(options.structures >> halved, 1)
            population = _of_few(state, population, most, options.unmet, met)
        values = _score(breeder, population, predict, scores)
        if generation < options.generations:
            population = _next(breeder, population, values, state.rng, options)
    return sorted(scores, key=scores.__getitem__)


def _of_few(
    state: TuningState, population: Population, most: int, unmet: int | None, met: set[Config]
) -> Population:
    """The individuals of few structures: the first to appear, and random others; `met` are those
    that are not new, to which the new ones are added."""
    breeder = state.space.breeder
    numbers = breeder.structures(population)
    count = int(numbers.max(initial=-1)) + 1
    if count <= most:
        return population
    first = max(1, 2 * most // 3)
    order = [*range(first), *(first + state.rng.permutation(count - first)).tolist()]
    if unmet is not None:
        firsts = population.take(np.unique(numbers, return_index=True)[1])
        structures = [state.space.structure(config) for config in breeder.decode(firsts)]
        new = [number for number in order if structures[number] not in met]
        left_out = set(new[max(unmet, most - len(met)) :])
        order = [number for number in order if number not in left_out][:most]
        met.update(structures[number] for number in order)
    return population.take(np.isin(numbers, order[:most]))


def _score(
    breeder: Breeder, population: Population, predict: Predict, scores: dict[Config, float]
) -> NDArray[np.float64]:
    """Scores of a population; each distinct configuration is predicted once a round."""
    configs = breeder.decode(population)
    unknown = [c for c in dict.fromkeys(configs) if c not in scores]
    if unknown:
        scores.update(zip(unknown, predict(unknown).tolist(), strict=True))
    return np.array([scores[config] for config in configs])


def _next(
    breeder: Breeder,
    population: Population,
    values: NDArray[np.float64],
    rng: np.random.Generator,
    options: Evolution,
) -> Population:
    """The next generation."""
    size = len(population)
    order = np.argsort(values, kind="stable")
    ranks = np.empty(size)
    ranks[order] = np.arange(size)
    weights = np.exp(-options.selection * ranks / size)
    weights /= weights.sum()
    elite = population.take(order[: int(options.elite * size)])
    fresh = breeder.sample(rng, int(options.fresh * size), balanced=True)
    children = size - len(elite) - len(fresh)
    parents = population.take(rng.choice(size, size=children, p=weights))
    partners = population.take(rng.choice(size, size=children, p=weights))
    crossing = rng.random(children) < options.crossover
    mutating = ~crossing | (rng.random(children) < options.mutation)
    bred = parents.replaced(crossing, lambda p: breeder.cross(p, partners.take(crossing), rng))
    bred = bred.replaced(mutating, lambda p: breeder.mutate(p, rng))
    return elite.joined(fresh).joined(bred)
