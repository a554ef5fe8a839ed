"""The predictor: features in, scores out; what a search asks thousands of times between
measurements.

It joins a feature source (the simulator's program features and analytical latency, or the bare
knobs), a cost model trained on the job's trials, and the validity classifier. One predictor serves
all tasks that share a way of measuring; tasks whose features mean the same share one cost model,
so that what is learned on one shape helps the next. Invariant: a fitted predictor is a pure
function of the trials it was given, in order, and of `fitted` (how many of them it had seen),
which is all that is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from search_space.config import Config
from search_space.measure import MeasureResult
from search_space.target import Target
from search_space.workload import Workload
from tuner.cost_model import (
    CostModel,
    CostModelFactory,
    Floats,
    Joint,
    Samples,
    rank_agreement,
)
from tuner.population import Breeder
from tuner.task import Trial, TuningState
from tuner.validity import ValidityClassifier

_GROWTH = 1.1
"""Models are trained anew once the trials have grown by this factor."""
_FAILURE_PENALTY = 3.0
"""Log-latency penalty of a certain failure: as if it ran e^3 = 20 times as long."""
_UNPREDICTABLE = 50.0
"""Score of what the feature source rejects; worse than any latency's logarithm."""
_REMEMBERED = 8192
"""Configurations of a task whose features are kept: a search meets the same ones again."""
_RECENT = 64
"""Trials over which the model's ranking is compared with the analytical one."""


class Judgement(Protocol):
    """What a judge says of n configurations (`simulator.Judgement` fulfils it)."""

    @property
    def latency(self) -> NDArray[np.float64]: ...
    @property
    def features(self) -> NDArray[np.float32]: ...


Judge = Callable[[Workload, Target, Sequence[Config]], Judgement]


class FeatureSource(Protocol):
    """Turns configurations of a task into samples for a cost model."""

    def describe(
        self, state: TuningState, configs: Sequence[Config]
    ) -> tuple[NDArray[np.float32], Floats]:
        """Features (n, f) and analytical latencies in seconds (n,), NaN where there is none."""
        ...

    def schema(self, state: TuningState) -> str:
        """Equal for tasks whose feature columns mean the same."""
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
    _known: dict[str, dict[Config, tuple[NDArray[np.float32], float]]] = field(
        default_factory=dict, compare=False
    )

    def describe(
        self, state: TuningState, configs: Sequence[Config]
    ) -> tuple[NDArray[np.float32], Floats]:
        known = self._known.setdefault(state.task.workload.key, {})
        new = [config for config in dict.fromkeys(configs) if config not in known]
        if len(known) + len(new) > _REMEMBERED:
            known.clear()
            new = list(dict.fromkeys(configs))
        if new:
            judged = self.judge(state.task.workload, self.target, new)
            features = np.asarray(judged.features, np.float32)
            if not self.analytical:
                features = np.delete(features, list(getattr(judged, "verdict", ())), axis=1)
            latencies = np.asarray(judged.latency, np.float64).tolist()
            known.update(zip(new, zip(features, latencies, strict=True), strict=True))
        rows = [known[config] for config in configs]
        latency = np.array([seconds for _, seconds in rows])
        if not self.analytical:
            latency = np.where(np.isfinite(latency), np.nan, latency)
        return np.stack([row for row, _ in rows]), latency

    def schema(self, state: TuningState) -> str:
        return "judged"


class KnobFeatures:
    """The knobs as numbers: for targets no simulator covers, and to study search by itself."""

    def describe(
        self, state: TuningState, configs: Sequence[Config]
    ) -> tuple[NDArray[np.float32], Floats]:
        breeder = Breeder(state.space)
        population = breeder.encode(configs)
        assert len(population) == len(configs), "a configuration of another space"
        return breeder.features(population), np.full(len(configs), np.nan)

    def schema(self, state: TuningState) -> str:
        return state.task.workload.key


@dataclass
class _Memory:
    """The trials of one schema and the models trained on them."""

    model: CostModel
    validity: ValidityClassifier = field(default_factory=ValidityClassifier)
    features: list[NDArray[np.float32]] = field(default_factory=list)
    analytical: list[float] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    trained: bool = False
    accuracy: tuple[int, float | None] = (0, None)
    """Of the latest trials, and how many there were."""


class Predictor:
    """See the module's docstring.

    Args:
        source: where features come from.
        new_model: makes an untrained cost model.
        learning: whether models are trained; else the analytical latency stays the score.
    """

    def __init__(
        self, source: FeatureSource, new_model: CostModelFactory, learning: bool = True
    ) -> None:
        self._learning = learning
        self._source = source
        self._new_model = new_model
        self._memories: dict[str, _Memory] = {}
        self._groups: dict[str, int] = {}
        self.seen = 0
        """Trials remembered."""
        self.fitted = 0
        """Trials that the models in force were trained on."""

    def score(self, state: TuningState, configs: Sequence[Config]) -> Floats:
        """Scores, shape (n,), lower is better."""
        return self.estimate(state, configs)[0]

    def estimate(self, state: TuningState, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        """Scores, lower is better, and their standard deviations, each shape (n,)."""
        if not configs:
            return np.zeros(0), np.zeros(0)
        features, analytical = self._source.describe(state, configs)
        memory = self._memory(state)
        scores, doubt = self._raw(memory, self._samples(state, features, analytical))
        scores = scores + _FAILURE_PENALTY * memory.validity.failure_probability(features)
        rejected = ~np.isfinite(scores) | np.isposinf(analytical)
        return np.where(rejected, _UNPREDICTABLE, scores), np.where(rejected, 0.0, doubt)

    def joint(self, state: TuningState, configs: Sequence[Config]) -> Joint:
        """As `estimate`, as one distribution; at least one configuration."""
        features, analytical = self._source.describe(state, configs)
        memory = self._memory(state)
        mean, deviation = self.estimate(state, configs)
        if not memory.trained:
            return Joint.independent(mean, deviation)
        joint = memory.model.joint(self._samples(state, features, analytical))
        return Joint(mean, deviation, joint.covariance)

    def remember(self, state: TuningState, trials: Sequence[Trial]) -> None:
        """Add measured trials, without training yet."""
        usable = [trial for trial in trials if trial.config in state.space]
        if not usable:
            return
        configs = [trial.config for trial in usable]
        features, analytical = self._source.describe(state, configs)
        memory = self._memory(state)
        samples = self._samples(state, features, analytical)
        memory.scores += self._raw(memory, samples)[0].tolist()
        memory.features += list(features)
        memory.analytical += analytical.tolist()
        memory.groups += samples.groups.tolist()
        memory.latencies += [_label(trial.result) for trial in usable]
        self.seen += len(usable)

    def train_if_due(self) -> None:
        """Train anew if the trials have grown enough since the last time."""
        if self.seen >= max(1, self.fitted) * _GROWTH:
            self.train()

    def train(self) -> None:
        """Fit every model to all remembered trials."""
        for memory in self._memories.values() if self._learning else ():
            _train(memory)
        self.fitted = self.seen

    def accuracy(self, state: TuningState) -> float | None:
        """Pairwise accuracy of the scores by which recent trials were chosen."""
        memory = self._memory(state)
        if memory.accuracy[0] != len(memory.latencies):
            memory.accuracy = (len(memory.latencies), _accuracy(memory))
        return memory.accuracy[1]

    def _memory(self, state: TuningState) -> _Memory:
        schema = self._source.schema(state)
        if schema not in self._memories:
            self._memories[schema] = _Memory(self._new_model())
        return self._memories[schema]

    def _samples(
        self, state: TuningState, features: NDArray[np.float32], analytical: Floats
    ) -> Samples:
        group = self._groups.setdefault(state.task.workload.key, len(self._groups))
        return Samples(features, analytical, np.full(len(features), group, np.int64))

    def _raw(self, memory: _Memory, samples: Samples) -> tuple[Floats, Floats]:
        """The model's scores with their deviations; before any training, the logarithm of the
        analytical latency.
        """
        if memory.trained:
            return memory.model.estimate(samples)
        known = np.isfinite(samples.analytical) & (samples.analytical > 0)
        return np.log(np.where(known, samples.analytical, 1.0)), np.zeros(len(samples))


def _accuracy(memory: _Memory) -> float | None:
    latencies = np.array(memory.latencies[-_RECENT:])
    good = np.isfinite(latencies)
    if good.sum() < 2:
        return None
    scores = np.array(memory.scores[-_RECENT:])[good]
    groups = np.array(memory.groups[-_RECENT:])[good]
    return rank_agreement(scores, latencies[good], groups)


def _train(memory: _Memory) -> None:
    labels = np.array(memory.latencies)
    if not len(labels):
        return
    samples = Samples(
        np.stack(memory.features), np.array(memory.analytical), np.array(memory.groups, np.int64)
    )
    failed = ~np.isfinite(labels)
    memory.validity.fit(samples.features, failed)
    if (~failed).any():
        memory.model.fit(samples.take(~failed), labels[~failed])
        memory.trained = True


def _label(result: MeasureResult) -> float:
    """Latency in seconds to learn from: of a slow run its lower bound, of a failed one NaN."""
    if result.status == "slow" and result.samples:
        return min(result.samples)
    return result.latency if result.latency is not None else float("nan")
