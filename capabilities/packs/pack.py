"""`Pack`: best schedules with their provenance, as a value; the nouns of the capability.

Invariants: frozen; every schedule is of a machine that the pack describes; of one workload,
machine, thread count, way of measuring and pair of layouts there is one schedule.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tilesmith.records.trials.record import TuningRecord
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.origin import Origin

ScheduleKey = tuple[str, str, int, str, str, str]


@dataclass(frozen=True)
class PackedMachine:
    """A kind of machine that schedules of a pack are for.

    Attributes:
        target: what it is, without what was measured of it.
        model: what the processor calls itself, "" if nobody knows.
    """

    target: Target
    model: str = ""

    @property
    def identity(self) -> str:
        """The target's."""
        return self.target.identity


@dataclass(frozen=True)
class PackedSchedule:
    """The best schedule of a workload in one pair of layouts.

    Attributes:
        record: workload, machine, configuration, samples, versions, date.
        default_s: median seconds of the untuned default there, measured in the same way.
        origin: `searched`, or `measured` where too little was tried for a search.
    """

    record: TuningRecord
    default_s: float
    origin: Origin = Origin.SEARCHED

    @property
    def key(self) -> ScheduleKey:
        """What a pack has one schedule of; schedules stand in this order."""
        record = self.record
        way = record.result.measured_by
        return (
            record.target_identity, record.workload_key, record.threads, way, *record.layouts,
        )  # fmt: skip

    @property
    def latency(self) -> float:
        """Median seconds."""
        latency = self.record.latency
        assert latency is not None, "only what works is packed"
        return latency

    @property
    def gain(self) -> float:
        """How many times as fast as the default it is."""
        return self.default_s / self.latency


@dataclass(frozen=True)
class Pack:
    """Schedules of several workloads on several machines. See the module's docstring.

    Attributes:
        name: how messages call it: its file's name.
        machines: by identity, sorted.
        schedules: sorted by their keys.
    """

    name: str
    machines: tuple[PackedMachine, ...]
    schedules: tuple[PackedSchedule, ...]

    @classmethod
    def of(
        cls,
        name: str,
        machines: Iterable[PackedMachine],
        schedules: Iterable[PackedSchedule],
    ) -> "Pack":
        """Of two schedules with one key the faster stays, of equal ones the lower configuration;
        machines without a schedule are left out."""
        kept: dict[ScheduleKey, PackedSchedule] = {}
        for one in schedules:
            other = kept.setdefault(one.key, one)
            kept[one.key] = min(one, other, key=lambda s: (s.latency, s.record.config.key))
        used = {one.record.target_identity for one in kept.values()}
        by_identity = {one.identity: one for one in machines if one.identity in used}
        return cls(
            name,
            tuple(by_identity[identity] for identity in sorted(by_identity)),
            tuple(kept[key] for key in sorted(kept)),
        )

    @cached_property
    def by_workload(self) -> Mapping[str, tuple[PackedSchedule, ...]]:
        """The schedules by their workloads' keys."""
        grouped: dict[str, list[PackedSchedule]] = {}
        for one in self.schedules:
            grouped.setdefault(one.record.workload_key, []).append(one)
        return {key: tuple(members) for key, members in grouped.items()}
