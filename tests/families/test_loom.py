"""A family of targets from outside: right values, known cycles, whole models, nothing edited.

It is loaded both ways: registered in this process (`tests/conftest.py`), and as a package that is
installed and that nobody imports, in processes of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tilesmith as ts
from tests.compiler.model_builder import model_of, random
from tests.conformance.family_checks import check_config
from tests.families.loom.generation import generate, stream_of
from tests.families.loom.instructions import Op, Stream, cycles
from tests.families.loom.simulator import execute
from tilesmith.jobs.inspection.record_code import assembly_text, llvm_text, program_text
from tilesmith.jobs.tuning.job import way_of_measuring
from tilesmith.search_space.expressions.expression import const, var
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.ir.program import Block, Buffer, Intrinsic, Loop, Program
from tilesmith.search_space.support.errors import (
    CodegenError,
    ConfigError,
    InputError,
    TargetError,
    VerificationError,
    WorkloadError,
)
from tilesmith.search_space.workloads.scheduler import is_scheduled, scheduler_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import check_target, judge, simulate

LOOM = load_target("loom1")
FOLDER = Path(__file__).parent / "loom"

WORKLOADS = [
    "matmul m=13 n=37 k=11 const=b epilogue=bias,relu",
    "matmul m=1 n=1 k=1",
    "matmul m=3 n=270 k=5 batch=2",
    "matmul m=7 n=19 k=8 const=b epilogue=residual,clip:-1:1",
    "elementwise shape=2x3x5x7 expression=relu(add(x0,x1))",
    "elementwise shape=1009 expression=subtract(multiply(x0,x1),2)",
    "elementwise shape=4x7x33 expression=maximum(x0,x1) x1=33",
]


@pytest.mark.parametrize("text", WORKLOADS)
def test_drawn_configurations_compute_the_reference(text: str) -> None:
    workload = Workload.parse(text)
    rng = np.random.default_rng(len(text))
    space = scheduler_of(workload, LOOM).space(workload, LOOM)
    for config in {scheduler_of(workload, LOOM).default(workload, LOOM), *space.sample(rng, 2)}:
        check_config(workload, LOOM, config, rng)


@pytest.mark.parametrize("tiles", [(2, 16, 5), (6, 48, 10), (1, 1, 5), (3, 24, 1)])
def test_cycles_are_those_of_the_closed_form(tiles: tuple[int, int, int]) -> None:
    """Rows counted by hand, at what each takes; tiles that divide."""
    m, n, k = 6, 48, 10
    workload = Workload.parse(f"matmul m={m} n={n} k={k} epilogue=bias,relu")
    space = scheduler_of(workload, LOOM).space(workload, LOOM)
    m_tile, n_tile, k_tile = tiles
    (config,) = (
        c for c in space
        if (c["m_tile"], c["n_tile"], c["k_tile"]) == tiles
    )  # fmt: skip

    def moved(words: int) -> int:
        return 20 + ceil(words / 4)

    def worked(words: int) -> int:
        return 2 + ceil(words / 16)

    block = m_tile * moved(k_tile) + k_tile * moved(n_tile) + m_tile * k_tile * worked(n_tile)
    out = m_tile * (3 * worked(n_tile) + moved(n_tile)) + moved(n_tile)  # fill, add, maximum, store
    expected = m * n // (m_tile * n_tile) * (k // k_tile * block + out)
    assert simulate(workload, LOOM, config, "timeline").cycles == expected
    assert judge(workload, LOOM, [config]).latency[0] == pytest.approx(expected * 1e-9)
    stream = stream_of(workload, LOOM, config)
    assert cycles(stream.table, LOOM).sum() == expected
    fast = LOOM.with_settings({"clock.ghz": 2.0, "memory.start": 0})
    saved = 20 * int((stream.table["op"] <= Op.STORE).sum())
    assert simulate(workload, fast, config).latency_us == pytest.approx((expected - saved) / 2e3)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("matmul m=7 n=19 k=8 tb=1", "not transposed operands"),
        ("matmul m=7 n=19 k=8 dtype=bfloat16", "fp32 numbers only, not bfloat16"),
        ("matmul m=7 n=19 k=8 epilogue=gelu", "no instruction for 'erf'"),
        ("matmul m=7 n=19 k=8 epilogue=leaky_relu", "one partial result at a time"),
        ("elementwise shape=9 expression=exp(x0)", "no instruction for 'exp'"),
        ("elementwise shape=3x19 expression=add(x0,x1) x1=3x1", "vary along the last axis"),
        ("elementwise shape=scalar expression=multiply(x0,3)", "vary along the last axis"),
    ],
)
def test_what_instructions_cannot_do_is_refused(text: str, reason: str) -> None:
    workload = Workload.parse(text)
    assert not is_scheduled(workload, LOOM)
    with pytest.raises(WorkloadError, match=reason):
        scheduler_of(workload, LOOM)
    with pytest.raises(TargetError, match="'softmax' has no schedule for target 'loom1'"):
        scheduler_of(Workload.parse("softmax shape=4x4"), LOOM)


def test_tiles_fit_the_scratchpad() -> None:
    """Of any size that is legal; where not even the smallest is, the limit is named."""
    small = LOOM.with_settings({"pad.kib": 1})
    workload = Workload.parse("matmul m=6 n=64 k=16")
    space = scheduler_of(workload, small).space(workload, small)
    for config in space.sample(np.random.default_rng(0), 4):
        stream_of(workload, small, config)  # verified, placed
    wide = Workload.parse("elementwise shape=300 expression=" + "add(" * 7 + "x0"
                          + "".join(f",x{i})" for i in range(1, 8)))  # fmt: skip
    assert 4 * 9 * scheduler_of(wide, small).default(wide, small).integer("row") <= 1024
    outside = replace(scheduler_of(workload, LOOM).default(workload, LOOM))
    with pytest.raises(ConfigError, match="bytes of the scratchpad that tiles take: "):
        space.validate(outside)


def test_broken_programs_are_refused() -> None:
    """A row beyond the instruction's limit, one that lies askew, a memory that there is not."""
    source, result = (
        Buffer(name, (const(8), const(300)), role=role)
        for name, role in (("x", "input"), ("y", "output"))
    )

    def copying(pad: Buffer, count: int, *indices: object) -> Program:
        block = Block("copy", pad.name, (var("i"),), load("x", *indices))
        loop = Intrinsic("load", Loop("i", const(count), "serial", block))
        from tilesmith.search_space.ir.program import Allocate

        return Program("copy", (source, result), Allocate(pad, loop))

    pad = Buffer("t", (const(300),), scope="pad")
    with pytest.raises(VerificationError, match="I = 300 exceeds the limit of 256"):
        generate(copying(pad, 300, 0, var("i")), LOOM)
    with pytest.raises(CodegenError, match="is no row along loop 'i'"):
        generate(copying(pad, 8, var("i"), 0), LOOM)
    with pytest.raises(VerificationError, match="in 'sbuf', which target 'loom1' lacks"):
        generate(copying(replace(pad, scope="sbuf"), 8, 0, var("i")), LOOM)
    large = replace(pad, shape=(const(300), const(300)))
    with pytest.raises(VerificationError, match="bytes in use to 360000"):
        generate(replace(copying(large, 8, 0, var("i"))), LOOM)


def test_nothing_read_before_it_is_written() -> None:
    """The pad begins as NaN: a stream without its fills has no numbers."""
    workload = Workload.parse("matmul m=3 n=5 k=7")
    config = scheduler_of(workload, LOOM).default(workload, LOOM)
    stream = stream_of(workload, LOOM, config)
    again = Stream.from_bytes(stream.to_bytes())
    assert again.tensors == ("a", "b", "c") and np.array_equal(again.table, stream.table)
    memory = [random(3, 7).ravel(), random(7, 5).ravel(), np.zeros(15, np.float32)]
    execute(stream, memory, 1000)
    assert np.isfinite(memory[2]).all()
    unfilled = replace(stream, table=stream.table[stream.table["op"] != Op.FILL])
    execute(unfilled, memory, 1000)
    assert np.isnan(memory[2]).all()


def test_an_incomplete_target_is_refused() -> None:
    facts = {name: fact for name, fact in LOOM.facts if name != "row.words"}
    with pytest.raises(TargetError, match=r"row\.words"):
        check_target(Target.of("loom0", "loom", facts))


MODEL = (
    "net (float[4, 24] x) => (float[4, 6] y) "
    "{ h = Gemm(x, w1, b1) r = Relu(h) e = Exp(r) z = MatMul(e, w2) y = Add(z, r2) }"
)


def model() -> onnx.ModelProto:
    weights = {"w1": random(24, 16), "b1": random(16), "w2": random(16, 6), "r2": random(4, 6)}
    return model_of(MODEL, **weights)


def test_what_it_lacks_runs_on_the_host(tmp_path: Path) -> None:
    path = tmp_path / "net.tsm"
    executable, x = ts.compile(model(), target="loom1"), random(4, 24)
    (want,) = ReferenceEvaluator(model()).run(None, {"x": x})
    np.testing.assert_allclose(executable.run({"x": x})["y"], want, rtol=1e-4, atol=1e-4)
    assert executable.report.host >= 1 and executable.report.default >= 1
    executable.save(path)
    np.testing.assert_array_equal(ts.load(path).run({"x": x})["y"], executable.run({"x": x})["y"])
    played = ts.simulate(model(), target="loom1")
    assert played.details["host_us"] > 0
    assert played.latency_us == pytest.approx(
        sum(op.latency_us * op.details["weight"] for op in played.ops) + played.details["host_us"]
    )
    with pytest.raises(InputError, match="bf16"):
        ts.compile(model(), target="loom1", precision="bf16")


def test_the_front_door_asks_the_family(tmp_path: Path) -> None:
    """How it is measured, which numbers may be set, what its code can be shown as."""
    assert way_of_measuring(None, LOOM) == way_of_measuring("simulator", LOOM) == "simulator"
    with pytest.raises(InputError, match="'loom1' cannot be measured by 'hardware'; one of sim"):
        way_of_measuring("hardware", LOOM)
    assert ts.resolve_target("loom1", {"pad.kib": "8"}).integer("pad.kib") == 8
    with pytest.raises(TargetError, match=r"has no 'isa\.name'"):
        ts.resolve_target("loom1", {"isa.name": "avx2"})
    workload = Workload.parse("matmul m=8 n=16 k=4")
    path = tmp_path / "loom.db"
    report = ts.tune(workload, "loom1", path, trials=3)
    assert report.trials == 3 and report.tasks[0].measured_by == "simulator"
    with ts.Database.open(str(path)) as database:
        (record, *_) = database.top(workload, LOOM, limit=1)
    assert "intrinsic macc" in program_text(record, LOOM)
    for text, language in ((llvm_text, "LLVM IR"), (assembly_text, "assembly")):
        with pytest.raises(InputError, match=f"of family 'loom' and has no {language}"):
            text(record, LOOM)


# -- as an installed package --------------------------------------------------------------------
@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site directory with the family as the package `loom`, which registers by an entry point."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(FOLDER, folder / "loom", ignore=shutil.ignore_patterns("__pycache__"))
    information = folder / "loom-0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: loom\nVersion: 0.1\n")
    (information / "entry_points.txt").write_text("[tilesmith.extensions]\nloom = loom\n")
    return folder


_RUN = """
import sys
from tilesmith.entry import main
for words in {commands!r}:
    sys.argv = ["tilesmith", *words, "--json"]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


def tilesmith(site: Path, *commands: Sequence[object]) -> list[dict[str, object]]:
    """What commands print as JSON, in one process that imports the family from nowhere else."""
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    code = _RUN.format(commands=[[str(word) for word in words] for words in commands])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    decoder, rest, found = json.JSONDecoder(), done.stdout.strip(), []
    while rest:
        one, end = decoder.raw_decode(rest)
        found.append(one)
        rest = rest[end:].strip()
    return found


def test_an_installed_family_tunes_compiles_and_runs(site: Path, tmp_path: Path) -> None:
    onnx_file, database, artifact = (tmp_path / name for name in ("n.onnx", "t.db", "n.tsm"))
    onnx.save(model(), str(onnx_file))
    of = ("--target", "loom1", "--database", database)
    trace = tmp_path / "trace.json"
    targets, tuned, compiled, played = tilesmith(
        site,
        ["targets"],
        ["tune", onnx_file, *of, "--trials", 24, "--seed", 1],
        ["compile", onnx_file, *of, "-o", artifact],
        ["simulate", "--op", "matmul m=8 n=16 k=4", "--target", "loom1", "--trace", trace],
    )
    assert "loom1" in json.dumps(targets)
    assert {task["measured_by"] for task in tuned["tasks"]} == {"simulator"}  # type: ignore[attr-defined]
    assert compiled["tuned"] and compiled["host"]
    x = tmp_path / "x.npy"
    np.save(x, random(4, 24))
    tilesmith(site, ["run", artifact, "--input", f"x={x}", "--output", tmp_path / "out.npz"])
    (want,) = ReferenceEvaluator(model()).run(None, {"x": np.load(x)})
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["y"], want, rtol=1e-4, atol=1e-4)
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event["dur"] for event in events) == pytest.approx(played["latency_us"])
