"""The values the database gives and takes: `TuningRecord`, `Best` and `Job`.

Invariants: frozen, free of any database session, and readable even where this installation does not
know the operator or the target: a record carries the canonical *texts* of its workload and target,
and `TuningRecord.workload` parses on demand. Only then are templates imported, and numpy with them,
which take longer than asking a database.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from tilesmith.records.trials.toolchain import Toolchain, calibration_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import JobError

if TYPE_CHECKING:
    from tilesmith.search_space.workloads.workload import Workload

MODEL = "model"
"""First word of the keys of whole models, which no template has; see docs/database.md."""

JobStatus = Literal["running", "finished", "interrupted", "failed"]


def config_digest(config: Config | str) -> str:
    """First 16 hexadecimal digits of the SHA-256 of a configuration's key."""
    key = config if isinstance(config, str) else config.key
    return hashlib.sha256(key.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class TuningRecord:
    """One trial: a configuration of a workload on a target, and what came of it.

    Build one with `TuningRecord.of`, which asks the template for the layouts.

    Attributes:
        workload_key: the workload's canonical key.
        target_identity: the target's identity (`Target.identity`).
        config: the configuration tried.
        result: what measuring it gave, every sample in seconds.
        threads: how many threads ran it.
        input_layout, output_layout: physical layouts; "" means plain row-major.
        calibration: `calibration_of` the target, for simulated results; else "".
        toolchain: what produced it; None takes the database's own on `add`.
        job: the job it belongs to, if any.
        host: the machine that measured it; "" takes this machine's name on `add`.
        created_at: when, in UTC; None takes the time of `add`.
        id: its number in the database it was read from.
    """

    workload_key: str
    target_identity: str
    config: Config
    result: MeasureResult
    threads: int = 1
    input_layout: str = ""
    output_layout: str = ""
    calibration: str = ""
    toolchain: Toolchain | None = None
    job: int | None = field(default=None, compare=False)
    host: str = ""
    created_at: datetime | None = None
    id: int | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        workload: "Workload",
        target: Target,
        config: Config,
        result: MeasureResult,
        *,
        threads: int = 1,
    ) -> "TuningRecord":
        """A record of this installation, layouts and calibration filled in.

        Raises:
            JobError: a latency that no clock can have read.
        """
        timed = result.measured_by == "hardware" and result.latency is not None
        if timed and not 0 < (result.latency or 0.0) < math.inf:
            raise JobError(
                f"'{workload.key}' was measured to take {result.latency:g} s, which cannot be; the "
                "clock of this machine does not measure, and nothing of it is stored"
            )
        from tilesmith.search_space.workloads.template import template_of

        layouts = template_of(workload.operator).layouts(workload, config)
        calibration = calibration_of(target) if result.measured_by == "simulator" else ""
        return cls(
            workload.key,
            target.identity,
            config,
            result,
            threads,
            *layouts,
            calibration=calibration,
        )

    @cached_property
    def workload(self) -> "Workload":
        """The workload, parsed; `WorkloadError` if this installation does not know its operator."""
        from tilesmith.search_space.workloads.workload import Workload

        return Workload.parse(self.workload_key)

    @property
    def is_of_model(self) -> bool:
        """Whether it is of a whole model rather than of one operator."""
        return self.workload_key.startswith(f"{MODEL} ")

    @property
    def latency(self) -> float | None:
        """Median latency in seconds, None for a failure."""
        return self.result.latency

    @property
    def layouts(self) -> tuple[str, str]:
        """Physical layouts of the first input and of the output."""
        return self.input_layout, self.output_layout

    @cached_property
    def digest(self) -> str:
        """The configuration's digest, as `Database.tried` returns it."""
        return config_digest(self.config)


@dataclass(frozen=True)
class Best:
    """The best record of a question, and whether it may still be believed.

    Attributes:
        record: the fastest, near-ties settled for the lowest configuration key.
        stale_because: why another toolchain or calibration makes it doubtful; () if nothing does.
    """

    record: TuningRecord
    stale_because: tuple[str, ...] = ()

    @property
    def stale(self) -> bool:
        """Whether it should be measured again before it is believed."""
        return bool(self.stale_because)

    @property
    def latency(self) -> float:
        """Median latency in seconds."""
        latency = self.record.latency
        assert latency is not None, "a best record is an ok record"
        return latency


@dataclass(frozen=True)
class Job:
    """A tuning job.

    Attributes:
        id: its number.
        command: what was asked for, as a command line that asks for it again.
        seed, strategy: of the search.
        status: running (also after `kill -9`), finished, interrupted or failed.
        message: why it failed, or a summary.
        started_at, ended_at: UTC; `ended_at` is None while it runs.
        host: where it ran.
        has_state: whether there is a state to resume from.
        owner: who runs it, or ran it last, as `user@host:pid`; "" if unknown.
        heartbeat_at: its last sign of life; None if it never gave one.
        silent_s: seconds since then, by the database server's clock.
        lost: "running", but no longer: its process is gone, or it has been silent for too long.
        progress: what it last told of itself, for people; {} if nothing.
    """

    id: int
    command: str
    seed: int
    strategy: str
    status: JobStatus
    message: str
    started_at: datetime
    ended_at: datetime | None
    host: str
    has_state: bool
    owner: str = ""
    heartbeat_at: datetime | None = None
    silent_s: float | None = None
    lost: bool = False
    progress: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """Whether somebody is at work on it."""
        return self.status == "running" and not self.lost


WorkerState = Literal["starting", "idle", "busy", "set aside", "lost", "ended"]


@dataclass(frozen=True)
class WorkerReport:
    """What one worker of a job tells.

    Attributes:
        name: its own among the job's.
        host: the computer it runs on.
        machine: name of the machine that it measures on, "" where that does not matter.
        state: what it does.
        message: why, for people.
        trials, failures: finished so far, and failed among them.
        pace: how long a kernel takes there that its peers run, too, relative to theirs: 1 as there,
            above slower; None: not watched.
        started_at, seen_at: its first and last report, by the database server's clock; filled in
            when it is written.
    """

    name: str
    host: str = ""
    machine: str = ""
    state: WorkerState = "idle"
    message: str = ""
    trials: int = 0
    failures: int = 0
    pace: float | None = None
    started_at: datetime | None = None
    seen_at: datetime | None = None
