"""Round robin: the unfinished task with the fewest trials is next."""

from collections.abc import Sequence

from tilesmith.tuner.tasks.scheduler import TaskProgress, TaskScheduler, schedulers


@schedulers.register("round_robin")
class RoundRobin(TaskScheduler):
    """Equal trials for all tasks, whatever their weight."""

    def choose(self, tasks: Sequence[TaskProgress]) -> int | None:
        left = [(task.trials, i) for i, task in enumerate(tasks) if not task.done]
        return min(left)[1] if left else None
