"""Trials on their way in, beside those that are there: the same, later, or contradicting.

Invariant: which of two is the last word (`later`) depends on what they say alone, never on which
came first; so that databases merge to the same bests in any order.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tilesmith.records.trials.toolchain import Toolchain
from tilesmith.search_space.results.measure import MeasuredBy

DRIFT = 0.10
"""Two hardware medians of one configuration further apart than this are reported as a conflict."""

CONFLICTS_KEPT = 1000


class SeriesKey(NamedTuple):
    """What makes trials comparable; the columns of `series` in words."""

    workload: str
    target: str
    threads: int
    measured_by: MeasuredBy
    input_layout: str
    output_layout: str
    toolchain: Toolchain
    calibration: str


class Incoming(NamedTuple):
    """A trial on its way in.

    Attributes:
        series: what it belongs to.
        values: the columns of `trials` but `series_id` and `latest`.
        dated: whether its time is known, not just the time of writing: then an older trial that
            comes later is not the last word.
        origin: the database it comes from; trials of two contradict each other, those of one are
            its history.
    """

    series: SeriesKey
    values: dict[str, Any]
    dated: bool = True
    origin: str = ""


@dataclass(frozen=True)
class Conflict:
    """Two records that contradict each other; both are kept, the later one counts.

    Attributes:
        workload, target, config: what they speak of.
        kept: status and latency of the record that was here, and its number.
        came: status and latency of the one that came.
        reason: what contradicts.
    """

    workload: str
    target: str
    config: str
    kept: str
    came: str
    reason: str


@dataclass
class Tally:
    """What became of the trials given to a `Writer` (counts over its life)."""

    added: int = 0
    duplicates: int = 0
    conflict_count: int = 0
    conflicts: list[Conflict] = field(default_factory=list)


def same(item: Incoming, other: dict[str, Any]) -> bool:
    """Whether a trial is the one that is already there."""
    names: tuple[str, ...] = ("status", "latency_s")
    if item.series.measured_by == "hardware":
        names = ("status", "latency_s", "created_at", "host")
    if any(item.values[name] != other[name] for name in names):
        return False
    samples = item.values["samples"], other["samples"]
    return samples[0] == samples[1] or compacted(item.values["latency_s"]) in samples


def contradiction(item: Incoming, other: dict[str, Any]) -> str:
    """Why two trials of one configuration cannot both hold, or ""."""
    if item.values["status"] != other["status"]:
        return "one says it works, or fails in another way"
    here, there = other["latency_s"], item.values["latency_s"]
    if here is None or there is None:
        return ""
    if item.series.measured_by == "simulator":
        return "a simulator gave two latencies with the same versions" if here != there else ""
    drift = abs(there - here) / min(here, there)
    return f"latencies are {drift:.0%} apart" if drift > DRIFT else ""


def conflict(item: Incoming, other: dict[str, Any], reason: str) -> Conflict:
    def words(values: dict[str, Any]) -> str:
        latency = values["latency_s"]
        return values["status"] if latency is None else f"{values['status']} {latency * 1e6:.2f} us"

    number = f" (record {other['id']})" if "id" in other else ""
    return Conflict(
        item.series.workload,
        item.series.target,
        item.values["config"],
        words(other) + number,
        words(item.values),
        reason,
    )


def later(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether one trial of a configuration was measured after another, ties settled by content."""
    return _moment(one) > _moment(other)


def _moment(values: dict[str, Any]) -> tuple[Any, ...]:
    latency = values["latency_s"]
    failed = latency is None
    rest = values["host"], values["status"], failed, 0.0 if failed else latency, values["samples"]
    return values["created_at"], *rest


def compacted(latency: float | None) -> str | None:
    """What compaction leaves of the samples of a trial (`records.upkeep.compaction`)."""
    return None if latency is None else f"[{latency!r}]"
