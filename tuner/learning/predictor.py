"""The predictor: features in, scores out; what a search asks thousands of times between
measurements.

It joins a feature source (the simulator's program features and analytical latency, or the bare
knobs), a cost model trained on the job's trials, and the validity classifier. One predictor serves
all tasks that share a way of measuring; tasks whose features mean the same share one cost model,
so that what is learned on one shape helps the next. Invariant: a fitted predictor is a pure
function of the trials it was given, in order, and of `fitted` (how many of them it had seen),
which is all that is saved.

Where a pretrained model of the target family is given, it scores what nothing has been learned of,
and the cost model learns what it gets wrong. It is put to the test inside the job: whenever the
trials have doubled, one model is trained with and one without it on the earlier three quarters; if
the one with it ranks the latest quarter worse, it is left out until the next test.

The validity classifier says how probably a configuration fails (compile, crash, timeout, wrong). It
is trained on failures and successes alike; the predictor adds its log odds as a penalty, so that a
search stops proposing what keeps failing. It is no `CostModel`: its labels are not latencies.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.tuner.pretrained.pretrained import Pretrained, reference, usual
from tilesmith.tuner.surrogates.boosting import Booster, parse
from tilesmith.tuner.surrogates.cost_model import (
    CostModel,
    CostModelFactory,
    Floats,
    Joint,
    Samples,
    rank_agreement,
)
from tilesmith.tuner.surrogates.knob_features import KnobColumns
from tilesmith.tuner.tasks.feature_source import Description, FeatureSource, KnobFeatures
from tilesmith.tuner.tasks.task import Trial, TuningState

_USUAL_ERROR, _ERROR_TRUST = 0.15, 16
"""Deviation of an analytical latency's logarithm within a workload, as seen of schedules of all
kinds, and how many trials it counts as."""
_FEWEST = 5
"""Failures, and successes, below which nothing is learned."""


class ValidityClassifier:
    """Boosted trees on success or failure (logistic loss)."""

    def __init__(self) -> None:
        self._trees = Booster(
            {"objective": "binary:logistic", "max_depth": 4, "eta": 0.2}, rounds=40
        )
        self._trained = False

    def fit(self, features: NDArray[np.float32], failed: NDArray[np.bool_]) -> None:
        """Learn which of `features` (n, f) failed; with too few of either kind, learn nothing."""
        self._trained = min(int(failed.sum()), int((~failed).sum())) >= _FEWEST
        if self._trained:
            self._trees.fit(features, failed.astype(np.float64))

    def failure_probability(self, features: NDArray[np.float32]) -> Floats:
        """Shape (n,); zero while too little is known."""
        return self._trees.predict(features) if self._trained else np.zeros(len(features))

    def save(self) -> str:
        trees = self._trees.save() if self._trained else ""
        return json.dumps({"kind": "validity", "trees": trees})

    @classmethod
    def load(cls, text: str) -> "ValidityClassifier":
        """Undo `save`; `InputError` for other text."""
        model = cls()
        trees = parse(text, "validity")["trees"]
        model._trained = bool(trees)
        if trees:
            model._trees.restore(trees)
        return model


_GROWTH = 1.1
"""Models are trained anew once the trials have grown by this factor."""
_FAILURE_PENALTY = 3.0
"""Log-latency penalty of a certain failure: as if it ran e^3 = 20 times as long."""
_UNPREDICTABLE = 50.0
"""Score of what the feature source rejects; worse than any latency's logarithm."""
_RECENT = 64
"""Trials over which the accuracy of the scores is told."""
_FIRST_TEST = 24
"""Trials after which a pretrained model is put to the test for the first time."""
_HELD_OUT = 0.25
_WORSE = 0.02
"""Pairwise accuracy a pretrained model may cost before it is left out."""


@dataclass
class _Memory:
    """The trials of one schema and the models trained on them."""

    model: CostModel
    validity: ValidityClassifier = field(default_factory=ValidityClassifier)
    features: list[NDArray[np.float32]] = field(default_factory=list)
    analytical: list[float] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    priors: list[float] = field(default_factory=list)
    knobs: list[NDArray[np.float32]] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    """Seconds at the machine's pace when the job began."""
    scores: list[float] = field(default_factory=list)
    trained: bool = False
    trusted: bool = True
    """Whether the pretrained model helps here."""
    tested: int = 0
    """Trials when that was last found out."""
    accuracy: tuple[int, float | None] = (0, None)
    """Of the latest trials, and how many there were."""
    doubt: tuple[int, float] = (-1, 0.0)
    """Of scores, and how many trials there were."""


class Predictor:
    """See the module's docstring.

    Args:
        source: where features come from.
        new_model: makes an untrained cost model.
        learning: whether models are trained; else the analytical latency stays the score.
        prior: pretrained model of the target's family; it is used for features it knows.
    """

    def __init__(
        self,
        source: FeatureSource,
        new_model: CostModelFactory,
        learning: bool = True,
        prior: Pretrained | None = None,
    ) -> None:
        self._learning = learning
        self._pretrained = prior
        self._whole: dict[str, TuningState] = {}
        self._usual: dict[str, NDArray[np.float32]] = {}
        self._columns: dict[str, KnobColumns] = {}
        self._source = source
        self._new_model = new_model
        self._memories: dict[str, _Memory] = {}
        self._groups: dict[str, int] = {}
        self._order: list[tuple[_Memory, int]] = []
        self.seen = 0
        """Trials remembered."""
        self.fitted = 0
        """Trials that the models in force were trained on."""

    def introduce(self, state: TuningState) -> None:
        """Tell of a task, with its whole space, before it is asked about."""
        self._whole[state.task.workload.key] = state

    def score(self, state: TuningState, configs: Sequence[Config]) -> Floats:
        """Scores, shape (n,), lower is better."""
        return self.estimate(state, configs)[0]

    def estimate(self, state: TuningState, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        """Scores, lower is better, and their standard deviations, each shape (n,)."""
        if not configs:
            return np.zeros(0), np.zeros(0)
        known, memory = self._source.describe(state, configs), self._memory(state)
        samples = self._samples(state, configs, known)
        return _usable(memory, known, *_raw(memory, samples))

    def joint(self, state: TuningState, configs: Sequence[Config]) -> Joint:
        """As `estimate`, as one distribution; at least one configuration."""
        memory = self._memory(state)
        if not memory.trained:
            return Joint.independent(*self.estimate(state, configs))
        known = self._source.describe(state, configs)
        joint = memory.model.joint(_seen(memory, self._samples(state, configs, known)))
        mean, deviation = _usable(memory, known, joint.mean, joint.deviation)
        return Joint(mean, deviation, joint.covariance)

    def remember(self, state: TuningState, trials: Sequence[Trial], pace: float = 1.0) -> None:
        """Add measured trials, without training yet.

        Args:
            pace: how much longer everything took than at first; the latencies are learned without.
        """
        usable = [trial for trial in trials if trial.config in state.space]
        if not usable:
            return
        configs = [trial.config for trial in usable]
        known, memory = self._source.describe(state, configs), self._memory(state)
        samples = self._samples(state, configs, known)
        memory.scores += _raw(memory, samples)[0].tolist()
        memory.features += list(known.features)
        memory.analytical += known.analytical.tolist()
        memory.groups += samples.groups.tolist()
        memory.priors += [] if samples.prior is None else samples.prior.tolist()
        memory.knobs += [] if samples.knobs is None else list(samples.knobs)
        first = len(memory.latencies)
        memory.latencies += [_label(trial.result) / pace for trial in usable]
        self._order += [(memory, first + place) for place in range(len(usable))]
        self.seen += len(usable)

    def repace(self, count: int, factor: float) -> None:
        """The machine turned out to be slower by `factor` during the latest `count` trials."""
        for memory, place in self._order[len(self._order) - count :]:
            memory.latencies[place] /= factor

    def train_if_due(self) -> None:
        """Train anew if the trials have grown enough since the last time."""
        if self.seen >= max(1, self.fitted) * _GROWTH:
            self.train()

    def train(self, first: int | None = None) -> None:
        """Fit every model to all remembered trials, or to the `first` of them."""
        first = self.seen if first is None else first
        if first == self.fitted:
            return
        counts = Counter(id(memory) for memory, _ in self._order[:first])
        for memory in self._memories.values() if self._learning else ():
            _train(memory, self._new_model, counts[id(memory)])
        self.fitted = first

    def accuracy(self, state: TuningState) -> float | None:
        """Pairwise accuracy of the scores by which recent trials were chosen."""
        memory = self._memory(state)
        if memory.accuracy[0] != len(memory.latencies):
            memory.accuracy = (len(memory.latencies), _accuracy(memory))
        return memory.accuracy[1]

    def doubt(self, state: TuningState) -> float:
        """Deviation of the error of the difference of two scores of a task, by what the trials
        came to that were chosen by them, and what is usual."""
        memory = self._memory(state)
        if memory.doubt[0] != len(memory.latencies):
            memory.doubt = (len(memory.latencies), _doubt(memory))
        return memory.doubt[1]

    def judged(self, state: TuningState, configs: Sequence[Config]) -> Floats:
        """Return logarithms of analytical latencies, shape (n,), independent of what was learned.

        Configurations that have none, or that the judge rejects, rank last.
        """
        known = self._source.describe(state, configs)
        usable = np.isfinite(known.analytical) & (known.analytical > 0) & ~known.rejected
        return np.where(usable, np.log(np.where(usable, known.analytical, 1.0)), _UNPREDICTABLE)

    def _memory(self, state: TuningState) -> _Memory:
        schema = self._source.schema(state)
        if schema not in self._memories:
            self._memories[schema] = _Memory(self._new_model())
        return self._memories[schema]

    def _samples(
        self, state: TuningState, configs: Sequence[Config], known: Description
    ) -> Samples:
        group = self._groups.setdefault(state.task.workload.key, len(self._groups))
        groups = np.full(len(configs), group, np.int64)
        prior, knobs = self._prior(state, configs, known), self._knobs(state, configs)
        return Samples(known.features, known.analytical, groups, prior, knobs)

    def _knobs(self, state: TuningState, configs: Sequence[Config]) -> NDArray[np.float32] | None:
        """The knobs as numbers, where the features are something else."""
        if isinstance(self._source, KnobFeatures):
            return None
        key = state.task.workload.key
        if key not in self._columns:
            self._columns[key] = KnobColumns.of(self._whole.get(key, state).space)
        return self._columns[key].rows(configs)

    def _prior(
        self, state: TuningState, configs: Sequence[Config], known: Description
    ) -> Floats | None:
        """What the pretrained model says of configurations; None where it knows nothing of them."""
        features = known.features
        if self._pretrained is None or features.shape[1] != self._pretrained.columns:
            return None
        key = state.task.workload.key
        if key not in self._usual:
            whole = self._whole.get(key, state)
            drawn = reference(whole.space, state.task.workload)
            others = whole.space.breeder.decode(drawn)
            self._usual[key] = usual(self._source.describe(whole, others).features)
        return self._pretrained.predict(features, self._usual[key], configs, known.analytical)


def _seen(memory: _Memory, samples: Samples) -> Samples:
    """Samples as a memory's model sees them."""
    return samples if memory.trusted else samples.without_prior()


def _raw(memory: _Memory, samples: Samples) -> tuple[Floats, Floats]:
    """The model's scores with their deviations; before any training, the pretrained model's, or
    the logarithm of the analytical latency.
    """
    if memory.trained:
        return memory.model.estimate(_seen(memory, samples))
    if samples.prior is not None:
        return samples.prior, np.zeros(len(samples))
    known = np.isfinite(samples.analytical) & (samples.analytical > 0)
    return np.log(np.where(known, samples.analytical, 1.0)), np.zeros(len(samples))


def _usable(
    memory: _Memory, known: Description, scores: Floats, doubt: Floats
) -> tuple[Floats, Floats]:
    """Scores with what probably fails put off, and their deviations; what cannot run, last."""
    scores = scores + _FAILURE_PENALTY * memory.validity.failure_probability(known.features)
    rejected = ~np.isfinite(scores) | known.rejected
    return np.where(rejected, _UNPREDICTABLE, scores), np.where(rejected, 0.0, doubt)


def _accuracy(memory: _Memory) -> float | None:
    latencies = np.array(memory.latencies[-_RECENT:])
    good = np.isfinite(latencies)
    if good.sum() < 2:
        return None
    scores = np.array(memory.scores[-_RECENT:])[good]
    groups = np.array(memory.groups[-_RECENT:])[good]
    return rank_agreement(scores, latencies[good], groups)


def _doubt(memory: _Memory) -> float:
    """Pooled over workloads: how far off all scores of one are together tells nothing."""
    latencies, groups = np.array(memory.latencies), np.array(memory.groups)
    errors = np.log(latencies, where=latencies > 0, out=np.full(len(latencies), np.nan))
    errors -= np.array(memory.scores)
    good = np.isfinite(errors)
    squares, freedom = _ERROR_TRUST * _USUAL_ERROR**2, float(_ERROR_TRUST)
    for group in np.unique(groups[good]):
        mine = errors[good & (groups == group)]
        squares += float(((mine - mine.mean()) ** 2).sum())
        freedom += len(mine) - 1
    return math.sqrt(2 * squares / freedom)


def _train(memory: _Memory, new_model: CostModelFactory, count: int) -> None:
    """Fit to the first `count` trials."""
    labels = np.array(memory.latencies[:count])
    if not len(labels):
        return
    samples = Samples(
        np.stack(memory.features[:count]),
        np.array(memory.analytical[:count]),
        np.array(memory.groups[:count], np.int64),
        np.array(memory.priors[:count]) if memory.priors else None,
        _stacked(memory.knobs[:count]) if memory.knobs else None,
    )
    failed = ~np.isfinite(labels)
    memory.validity.fit(samples.features, failed)
    if (~failed).any():
        samples, labels = samples.take(~failed), labels[~failed]
        if samples.prior is not None:
            _test_prior(memory, samples, labels, new_model)
        memory.model.fit(_seen(memory, samples), labels)
        memory.trained = True


def _stacked(rows: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Rows of several tasks under each other, zeros behind the shorter ones."""
    stacked = np.zeros((len(rows), max(len(row) for row in rows)), np.float32)
    for place, row in zip(stacked, rows, strict=True):
        place[: len(row)] = row
    return stacked


def _test_prior(
    memory: _Memory, samples: Samples, labels: Floats, new_model: CostModelFactory
) -> None:
    """Find out whether the pretrained model helps, if the trials have doubled since last time.

    A function of the first 24, 48, 96, ... trials alone, so that a resumed job decides alike.
    """
    if len(labels) < _FIRST_TEST:
        return
    count = _FIRST_TEST << ((len(labels) // _FIRST_TEST).bit_length() - 1)
    if count == memory.tested:
        return
    memory.tested = count
    early = int((1 - _HELD_OUT) * count)
    learned, late = np.arange(early), np.arange(early, count)
    accuracies = []
    for seen in (samples, samples.without_prior()):
        model = new_model()
        model.fit(seen.take(learned), labels[learned])
        scores = model.predict(seen.take(late))
        accuracies.append(rank_agreement(scores, labels[late], samples.groups[late]))
    memory.trusted = accuracies[0] >= accuracies[1] - _WORSE


def _label(result: MeasureResult) -> float:
    """Latency in seconds to learn from: of a slow run its lower bound, of a failed one NaN."""
    if result.status == "slow" and result.samples:
        return min(result.samples)
    return result.latency if result.latency is not None else float("nan")
