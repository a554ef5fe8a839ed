"""Whole models on Trainium-like cores: values, residency, precision, host fallback, artifacts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.model_builder import assert_close, expected, inputs_of, model_of, random
from tilesmith.codegen.programs.structures import (
    MOST_TRIED,
    default_of,
    inside_of,
    space_of,
    structure_program,
)
from tilesmith.compiler.artifact.artifact import read_artifact
from tilesmith.compiler.backends.backend import Compiled, backend_of
from tilesmith.compiler.driver.build import BuildOptions, build, fastest_recipe, scheduled
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.program import HostStep
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.families.kit.simulation.host_costs import compute_time, operations, transfer_time
from tilesmith.families.trainium.backend.backend import TrainiumBackend, staged_kernel
from tilesmith.families.trainium.backend.evaluator import DeviceEvaluator
from tilesmith.families.trainium.backend.model import latency_of, simulate_model
from tilesmith.families.trainium.backend.program import QUICK, LinkedProgram, segments
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import Opcode
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import CodegenError, InputError, ModelError, TargetError
from tilesmith.search_space.workloads.scheduler import find_scheduler
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import SimulationResult

TRN1 = load_target("trn1")

MLP = model_of(
    "g (float[40, 96] x) => (float[40, 10] y) "
    "{ a = Gemm<transB = 1>(x, w0, b0) b = Relu(a) c = Gemm<transB = 1>(b, w1, b1) d = Relu(c) "
    "y = Gemm<transB = 1>(d, w2, b2) }",
    w0=random(160, 96), b0=random(160), w1=random(96, 160), b1=random(96), w2=random(10, 96),
    b2=random(10),
)  # fmt: skip

CNN = model_of(
    "g (float[1, 3, 20, 20] x) => (float[1, 12] y) "
    "{ a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w0, b0) b = Relu(a) "
    "c = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(b) "
    "d = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(c, w1, b1) e = Add(c, d) f = Relu(e) "
    "g1 = Conv<kernel_shape = [1, 1]>(f, w2) h = GlobalAveragePool(g1) i = Flatten(h) "
    "y = Gemm<transB = 1>(i, w3, b3) }",
    w0=random(32, 3, 3, 3), b0=random(32), w1=random(32, 32, 3, 3) / 10, b1=random(32),
    w2=random(40, 32, 1, 1), w3=random(12, 40), b3=random(12),
)  # fmt: skip

ODD = model_of(
    "g (float[6, 32] x) => (float[6, 32] y, float[6, 32] s) "
    "{ a = MatMul(x, w) s = Mod<fmod = 1>(a, turns) y = MatMul(s, w) }",
    w=random(32, 32) / 8, turns=np.arange(1, 33, dtype=np.float32),
)  # fmt: skip


HEADS = """g (float[1, 20, 24] x) => (float[1, 20, 24] y) {{
  q0 = MatMul(x, wq) k0 = MatMul(x, wk) v0 = MatMul(x, wv)
  q1 = Reshape(q0, split) k1 = Reshape(k0, split) v1 = Reshape(v0, split)
  q = Transpose<perm = [0, 2, 1, 3]>(q1) k = Transpose<perm = [0, 2, {keys}]>(k1)
  v = Transpose<perm = [0, 2, 1, 3]>(v1)
  {scores}
  p = Softmax<axis = -1>(s) m0 = MatMul(p, v) m = Transpose<perm = [0, 2, 1, 3]>(m0)
  y = Reshape(m, whole) }}"""

SCORES = {
    "transposed keys": ("3, 1", "s0 = MatMul(q, k) s = Mul(s0, c)"),
    "keys transposed after": ("1, 3", "kt = Transpose<perm = [0, 1, 3, 2]>(k) s0 = MatMul(q, kt) "
                              "s = Mul(s0, c)"),
    "no factor": ("3, 1", "s = MatMul(q, k)"),
}  # fmt: skip


def attention_model(name: str) -> onnx.ModelProto:
    keys, scores = SCORES[name]
    return model_of(
        HEADS.format(keys=keys, scores=scores), wq=random(24, 24) / 4,
        wk=random(24, 24, seed=1) / 4, wv=random(24, 24, seed=2) / 4, c=np.float32(0.3),
        split=np.array([1, 20, 3, 8]), whole=np.array([1, 20, 24]),
    )  # fmt: skip


def built(model: onnx.ModelProto, precision: str = "fp32") -> Executable:
    return build(import_model(model), TRN1, options=BuildOptions(precision=precision))


NORM = model_of(
    "g (float[2, 6, 40] x) => (float[2, 6, 40] y) "
    "{ s = Mul(x, x) v = ReduceMean<axes = [-1], keepdims = 1>(s) e = Add(v, eps) r = Sqrt(e) "
    "n = Div(x, r) y = MatMul(n, w) }",
    eps=np.float32(1e-5), w=random(40, 40),
)  # fmt: skip


@pytest.mark.parametrize("model", [MLP, CNN, ODD, NORM], ids=["mlp", "cnn", "odd", "norm"])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 2e-2)])
def test_models_compute_what_onnxruntime_does(
    model: onnx.ModelProto, precision: str, tolerance: float
) -> None:
    inputs = inputs_of(import_model(model))
    executable = built(model, precision)
    found = executable.run(inputs)
    assert_close(found, expected(model, inputs), tolerance)
    assert all(array.dtype == np.float32 for array in found.values())
    assert executable.report.precision == precision
    again = executable.run(inputs)
    for name, array in found.items():
        np.testing.assert_array_equal(array, again[name])


@pytest.mark.parametrize("name", SCORES)
def test_attention_is_one_kernel(name: str) -> None:
    model = attention_model(name)
    executable, inputs = built(model), inputs_of(import_model(model))
    operators = [step.workload.split()[0] for step in executable.recipe.steps]  # type: ignore[union-attr]
    assert operators.count("attention") == 1 and "softmax" not in operators
    assert operators.count("transpose") == 4, "queries, keys, values and the result, once each"
    (program,) = segments(executable.recipe)
    assert isinstance(program, LinkedProgram)
    turned = [n for n, operator in enumerate(operators) if operator == "transpose"]
    copies = program.linked.stream.rows["op"] == Opcode.COPY
    mine = np.isin(program.linked.owners, turned)
    assert (copies & mine).sum() <= 4, "all heads of a tensor that stays on chip at once"
    assert_close(executable.run(inputs), expected(model, inputs), 1e-5)


def test_attention_whose_weights_are_read_stays_in_parts() -> None:
    model = model_of(
        "g (float[2, 8, 4] q, float[2, 4, 8] k, float[2, 8, 4] v) => (float[2, 8, 4] y, "
        "float[2, 8, 8] p) { s = MatMul(q, k) p = Softmax<axis = -1>(s) y = MatMul(p, v) }"
    )
    executable, inputs = built(model), inputs_of(import_model(model))
    assert "attention" not in str([step.name for step in executable.recipe.steps])
    assert_close(executable.run(inputs), expected(model, inputs), 1e-5)


def test_an_artifact_runs_and_costs_the_same(tmp_path: Path) -> None:
    executable, inputs = built(CNN, "bf16"), inputs_of(import_model(CNN))
    executable.save(tmp_path / "m.tsm")
    loaded = Executable.load(tmp_path / "m.tsm")
    for name, array in executable.run(inputs).items():
        np.testing.assert_array_equal(array, loaded.run(inputs)[name])
    assert simulate_model(loaded.recipe).latency_us == simulate_model(executable.recipe).latency_us


def test_tensors_stay_on_chip_and_the_traffic_is_saved() -> None:
    recipe = built(MLP).recipe
    (program,) = segments(recipe)
    assert isinstance(program, LinkedProgram)
    names = {resident.name for resident in program.linked.residents}
    assert len(names) == 2, "both hidden activations stay"
    result = simulate_model(recipe)
    hidden = 4 * (40 * 160 + 40 * 96)
    assert result.details["bytes_saved"] == 2 * hidden  # stored once and loaded once, each
    weights, biases = 160 * 96 + 96 * 160 + 10 * 96, 160 + 96 + 10
    assert result.details["bytes_moved"] == 4 * (weights + biases + 40 * 96 + 40 * 10)


def test_a_model_costs_less_than_its_kernels_one_by_one() -> None:
    result = simulate_model(built(CNN).recipe)
    details = result.details
    assert result.latency_us < details["kernels_alone_us"]
    shown = sum(op.details["shown_us"] for op in result.ops)
    assert shown == pytest.approx(result.latency_us)
    roofs = sum(op.details["roofline_us"] * op.details["weight"] for op in result.ops)
    assert details["roofline_us"] == pytest.approx(roofs)
    assert details["between_us"] == pytest.approx(result.latency_us - roofs)
    assert details["model_roofline_us"] <= result.latency_us
    assert all(0 <= share <= 1 for share in result.engines.values())


def test_a_faster_machine_never_makes_a_model_slower() -> None:
    recipe = built(CNN).recipe
    usual = simulate_model(recipe).latency_us
    faster = TRN1.with_settings({"dma.gbps_practical": 27.0, "tensor.ghz": 4.0})
    assert simulate_model(recipe, faster).latency_us <= usual


def test_what_has_no_kernel_runs_on_the_host_and_is_costed() -> None:
    recipe = built(ODD).recipe
    (host,) = [step for step in recipe.steps if isinstance(step, HostStep)]
    assert [isinstance(part, LinkedProgram) for part in segments(recipe)] == [True, False, True]
    time = transfer_time(host, TRN1)
    rate, start = TRN1.number("host.gbps"), TRN1.number("host.start_us") * 1e3
    # The result of Mod goes back, its input comes; the divisors are the host's constant.
    assert time == pytest.approx(2 * start + 2 * (6 * 32 * 4) / rate)
    # It has no template: an operation for each element read or written, divisors too.
    assert operations(host) == 2 * 6 * 32 + 32
    computing = max(416 / TRN1.number("host.gflops"), 1664 / TRN1.number("host.memory_gbps"))
    assert compute_time(host, TRN1) == pytest.approx(computing)
    result = simulate_model(recipe)
    assert result.details["host_us"] == pytest.approx((time + computing) / 1e3)
    assert any("Mod" in note for note in result.notes)


def test_tensors_whose_size_only_a_run_tells_cost_nothing_before_it() -> None:
    model = model_of("g (float[2, 3] x) => (int64[2, n] y) { r = Relu(x) y = NonZero(r) }")
    executable = built(model)
    assert simulate_model(executable.recipe).details["host_us"] > 0
    inputs = {"x": np.array([[1, -1, 0], [2, 0, 3]], np.float32)}
    assert_close(executable.run(inputs), expected(model, inputs))


def test_a_kernel_without_schedule_falls_back_to_its_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = find_scheduler("pool2d", TRN1.family)
    monkeypatch.setattr(type(scheduler), "refusal", lambda *_: "no pools here")
    inputs = inputs_of(import_model(CNN))
    executable = built(CNN)
    assert executable.report.host == 2
    host = [step for step in executable.recipe.steps if isinstance(step, HostStep)]
    pools = [Workload.parse(f"pool2d kind={kind}") for kind in (
        "max c=32 h=20 w=20 kh=2 kw=2 stride=2", "average c=40 h=10 w=10 global=1",
    )]  # fmt: skip
    assert [operations(step) for step in host] == [template_of("pool2d").flops(p) for p in pools]
    assert all(name.startswith("pool2d") for name in executable.report.host_nodes)
    assert_close(executable.run(inputs), expected(CNN, inputs), 1e-5)


@pytest.mark.parametrize("answer", ["space", "default", "schedule", "refusal"])
def test_a_fact_misspelt_in_a_scheduler_is_an_error_and_no_reason_to_use_the_host(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(scheduler: object, workload: Workload, target: Target, *_: object) -> int:
        return target.integer("sbuf.partitons")

    for known in (space_of, default_of, inside_of, structure_program, staged_kernel):
        known.cache_clear()
    monkeypatch.setattr(type(find_scheduler("pool2d", TRN1.family)), answer, ask)
    with pytest.raises(TargetError, match=r"target 'trn1' has no 'sbuf\.partitons'"):
        built(CNN)


def test_a_model_larger_than_hbm_is_refused() -> None:
    big = model_of("g (float[1, N] x) => (float[1, N] y) { y = Add(x, w) }", w=random(1, 1))
    small = TRN1.with_settings({"hbm.gib_chip": 1, "cores_per_chip": 64})
    build(import_model(big, {"x": (1, 20000)}), small)
    with pytest.raises(ModelError, match=r"needs .* GiB .*hbm\.gib_chip"):
        build(import_model(big, {"x": (1, 2**31)}), small)


def test_an_operator_whose_smallest_tile_does_not_fit_is_refused() -> None:
    wide = model_of(
        """g (float[1, 4, 8, 60001] x) => (float[1, 4, 4, 2] y) {
        y = MaxPool<kernel_shape=[2, 60000], strides=[2, 1]>(x) }"""
    )
    with pytest.raises(ModelError, match=r"pool2d kind=max .* does not fit .*SBUF"):
        build(import_model(wide), TRN1)


def test_a_precision_that_there_is_not_is_refused() -> None:
    from tilesmith.codegen.host.machine import host_target

    for target in (host_target(), TRN1):
        with pytest.raises(ModelError, match="fp8"):
            build(import_model(MLP), target, options=BuildOptions(precision="fp8"))


def test_a_trace_needs_one_program(tmp_path: Path) -> None:
    simulate_model(built(MLP).recipe, trace=tmp_path / "t.json")
    assert (tmp_path / "t.json").stat().st_size > 1000
    with pytest.raises(InputError, match="2 of them"):
        simulate_model(built(ODD).recipe, trace=tmp_path / "t.json")


def test_damaged_code_is_refused(tmp_path: Path) -> None:
    built(MLP).save(tmp_path / "m.tsm")
    recipe = read_artifact(tmp_path / "m.tsm")
    for change in (b"", b"nonsense", recipe.codes[0].code[:-8]):
        codes = (dataclasses.replace(recipe.codes[0], code=change), *recipe.codes[1:])
        with pytest.raises(ModelError, match="damaged"):
            segments(dataclasses.replace(recipe, codes=codes))


@pytest.mark.parametrize("hidden", [-np.inf, np.finfo(np.float32).min, -1e4])
def test_masks_keep_every_digit_of_what_they_show(hidden: float) -> None:
    model = model_of(
        "g (float[8, 16] x) => (float[8, 16] w, float[8, 16] y) "
        "{ w = Where(mask, x, hidden) y = Softmax(w) }",
        mask=np.tril(np.ones((8, 16), bool)), hidden=np.float32(hidden),
    )  # fmt: skip
    inputs = {"x": random(8, 16)}
    found = build(import_model(model), TRN1).run(inputs)
    wanted = expected(model, inputs)
    np.testing.assert_array_equal(found["w"], wanted["w"])
    np.testing.assert_allclose(found["y"], wanted["y"], 1e-6, 1e-7)


def test_schedules_are_judged_in_place_as_they_will_run() -> None:
    """An alternative's latency is that of the model compiled with it; the incumbent's its own."""
    kernels = scheduled(import_model(MLP), TRN1, "bf16")
    evaluator = DeviceEvaluator(kernels, TRN1, None)
    workload = next(n.workload for n in kernels.nodes if n.workload is not None)
    space = space_of(workload, TRN1)
    usual = default_of(workload, TRN1)
    other = next(config for config in space if config != usual)
    results = evaluator.measure([{}, {workload: usual}, {workload: other}])
    base, same, changed = (result.latency for result in results)
    assert base == same == latency_of(built(MLP, "bf16").recipe, QUICK) * 1e-9
    recipe = fastest_recipe(
        kernels, ScheduleChooser(TRN1, None, 1, {workload: other}, measured_only=True)
    )
    assert changed == pytest.approx(latency_of(recipe, QUICK) * 1e-9)
    assert latency_of(recipe) <= latency_of(recipe, QUICK), "compiling tries more"
    assert sum(evaluator.shown().values()) == pytest.approx(base), "kernels account for all of it"


MEANS = {
    "padding is not counted": "AveragePool<kernel_shape = [3, 3], strides = [2, 2], "
                              "pads = [1, 1, 1, 1]>(a)",
    "windows reach beyond": "AveragePool<kernel_shape = [3, 2], strides = [2, 2], ceil_mode = 1, "
                            "pads = [1, 0, 0, 1], count_include_pad = 1>(a)",
    "over channels": "LRN<size = 5, alpha = 0.3, beta = 0.6, bias = 1.5>(a)",
}  # fmt: skip


@pytest.mark.parametrize("name", MEANS)
def test_means_run_on_the_core(name: str) -> None:
    model = model_of(
        f"g (float[1, 12, 9, 11] x) => (float[1, 12, N, M] y) {{ a = Relu(x) y = {MEANS[name]} }}"
    )
    executable, inputs = built(model), inputs_of(import_model(model))
    assert executable.report.host == 0
    assert_close(executable.run(inputs), expected(model, inputs), 1e-5)


EMBEDDED = model_of(
    "g (int64[1, 8] ids) => (float[1, 8, 24] y) { e = Gather(table, ids) y = Relu(e) }",
    table=random(9000, 24),
)


@pytest.mark.parametrize("name", ["inf2", "lpu1"])
def test_a_roofline_counts_the_rows_of_a_table_that_are_picked(name: str) -> None:
    """The whole table alone would take longer than the model does."""
    target = load_target(name)
    found = simulate_of(target, build(import_model(EMBEDDED), target))
    assert found.details["model_roofline_us"] <= found.latency_us
    if name != "lpu1":  # whose roofline is of products alone
        moved = 2 * 8 * 24 * 4 + 8 * 8
        bandwidth = Core.of(target).hbm_bytes_per_ns
        least = moved / bandwidth / 1e3
        assert least <= found.details["model_roofline_us"] < least + 4


def simulate_of(target: Target, executable: Executable) -> SimulationResult:
    return backend_of(target).simulate(executable.recipe)


def test_a_kernel_without_code_gets_another_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next ones in turn; on the host is only what has none."""
    failed: list[tuple[Workload, Config]] = []
    compiled = TrainiumBackend.compile

    def limited(
        self: TrainiumBackend, workload: Workload, target: Target, config: Config
    ) -> Compiled:
        if workload.operator == "matmul" and len(failed) < 2:
            failed.append((workload, config))
            raise CodegenError("the tiles do not fit")
        return compiled(self, workload, target, config)

    monkeypatch.setattr(TrainiumBackend, "compile", limited)
    model = model_of("g (float[40, 96] x) => (float[40, 64] y) { y = MatMul(x, w) }",
                     w=random(96, 64))  # fmt: skip
    executable = build(import_model(model), TRN1)
    assert not any(isinstance(step, HostStep) for step in executable.recipe.steps)
    assert len(set(failed)) == 2
    inputs = {"x": random(40, 96, seed=2)}
    assert_close(executable.run(inputs), expected(model, inputs))


def test_a_kernel_that_no_schedule_gives_code_of_runs_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[Config] = []

    def none(self: TrainiumBackend, workload: Workload, target: Target, config: Config) -> Compiled:
        tried.append(config)
        raise CodegenError("the tiles do not fit")

    monkeypatch.setattr(TrainiumBackend, "compile", none)
    model = model_of("g (float[4, 96] x) => (float[4, 96] y) { y = Relu(x) }")
    executable = build(import_model(model), TRN1)
    assert [type(step) for step in executable.recipe.steps] == [HostStep]
    assert 1 < len(set(tried)) <= MOST_TRIED + 1
