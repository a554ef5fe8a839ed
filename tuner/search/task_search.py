"""`TaskSearch`: one task inside a `Search`: what is under way, spent and found.

Each round is reported on `logging`'s channel `tilesmith.tuner` at the level DEBUG.

It begins (`opened_state`) with its space, where it starts, and what earlier jobs leave it. An
operator's scheduler tells the space and the default; a task that was given a space (of results that
others recorded) brings both.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.spaces.transfer import carried_over
from tilesmith.search_space.workloads.template import template_of
from tilesmith.tuner.search.forecast import Forecast, forecast_of, untried
from tilesmith.tuner.search.strata import Stratum, propose_batch, strata
from tilesmith.tuner.tasks.ledger import Ledger
from tilesmith.tuner.tasks.scheduler import RECENT, TaskProgress
from tilesmith.tuner.tasks.strategy import Json, Strategy, generator_state, restored_generator
from tilesmith.tuner.tasks.task import Trial, TuningState, TuningTask

Score = Callable[[TuningState, Sequence[Config]], NDArray[np.float64]]
"""Predicted logarithms of seconds of a task's configurations, shape (n,)."""

_CARRIED_OVER = 8
_CLEARLY_WORSE = math.log(1.1)
"""How far behind the untuned default another machine's best may score and still be measured."""


def opened_state(
    task: TuningTask, target: Target, measured_by: MeasuredBy, seed: int, ledger: Ledger
) -> TuningState:
    """A task's state before anything is measured; nothing predicts in it yet."""
    workload, given = task.workload, task.given
    space = space_of(workload, target) if given is None else given.space
    default = default_of(workload, target) if given is None else given.default
    label = 0 if measured_by == "simulator" else 1
    rng = np.random.default_rng([seed, label, int(workload.digest, 16)])
    state = TuningState(task, space, default, measured_by, rng)
    if given is None:
        state.layouts = partial(template_of(workload.operator).layouts, workload)
    elsewhere = _carried(ledger.elsewhere(workload, measured_by), space)
    similar = _carried(ledger.similar(workload, measured_by), space)
    state.seeds = tuple(dict.fromkeys([*elsewhere, *similar]))[:_CARRIED_OVER]
    state.proven = len(elsewhere)
    state.excluded = {c for c in ledger.quarantined(workload) if c in space}
    return state


def _carried(configs: Sequence[Config], space: SearchSpace) -> list[Config]:
    """Configurations moved into a space, each once."""
    moved = dict.fromkeys(carried_over(config, space) for config in configs)
    return [config for config in moved if config is not None]


def starting_points(
    state: TuningState, score: Score, more: Sequence[Config] = ()
) -> tuple[Config, ...]:
    """Other machines' bests that promise something, then `more`, then those of similar workloads.

    A best of another machine that scores clearly worse than the untuned default takes no trial:
    what made it fast is not here. Where nothing is known, all score the same, and all stay.
    """
    proven, others = list(state.seeds[: state.proven]), state.seeds[state.proven :]
    if proven:
        default, *scores = score(state, [state.default, *proven]).tolist()
        limit = default + _CLEARLY_WORSE
        proven = [c for c, score in zip(proven, scores, strict=True) if score <= limit]
    return tuple(dict.fromkeys([*proven, *more, *others]))


def parts_of(state: TuningState, layout_trials: int) -> list[Stratum]:
    """The parts of a task's space that are to be looked into; of a given space none is known."""
    given = state.task.given
    return [] if given is not None else strata(state.space, state.layouts, layout_trials)


def flops_of(task: TuningTask) -> int:
    """Return the floating-point operations of a task's workload; 0 if they are not known."""
    return 0 if task.given else template_of(task.workload.operator).flops(task.workload)


_IMPROVEMENT = 1e-3
"""Relative gain that counts as one for early stopping."""
_UNFORESEEN = 0.1
"""Headroom of a task of which the judge was not asked: about what a doubtful forecast comes to."""
_SMALL = 8.0
"""Trials that hardly say what a task's headroom is worth."""
_SEEDS_SERVE = 32
"""Trials after which a task's own results serve as starting points and seeds are dropped."""


@dataclass
class TaskSearch:
    """One task's search: the state strategies read, and the session's own account of it.

    Attributes:
        rounds, under_way: how many of its rounds are under way, and trials in them; as far as
            they are chosen, those are in `state.pending`.
        placed: schedules known by what they take inside the model alone. They have had no trial,
            and get one before any other of the task: the two do not quite compare.
        forecast: what the judge promises of it; None: it was not asked, or there is no judge.
    """

    state: TuningState
    strategy: Strategy
    strata: list[Stratum]
    flops: int
    rounds: int = 0
    under_way: int = 0
    batches: int = 0
    recent: list[float] = field(default_factory=list)
    trials: int = 0
    cost: float = 0.0
    since_best: int = 0
    done: bool = False
    placed: list[Config] = field(default_factory=list)
    forecast: Forecast | None = None

    @property
    def waits_for_forecast(self) -> bool:
        """Whether there is a judge, and it was not asked yet."""
        return self.forecast is None and self.state.judged is not None

    def foresee(self) -> None:
        """Ask the judge what it promises."""
        self.forecast = forecast_of(self.state)

    def propose(self, count: int, *, at_once: bool) -> list[Config]:
        """Up to `count` new configurations: first the best of each promising structure.

        A strategy that no prediction guides proposes alone.

        Args:
            at_once: the results are there before the next proposal; then those come alone, unless
                there are starting points from elsewhere.
        """
        if not self.strategy.guided:
            return self.strategy.propose(self.state, count)
        if self.waits_for_forecast:
            self.foresee()
        state, promising, first = self.state, None, list[Config]()
        if self.forecast is not None:
            promising = self.forecast.promising(state.doubt())
            first = untried(state, promising)[:count]
        if first and at_once and not state.seeds:
            return first
        others = propose_batch(state, self.strategy, self.strata, count - len(first), promising)
        return list(dict.fromkeys([*first, *others]))

    def progress(self) -> TaskProgress:
        """What the scheduler sees: what is under way counts as spent, and has found nothing."""
        task, pending = self.state.task, self.under_way
        each = self.cost / self.trials if self.trials else 1.0
        return TaskProgress(
            task.weight,
            task.workload.operator,
            self.flops,
            self.trials + pending,
            self.cost + each * pending if pending else self.cost,
            self.batches + self.rounds,
            tuple(self.recent),
            self.done,
            pending,
            self._headroom(),
        )

    def _headroom(self) -> float | None:
        """What is expected to be gained yet, by the forecast: less with every trial, for what many
        have not brought is hardly there."""
        if self.forecast is None:
            return _UNFORESEEN if self.waits_for_forecast else None
        best, default = self.state.best, self.untuned_latency
        gained = math.log(default / best[1]) if best is not None and default else 0.0
        headroom = self.forecast.headroom(gained, self.state.doubt())
        return headroom / (1.0 + self.trials / _SMALL)

    @property
    def seconds(self) -> float:
        """What the model spends on it, as far as is known."""
        best = self.state.best
        return self.state.task.weight * (best[1] if best is not None else 0.0)

    @property
    def untuned_latency(self) -> float | None:
        """The default's latency in seconds; before its trial, that of the schedule that stands in
        its place in the untuned model."""
        known = self.state.default_latency
        if known is None and self.placed:
            return self.state.results[self.placed[0]].latency
        return known

    def note(self, trials: Sequence[Trial], cost: float) -> None:
        """Count trials that were measured, and what they cost."""
        self.trials += len(trials)
        self.cost += cost
        if self.trials >= _SEEDS_SERVE:
            self.state.seeds = ()

    def note_gain(self, trials: Sequence[Trial], before: float, patience: int | None) -> float:
        """What trials brought over a latency of `before` seconds; the best latency after them.

        The task is done if nothing has come of `patience` trials.
        """
        best = min((t.result.latency or math.inf for t in trials), default=math.inf)
        improved = best < before * (1 - _IMPROVEMENT)
        self.since_best = 0 if improved else self.since_best + len(trials)
        self.done |= patience is not None and self.since_best >= patience
        return min(before, best)

    def note_batch(self) -> None:
        """Remember the best so far at the end of a batch; nothing before the first success."""
        if (best := self.state.best) is not None:
            self.batches += 1
            self.recent = [*self.recent, best[1]][-RECENT:]

    def save(self) -> Json:
        return {
            "rng": generator_state(self.state.rng),
            "strategy": self.strategy.save(),
            "seeds": [dict(config) for config in self.state.seeds],
            "batches": self.batches,
            "recent": self.recent,
            "trials": self.trials,
            "cost": self.cost,
            "since_best": self.since_best,
            "done": self.done,
            "placed": [dict(config) for config in self.placed],
            "forecast": self.forecast.save() if self.forecast is not None else None,
        }

    def load(self, saved: Json) -> None:
        self.state.rng = restored_generator(saved["rng"])
        self.strategy.load(saved["strategy"])
        self.state.seeds = tuple(Config.of(values) for values in saved["seeds"])
        self.batches = saved["batches"]
        self.recent = [float(latency) for latency in saved["recent"]]
        self.trials, self.cost = saved["trials"], saved["cost"]
        self.since_best, self.done = saved["since_best"], saved["done"]
        self.placed = [Config.of(values) for values in saved.get("placed", ())]
        if forecast := saved.get("forecast"):
            self.forecast = Forecast.load(forecast)


_LOG = logging.getLogger("tilesmith.tuner")


def told_of_round(state: TuningState, trials: Sequence[Trial]) -> None:
    """Tell of results that were just committed, and where the task stands."""
    if not _LOG.isEnabledFor(logging.DEBUG):
        return
    ends = Counter(trial.result.status for trial in trials)
    shown = ", ".join(f"{count} {status}" for status, count in sorted(ends.items()))
    best = "nothing works yet" if state.best is None else f"best {state.best[1] * 1e6:.3f} us"
    _LOG.debug("%s: trials %s; %s", state.task.workload, shown, best)
    for trial in trials:
        if not trial.result.ok:
            first = trial.result.message.partition("\n")[0]
            _LOG.debug("%s: %s: %s", trial.config, trial.result.status, first)
