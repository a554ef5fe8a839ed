"""What each knob did: how latency depends on its values, over the trials of one workload.

Trials of a search are no experiment: good values meet good values. So beside what was seen with
each value (how many trials, the best, the median) stands its *effect*, when all else is equal, by
an additive model: the logarithm of latency is a sum of one number for each value of each knob, by
least squares over all working trials. A knob that an algorithm lacks has a level of its own there.

Invariants: the effect of a knob's best value is 1, all others are factors above it; the same trials
give the same numbers in any order. A little ridge keeps values that were never told apart (always
tried together) from taking any size: they share what they did.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.support.json_object import JsonObject

if TYPE_CHECKING:
    from tilesmith.records import TuningRecord
    from tilesmith.search_space.spaces.config import KnobValue

LEAST = 8
"""Trials that make a study."""

_RIDGE = 1e-2
"""Added to the normal equations: a hundredth of one trial's weight for each value."""


@dataclass(frozen=True)
class ValueEffect(JsonObject, keys="value trials best_us:best_s median_us:median_s effect"):
    """What one value of a knob did.

    Attributes:
        value: None where an algorithm has no such knob.
        trials: how many had it.
        best_s, median_s: of these.
        effect: how many times as long a trial takes as with the knob's best value, else equal.
    """

    value: "KnobValue | None"
    trials: int
    best_s: float
    median_s: float
    effect: float


@dataclass(frozen=True)
class KnobEffect(JsonObject, keys="knob spread values"):
    """What one knob did.

    Attributes:
        values: the best first.
    """

    knob: str
    values: tuple[ValueEffect, ...]

    @property
    def spread(self) -> float:
        """The effect of its worst value: how much there is to lose by it."""
        return max(value.effect for value in self.values)


def knob_effects(records: "Sequence[TuningRecord]") -> list[KnobEffect]:
    """Every knob that had several values, those with most to lose first.

    Args:
        records: working trials of one workload, measured in one way; [] where there are fewer than
            `LEAST`.
    """
    working = sorted((r for r in records if r.latency), key=lambda record: record.config.key)
    if len(working) < LEAST:
        return []
    seconds = np.array([record.latency for record in working])
    names = sorted({name for record in working for name in record.config})
    columns = {name: [record.config.get(name) for record in working] for name in names}
    columns = {name: values for name, values in columns.items() if len(set(values)) > 1}
    estimated = _additive(columns, np.log(seconds))
    effects = [
        KnobEffect(name, _values(values, seconds, estimated[name]))
        for name, values in columns.items()
    ]
    return sorted(effects, key=lambda one: (-one.spread, one.knob))


def _additive(
    columns: "dict[str, list[KnobValue | None]]", logs: NDArray[np.float64]
) -> "dict[str, dict[KnobValue | None, float]]":
    """A number for each value of each knob, whose sums come nearest to the logarithms."""
    places = {
        (name, value): place
        for place, (name, value) in enumerate(
            (name, value) for name, values in columns.items() for value in _levels(values)
        )
    }
    design = np.zeros((len(logs), len(places)))
    for name, values in columns.items():
        design[np.arange(len(logs)), [places[name, value] for value in values]] = 1.0
    normal = design.T @ design + _RIDGE * np.eye(len(places))
    solved = np.linalg.solve(normal, design.T @ (logs - logs.mean()))
    numbers: dict[str, dict[KnobValue | None, float]] = defaultdict(dict)
    for (name, value), place in places.items():
        numbers[name][value] = float(solved[place])
    return numbers


def _levels(values: "Sequence[KnobValue | None]") -> "list[KnobValue | None]":
    return sorted(set(values), key=lambda value: (str(type(value)), value or 0, str(value)))


def _values(
    values: "Sequence[KnobValue | None]",
    seconds: NDArray[np.float64],
    logs: "dict[KnobValue | None, float]",
) -> tuple[ValueEffect, ...]:
    """What each value of a knob did, the best first."""
    lowest = min(logs.values())
    effects = []
    for value in _levels(values):
        mine = [float(seconds[i]) for i, other in enumerate(values) if other == value]
        effect = float(np.exp(logs[value] - lowest))
        effects.append(ValueEffect(value, len(mine), min(mine), median(mine), effect))
    return tuple(sorted(effects, key=lambda one: one.effect))
