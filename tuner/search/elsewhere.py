"""`Elsewhere`: a search whose proposals are made by choosers, several at once.

The proposal of round k is asked for when round k - D - 1 has been joined. It knows the results up
to there, and of the rounds in between those up to k - C - 1, C being how many proposals the job has
made at once (`TuneOptions.choosing`). What the C rounds before it come to it cannot know: so it is
asked for more than is needed, and when its turn comes, in the order of the rounds, what is new by
then is taken, evenly spread over what was proposed. Trials depend on D and C, never on who chooses,
how many do, or how fast.

A round that comes to nothing new when its turn comes is the last of its task.
"""

from collections.abc import Sequence

from tilesmith.search_space.results.measure import result_to_json
from tilesmith.search_space.spaces.config import Config
from tilesmith.tuner.learning.pace import PaceLog
from tilesmith.tuner.search.rounds import Round, RoundQueue
from tilesmith.tuner.search.task_search import TaskSearch
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.choosing import Choosers
from tilesmith.tuner.tasks.strategy import Json
from tilesmith.tuner.tasks.task import Trial

_SLACK = 2
"""What is asked for beyond a round, at most, in rounds."""


class Elsewhere:
    """See the module's docstring.

    Args:
        setup: of the search, which has begun, or was resumed up to its rounds.
        rounds, tasks, pace: its own.
        width: how many proposals are made at once.
        choosers: for this search alone.
    """

    def __init__(
        self,
        setup: Json,
        rounds: RoundQueue,
        tasks: Sequence[TaskSearch],
        pace: PaceLog,
        width: int,
        choosers: Choosers,
        cancel: CancelToken,
    ) -> None:
        self._rounds, self._pace, self._width = rounds, pace, width
        self._tasks = {task.state.task.workload.key: task for task in tasks}
        self._choosers, self._cancel = choosers, cancel
        self._number = self._followed = 0
        choosers.open(setup)

    def propose(self, task: TaskSearch, count: int) -> None:
        """Ask for a round of a task."""
        rounds, width = self._rounds, self._width
        open_rounds = [one for one in rounds if one.is_open]
        for one in open_rounds[: max(0, len(open_rounds) - width + 1)]:
            self.settle(one)
        number, self._number = self._number, self._number + 1
        mine = [one for one in rounds if one.task is task]
        known = [one for one in mine if one.number < number - width]
        unknown = sum(one.planned for one in mine if one.number >= number - width)
        asked = {
            "workload": task.state.task.workload.key,
            "number": number,
            "count": count + min(unknown, _SLACK * count),
            "pending": [dict(config) for one in known for config in one.configs],
            "known": self._followed,
        }
        rounds.ask(task, count, asked, self._choosers.ask(asked))

    def settle_ready(self) -> None:
        """Settle rounds that need not be waited for, in order."""
        for one in self._rounds:
            if one.is_open:
                if not self._choosers.is_ready(one.ticket):
                    break
                self.settle(one)

    def settle(self, one: Round) -> None:
        """Fill a round with the new ones of its proposals; all rounds before it are settled.

        Raises:
            Cancelled: the token was set before it was proposed.
        """
        proposed = self._choosers.answer(one.ticket, self._cancel)
        state, task = one.task.state, one.task
        new = [config for config in map(Config.of, proposed) if state.is_new(config)]
        if len(new) > one.planned:
            new = [new[place * len(new) // one.planned] for place in range(one.planned)]
        first = [c for c in (state.default, *task.placed) if task.placed and c not in state.pending]
        self._rounds.settle(one, list(dict.fromkeys([*first, *new])))

    def follow(self, trials: Sequence[Trial]) -> None:
        """Trials that were joined."""
        pace = self._pace.now
        self._choosers.follow([[one.workload.key, *message(one), pace] for one in trials])
        self._followed += len(trials)

    def save(self) -> Json:
        return {"number": self._number}

    def load(self, saved: Json, rounds: Json, trials: Sequence[Trial]) -> None:
        """Ask again for the saved rounds that were open, each when it was asked for."""
        self._number = saved["number"]
        for one in rounds:
            asked = one["asked"]
            if asked is None:
                self._rounds.load([one], self._tasks)
                continue
            self.follow(trials[self._followed : asked["known"]])
            ticket = self._choosers.ask(asked)
            self._rounds.ask(self._tasks[asked["workload"]], one["planned"], asked, ticket)
        self.follow(trials[self._followed :])

    def close(self) -> None:
        """Nothing more is asked."""
        self._choosers.close()


def message(trial: Trial) -> list[Json]:
    """A trial as JSON values: configuration, result."""
    return [dict(trial.config), result_to_json(trial.result)]
