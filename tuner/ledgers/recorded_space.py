"""`RecordedSpace`: a fully measured search space that came from elsewhere, ready to be replayed.

It stands where an operator's space stands: a task that names one (`TuningTask.given`) is searched
in it, its results come from `replay`. What its knobs mean nobody here knows; nothing judges its
configurations, and cost models see the bare knobs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.ledgers.listed import listed_space
from tilesmith.tuner.tasks.task import GivenSpace, TuningTask


@dataclass(frozen=True)
class NamedWorkload(Workload):
    """What a recorded space computes, known by name only: no operator, no shapes."""

    @cached_property
    def key(self) -> str:
        return " ".join((self.operator, *(f"{name}={value}" for name, value in self.parameters)))


@dataclass(frozen=True)
class RecordedSpace:
    """See the module's docstring.

    Attributes:
        workload: names it.
        space: its legal configurations, those that were recorded.
        default: where a search starts: the configuration nearest to the middle of all knobs.
        results: of each configuration; `elapsed` is what the trial took where it was recorded.
    """

    workload: NamedWorkload
    space: SearchSpace
    default: Config
    results: Mapping[Config, MeasureResult]

    @classmethod
    def of(
        cls, name: str, columns: Mapping[str, Sequence[KnobValue]], results: Sequence[MeasureResult]
    ) -> "RecordedSpace":
        """A space from the table of its trials.

        Args:
            columns: by knob its value in each trial.
            results: of each trial; the first of a configuration counts.

        Raises:
            InputError: there is no trial, or none worked.
            ConfigError: more combinations than can be numbered.
        """
        if not any(result.ok for result in results):
            raise InputError(f"'{name}' holds no trial that worked; nothing can be searched for")
        plain = {knob: _alike(column) for knob, column in sorted(columns.items())}
        space = listed_space(plain)
        names = tuple(plain)
        measured: dict[Config, MeasureResult] = {}
        for values, result in zip(zip(*plain.values(), strict=True), results, strict=True):
            measured.setdefault(Config(tuple(zip(names, values, strict=True))), result)
        return cls(NamedWorkload("recorded", (("space", name),)), space, _middle(space), measured)

    @property
    def task(self) -> TuningTask:
        return TuningTask(self.workload, given=GivenSpace(self.space, self.default))

    @property
    def recorded(self) -> dict[str, Mapping[Config, MeasureResult]]:
        """As `RunnerOptions.recorded`."""
        return {self.workload.key: self.results}


def _alike(column: Sequence[KnobValue]) -> Sequence[KnobValue]:
    """Values of one knob: integers all of them, or texts all of them."""
    if all(isinstance(value, int) for value in column):
        return column
    return [str(value) for value in column]


def _middle(space: SearchSpace) -> Config:
    """The legal configuration whose knobs are nearest to the middles of their values."""
    (subspace,) = space.subspaces
    best, nearest = np.inf, None
    half = (subspace.radices - 1) / 2
    for rows in subspace.listing():
        apart = (((rows - half) / np.maximum(half, 0.5)) ** 2).sum(axis=1)
        place = int(np.argmin(apart))
        if apart[place] < best:
            best, nearest = float(apart[place]), subspace.config(rows[place])
    assert nearest is not None, "a recorded space holds a trial"
    return nearest
