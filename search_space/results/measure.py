"""`MeasureResult`: what measuring one program gave: samples in seconds, or a kind of failure.

Every runner (hardware, simulator, replay) returns this value and the database stores it unchanged.
Invariant: a result either has `status == "ok"` and at least one sample, or a failure status and a
message; never an infinite or made-up latency.
"""

import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

from tilesmith.search_space.support.errors import (
    CodegenError,
    ConfigError,
    ScheduleError,
    TilesmithError,
    VerificationError,
)

Status = Literal["ok", "constraint", "lowering", "compile", "crash", "timeout", "wrong", "slow"]
"""ok | the configuration breaks a limit | no program came of it | no code came of it | the worker
died | it ran out of time | its output was wrong | aborted as far slower than the best
(`samples` then hold a lower bound)."""

MeasuredBy = Literal["hardware", "simulator"]

STATUSES: tuple[Status, ...] = (
    "ok", "constraint", "lowering", "compile", "crash", "timeout", "wrong", "slow",
)  # fmt: skip


@dataclass(frozen=True)
class MeasureResult:
    """One measurement.

    Attributes:
        status: see `Status`.
        samples: latencies in seconds, in the order taken. On hardware: weights cold, activations
            warm, as inside a model.
        measured_by: what produced the samples; a cost model never mixes the two labels.
        message: why it failed; of one that is ok, what it is of where that is no trial.
        warm_samples: hardware only: latencies with everything warm, seconds.
        bound: simulator only: which resource bounds the latency ("compute", "l2", "memory", ...).
        elapsed: seconds the whole trial took (generate, compile, check, time).
        machine: hardware only: name of the machine that measured; "" if nobody says.
    """

    status: Status
    measured_by: MeasuredBy
    samples: tuple[float, ...] = ()
    message: str = ""
    warm_samples: tuple[float, ...] = ()
    bound: str = ""
    elapsed: float = field(default=0.0, compare=False)
    machine: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        assert self.status in STATUSES, self.status
        assert self.samples or self.status != "ok", "an ok result has samples"

    @classmethod
    def failed(cls, error: Exception, measured_by: MeasuredBy) -> "MeasureResult":
        """What an error while making a program, its code or its data comes to."""
        text = str(error).strip() or "no message"
        message = text if isinstance(error, TilesmithError) else f"{type(error).__name__}: {text}"
        return cls(_kind(error), measured_by, message=message)

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def latency(self) -> float | None:
        """Median of the samples in seconds, or None for a failure."""
        return statistics.median(self.samples) if self.ok else None


def result_to_json(result: MeasureResult) -> dict[str, Any]:
    """A result as JSON values, as processes send it to each other."""
    return vars(result).copy()


def result_from_json(values: dict[str, Any]) -> MeasureResult:
    """Undo `result_to_json`."""
    lists = {name: tuple(values[name]) for name in ("samples", "warm_samples")}
    return MeasureResult(**{**values, **lists})


def _kind(error: Exception) -> Status:
    match error:
        case ConfigError():
            return "constraint"
        case ScheduleError() | VerificationError():
            return "lowering"
        case CodegenError():
            return "compile"
        case TilesmithError():
            return "lowering"
    return "compile"
