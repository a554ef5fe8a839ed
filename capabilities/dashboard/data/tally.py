"""What the trials of one job come to, kept up to date by reading only the new ones.

A job may have a million trials and a page about it is asked for every few seconds: each question
reads at most so many trials beyond those that are counted already, and says whether there are more.

Invariants: memory does not grow with the number of trials, only with tasks, improvements and kinds
of failures. Of a configuration measured again the last word counts, as everywhere in `records`:
once the best of a task is measured again, the best is looked up in the database.
"""

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from tilesmith.capabilities.dashboard.data import watching
from tilesmith.codegen.programs.structures import default_of
from tilesmith.records import Database
from tilesmith.records.trials.counting import MEASURED_AGAIN, TrialCounts, is_trial, way_of
from tilesmith.records.trials.record import MODEL, config_digest
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.gain import gain_of, times_of
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads.workload import Workload

_AT_ONCE = 5_000
_PACE_TRIALS = 256
_PAUSE_S = 120.0
"""Between two trials of a job at work there is never so long."""
_MESSAGES = 200
"""Different messages of a kind of failure that are told apart; the others count without one."""


@dataclass
class TaskTally:
    """One workload on one target, by one way of measuring.

    Attributes:
        name: what it is about.
        series: the series its trials are in (one for each pair of layouts and set of versions).
        trials, failed: how many, measurements again not among them.
        default_s: latency of the untuned default, seconds; None while unknown.
        best_s, best_id, best_digest: the fastest by now; None where nothing works.
        points: (trial number within the task, best latency by then in seconds), where it changed.
        origin: how the best on record was found, where somebody asked.
        again: of these, those where the best was measured again, so that it may have risen.
    """

    name: watching.SeriesName
    default_digest: str | None
    series: set[int] = field(default_factory=set)
    trials: int = 0
    failed: int = 0
    default_s: float | None = None
    best_s: float | None = None
    best_id: int | None = None
    best_digest: str = ""
    points: list[tuple[int, float]] = field(default_factory=list)
    again: list[tuple[int, float]] = field(default_factory=list)
    shaken: bool = False
    origin: str = ""

    @property
    def gain(self) -> float | None:
        """How many times as fast as the default (`records.questions.gains`)."""
        return times_of(self.default_s, self.best_s)

    def reached(self, latency: float) -> int | None:
        """After how many trials the best was no slower than that; None: never."""
        return next((count for count, best in self.points if best <= latency), None)

    def take(self, trial: watching.Glance) -> None:
        """Count one more trial."""
        first = is_trial(trial.message)
        self.trials += first
        self.series.add(trial.series)
        latency = trial.latency_s
        self.failed += first and latency is None
        if trial.config_digest == self.default_digest:
            self.default_s = latency
        if trial.config_digest == self.best_digest:
            self.shaken = True  # the best was measured again: the second best may be the best now
        if latency is not None and (self.best_s is None or latency < self.best_s):
            self.best_s, self.best_id = latency, trial.id
            self.best_digest = trial.config_digest
            self.points.append((self.trials, latency))


@dataclass
class FailureTally:
    """Trials that failed in one way: how many, what they said, and a workload of each message."""

    count: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    workloads: dict[str, str] = field(default_factory=dict)

    def take(self, message: str, workload: str) -> None:
        """Count one more."""
        self.count += 1
        if message in self.messages or len(self.messages) < _MESSAGES:
            self.messages[message] += 1
            self.workloads.setdefault(message, workload)


TaskKey = tuple[str, int, str, str]
"""Target, threads, way of measuring, workload."""


class JobTally:
    """The trials of one job. Use it under `lock`.

    Attributes:
        counts, failed: what was done so far (`records.trials`), and trials that failed.
        tasks: in the order in which they were first tried.
        failures: by status.
        models: (key, latency in seconds) of the whole model, each time it was measured.
        hosts: where trials were measured, and how many.
        complete: whether everything was read when it was last asked for.
        seen, last: trials read, whole models among them; the highest number.
    """

    def __init__(self, job: int, command: str = "") -> None:
        self.lock = threading.Lock()
        self.failed = self.seen = self.last = self.measured_again = 0
        self._command = command
        self._by_label: Counter[str] = Counter()
        self.tasks: dict[TaskKey, TaskTally] = {}
        self.failures: dict[str, FailureTally] = {}
        self.models: list[tuple[str, float]] = []
        self.hosts: Counter[str] = Counter()
        self.complete = False
        self._job = job
        self._names: dict[int, watching.SeriesName] = {}
        self._targets: dict[str, Target | None] = {}
        self._counted = self._counted_to = 0

    @property
    def counts(self) -> TrialCounts:
        return TrialCounts.of(self._by_label, self.measured_again, self._command)

    @property
    def trials(self) -> int:
        """Those of `counts`."""
        return self.counts.trials

    def gain(self, weights: Mapping[str, float]) -> float | None:
        """Of its tasks by the way of measuring that the job is about, once each without weights."""
        labels = {task.name.measured_by for task in self.tasks.values()}
        way = way_of(self._command) or ("hardware" if "hardware" in labels else "simulator")
        gain = gain_of(
            (weights.get(task.name.workload, 1.0), task.default_s, task.best_s)
            for task in self.tasks.values()
            if task.name.measured_by == way
        )
        return None if gain is None else gain.times

    def advance(self, database: Database, most: int, seconds: float = math.inf) -> None:
        """Take new trials in, at most so many, and for about so long."""
        if not self.last:
            self.count(database)
        left, until = most, time.monotonic() + seconds
        while left > 0 and time.monotonic() < until:
            asked = min(left, _AT_ONCE)
            with database.reading() as connection:
                trials = watching.new_trials(connection, self._job, self.last, asked)
                unknown = {trial.series for trial in trials} - self._names.keys()
                self._names |= watching.names_of(connection, unknown) if unknown else {}
            self._take(database, trials)
            left -= len(trials)
            self.complete = len(trials) < asked
            if self.complete:
                break
        self._settle(database)

    def count(self, database: Database) -> int:
        """How many rows there are, read or not, by counting those that are new."""
        with database.reading() as connection:
            new = watching.count_rows(connection, self._job, self._counted_to)
        if new.rows and not self.last:
            self.last = new.first - 1
        self._counted += new.rows
        self._counted_to = new.last
        return self._counted

    def rate(self, database: Database) -> float | None:
        """Trials a second, lately; None before there are some. By the clock of who committed."""
        with database.reading() as connection:
            moments = sorted(watching.last_moments(connection, self._job, _PACE_TRIALS))
        breaks = [i for i, (a, b) in enumerate(pairwise(moments), 1) if _seconds(a, b) > _PAUSE_S]
        since = moments[breaks[-1] if breaks else 0 :]
        gone = _seconds(since[0], since[-1]) if since else 0.0
        return (len(since) - 1) / gone if gone > 0 else None

    def _take(self, database: Database, trials: Iterable[watching.Glance]) -> None:
        for trial in trials:
            self.last = trial.id
            self.seen += 1
            name = self._names.get(trial.series)
            if name is None:  # its series was removed a moment ago
                continue
            if name.operator == MODEL:
                if trial.latency_s is not None:
                    self.models.append((name.workload, trial.latency_s))
                continue
            self.hosts[trial.host] += 1
            self.measured_again += trial.message.startswith(MEASURED_AGAIN)
            first = is_trial(trial.message)
            self._by_label[name.measured_by] += first
            self._task(database, name).take(trial)
            if first and trial.latency_s is None:
                self.failed += 1
                self.failures.setdefault(trial.status, FailureTally()).take(
                    trial.message, name.workload
                )

    def _task(self, database: Database, name: watching.SeriesName) -> TaskTally:
        key = (name.target, name.threads, name.measured_by, name.workload)
        if key not in self.tasks:
            self.tasks[key] = TaskTally(name, self._default(database, name))
        return self.tasks[key]

    def _default(self, database: Database, name: watching.SeriesName) -> str | None:
        """Digest of the untuned configuration; None where this installation does not know it."""
        try:
            if name.target not in self._targets:
                self._targets[name.target] = database.target_facts(name.target)
            target = self._targets[name.target]
            if target is None:
                return None
            return config_digest(default_of(Workload.parse(name.workload), target))
        except (TilesmithError, ArithmeticError, LookupError, TypeError, ValueError):
            return None  # facts or a workload that nobody of ours wrote

    def _settle(self, database: Database) -> None:
        """Look up what the trials alone do not tell."""
        for task in self.tasks.values():
            if task.shaken:
                with database.reading() as connection:
                    fastest = watching.fastest_of_job(connection, self._job, task.series)
                number, latency, digest = fastest or (None, None, "")
                if latency is not None and latency != task.best_s:
                    task.points.append((task.trials, latency))
                    task.again.append((task.trials, latency))
                task.best_id, task.best_s, task.best_digest = number, latency, digest
                task.shaken = False
            if task.default_s is None and task.default_digest and self.complete:
                with database.reading() as connection:  # another job may have measured it
                    task.default_s = watching.latency_of(
                        connection, sorted(task.series), task.default_digest
                    )


def _seconds(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds()


class Tallies:
    """Tallies of the jobs last looked at, shared by everyone who looks."""

    def __init__(self, most: int = 100) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, int], JobTally] = OrderedDict()

    def of(self, generation: int, job: int, command: str = "") -> JobTally:
        """The tally of a job of the database of that generation (`Access.generation`)."""
        with self._lock:
            tally = self._known.setdefault((generation, job), JobTally(job, command))
            self._known.move_to_end((generation, job))
            while len(self._known) > self._most:
                self._known.popitem(last=False)
            return tally
