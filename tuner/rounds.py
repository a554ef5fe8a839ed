"""Rounds under way: what was proposed and is not in the ledger yet, in the order of its proposal.

A job keeps a fixed number of rounds in flight, its distance D: the proposal of round k knows the
results of rounds up to k - D - 1 and which configurations the D rounds between are about. Results
are joined and committed in the order of proposal, whatever order they arrive in. So trials depend
on D, never on who measures, how many do, or how fast; D = 0 is a job that waits for every round.

What the first turns are about (untuned defaults) is known before anything is measured: those rounds
are under way at once, however many they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilesmith.search_space.spaces.config import Config
from tilesmith.tuner.runner import Begun
from tilesmith.tuner.strategy import Json
from tilesmith.tuner.task_search import TaskSearch


@dataclass
class Round:
    """A batch of one task.

    Attributes:
        task: whose it is.
        configs: those of which no result is joined yet, in order; never empty.
        begun: the runner's name for the first of them, once it has been told to measure them.
    """

    task: TaskSearch
    configs: list[Config]
    begun: Begun | None = None


class Rounds:
    """A queue of rounds; keeps each task's account of what it waits for."""

    def __init__(self) -> None:
        self._queue: deque[Round] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Round]:
        return iter(self._queue)

    @property
    def first(self) -> Round:
        """The oldest."""
        return self._queue[0]

    @property
    def trials(self) -> int:
        """Results that are waited for."""
        return sum(len(one.configs) for one in self._queue)

    def add(self, task: TaskSearch, configs: Sequence[Config]) -> None:
        """One more round, unless there is nothing in it."""
        if configs:
            self._queue.append(Round(task, list(configs)))
            task.rounds += 1
            task.state.pending.update(configs)

    def take(self, count: int) -> None:
        """The first `count` of the oldest round need not be waited for any more."""
        oldest = self.first
        oldest.task.state.pending.difference_update(oldest.configs[:count])
        del oldest.configs[:count]
        oldest.begun = None
        if not oldest.configs:
            oldest.task.rounds -= 1
            self._queue.popleft()

    def save(self) -> Json:
        return [
            {
                "workload": one.task.state.task.workload.key,
                "configs": [dict(config) for config in one.configs],
            }
            for one in self._queue
        ]

    def load(self, saved: Json, tasks: Mapping[str, TaskSearch]) -> None:
        for one in saved:
            self.add(tasks[one["workload"]], [Config.of(values) for values in one["configs"]])
