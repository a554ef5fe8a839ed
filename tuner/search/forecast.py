"""What the judge promises of a task before anything of it is measured.

A *structure* is an algorithm in one pair of layouts. A judge tells structures apart by factors and
costs little beside a trial, so the best of some tens of configurations of each is known before the
first trial. From this come the first trials of a task: each structure's best, fastest first, but
for structures that are further behind than the judge is likely to be wrong. From it comes, too,
what the task is expected to gain, by which schedulers share trials.

Invariant: a forecast depends on the workload, the target and the judge alone, so that all processes
of a job, and a job that is resumed, have the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.tuner.search.evolution import Evolution, evolve
from tilesmith.tuner.search.strata import layout_spaces
from tilesmith.tuner.tasks.strategy import Json
from tilesmith.tuner.tasks.task import Layouts, TuningState

_LOOK = Evolution(population=256, generations=0, structures=1)
"""How the best of a structure is sought: tiles of one loop order. Others cost the judge as much
again each, and hardly change what is promised."""
_HOPELESS = 2.0
"""Deviations of the judge's error by which a structure is behind that is not tried at first."""

Structure = tuple[KnobValue | None, Layouts]
"""An algorithm (None: there is one), and the layouts of its first input and output."""


@dataclass(frozen=True)
class Forecast:
    """See the module's docstring.

    Attributes:
        bests: the best of each structure and the logarithm of its seconds, fastest first.
        default: logarithm of the seconds of the untuned configuration.
    """

    bests: tuple[tuple[Config, float], ...]
    default: float

    def promising(self, doubt: float) -> list[Config]:
        """The bests of structures that may well be the fastest, fastest first.

        Args:
            doubt: deviation of the judge's error in the logarithm of a ratio of two latencies.
        """
        limit = self.bests[0][1] + _HOPELESS * doubt if self.bests else 0.0
        return [config for config, score in self.bests if score <= limit]

    def headroom(self, realised: float, doubt: float) -> float:
        """The expected improvement on what is known, as the logarithm of a ratio of latencies.

        Args:
            realised: the same of what was gained over the default by now.
        """
        left = max(0.0, self.default - self.bests[0][1]) - realised if self.bests else -realised
        error = NormalDist(left, max(doubt, 1e-9))
        return left * error.cdf(2 * left) + error.variance * error.pdf(0.0)

    def save(self) -> Json:
        return {
            "bests": [[dict(config), score] for config, score in self.bests],
            "default": self.default,
        }

    @classmethod
    def load(cls, saved: Json) -> "Forecast":
        bests = ((Config.of(values), float(score)) for values, score in saved["bests"])
        return cls(tuple(bests), float(saved["default"]))


def forecast_of(state: TuningState) -> Forecast:
    """Look for the best of each structure of a task that has a judge."""
    rng, judged = np.random.default_rng(int(state.task.workload.digest, 16)), state.judged
    assert judged is not None, "there is a judge"
    bests = []
    for space in structures(state).values():
        part = replace(state, space=space, rng=rng)
        best = evolve(part, [state.default] if state.default in space else [], _LOOK, judged)[0]
        bests.append((best, float(judged([best])[0])))
    return Forecast(
        tuple(sorted(bests, key=lambda pair: pair[1])), float(judged([state.default])[0])
    )


def structures(state: TuningState) -> dict[Structure, SearchSpace]:
    """The part of a task's space for each structure."""
    parts: dict[Structure, list[Subspace]] = {}
    for layouts, space in layout_spaces(state.space, state.layouts).items():
        for subspace in space.subspaces:
            parts.setdefault((dict(subspace.fixed).get("algorithm"), layouts), []).append(subspace)
    return {structure: SearchSpace(tuple(part)) for structure, part in parts.items()}


def structure_of(state: TuningState, config: Config) -> Structure:
    """Of one configuration of a task's space."""
    return config.get("algorithm"), state.layouts(config)


def untried(state: TuningState, promising: Sequence[Config]) -> list[Config]:
    """Those of `promising` of whose structures none but the default was or is being tried."""
    tried = (state.results.keys() | state.pending) - {state.default}
    known = {structure_of(state, config) for config in tried}
    return [c for c in promising if state.is_new(c) and structure_of(state, c) not in known]
