"""What the pages about results show: the best of every workload, one record with its code, and the
report of a job, made when it is asked for."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilesmith.capabilities.dashboard.data.access import Shared
from tilesmith.capabilities.dashboard.data.watching import (
    count_rows,
    operators,
    target_identities,
    workload_keys,
)
from tilesmith.capabilities.dashboard.report.job_report import gather
from tilesmith.capabilities.dashboard.report.page import page
from tilesmith.jobs.inspection.record_code import (
    assembly_text,
    instructions_text,
    llvm_text,
    program_text,
    target_of,
)
from tilesmith.records import Database, Job, TuningRecord
from tilesmith.records.questions.bests import Scope, candidates, pick
from tilesmith.records.questions.queries import Filter
from tilesmith.records.trials.record import Best
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import JobError, TilesmithError

WORKLOADS_SHOWN = 40

LISTINGS: dict[str, tuple[str, Callable[[TuningRecord, Target], str]]] = {
    "program": ("loop IR", program_text),
    "llvm": ("LLVM IR", llvm_text),
    "assembly": ("assembly", assembly_text),
    "instructions": ("instruction stream", instructions_text),
}
"""Code that a record stands for: name in addresses, name for people, and what prints it."""

_CODE_LENGTH = 400_000
"""Characters of a listing that are shown."""


@dataclass(frozen=True)
class ScheduleFilter:
    """What schedules are asked for; "" allows any."""

    workload: str = ""
    operator: str = ""
    target: str = ""
    page: int = 1

    @property
    def where(self) -> Filter:
        return Filter(self.workload, self.operator, self.target)


def schedules(database: Database, asked: ScheduleFilter) -> dict[str, Any]:
    """The best schedule of every workload, target and thread count; a page of workloads."""
    offset = (asked.page - 1) * WORKLOADS_SHOWN
    with database.reading() as connection:
        keys = workload_keys(connection, asked.where, WORKLOADS_SHOWN + 1, offset)
        scope = Scope(keys[:WORKLOADS_SHOWN], operator=asked.operator or None)
        series = candidates(connection, scope, database.toolchain, None) if keys else []
        series = [
            c for c in series if asked.target in ("", c.of.target, c.of.target.rpartition("-")[0])
        ]
        picked = pick(connection, series, ("workload", "target", "threads"))
        known = {"operators": operators(connection), "targets": target_identities(connection)}
    bests = [picked[group] for group in sorted(picked)]
    return {
        **known,
        "asked": asked,
        "bests": list(zip(bests, database.origins(bests), strict=True)),
        "more": len(keys) > WORKLOADS_SHOWN,
    }


def record(database: Database, number: int) -> dict[str, Any]:
    """One trial, and whether it is the best of its workload on its target.

    Raises:
        DatabaseError: there is no such trial.
    """
    trial = database.record(number)
    best: Best | None = database.best(trial.workload_key, trial.target_identity, trial.threads)
    samples = trial.result.samples
    return {
        "record": trial,
        "best": best,
        "origin": None if best is None else database.origins([best])[0],
        "is_best": best is not None and best.record.id == number,
        "spread": (max(samples) - min(samples)) / trial.latency
        if trial.latency and len(samples) > 1
        else None,
        "listings": {name: title for name, (title, _) in LISTINGS.items()},
    }


class Code:
    """Listings of records, made one at a time and kept for a while: they cost a compilation."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._kept: Shared[tuple[str, str]] = Shared(600.0, 32)

    def of(self, database: Database, generation: int, number: int, name: str) -> tuple[str, str]:
        """The listing, or "" and the sentence that says why there is none."""

        def make() -> tuple[str, str]:
            with self._one_at_a_time:
                return _listing(database, number, name)

        return self._kept.get(f"{generation} {number} {name}", make)


def _listing(database: Database, number: int, name: str) -> tuple[str, str]:
    record = database.record(number)
    if record.is_of_model:
        return "", "A whole model's record stands for no code of its own."
    try:
        text = LISTINGS[name][1](record, target_of(database, record.target_identity))
    except TilesmithError as error:
        return "", str(error)
    except Exception as error:  # a record that no Tilesmith wrote may upset any part of it
        return "", f"This record's code cannot be made here: {type(error).__name__}."
    if len(text) > _CODE_LENGTH:
        return text[:_CODE_LENGTH] + f"\n... {len(text) - _CODE_LENGTH} more characters", ""
    return text, ""


MOST_TRIALS = 50_000
"""A report reads every trial of its job; of larger jobs the command makes it."""

_one_at_a_time = threading.Lock()


def report_of(database: Database, job: Job) -> str:
    """The page.

    Raises:
        InputError: the job has no trials.
        JobError: it has too many for a page that somebody waits for.
    """
    with database.reading() as connection:
        rows = count_rows(connection, job.id).rows
    if rows > MOST_TRIALS:
        raise JobError(
            f"job {job.id} has {rows:,} measurements, too many to gather while you wait; "
            f"'tilesmith report --job {job.id}' writes its report to a file"
        )
    with _one_at_a_time:
        return page(gather(database, job.id))
