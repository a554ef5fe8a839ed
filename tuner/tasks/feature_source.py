"""Feature sources: what is known of a configuration before it is measured.

A predictor asks one for features, and for the analytical latency where there is a judge; a strategy
asks which configurations come to the same. Invariant: what a source says of a configuration of a
task never changes during a job.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.judgement import Judgement
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.surrogates.cost_model import Floats
from tilesmith.tuner.surrogates.knob_features import BareKnobs
from tilesmith.tuner.tasks.task import TuningState

_FIRST_PIECE, _PIECE_S = 32, 0.4
"""Configurations judged at first in a job that watches the clock, and seconds that a later piece
takes, about."""

_REMEMBERED = 8192
"""Configurations of a task whose features are kept: a search meets the same ones again."""


Judge = Callable[[Workload, Target, Sequence[Config]], Judgement]


@dataclass(frozen=True)
class Description:
    """What is known of n configurations before they are measured.

    Attributes:
        features: shape (n, f).
        analytical: latencies in seconds, shape (n,), NaN where there is none.
        rejected: which of them the judge says cannot run, shape (n,).
    """

    features: NDArray[np.float32]
    analytical: Floats
    rejected: NDArray[np.bool_]


class FeatureSource(Protocol):
    """Turns configurations of a task into samples for a cost model."""

    def describe(self, state: TuningState, configs: Sequence[Config]) -> Description:
        """Describe configurations, in their order."""
        ...

    def schema(self, state: TuningState) -> str:
        """Equal for tasks whose feature columns mean the same."""
        ...

    def behaviour(self, state: TuningState, configs: Sequence[Config]) -> Sequence[Hashable]:
        """Equal for configurations that measure the same, as far as features tell."""
        ...


@dataclass(frozen=True)
class JudgedFeatures:
    """Program features and analytical latency from a judge.

    Args:
        judge: e.g. `simulator.judge`.
        target: what to judge for.
        analytical: whether the latency, and features that tell it (`Judgement.verdict`), are shown
            to the cost model; not when it is also the label.
    """

    judge: Judge
    target: Target
    analytical: bool = True
    _known: dict[str, dict[Config, tuple[NDArray[np.float32], float, bool]]] = field(
        default_factory=dict, compare=False
    )

    def describe(self, state: TuningState, configs: Sequence[Config]) -> Description:
        known = self._known.setdefault(state.task.workload.key, {})
        new = self._unknown(state, configs)
        if len(known) + len(new) > _REMEMBERED:
            known.clear()
            new = list(dict.fromkeys(configs))
        if new:
            judged = self.judge(state.task.workload, self.target, new)
            features, latency = judged.features, judged.latency
            if not self.analytical:
                features = np.delete(features, list(judged.verdict), axis=1)
                latency = np.full(len(new), np.nan)
            rejects = (row in judged.failures for row in range(len(new)))
            descriptions = zip(features, latency.tolist(), rejects, strict=True)
            known.update(zip(new, descriptions, strict=True))
        rows, analytical, rejected = zip(*(known[config] for config in configs), strict=True)
        return Description(np.stack(rows), np.array(analytical), np.array(rejected))

    def judge_ahead(
        self, state: TuningState, configs: Sequence[Config], check: Callable[[], None]
    ) -> None:
        """Judge in pieces what is not judged yet; call `check`, which may raise, after each.

        Configurations of one structure stay together: they share most of the work.
        """
        new, size = self._unknown(state, configs), _FIRST_PIECE
        if len(new) > size:
            structures: dict[Config, int] = {}
            new.sort(key=lambda c: structures.setdefault(state.space.structure(c), len(structures)))
        while new:
            begun = time.monotonic()
            self.describe(state, new[:size])
            del new[:size]
            check()
            size = max(1, int(size * _PIECE_S / max(time.monotonic() - begun, 1e-6)))

    def _unknown(self, state: TuningState, configs: Sequence[Config]) -> list[Config]:
        """Those not judged yet, each once."""
        known = self._known.setdefault(state.task.workload.key, {})
        return [config for config in dict.fromkeys(configs) if config not in known]

    def schema(self, state: TuningState) -> str:
        return "judged"

    def behaviour(self, state: TuningState, configs: Sequence[Config]) -> Sequence[Hashable]:
        """The features where the judge is who measures: it sees nothing else."""
        if self.analytical or not configs:
            return configs
        return [row.tobytes() for row in self.describe(state, configs).features]


class KnobFeatures:
    """The knobs as numbers: for targets no simulator covers, and to study search by itself.

    Beside its logarithm, how often two divides a number: sizes that vectors, warps or cache lines
    divide behave alike, however far apart they are.
    """

    def __init__(self) -> None:
        self._knobs: dict[str, BareKnobs] = {}

    def describe(self, state: TuningState, configs: Sequence[Config]) -> Description:
        key, count = state.task.workload.key, len(configs)
        if key not in self._knobs:
            self._knobs[key] = BareKnobs.of(state.space)
        rows = self._knobs[key].rows(configs)
        return Description(rows, np.full(count, np.nan), np.zeros(count, np.bool_))

    def schema(self, state: TuningState) -> str:
        return state.task.workload.key

    def behaviour(self, state: TuningState, configs: Sequence[Config]) -> Sequence[Hashable]:
        return configs
