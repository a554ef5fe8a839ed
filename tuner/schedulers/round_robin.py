"""Round robin: the unfinished task with the fewest trials is next."""

from collections.abc import Sequence

from tilesmith.tuner.tasks.scheduler import TaskProgress, TaskScheduler, schedulers


@schedulers.register("round_robin")
class RoundRobin(TaskScheduler):
    """A scheduler that gives all tasks equally many trials and ignores their weights."""

    def choose(self, tasks: Sequence[TaskProgress]) -> int | None:
        left = [(task.trials, i) for i, task in enumerate(tasks) if not task.done]
        return min(left)[1] if left else None
