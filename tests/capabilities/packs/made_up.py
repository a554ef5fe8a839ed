"""Machines, schedules and packs that tests of packs make up."""

from __future__ import annotations

from datetime import UTC, datetime

from tilesmith.capabilities.packs.pack import Pack, PackedMachine, PackedSchedule
from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.records import Toolchain, TuningRecord
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

TRIPLE = "x86_64-unknown-linux-gnu"
MATMUL = Workload.parse("matmul m=64 n=64 k=64 const=b")
NEAR = Workload.parse("matmul m=64 n=64 k=96 const=b")
FAR = Workload.parse("matmul m=8 n=640 k=640 const=b")


def machine(isa: str = "avx2", processor: str = "haswell", **changed: int) -> Target:
    """A CPU; `l2=1024` and `threads=8` change it."""
    names = {"threads": "threads"}
    settings = {names.get(name, f"{name}.kib"): value for name, value in changed.items()}
    return cpu_target("cpu", isa, TRIPLE, processor).with_settings(settings)


def other_than_default(workload: Workload, target: Target, number: int = 0) -> Config:
    """The configuration of that number, of those that are not the default."""
    usual = default_of(workload, target)
    others = (config for config in space_of(workload, target) if config != usual)
    return [next(others) for _ in range(number + 1)][-1]


def schedule(
    workload: Workload,
    target: Target,
    seconds: float = 1e-5,
    config: Config | None = None,
    *,
    default_s: float = 2e-5,
    measured_by: MeasuredBy = "hardware",
    toolchain: Toolchain | None = None,
    threads: int = 1,
) -> PackedSchedule:
    """A schedule as a pack has one."""
    config = config or other_than_default(workload, target)
    result = MeasureResult("ok", measured_by, (seconds,))
    day = datetime(2026, 1, 31, tzinfo=UTC)
    of = TuningRecord.of(workload, target.uncalibrated, config, result, threads=threads)
    record = TuningRecord(
        of.workload_key, of.target_identity, config, result, threads, *of.layouts,
        toolchain=toolchain or Toolchain.installed(), created_at=day,
    )  # fmt: skip
    return PackedSchedule(record, default_s)


def pack_with(*schedules: tuple[Target, PackedSchedule], name: str = "made-up.jsonl") -> Pack:
    """A pack of schedules and their machines."""
    machines = [PackedMachine(target.uncalibrated, "made up") for target, _ in schedules]
    return Pack.of(name, machines, [one for _, one in schedules])
