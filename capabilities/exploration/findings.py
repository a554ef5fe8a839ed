"""What is known of the designs while they are looked at, and the report that comes of it.

Whole models are estimated from their operators added up by a correction that is learnt from the
designs that were played. In a whole program kernels hide each other's latencies and tensors stay on
chip, so it is faster than its operators added up, and by how much depends on the design. The
logarithm of that ratio is fitted by ridge regression, linear in the logarithm of each varied number
to its base's, with one slope below the base and one above: designs where one number is least or
greatest, which are played first, settle them.

Invariants: deterministic; a design that was played keeps its own latency; the base's ratio, if it
was played, is met by all slopes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.exploration.report import Design, Exploration, Sensitivity
from tilesmith.capabilities.exploration.request import UNITS, Budget, ExploreRequest
from tilesmith.capabilities.exploration.search import OperatorDesigns
from tilesmith.capabilities.exploration.variation import Designs
from tilesmith.search_space.support.errors import InputError
from tilesmith.simulator.designs.fronts import front
from tilesmith.simulator.dispatch import simulators


@dataclass(frozen=True)
class Model:
    """A subject: its name, what `search.confirmed` takes it by, its operators with weights."""

    name: str
    subject: str
    operators: Mapping[str, float]
    notes: tuple[str, ...] = ()


@dataclass
class Findings:
    """Operators judged, models played, designs estimated.

    Attributes:
        judged: every operator on every design.
        played: of designs that were played, what came of each model.
        refused: why a design's programs could not be compiled.
        errors: relative ones of estimates, of designs that were played afterwards.
    """

    designs: Designs
    models: Sequence[Model]
    judged: Mapping[str, OperatorDesigns]
    played: dict[int, dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        simulator = simulators[self.designs.targets[0].family]
        self.costs = [simulator.hardware_cost(target) for target in self.designs.targets]
        self.added = {
            model.name: sum(
                (w * np.array(self.judged[key].latency_us) for key, w in model.operators.items()),
                start=np.zeros(len(self.designs)),
            )
            for model in self.models
        }
        self.numbers = np.array([[float(v) for _, v in p] for p in self.designs.points])

    def runs(self, number: int) -> bool:
        """Whether every model's operators fit a design, as far as is known."""
        fits = all(math.isfinite(added[number]) for added in self.added.values())
        return fits and number not in self.refused

    def take(self, number: int, model: str, answer: Mapping[str, Any]) -> None:
        """What came of playing a model on a design."""
        if "reason" in answer:
            self.refused[number] = str(answer["reason"])
            self.played.pop(number, None)
        elif number not in self.refused:
            self.played.setdefault(number, {})[model] = answer

    def estimated(self) -> "dict[str, Floats]":
        """Latency of every model on every design, us."""
        return {
            model.name: corrected(
                self.numbers,
                self.added[model.name],
                {n: float(a[model.name]["latency_us"]) for n, a in self.played.items()},
            )
            for model in self.models
        }

    def scores(self, estimated: "Mapping[str, Floats]") -> "Floats":
        """Of every design; NaN where something does not run."""
        ratios = [np.log(latency / latency[0]) for latency in estimated.values()]
        scores = np.exp(np.mean(ratios, axis=0))
        scores[[number for number in range(len(self.designs)) if not self.runs(number)]] = np.nan
        return np.asarray(scores)

    def front(self, budget: Budget, at_most: float | None) -> list[int]:
        """Designs on the front, cheapest first."""
        return self._front(self.scores(self.estimated()), budget, at_most)

    def _spent(self, budget: Budget) -> list[float]:
        return [c.area_mm2 if budget == "area" else c.power_w for c in self.costs]

    def _front(self, scores: "Floats", budget: Budget, at_most: float | None) -> list[int]:
        """
        Raises:
            InputError: no design runs everything, or none within the limit.
        """
        spent = self._spent(budget)
        able = [number for number in range(len(scores)) if math.isfinite(scores[number])]
        if not able:
            raise InputError(f"no design runs everything: {self._missing(0)}")
        inside = [n for n in able if at_most is None or spent[n] <= at_most]
        if not inside:
            unit, least = UNITS[budget], min(spent[number] for number in able)
            raise InputError(
                f"no design that runs everything is within {at_most:g} {unit}; the cheapest takes "
                f"{least:.1f} {unit}"
            )
        best = front([(spent[number], float(scores[number])) for number in inside])
        return sorted((inside[place] for place in best), key=lambda number: spent[number])

    def report(self, asked: ExploreRequest, target: str) -> Exploration:
        """All that was found."""
        estimated = self.estimated()
        scores = self.scores(estimated)
        best = set(self._front(scores, asked.budget, asked.at_most))
        rows = [
            replace(self._design(number, estimated, float(scores[number])), on_front=number in best)
            for number in range(len(self.designs))
        ]
        return Exploration(
            target,
            tuple(model.name for model in self.models),
            asked.budget,
            asked.at_most,
            tuple(rows),
            tuple(sensitivities(self.designs, rows)),
            self.designs.refused,
            self.designs.grid,
            sum(one.searches for one in self.judged.values()),
            sum(one.judged for one in self.judged.values()),
            sum(len(self.designs) - one.judged for one in self.judged.values()),
            sum(len(answers) for answers in self.played.values()),
            float(np.median(self.errors)) if self.errors else math.nan,
            tuple(dict.fromkeys(note for model in self.models for note in model.notes)),
        )

    def _design(self, number: int, estimated: "Mapping[str, Floats]", score: float) -> Design:
        bounds = [*self._bounds(number), "", ""]
        return Design(
            self.designs.points[number],
            self.costs[number],
            {name: float(added[number]) for name, added in self.added.items()},
            {name: float(latency[number]) for name, latency in estimated.items()},
            score,
            bounds[0],
            bounds[1],
            number in self.played,
            missing=self._missing(number),
        )

    def _missing(self, number: int) -> str:
        reasons = (o.bounds[number] for o in self.judged.values() if not o.configs[number])
        return next(reasons, self.refused.get(number, ""))

    def _bounds(self, number: int) -> list[str]:
        """What limits a design, most first: what was busiest where models were played, else what
        bounds their operators for the largest share of the time."""
        shares: dict[str, float] = {}
        for model in self.models:
            if number in self.played:
                answer = self.played[number][model.name]
                shares[answer["bound"]] = shares.get(answer["bound"], 0.0) + 1.0
                for engine, busy in answer["engines"].items():
                    shares[engine] = shares.get(engine, 0.0) + busy
            elif self.runs(number):
                for key, weight in model.operators.items():
                    operator = self.judged[key]
                    share = weight * operator.latency_us[number] / self.added[model.name][number]
                    shares[operator.bounds[number]] = (
                        shares.get(operator.bounds[number], 0.0) + share
                    )
        return sorted(shares, key=lambda bound: -shares[bound])


def sensitivities(designs: Designs, rows: Sequence[Design]) -> list[Sensitivity]:
    """Of every varied number, the strongest first: slopes between the base's neighbours."""
    base, alone = rows[0], rows[: designs.one_at_a_time + 1]
    slopes = []
    for place, variation in enumerate(designs.variations):
        others = [i for i in range(len(designs.variations)) if i != place]
        line = sorted(
            (
                (float(row.settings[place][1]), row)
                for row in alone
                if all(row.settings[i] == base.settings[i] for i in others)
                and math.isfinite(row.score)
            ),
            key=lambda pair: pair[0],
        )
        if any(row is base for _, row in line):
            slopes.append(_sensitivity(variation.name, line, base))
    return sorted(slopes, key=lambda one: -abs(one.score) if math.isfinite(one.score) else 0.0)


def _sensitivity(name: str, line: Sequence[tuple[float, Design]], base: Design) -> Sensitivity:
    own = next(i for i, (_, row) in enumerate(line) if row is base)
    low, high = line[max(0, own - 1)], line[min(len(line) - 1, own + 1)]
    best = min(line, key=lambda pair: pair[1].score)

    def elastic(of: Callable[[Design], float]) -> float:
        if low[0] == high[0]:
            return math.nan
        return math.log(of(high[1]) / of(low[1])) / math.log(high[0] / low[0])

    return Sensitivity(
        name,
        low[0],
        high[0],
        elastic(lambda row: row.score),
        elastic(lambda row: row.cost.area_mm2),
        elastic(lambda row: row.cost.power_w),
        best[0],
        best[1].score,
        best[1].bound,
    )


Floats = NDArray[np.float64]

STRENGTH = 0.01
"""Of the penalty on slopes: little, since each is settled by few designs, and some by one."""


def corrected(numbers: Floats, added_us: Floats, played_us: Mapping[int, float]) -> Floats:
    """Latency of a model on every design, us, shape (designs,): as played, or as estimated.

    Args:
        numbers: the varied numbers of every design, positive, shape (designs, variations); the
            base's first.
        added_us: operators added up, shape (designs,); NaN where something does not fit.
        played_us: latency on the timeline, by design.
    """
    known = np.array([n for n in sorted(played_us) if np.isfinite(added_us[n])], dtype=np.int64)
    latency = added_us.copy()
    if len(known):
        ratios = np.log([played_us[int(n)] / added_us[n] for n in known])
        latency = added_us * np.exp(_fitted(_slopes(numbers), known, ratios))
    for number, played in played_us.items():
        latency[number] = played
    return latency


def _slopes(numbers: Floats) -> Floats:
    distance = np.log(numbers / numbers[0])
    return np.column_stack([np.minimum(distance, 0.0), np.maximum(distance, 0.0)])


def _fitted(table: Floats, known: NDArray[np.int64], ratios: Floats) -> Floats:
    from sklearn.linear_model import Ridge

    base = ratios[0] if known[0] == 0 else ratios.mean()
    fit = Ridge(STRENGTH, fit_intercept=False).fit(table[known], ratios - base)
    return np.asarray(fit.predict(table) + base)
