"""Rounds under way: what was proposed and is not in the ledger yet, in the order of its proposal.

A job keeps a fixed number of rounds in flight, its distance D: the proposal of round k knows the
results of rounds up to k - D - 1 and which configurations the D rounds between are about. Results
are joined and committed in the order of proposal, whatever order they arrive in. So trials depend
on D, never on who measures, how many do, or how fast; D = 0 is a job that waits for every round.

What the first turns are about (untuned defaults) is known before anything is measured: those rounds
are under way at once, however many they are.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilesmith.search_space.spaces.config import Config
from tilesmith.tuner.measurement.runner import Begun
from tilesmith.tuner.search.task_search import TaskSearch
from tilesmith.tuner.tasks.strategy import Json


@dataclass
class Round:
    """A batch of one task.

    Attributes:
        task: whose it is.
        configs: those of which no result is joined yet, in order; none while it is being chosen.
        planned: how many are expected; as many as `configs` but where fewer were chosen.
        number: in the order of proposal; -1 for what was under way before anything was proposed.
        asked, ticket: what a chooser was asked, and its name for that until it is settled.
        begun: the runner's names for the first of `configs`, once it was told to measure them.
    """

    task: TaskSearch
    configs: list[Config]
    planned: int
    number: int = -1
    asked: Json = None
    ticket: object = None
    begun: list[Begun] = field(default_factory=list)
    _values: list[Json] = field(default_factory=list)

    def values(self) -> list[Json]:
        """Its configurations as JSON values; made once, since they are saved with every join.

        Only `take` and `RoundQueue.settle` change `configs`, and both change how many there are.
        """
        if len(self._values) != len(self.configs):
            self._values = [dict(config.items_) for config in self.configs]
        return self._values

    @property
    def is_open(self) -> bool:
        """Whether it is being chosen."""
        return self.ticket is not None


class RoundQueue:
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
        return sum(one.planned for one in self._queue)

    def add(self, task: TaskSearch, configs: Sequence[Config], number: int = -1) -> None:
        """One more round, unless there is nothing in it."""
        if configs:
            self._append(Round(task, list(configs), len(configs), number))
            task.state.pending.update(configs)

    def ask(self, task: TaskSearch, planned: int, asked: Json, ticket: object) -> None:
        """One more round, which is being chosen."""
        self._append(Round(task, [], planned, asked["number"], asked, ticket))

    def settle(self, one: Round, configs: Sequence[Config]) -> None:
        """A round was chosen."""
        one.configs, one.asked, one.ticket = list(configs), None, None
        one.task.state.pending.update(configs)

    def take(self, count: int) -> None:
        """The first `count` of the oldest round need not be waited for any more."""
        oldest = self.first
        oldest.task.state.pending.difference_update(oldest.configs[:count])
        del oldest.configs[:count]
        gone = count if oldest.configs else oldest.planned
        oldest.planned -= gone
        oldest.task.under_way -= gone
        if not oldest.configs:
            oldest.task.rounds -= 1
            self._queue.popleft()

    def save(self) -> Json:
        return [
            {
                "workload": one.task.state.task.workload.key,
                "configs": one.values(),
                "planned": one.planned,
                "number": one.number,
                "asked": one.asked,
            }
            for one in self._queue
        ]

    def load(self, saved: Json, tasks: Mapping[str, TaskSearch]) -> None:
        """Rounds that were chosen."""
        for one in saved:
            configs = [Config.of(values) for values in one["configs"]]
            self.add(tasks[one["workload"]], configs, one.get("number", -1))

    def _append(self, one: Round) -> None:
        self._queue.append(one)
        one.task.rounds += 1
        one.task.under_way += one.planned
