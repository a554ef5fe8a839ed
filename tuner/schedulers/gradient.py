"""Ansor's gradient scheduler (Zheng et al., OSDI 2020, section 6 and appendix A).

With f = sum_i w_i g_i the model's latency, w_i the weight and g_i(t) the best latency of task i
after t units, each step goes to the task of largest |df/dt_i|, approximated by

    w_i [ a (g_i(t) - g_i(t - d)) / d
          + (1 - a) min( -g_i(t) / t,  b C_i / max_{k in N(i)} V_k - g_i(t) ) ]

    a = 0.2, b = 2, d = 3 batches; C_i operations of task i, V_k operations per second that task k
    reached; N(i) the tasks of the same operator: if a similar task is fast, i may become so too.
"""

from collections.abc import Sequence

from tilesmith.tuner.tasks.scheduler import (
    TaskProgress,
    TaskScheduler,
    best_speed,
    first_untried,
    schedulers,
)

_ALPHA = 0.2
_BETA = 2.0


@schedulers.register("gradient")
class Gradient(TaskScheduler):
    """See the module's docstring; a unit of t is one batch."""

    def choose(self, tasks: Sequence[TaskProgress]) -> int | None:
        untried = first_untried(tasks)
        if untried is not None:
            return untried
        left = [i for i, task in enumerate(tasks) if not task.done]
        return max(left, key=lambda i: (_gradient(tasks[i], tasks), -i)) if left else None


def _gradient(task: TaskProgress, tasks: Sequence[TaskProgress]) -> float:
    """|df/dt| of one task, in seconds a batch."""
    if task.best is None:
        return 0.0
    best, batches = task.best, task.batches
    window = len(task.recent) - 1
    past = (best - task.recent[0]) / window if window else 0.0
    optimistic = -best / batches
    speed = best_speed(task, tasks)
    if speed and task.flops:
        optimistic = min(optimistic, _BETA * task.flops / speed - best)
    return abs(task.weight * (_ALPHA * past + (1 - _ALPHA) * optimistic))
