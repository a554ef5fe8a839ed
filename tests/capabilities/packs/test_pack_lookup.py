"""Which schedules a compilation takes from packs: the nearest machine's, what a database lacks,
and nothing that is not legal."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import tilesmith as ts
from tests.capabilities.packs.made_up import (
    FAR,
    MATMUL,
    NEAR,
    machine,
    other_than_default,
    pack_with,
    schedule,
)
from tests.compiler.model_builder import model_of, random
from tilesmith.capabilities.packs.file_format import write_pack
from tilesmith.capabilities.packs.lookup import MachineKinship, PackRecords, kinship
from tilesmith.capabilities.packs.pack import Pack
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.command_line import command_line
from tilesmith.compiler.settling.chooser import KnownSchedule, ScheduleChooser
from tilesmith.records import Database, Toolchain, TuningRecord
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu import CpuSimulator

HERE = machine()
TWIN = machine(threads=64, l3=65536)
RELATIVE = machine(processor="znver2", l2=1024)
STRANGER = machine("neon", "generic")


def best(
    workload: Workload, *packs: Pack, target: Target = HERE, database: Database | None = None
) -> KnownSchedule:
    """What is compiled, by whatever is known."""
    return ScheduleChooser(target, PackRecords(database, packs, target), 1).best(workload)


def test_machines_are_exact_or_of_a_kind_or_of_an_instruction_set() -> None:
    assert kinship(HERE, HERE) is MachineKinship.EXACT
    assert kinship(HERE, TWIN) is MachineKinship.KIND
    assert kinship(HERE, RELATIVE) is MachineKinship.INSTRUCTIONS
    assert kinship(HERE, STRANGER) is None
    assert not PackRecords(
        None, [pack_with((STRANGER, schedule(MATMUL, STRANGER)))], HERE
    ).knows_the_machine


def test_the_exact_machine_comes_before_its_kind() -> None:
    fast, slow = (other_than_default(MATMUL, HERE, number) for number in (3, 4))
    pack = pack_with(
        (TWIN, schedule(MATMUL, TWIN, 1e-6, fast)), (HERE, schedule(MATMUL, HERE, 1e-5, slow))
    )
    exact = best(MATMUL, pack)
    assert (exact.config, exact.origin, exact.seconds) == (slow, Origin.SEARCHED, 1e-5)
    kind = best(MATMUL, pack_with((TWIN, schedule(MATMUL, TWIN, 1e-6, fast))))
    assert (kind.config, kind.origin, kind.seconds) == (fast, Origin.ELSEWHERE, 1e-6)


def test_an_instruction_sets_schedule_has_to_beat_the_default_by_the_estimate() -> None:
    usual = default_of(MATMUL, HERE)
    configs = [usual, *(other_than_default(MATMUL, HERE, number) for number in range(40))]
    seconds = list(CpuSimulator(1).judge(MATMUL, HERE, configs).latency)
    worst = configs[seconds.index(max(seconds))]
    assert max(seconds) > seconds[0]
    refused = best(MATMUL, pack_with((RELATIVE, schedule(MATMUL, RELATIVE, 1e-9, worst))))
    assert (refused.config, refused.origin) == (usual, Origin.UNMEASURED)
    simulated = schedule(MATMUL, HERE, 1e-9, worst, measured_by="simulator")
    assert best(MATMUL, pack_with((HERE, simulated))).config == usual, "nobody timed it"


def test_near_shapes_stand_in_where_they_promise_more_and_far_ones_never() -> None:
    records = PackRecords(None, [pack_with((HERE, schedule(MATMUL, HERE)))], HERE)
    assert [one.record.workload_key for one in records.elsewhere(NEAR, HERE, 1)] == [MATMUL.key]  # type: ignore[attr-defined]
    assert records.elsewhere(FAR, HERE, 1) == []
    assert records.elsewhere(NEAR, HERE, 2) == [], "of another number of threads"
    of_near = best(NEAR, pack_with((HERE, schedule(MATMUL, HERE))))
    assert of_near.config in space_of(NEAR, HERE)


def test_what_another_version_measured_is_said_to_be_stale() -> None:
    old = Toolchain(llvm="0.1", codegen="0", space="0")
    stale = best(MATMUL, pack_with((HERE, schedule(MATMUL, HERE, toolchain=old))))
    assert stale.origin is Origin.STALE


def test_a_search_here_is_never_overruled_and_less_than_one_is(tmp_path: Path) -> None:
    packed = other_than_default(MATMUL, HERE, 7)
    pack = pack_with((HERE, schedule(MATMUL, HERE, 1e-6, packed)))
    with Database.open(str(tmp_path / "t.db")) as database:
        for number in range(10):
            config = other_than_default(MATMUL, HERE, number)
            result = MeasureResult("ok", "hardware", (1e-4 + number * 1e-5,))
            database.add([TuningRecord.of(MATMUL, HERE, config, result)])
            if number == 0:
                few = best(MATMUL, pack, database=database)
                assert (few.config, few.origin) == (packed, Origin.SEARCHED)
        own = best(MATMUL, pack, database=database)
        assert own.origin is Origin.SEARCHED
        assert own.config == other_than_default(MATMUL, HERE, 0)


def test_an_illegal_configuration_is_passed_over() -> None:
    from tilesmith.search_space.spaces.config import Config

    illegal = Config.of({**other_than_default(MATMUL, HERE), "m_tile": 10**12})
    bad = schedule(MATMUL, HERE, 1e-9, other_than_default(MATMUL, HERE))
    record = TuningRecord(
        bad.record.workload_key, bad.record.target_identity, illegal, bad.record.result,
        toolchain=bad.record.toolchain,
    )  # fmt: skip
    pack = pack_with((HERE, type(bad)(record, 1.0)))
    assert best(MATMUL, pack).config == default_of(MATMUL, HERE)


@pytest.fixture
def compiled(tmp_path: Path) -> tuple[Path, Path]:
    """A model of one product, and a pack for this machine that knows it."""
    model = model_of(
        "g (float[64, 64] x) => (float[64, 64] y) { y = MatMul(x, b) }", b=random(64, 64)
    )
    onnx.save(model, str(tmp_path / "m.onnx"))
    here = host_target()
    write_pack(pack_with((here, schedule(MATMUL, here))), tmp_path / "p.jsonl")
    return tmp_path / "m.onnx", tmp_path / "p.jsonl"


def test_a_model_is_compiled_with_a_named_pack(compiled: tuple[Path, Path]) -> None:
    model, pack = compiled
    untuned = ts.compile(str(model), database=None)
    tuned = ts.compile(str(model), database=None, packs=[pack])
    assert (untuned.report.default, untuned.report.tuned) == (1, 0)
    assert (tuned.report.default, tuned.report.tuned) == (0, 1)
    x = random(64, 64, seed=3)
    np.testing.assert_allclose(*(run.run({"x": x})["y"] for run in (tuned, untuned)), rtol=1e-5)


def test_a_search_begins_with_what_a_pack_knows(tmp_path: Path) -> None:
    here = host_target()
    some = space_of(MATMUL, here).sample(np.random.default_rng(1), 200)
    seconds = CpuSimulator(1).judge(MATMUL, here, some).latency
    packed = some[
        int(np.argmin(seconds))
    ]  # what scores clearly worse than the default is not tried
    write_pack(pack_with((here, schedule(MATMUL, here, config=packed))), tmp_path / "p.jsonl")
    database = str(tmp_path / "t.db")
    asked = {"trials": 3, "measure": "simulator", "database": database}
    ts.tune(MATMUL, packs=[tmp_path / "p.jsonl"], **asked)  # type: ignore[arg-type]
    with Database.open(database, create=False) as opened:
        tried = [record.config for record in opened.top(MATMUL)]
    assert len(tried) == 3 and {packed, default_of(MATMUL, here)} <= set(tried)


def test_the_report_says_that_a_pack_has_it(compiled: tuple[Path, Path], tmp_path: Path) -> None:
    model, _ = compiled
    here = host_target()
    twin = here.with_settings({"threads": here.integer("threads") + 1})
    write_pack(pack_with((twin, schedule(MATMUL, twin))), tmp_path / "q.jsonl")
    words = ["compile", str(model), "--database", "none", "--pack", str(tmp_path / "q.jsonl")]
    done = CliRunner().invoke(command_line, [*words, "-o", str(tmp_path / "m.tsm"), "--json"])
    said = json.loads(done.stdout)
    assert said["schedules"]["elsewhere"] == 1
    assert said["untuned"][0]["why"].startswith("a pack has it, of another machine")


def test_the_environment_names_packs(
    compiled: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pack = compiled
    monkeypatch.setenv("TILESMITH_PACKS", str(pack))
    assert ts.compile(str(model), database=None).report.tuned == 1
    assert ts.compile(str(model), database=None, packs=["none"]).report.tuned == 0


def test_packs_that_cannot_be_are_refused_in_a_sentence(compiled: tuple[Path, Path]) -> None:
    model, pack = compiled
    for named, said in (
        ([pack.parent / "missing.jsonl"], "cannot be read: No such file"),
        ([pack.parent], "is a folder, not a pack"),
        ([model], "is not a pack"),
        (str(pack), "is no list of files"),
    ):
        with pytest.raises(ts.InputError, match=said):
            ts.compile(str(model), database=None, packs=named)  # type: ignore[arg-type]
