"""`TaskScheduler`: which task gets the next batch of trials.

One class in one file of `schedulers/`, registered under its name. It sees the progress of every
task and names one; it holds no state of its own, so that resuming needs nothing. The aim of all is
the model's end-to-end latency: the sum over tasks of weight x best latency.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.registry import Registry

RECENT = 4
"""Best latencies remembered: enough for the gain of the last three batches."""


@dataclass(frozen=True)
class TaskProgress:
    """How far one task's tuning is.

    Attributes:
        weight: how often the model runs the workload.
        operator: tasks of one operator are alike (the gradient scheduler compares them).
        flops: operations of one run, 0 if unknown.
        trials: trials spent, those under way included.
        cost: what they cost: seconds, or plain trials where the runner is deterministic.
        batches: batches spent since the first success (the default's measurement counts as one).
        recent: best latency in seconds after the last of these, at most `RECENT`, oldest first.
        done: exhausted or stopped early; gets no more trials.
        under_way: trials whose results are not there yet.
        headroom: logarithm by which the judge expects its latency to fall yet; None: it was not
            asked.
    """

    weight: float
    operator: str
    flops: int
    trials: int
    cost: float
    batches: int
    recent: tuple[float, ...]
    done: bool = False
    under_way: int = 0
    headroom: float | None = None

    @property
    def best(self) -> float | None:
        """Best latency so far, seconds."""
        return self.recent[-1] if self.recent else None


class TaskScheduler(ABC):
    """See the module's docstring."""

    @abstractmethod
    def choose(self, tasks: Sequence[TaskProgress]) -> int | None:
        """Index of the task to spend the next batch on; None when all are done."""


SchedulerFactory = Callable[[], TaskScheduler]

schedulers: Registry[SchedulerFactory] = Registry(
    "scheduler", "tilesmith.tuner.schedulers", InputError
)


_GIVE_UP = 64


def _is_untried(task: TaskProgress) -> bool:
    stuck = task.best is None and not task.under_way
    return task.trials <= 1 or (stuck and task.trials < _GIVE_UP)


def first_untried(tasks: Sequence[TaskProgress]) -> int | None:
    """The unfinished task that needs a first batch most; None if all have had one.

    Needing one: nothing but the default has been tried, or nothing has run successfully in the
    first `_GIVE_UP` trials. Those that nothing works on go first, then those the model spends most
    time in.
    """
    waiting = [i for i, task in enumerate(tasks) if not task.done and _is_untried(task)]
    if not waiting:
        return None

    def need(number: int) -> tuple[float, int, int]:
        task = tasks[number]
        seconds = math.inf if task.best is None else task.weight * task.best
        return seconds, task.flops, -number

    return max(waiting, key=need)


def best_speed(task: TaskProgress, tasks: Sequence[TaskProgress]) -> float:
    """Operations per second that the fastest task of the same operator reached; 0 if none did."""
    alike = (t for t in tasks if t.operator == task.operator and t.best and t.flops)
    return max((t.flops / t.best for t in alike if t.best), default=0.0)
