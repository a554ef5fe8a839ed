"""Expected end-to-end gain for each unit of budget: the default.

Spends a wall-clock budget (or, with a deterministic runner, a trial budget) where the next batch
probably saves most of the model's latency:

    gain_i = w_i g_i r_i / c_i
    r_i    = (1/2) recent_i + (1/2) headroom_i / (n_i + 1)

w_i weight, g_i best latency, c_i mean cost of a trial of task i, n_i batches spent. recent_i is the
mean relative improvement of its last 3 batches. headroom_i is what the judge expects to be gained
yet, by its own doubt (`tuner.search.forecast`). Where no judge is asked it is log(g_i / floor_i),
at least 0.05 and at most 1: floor_i is the time it would take at the best speed (operations per
second) any task of the same operator reached, so a task slower than its like is expected to catch
up. A task of which only the default was tried counts with headroom_i as a whole, or with 0.3 where
no judge was asked. Where recent gains vanish, r_i falls as 1/n, and a long-quiet task is left for
one with more to gain, but never forgotten; a workload that takes no time worth speaking of waits
until the others have settled. Tasks on which nothing works yet go first.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from tilesmith.tuner.tasks.scheduler import (
    TaskProgress,
    TaskScheduler,
    best_speed,
    first_untried,
    schedulers,
)

_LEAST_HEADROOM = 0.05
_MOST_HEADROOM = 1.0
_FIRST_BATCH = 0.3


@schedulers.register("expected_gain")
class ExpectedGain(TaskScheduler):
    """See the module's docstring."""

    def choose(self, tasks: Sequence[TaskProgress]) -> int | None:
        stuck = first_untried([replace(t, done=t.done or t.best is not None) for t in tasks])
        if stuck is not None:
            return stuck
        left = [i for i, task in enumerate(tasks) if not task.done]
        return max(left, key=lambda i: (_gain(tasks[i], tasks), -i)) if left else None


def _gain(task: TaskProgress, tasks: Sequence[TaskProgress]) -> float:
    """Seconds of model latency saved for each unit of cost, expected of the next batch."""
    if task.best is None:
        return 0.0
    batches = task.batches
    window = len(task.recent) - 1
    recent = math.log(task.recent[0] / task.best) / window if window else 0.0
    relative = 0.5 * recent + 0.5 * _headroom(task, tasks) / (batches + 1)
    if task.trials <= 1:
        relative = max(relative, _FIRST_BATCH) if task.headroom is None else task.headroom
    return task.weight * task.best * relative / max(_cost(task, tasks), 1e-9)


def _cost(task: TaskProgress, tasks: Sequence[TaskProgress]) -> float:
    """Of one trial of a task, or of any where it has had none."""
    if task.trials:
        return task.cost / task.trials
    spent = sum(other.cost for other in tasks)
    return spent / max(1, sum(other.trials for other in tasks)) or 1.0


def _headroom(task: TaskProgress, tasks: Sequence[TaskProgress]) -> float:
    if task.headroom is not None:
        return task.headroom
    speed = best_speed(task, tasks)
    if not speed or not task.flops or task.best is None:
        return _MOST_HEADROOM
    room = math.log(task.best * speed / task.flops)
    return min(_MOST_HEADROOM, max(_LEAST_HEADROOM, room))
