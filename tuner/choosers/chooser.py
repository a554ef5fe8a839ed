"""`Chooser`: makes a job's proposals wherever it is, from plain data.

It is a `Search` that measures nothing: it follows the trials that the job joined and proposes what
it is asked for. Invariant: a proposal depends on the setup, on the trials followed, in order, and
on what is asked, never on what was asked before or on how trials were parted when they were told.
So its randomness comes from the job's seed and the number of the round, and its models are trained
on the first 2, 3, 4, ... trials, each time a tenth more, whatever was asked in between.
"""

import importlib
from collections.abc import Sequence

import numpy as np

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy, result_from_json
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.learning.learning import Known, Learning
from tilesmith.tuner.measurement.runner import Candidates, DeterministicRunner, Results
from tilesmith.tuner.pretrained.pretrained import Pretrained
from tilesmith.tuner.search.elsewhere import Elsewhere, message
from tilesmith.tuner.search.search import Search, SearchJob
from tilesmith.tuner.search.task_search import TaskSearch
from tilesmith.tuner.tasks.cancel import Cancelled, CancelToken
from tilesmith.tuner.tasks.feature_source import JudgedFeatures, KnobFeatures
from tilesmith.tuner.tasks.ledger import MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.strategy import Json
from tilesmith.tuner.tasks.task import Trial, TuningTask


class _Absent(DeterministicRunner):
    """Stands for who measures."""

    def __init__(self, measured_by: MeasuredBy, deterministic: bool) -> None:
        self.measured_by, self.deterministic = measured_by, deterministic

    def measure(self, batch: Candidates, cancel: CancelToken | None = None) -> Results:
        raise AssertionError("a chooser measures nothing")


class _Known(MemoryLedger):
    """What the job's ledger said when it was opened."""

    def __init__(self, setup: Json) -> None:
        super().__init__()
        self._tasks = setup["tasks"]

    def before(self, workload: Workload, measured_by: MeasuredBy) -> list[Trial]:
        return [_trial(workload, *one) for one in self._tasks[workload.key]["earlier"]]

    def similar(self, workload: Workload, measured_by: MeasuredBy) -> list[Config]:
        return []

    def quarantined(self, workload: Workload) -> list[Config]:
        return [Config.of(values) for values in self._tasks[workload.key]["excluded"]]


class Chooser:
    """See the module's docstring.

    Args:
        setup: `setup_of` the job's search.
    """

    def __init__(self, setup: Json) -> None:
        target = Target.from_json(setup["target"])
        self._seed, self._measured_by = setup["options"]["seed"], setup["measured_by"]
        tasks = [TuningTask(Workload.parse(key)) for key in setup["tasks"]]
        runner = _Absent(self._measured_by, setup["deterministic"])
        options = TuneOptions(**setup["options"])
        job = SearchJob(tasks, target, _Known(setup), options, lambda: None, CancelToken())
        self._search = Search(job, runner, _learning(setup, target))
        self._tasks = {task.state.task.workload.key: task for task in self._search.tasks}
        self._search.recall({key: len(task["earlier"]) for key, task in setup["tasks"].items()})
        for key, entry in setup["tasks"].items():
            state = self._tasks[key].state
            state.seeds = tuple(Config.of(values) for values in entry["seeds"])
            state.add([_trial(state.task.workload, *one) for one in entry["placed"]])

    def follow(self, trials: Sequence[Json]) -> None:
        """Trials that were joined, [workload's key, configuration, result, pace] each."""
        first = 0
        while first < len(trials):
            key, pace = trials[first][0], trials[first][3]
            last = first
            while last < len(trials) and (trials[last][0], trials[last][3]) == (key, pace):
                last += 1
            task = self._tasks[key]
            joined = [_trial(task.state.task.workload, *one[1:3]) for one in trials[first:last]]
            self._search.learn(task, joined, pace)
            task.note(joined, 0.0)
            first = last

    def propose(self, asked: Json) -> list[Json]:
        """Up to `count` configurations that are new but for those `pending`, best first.

        Args:
            asked: {"workload": its key, "number": of the round, "count", "pending": [...]}.
        """
        task, predictor = self._tasks[asked["workload"]], self._search.predictor
        state = task.state
        if task.strategy.guided:
            predictor.train(_trained_on(predictor.seen))
        label = 0 if self._measured_by == "simulator" else 1
        digest = int(state.task.workload.digest, 16)
        state.rng = np.random.default_rng([self._seed, label, digest, asked["number"]])
        state.pending = {Config.of(values) for values in asked["pending"]}
        proposed = task.propose(asked["count"], at_once=False)
        return [dict(config) for config in proposed]


def setup_of(search: Search) -> Json:
    """What a chooser is made from, of a search that has begun and measured nothing yet."""
    options, source = search.options, search.source
    judged = isinstance(source, JudgedFeatures)
    return {
        "target": search.target.to_json(),
        "measured_by": search.runner.measured_by,
        "deterministic": search.runner.deterministic,
        "judge": f"{source.judge.__module__}:{source.judge.__name__}" if judged else None,  # type: ignore[attr-defined]
        "shown": judged and source.analytical,  # type: ignore[attr-defined]
        "model": search.model,
        "known": _known_text(search),
        "options": {
            "seed": options.seed,
            "strategy": options.strategy,
            "layout_trials": options.layout_trials,
        },
        "tasks": {task.state.task.workload.key: _told(search, task) for task in search.tasks},
    }


def _known_text(search: Search) -> list[str]:
    """What the search starts from: its name and its text."""
    known = search.known
    if known.model is None:
        return [known.name, ""]
    return [known.name, known.model.to_text({}, search.runner.measured_by)]


def _told(search: Search, task: TaskSearch) -> Json:
    state = task.state
    return {
        "earlier": [message(trial) for trial in search.earlier(task)],
        "excluded": [dict(config) for config in state.excluded],
        "seeds": [dict(config) for config in state.seeds],
        "placed": [
            message(Trial(state.task.workload, config, state.results[config]))
            for config in task.placed
        ],
    }


def _trial(workload: Workload, config: Json, result: Json) -> Trial:
    return Trial(workload, Config.of(config), result_from_json(result))


def _learning(setup: Json, target: Target) -> Learning:
    if setup["judge"] is None:
        return Learning(KnobFeatures(), setup["model"])
    module, _, name = setup["judge"].partition(":")
    source = JudgedFeatures(getattr(importlib.import_module(module), name), target, setup["shown"])
    name, text = setup["known"]
    model = Pretrained.parsed(text, name, setup["measured_by"])[0] if text else None
    return Learning(source, setup["model"], Known(model, name))


def _trained_on(seen: int) -> int:
    """How many trials models have been trained on once so many are known."""
    fitted = 0
    while (grown := max(1, fitted) * 11 // 10 + 1) <= seen:
        fitted = grown
    return fitted


class ChoosersHere:
    """One chooser, in this process."""

    def __init__(self) -> None:
        self._chooser: Chooser | None = None

    def open(self, setup: Json) -> None:
        self._chooser = Chooser(setup)

    def follow(self, trials: Sequence[Json]) -> None:
        assert self._chooser is not None, "opened before"
        self._chooser.follow(trials)

    def ask(self, asked: Json) -> object:
        assert self._chooser is not None, "opened before"
        return self._chooser.propose(asked)

    def is_ready(self, ticket: object) -> bool:
        return True

    def answer(self, ticket: object, cancel: CancelToken | None = None) -> list[Json]:
        if cancel is not None and cancel.cancelled:
            raise Cancelled
        assert isinstance(ticket, list), "of `ask`"
        return ticket

    def close(self) -> None:
        self._chooser = None


def choose_elsewhere(search: Search, cancel: CancelToken) -> None:
    """Let choosers propose for a search that has begun, if its job has choosers."""
    if not search.chooses:
        search.elsewhere = Elsewhere(
            setup_of(search),
            search.rounds,
            search.tasks,
            search.pace,
            search.options.choosing,
            search.runner.choosers() or ChoosersHere(),
            cancel,
        )


def resume_rounds(
    search: Search, saved: Json, trials: Sequence[Trial], cancel: CancelToken
) -> None:
    """Load the rounds of a search that was resumed up to `trials`, if it is not over."""
    if not saved["tasks"]:
        return
    choose_elsewhere(search, cancel)
    if search.elsewhere is not None:
        search.elsewhere.load(saved["elsewhere"], saved["rounds"], trials)
    else:
        tasks = {task.state.task.workload.key: task for task in search.tasks}
        search.rounds.load(saved["rounds"], tasks)
