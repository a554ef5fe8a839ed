"""Records of other thread counts: what they are worth, and how many threads run a kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.compiler.settling.parallel import ALL, Parallel
from tilesmith.records import Database, TuningRecord
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu.family import CpuSimulator
from tilesmith.simulator.cpu.microbenchmarks.calibration import with_calibration

HOST = cpu_target("cpu", "avx512", "x86_64-unknown-linux-gnu")
PRODUCT = Workload.parse("matmul m=128 n=768 k=768 const=b")
SMALL = Workload.parse("elementwise shape=4x16 expression=add(x0,x0)")


def foretold(workload: Workload, configs: list[Config], threads: int) -> np.ndarray:
    return CpuSimulator(threads).judge(workload, HOST, configs).latency


def unshared(workload: Workload) -> Config:
    """A schedule that two threads run no faster than one, the fastest of a sample."""
    configs = space_of(workload, HOST).sample(np.random.default_rng(0), 3000)
    one, two = (foretold(workload, configs, threads) for threads in (1, 2))
    idle = [place for place in range(len(configs)) if two[place] >= one[place]]
    assert idle, "no such schedule in the sample"
    return configs[min(idle, key=lambda place: one[place])]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database.open(tmp_path / "tuning.db")


def record(
    database: Database, workload: Workload, config: Config, seconds: float, threads: int
) -> None:
    result = MeasureResult("ok", "hardware", (seconds,) * 3)
    database.add([TuningRecord.of(workload, HOST, config, result, threads=threads)])


def test_a_small_kernel_is_run_by_one_thread() -> None:
    assert Parallel(HOST, 2).users(SMALL, default_of(SMALL, HOST)) == 1
    assert Parallel(HOST, 2).users(PRODUCT, default_of(PRODUCT, HOST)) == ALL
    assert Parallel(HOST, 1).users(SMALL, default_of(SMALL, HOST)) == ALL


def test_all_threads_stay_awake_beside_a_long_kernel_that_waits_for_memory() -> None:
    target = with_calibration(HOST, {"memory.cores": 1.0, "l3.cores": 1.0, "barrier.cycles": 500.0})
    stated = "activations=int8 scales=float16 const=q,scale"
    workload = Workload.parse(f"block_quantised_matmul m=1 n=32000 k=8192 {stated}")
    config = default_of(workload, target)
    one, two = (CpuSimulator(n).judge(workload, target, [config]).latency[0] for n in (1, 2))
    assert one / 1.1 < two < one
    assert Parallel(target, 2).users(workload, config) == ALL
    assert Parallel(target, 2).users(SMALL, default_of(SMALL, target)) == 1


def test_one_thread_s_best_gives_way_to_what_two_can_share(database: Database) -> None:
    config = unshared(PRODUCT)
    record(database, PRODUCT, config, 1e-3, threads=1)
    chosen = ScheduleChooser(HOST, database, 2).best(PRODUCT)
    assert chosen.config != config and chosen.threads == ALL
    once, both = foretold(PRODUCT, [config], 1)[0], foretold(PRODUCT, [chosen.config], 2)[0]
    assert both < once
    assert chosen.seconds == pytest.approx(1e-3 * both / once)
    usual = foretold(PRODUCT, [default_of(PRODUCT, HOST)], 2)[0]
    assert both <= usual * 1.0001


def test_what_two_threads_share_well_is_kept(database: Database) -> None:
    config = default_of(PRODUCT, HOST)
    record(database, PRODUCT, config, 1e-3, threads=1)
    chosen = ScheduleChooser(HOST, database, 2).best(PRODUCT)
    assert chosen.origin in ("neighbour", "unmeasured") and chosen.threads == ALL
    assert chosen.seconds < 0.7e-3


def test_one_thread_runs_what_it_was_measured_to_run_faster(database: Database) -> None:
    config = default_of(PRODUCT, HOST)
    record(database, PRODUCT, config, 1e-3, threads=1)
    record(database, PRODUCT, config, 2e-3, threads=2)
    chosen = ScheduleChooser(HOST, database, 2).best(PRODUCT)
    assert (chosen.origin, chosen.threads, chosen.seconds) == ("measured", 1, 1e-3)
    record(database, PRODUCT, config, 0.6e-3, threads=2)
    chosen = ScheduleChooser(HOST, database, 2).best(PRODUCT)
    assert (chosen.origin, chosen.threads, chosen.seconds) == ("measured", ALL, 0.6e-3)


def test_records_of_more_threads_have_to_beat_the_default(database: Database) -> None:
    config = unshared(PRODUCT)
    record(database, PRODUCT, config, 1e-3, threads=2)
    chosen = ScheduleChooser(HOST, database, 1).best(PRODUCT)
    known, here = foretold(PRODUCT, [config], 2)[0], foretold(PRODUCT, [chosen.config], 1)[0]
    assert chosen.seconds == pytest.approx(1e-3 * here / known, rel=0.1)


def test_a_family_that_foretells_nothing_uses_records_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parallel = Parallel(HOST, 2)
    monkeypatch.setattr(parallel, "_backend", None)
    config = default_of(PRODUCT, HOST)
    (only,) = parallel.candidates(PRODUCT, space_of(PRODUCT, HOST), config, 1, 1e-3)
    assert (only.config, only.threads, only.seconds) == (config, ALL, 1e-3)
    assert parallel.users(SMALL, default_of(SMALL, HOST)) == ALL


def test_the_default_has_to_be_beaten(database: Database) -> None:
    """What is foretold hardly faster than it gives way to it, unless both were measured."""
    usual = default_of(PRODUCT, HOST)
    configs = space_of(PRODUCT, HOST).sample(np.random.default_rng(1), 300)
    times = foretold(PRODUCT, [usual, *configs], 2)
    near = next(
        c for c, t in zip(configs, times[1:], strict=True) if times[0] <= t < 1.05 * times[0]
    )
    record(database, PRODUCT, near, 1e-3, threads=1)
    assert ScheduleChooser(HOST, database, 2).best(PRODUCT).config == usual
    record(database, PRODUCT, usual, 3e-3, threads=1)
    assert ScheduleChooser(HOST, database, 2).best(PRODUCT).config != usual
