"""`TuningTask`: one workload to tune, and `TuningState`: all that a search knows of it.

A task may be tuned by several ways of measuring; each has a `TuningState` of its own, because a
cost model never mixes the labels of the simulator and the hardware. The state is what a strategy
reads; only the session writes results into it. Invariants: `results` holds distinct configurations
in the order they were measured; nothing in `results`, `excluded` or `pending` is proposed again.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tilesmith.records.trials.counting import MEASURED_AGAIN
from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.surrogates.cost_model import Joint

Layouts = tuple[str, str]
"""Physical layouts of the first input and of the output."""

Predict = Callable[[Sequence[Config]], NDArray[np.float64]]
"""Scores of configurations, shape (n,), lower is better; usually a logarithm of seconds."""

Behaviour = Callable[[Sequence[Config]], Sequence[Hashable]]
"""What configurations come to: those of equal behaviour measure the same, as far as is known."""

Estimate = Callable[[Sequence[Config]], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Scores as `Predict` gives them, and their standard deviations (zero: unknown), each (n,)."""


@dataclass(frozen=True)
class GivenSpace:
    """A space that is no operator's, and where a search in it starts."""

    space: SearchSpace
    default: Config


@dataclass(frozen=True)
class TuningTask:
    """A workload, how often its model runs it (`weight`), and the space to search where no operator
    tells it (`given`).
    """

    workload: Workload
    weight: float = 1.0
    given: GivenSpace | None = None


@dataclass(frozen=True)
class Trial:
    """One measured configuration of a workload: what a search learns from and a ledger stores."""

    workload: Workload
    config: Config
    result: MeasureResult

    def again(self) -> "Trial":
        """Return this trial marked as a repeated measurement, which is not counted as a trial."""
        if self.result.message.startswith(MEASURED_AGAIN):
            return self
        message = ": ".join(filter(None, (MEASURED_AGAIN, self.result.message)))
        return replace(self, result=replace(self.result, message=message))


def no_prediction(configs: Sequence[Config]) -> NDArray[np.float64]:
    """The predictor of one who knows nothing: equal scores."""
    return np.zeros(len(configs))


def no_estimate(configs: Sequence[Config]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Equal scores, no deviations."""
    return np.zeros(len(configs)), np.zeros(len(configs))


def no_joint(configs: Sequence[Config]) -> Joint:
    """Equal scores, independent, no deviations."""
    return Joint.independent(*no_estimate(configs))


def no_doubt() -> float:
    """Of who predicts nothing."""
    return 0.0


def own_behaviour(configs: Sequence[Config]) -> Sequence[Hashable]:
    """Each configuration by itself."""
    return configs


def plain_layouts(config: Config) -> Layouts:
    """Layouts named by the knobs `input_layout` and `output_layout`, as `Template.layouts`."""
    return str(config.get("input_layout", "")), str(config.get("output_layout", ""))


@dataclass
class TuningState:
    """What is known of one task by one way of measuring.

    Attributes:
        task: the workload and its weight.
        space: legal configurations.
        default: the untuned configuration, a candidate like any other.
        measured_by: the label all `results` carry.
        rng: the only source of randomness of this task's search.
        results: measured configurations in order.
        excluded: never proposed (quarantined crashes).
        pending: proposed, and no result is known yet.
        seeds: starting points from similar workloads or from another way of measuring.
        proven: how many of the first seeds are this workload's bests on other machines.
        predict: scores from the cost model in force.
        estimate: the same with their deviations.
        joint: the same as one distribution, of at least one configuration.
        behaviour: what configurations come to.
        judged: logarithms of the judge's seconds, whatever was learned since, and large where
            nothing runs; None: there is no judge, or it may not be asked.
        doubt: deviation of the error of the difference of two scores.
        shown: whether scores know the analytical latency.
        informed: whether scores rank well before anything is measured, and measuring takes time,
            which is lost to choosing.
        layouts: the layout pair of a configuration.
    """

    task: TuningTask
    space: SearchSpace
    default: Config
    measured_by: MeasuredBy
    rng: np.random.Generator
    results: dict[Config, MeasureResult] = field(default_factory=dict)
    excluded: set[Config] = field(default_factory=set)
    pending: set[Config] = field(default_factory=set)
    seeds: tuple[Config, ...] = ()
    proven: int = 0
    predict: Predict = no_prediction
    estimate: Estimate = no_estimate
    joint: Callable[[Sequence[Config]], Joint] = no_joint
    behaviour: Behaviour = own_behaviour
    judged: Predict | None = None
    doubt: Callable[[], float] = no_doubt
    shown: bool = False
    informed: bool = False
    layouts: Callable[[Config], Layouts] = plain_layouts
    _ranked: list[tuple[Config, float]] | None = field(default=None, repr=False)
    _ranked_count: int = 0

    def is_new(self, config: Config) -> bool:
        """Whether `config` may still be proposed."""
        return not (config in self.results or config in self.excluded or config in self.pending)

    def add(self, trials: Sequence[Trial]) -> None:
        """Append results; a configuration measured before keeps its first result."""
        for trial in trials:
            if trial.config not in self.results:
                self.record(trial)

    def record(self, trial: Trial) -> None:
        """Set a configuration's result, a new one or one measured again."""
        assert trial.result.measured_by == self.measured_by, "labels are never mixed"
        self.results[trial.config] = trial.result
        self._ranked = None

    @property
    def exhausted(self) -> bool:
        """Whether every legal configuration has been measured, or excluded, or is about to be."""
        others = self.excluded | self.pending
        if len(self.results) + len(others - self.results.keys()) < self.space.size:
            return False
        tried = self.results.keys() | others
        return sum(config in self.space for config in tried) >= self.space.size

    def ranked(self) -> list[tuple[Config, float]]:
        """Successful configurations with latencies in seconds, fastest first."""
        if self._ranked is None or self._ranked_count != len(self.results):
            timed = ((c, r.latency) for c, r in self.results.items())
            good = [(config, latency) for config, latency in timed if latency is not None]
            self._ranked = sorted(good, key=lambda pair: pair[1])
            self._ranked_count = len(self.results)
        return self._ranked

    @property
    def best(self) -> tuple[Config, float] | None:
        """The fastest successful configuration and its latency in seconds."""
        ranked = self.ranked()
        return ranked[0] if ranked else None

    @property
    def default_latency(self) -> float | None:
        """Latency of the default in seconds, once it ran (if it was aborted as slow: till then)."""
        result = self.results.get(self.default)
        if result is None:
            return None
        aborted = min(result.samples) if result.status == "slow" and result.samples else None
        return result.latency if result.ok else aborted

    @property
    def is_untuned(self) -> bool:
        """Whether nothing better than the default is known."""
        return self.best is None or self.best[0] == self.default

    def within(self, space: SearchSpace) -> "TuningState":
        """This state seen through a smaller space (results, randomness and predictor shared)."""
        return replace(self, space=space)
