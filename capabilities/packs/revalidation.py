"""A pack proven on this machine: every schedule timed beside the untuned default, losers dropped.

One pass, without a search: of each workload the default and the pack's schedules for this machine,
its kind or its instruction set run in turns, so that a machine that changes its pace changes it for
all, and their outputs are compared with the reference. What beats the default by `WORTH` is kept,
with this machine's samples, versions and day.

Invariants: everything in the resulting pack was timed here by these versions; the best of every
workload in it is faster than its default was in the same turns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tilesmith.capabilities.packs.file_format import rounded
from tilesmith.capabilities.packs.lookup import PackRecords
from tilesmith.capabilities.packs.making import OTHER_LAYOUTS, WORTH
from tilesmith.capabilities.packs.pack import Pack, PackedMachine, PackedSchedule
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.records import Toolchain, TuningRecord
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.transfer import carried_over
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.support.json_object import JsonObject
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.runner import Runner

RIVALS = 6
"""Schedules of a workload that are timed beside its default: those of the nearest machines."""


@dataclass(frozen=True)
class Trialled(
    JsonObject, keys="workload:_key default_us:default_s best_us:best_s kept why trials:_count"
):
    """A workload of a pack, after its schedules were timed.

    Attributes:
        workload: what it is.
        records: what was timed, the default first.
        schedules: those that are kept.
        why: nothing is, in a clause; "" where something is.
    """

    workload: Workload
    records: tuple[TuningRecord, ...]
    schedules: tuple[PackedSchedule, ...] = ()
    why: str = ""

    @property
    def default_s(self) -> float | None:
        """Median seconds of the default; None where it failed, or nothing was timed."""
        return self.records[0].latency if self.records else None

    @property
    def best_s(self) -> float | None:
        """Median seconds of the pack's fastest."""
        timed = [one.latency for one in self.records[1:] if one.latency is not None]
        return min(timed, default=None)

    @property
    def kept(self) -> int:
        """How many schedules are kept."""
        return len(self.schedules)

    @property
    def _key(self) -> str:
        return self.workload.key

    @property
    def _count(self) -> int:
        return len(self.records)


def trialled(
    packs: Sequence[Pack], target: Target, threads: int, runner: Runner, worth: float = WORTH
) -> Iterator[Trialled]:
    """What becomes of every workload that packs know for such a machine, one after the other.

    Args:
        target: this machine.
        runner: times candidates on it.
        worth: as `making.WORTH`.
    """
    records = PackRecords(None, packs, target)
    for key in sorted({key for pack in packs for key in pack.by_workload}):
        offered = records.of_workload(key, threads)
        if not offered:
            continue
        try:
            workload = Workload.parse(key)
            configs = _legal(workload, target, [one.record.config for one in offered])
        except TilesmithError:  # an operator of another installation
            continue
        yield _compared(workload, target, threads, configs, runner, worth, offered)


def proven(name: str, target: Target, model: str, outcomes: Sequence[Trialled]) -> Pack:
    """The pack of what was kept.

    Args:
        model: what the processor calls itself.
    """
    machine = PackedMachine(target.uncalibrated, model)
    return Pack.of(name, [machine], [one for done in outcomes for one in done.schedules])


def _legal(workload: Workload, target: Target, configs: Sequence[Config]) -> list[Config]:
    """Configurations moved into this machine's space, without the default, each once."""
    space, usual = space_of(workload, target), default_of(workload, target)
    moved = (one if one in space else carried_over(one, space) for one in configs)
    return [c for c in dict.fromkeys(moved) if c is not None and c != usual][:RIVALS]


def _compared(
    workload: Workload,
    target: Target,
    threads: int,
    configs: Sequence[Config],
    runner: Runner,
    worth: float,
    offered: Sequence[PackedSchedule],
) -> Trialled:
    if not configs:
        return Trialled(workload, (), why="no schedule is legal here but the default")
    usual = default_of(workload, target)
    results = runner.compare([(workload, config) for config in (usual, *configs)])
    records = tuple(
        _record(workload, target, config, result, threads)
        for config, result in zip((usual, *configs), results, strict=True)
    )
    default_s = records[0].latency
    if default_s is None:
        return Trialled(workload, records, why=f"the default fails: {records[0].result.message}")
    timed = sorted(
        ((one.latency, one) for one in records[1:] if one.latency is not None),
        key=lambda pair: pair[0],
    )
    if not timed:
        return Trialled(workload, records, why=f"it fails: {records[1].result.message}")
    fastest = timed[0][0]
    if fastest * worth > default_s:
        return Trialled(workload, records, why="the default is as fast")
    here = {one.record.config: one.origin for one in offered
            if one.record.target_identity == target.identity}  # fmt: skip
    schedules: dict[tuple[str, str], PackedSchedule] = {}
    for latency, one in [*timed, (default_s, records[0])]:  # the default where only it is known
        if latency <= OTHER_LAYOUTS * fastest:
            origin = here.get(one.config, Origin.MEASURED)
            packed = PackedSchedule(rounded(one), float(f"{default_s:.4g}"), origin)
            schedules.setdefault(one.layouts, packed)
    return Trialled(workload, records, tuple(schedules.values()))


def _record(
    workload: Workload, target: Target, config: Config, result: MeasureResult, threads: int
) -> TuningRecord:
    record = TuningRecord.of(workload, target, config, result, threads=threads)
    return replace(record, toolchain=Toolchain.installed(), created_at=datetime.now(UTC))
