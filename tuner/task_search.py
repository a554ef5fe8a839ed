"""`TaskSearch`: one task inside a `Search`: what is pending, spent and found."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilesmith.search_space.spaces.config import Config
from tilesmith.tuner.scheduler import RECENT, TaskProgress
from tilesmith.tuner.strata import Stratum
from tilesmith.tuner.strategy import Json, Strategy, generator_state, restored_generator
from tilesmith.tuner.task import TuningState


@dataclass
class TaskSearch:
    """One task's search: the state strategies read, and the session's own account of it.

    Attributes:
        placed: schedules known by what they take inside the model alone. They have had no trial,
            and get one before any other of the task: the two do not quite compare.
    """

    state: TuningState
    strategy: Strategy
    strata: list[Stratum]
    flops: int
    pending: list[Config] = field(default_factory=list)
    batches: int = 0
    recent: list[float] = field(default_factory=list)
    trials: int = 0
    cost: float = 0.0
    since_best: int = 0
    done: bool = False
    placed: list[Config] = field(default_factory=list)

    def progress(self) -> TaskProgress:
        task = self.state.task
        operator = task.workload.operator
        return TaskProgress(
            task.weight,
            operator,
            self.flops,
            self.trials,
            self.cost,
            self.batches,
            tuple(self.recent),
            self.done,
        )

    @property
    def seconds(self) -> float:
        """What the model spends on it, as far as is known."""
        best = self.state.best
        return self.state.task.weight * (best[1] if best is not None else 0.0)

    @property
    def untuned_latency(self) -> float | None:
        """Of the default; before its trial, of what stands in its place in the untuned model."""
        known = self.state.default_latency
        if known is None and self.placed:
            return self.state.results[self.placed[0]].latency
        return known

    def note_batch(self) -> None:
        """Remember the best so far at the end of a batch; nothing before the first success."""
        if (best := self.state.best) is not None:
            self.batches += 1
            self.recent = [*self.recent, best[1]][-RECENT:]

    def save(self) -> Json:
        return {
            "rng": generator_state(self.state.rng),
            "strategy": self.strategy.save(),
            "pending": [dict(config) for config in self.pending],
            "seeds": [dict(config) for config in self.state.seeds],
            "batches": self.batches,
            "recent": self.recent,
            "trials": self.trials,
            "cost": self.cost,
            "since_best": self.since_best,
            "done": self.done,
            "placed": [dict(config) for config in self.placed],
        }

    def load(self, saved: Json) -> None:
        self.state.rng = restored_generator(saved["rng"])
        self.strategy.load(saved["strategy"])
        self.pending = [Config.of(values) for values in saved["pending"]]
        self.state.seeds = tuple(Config.of(values) for values in saved["seeds"])
        self.batches = saved["batches"]
        self.recent = [float(latency) for latency in saved["recent"]]
        self.trials, self.cost = saved["trials"], saved["cost"]
        self.since_best, self.done = saved["since_best"], saved["done"]
        self.placed = [Config.of(values) for values in saved.get("placed", ())]
