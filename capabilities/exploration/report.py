"""What a search for hardware found: designs with latency and cost, the front, sensitivities.

The *score* of a design is the geometric mean, over the models, of its latency to the base's: below
1 it is faster. The front holds the designs than which none is both cheaper and faster.

Invariants: frozen; latencies in us, NaN where a model does not fit; designs in the order of
`variation.designs`, the base first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilesmith.capabilities.exploration.request import UNITS, Budget
from tilesmith.search_space.support.json_object import JsonObject
from tilesmith.simulator.designs.hardware_cost import HardwareCost


@dataclass(frozen=True)
class Design(
    JsonObject,
    keys="settings:_settings *cost added_us latency_us score bound next_bound played on_front "
    "missing",
):
    """One point.

    Attributes:
        settings: its varied numbers.
        cost: area and power.
        added_us: of each model, its operators added up; NaN where one does not fit.
        latency_us: of each model: as played on the timeline, or as estimated from `added_us`.
        score: see the module's docstring; NaN where some model does not fit.
        bound, next_bound: what limits the models most, and after that.
        played: whether `latency_us` is the timeline's.
        on_front: none is both cheaper and faster.
        missing: why a model does not fit.
    """

    settings: tuple[tuple[str, str], ...]
    cost: HardwareCost
    added_us: Mapping[str, float]
    latency_us: Mapping[str, float]
    score: float
    bound: str
    next_bound: str
    played: bool = False
    on_front: bool = False
    missing: str = ""

    @property
    def _settings(self) -> dict[str, str]:
        return dict(self.settings)

    def spent(self, budget: Budget) -> float:
        return self.cost.area_mm2 if budget == "area" else self.cost.power_w

    def row(self) -> dict[str, Any]:
        """A line of the table of all designs."""
        return {
            **dict(self.settings),
            "area_mm2": self.cost.area_mm2,
            "power_w": self.cost.power_w,
            **{f"us {model}": value for model, value in self.latency_us.items()},
            "score": self.score,
            "bound": self.bound,
            "next_bound": self.next_bound,
            "played": self.played,
            "front": self.on_front,
        }


@dataclass(frozen=True)
class Sensitivity(JsonObject):
    """What a number does around the base: percent of change for each percent of the number.

    Attributes:
        low, high: the values it is read off, neighbours of the base's own.
        score: of the latency (negative: more of it is faster).
        area, power: of the cost.
        best: the value, alone changed, with the best score; `best_score`, `then` its score and what
            bounds the models there.
    """

    name: str
    low: float
    high: float
    score: float
    area: float
    power: float
    best: float
    best_score: float
    then: str


@dataclass(frozen=True)
class Exploration(
    JsonObject,
    keys="target models budget at_most grid searches judged shared played error base front "
    "sensitivities next_bottleneck designs refused:_refusals notes",
):
    """All that was found.

    Attributes:
        target: the base's name.
        models: names, in the order asked for.
        designs: the base first.
        sensitivities: of every varied number, the strongest first.
        refused: settings that make no target, and why.
        grid: combinations there are.
        searches, judged, shared: operators times designs searched anew, judged, and taken from
            another design that does not differ for that operator.
        played: models times designs played on the timeline.
        error: median of relative errors of estimates, at designs played after them; NaN if none.
        notes: for the reader.
    """

    target: str
    models: tuple[str, ...]
    budget: Budget
    at_most: float | None
    designs: tuple[Design, ...]
    sensitivities: tuple[Sensitivity, ...]
    refused: tuple[tuple[tuple[tuple[str, str], ...], str], ...]
    grid: int
    searches: int
    judged: int
    shared: int
    played: int = 0
    error: float = math.nan
    notes: tuple[str, ...] = ()

    @property
    def base(self) -> Design:
        return self.designs[0]

    @property
    def _refusals(self) -> list[dict[str, Any]]:
        return [{"settings": dict(s), "reason": reason} for s, reason in self.refused]

    @property
    def front(self) -> list[Design]:
        """Cheapest first."""
        front = [design for design in self.designs if design.on_front]
        return sorted(front, key=lambda design: design.spent(self.budget))

    @property
    def unit(self) -> str:
        return UNITS[self.budget]

    @property
    def piece(self) -> str:
        """What area and power are of."""
        return self.designs[0].cost.piece

    @property
    def next_bottleneck(self) -> str:
        """What binds the base, and what would after the best single change, in a sentence."""
        base = self.designs[0]
        text = f"bound by {base.bound}"
        text += f", next by {base.next_bound}" if base.next_bound else ""
        best = min(
            (one for one in self.sensitivities if math.isfinite(one.best_score)),
            key=lambda one: one.best_score,
            default=None,
        )
        if best is None or best.best_score > 0.995:
            return f"{text}; no single number makes it faster"
        return (
            f"{text}; {best.name} = {best.best:g} alone takes {1 - best.best_score:.0%} off, then "
            f"bound by {best.then}"
        )


def columns(designs: Sequence[Design]) -> list[str]:
    """Names of all columns of a table of designs, in order."""
    return list(dict.fromkeys(name for design in designs for name in design.row()))
