"""`Ledger`: where a tuning job reads what is known and writes what it finds.

The session speaks to this interface only. `DatabaseLedger` fulfils it with `records`,
`MemoryLedger` with a list (studies of search strategies, tests). Guarantee of both: `commit`
stores trials and the job's state together or not at all.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.tasks.strategy import Json
from tilesmith.tuner.tasks.task import Trial

JobEnd = Literal["finished", "interrupted", "failed"]


Candidate = tuple[Workload, Config]


class Ledger(Protocol):
    """See the module's docstring."""

    def saved_state(self) -> Json:
        """The state of the job that is resumed, None for a new job."""
        ...

    def before(self, workload: Workload, measured_by: MeasuredBy) -> list[Trial]:
        """Still valid results that are not of this job, oldest first."""
        ...

    def of_job(self) -> list[Trial]:
        """This job's results in the order committed (both ways of measuring)."""
        ...

    def elsewhere(self, workload: Workload, measured_by: MeasuredBy) -> list[Config]:
        """Best configurations of this workload on other machines, the most alike first; few."""
        ...

    def similar(self, workload: Workload, measured_by: MeasuredBy) -> list[Config]:
        """Best configurations of other workloads of the same operator, nearest first."""
        ...

    def meanwhile(
        self, batch: Sequence[Candidate], measured_by: MeasuredBy
    ) -> Mapping[Candidate, MeasureResult]:
        """What other jobs measured of a batch since this one began; not to be stored again."""
        ...

    def quarantined(self, workload: Workload) -> list[Config]:
        """Configurations that crashed a worker, never to be tried again."""
        ...

    def commit(self, trials: Sequence[Trial], state: Json) -> None:
        """Store trials and the job's state, together or not at all."""

    def finish(self, end: JobEnd, message: str) -> None:
        """Note how the job ended."""


class MemoryLedger:
    """Keeps everything in lists. Made with trials and a state, it continues that job."""

    def __init__(
        self, known: Sequence[Trial] = (), job: Sequence[Trial] = (), state: Json = None
    ) -> None:
        self._known = list(known)
        self.trials = list(job)
        self._state: Json = state
        self.end: JobEnd | None = None

    def saved_state(self) -> Json:
        return self._state

    def before(self, workload: Workload, measured_by: MeasuredBy) -> list[Trial]:
        return [
            trial
            for trial in self._known
            if trial.workload == workload and trial.result.measured_by == measured_by
        ]

    def of_job(self) -> list[Trial]:
        return list(self.trials)

    def elsewhere(self, workload: Workload, measured_by: MeasuredBy) -> list[Config]:
        return []

    def similar(self, workload: Workload, measured_by: MeasuredBy) -> list[Config]:
        best: dict[Workload, tuple[float, Config]] = {}
        for trial in [*self._known, *self.trials]:
            other, result = trial.workload, trial.result
            alike = other.operator == workload.operator and other != workload
            if alike and result.measured_by == measured_by and result.latency is not None:
                timed = (result.latency, trial.config)
                best[other] = min(best.get(other, timed), timed, key=lambda pair: pair[0])
        return [config for _, config in best.values()]

    def meanwhile(
        self, batch: Sequence[Candidate], measured_by: MeasuredBy
    ) -> Mapping[Candidate, MeasureResult]:
        return {}

    def quarantined(self, workload: Workload) -> list[Config]:
        trials = [trial for trial in self._known if trial.workload == workload]
        return [trial.config for trial in trials if trial.result.status == "crash"]

    def commit(self, trials: Sequence[Trial], state: Json) -> None:
        text = json.dumps(state)
        self.trials += trials
        self._state = json.loads(text)

    def finish(self, end: JobEnd, message: str) -> None:
        self.end = end
