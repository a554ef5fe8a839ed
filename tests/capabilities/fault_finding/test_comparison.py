"""Every tensor of a compiled model against a reference: values, measures, verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import model_of, random
from tilesmith.capabilities.fault_finding.comparison.compare import Compared, compare_tensors
from tilesmith.capabilities.fault_finding.comparison.precisions import compare_ratios, precision_of
from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator
from tilesmith.capabilities.fault_finding.references.float64 import in_float64, wide
from tilesmith.capabilities.fault_finding.rounding.ratios import (
    suspect_of,
    verdict_of,
    with_deviations,
)
from tilesmith.capabilities.fault_finding.stepping.errors import tensor_error
from tilesmith.capabilities.fault_finding.stepping.report import TensorRow
from tilesmith.capabilities.fault_finding.stepping.steps import run_steps
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.rewriting.graph_pass import observed
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import InputError

CONVOLUTION = model_of(
    """g (float[1, 3, 8, 8] x) => (float[1, 5] y) {
    a = Conv<pads=[1, 1, 1, 1]>(x, w, b) c = Relu(a) d = Conv(c, v) e = Sigmoid(d)
    f = GlobalAveragePool(e) h = Flatten(f) y = Gemm(h, u) }""",
    w=random(16, 3, 3, 3), b=random(16), v=random(32, 16, 1, 1), u=random(32, 5),
)  # fmt: skip
ON_HOST = model_of(
    """g (float[2, 12] x) => (float[2, 12] y) {
    a = Gemm(x, w) b = CumSum(a, axis) c = Add(b, x) y = Softmax(c) }""",
    w=random(12, 12), axis=np.array(1),
)  # fmt: skip


def compared(model: onnx.ModelProto, target: str = "cpu", damaged: str = "") -> Compared:
    """A model compiled, with its graph and inputs; a weight of the compiled one may be damaged."""
    graph = import_model(model)
    changed = graph
    if damaged:
        weight = np.array(graph.constants[damaged])
        weight.reshape(-1)[0] += 3.0
        changed = graph.with_(constants={**graph.constants, damaged: weight})
    found = build(changed, host_target() if target == "cpu" else load_target(target))
    inputs = {info.name: random(*info.dims, seed=5) for info in graph.inputs}
    return Compared(found, graph, inputs, "onnx.reference")


def reference(compared: Compared) -> dict[str, np.ndarray]:
    names = [tensor.name for tensor in compared.tensors()]
    return Evaluator(compared.graph, sessions=False).values(compared.inputs, names)


@pytest.mark.parametrize("model", [CONVOLUTION, ON_HOST], ids=["convolution", "on host"])
def test_every_tensor_is_caught_as_the_reference_has_it(model: onnx.ModelProto) -> None:
    asked = compared(model)
    held = {tensor.name: tensor for tensor in asked.tensors()}
    assert set(held) >= {info.name for info in asked.graph.outputs}
    found = run_steps(asked.executable, asked.inputs).tensors
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in held)
    wanted = ReferenceEvaluator(whole).run(None, asked.inputs)
    for name, value in zip(held, wanted, strict=True):
        assert np.shape(found[name]) == np.shape(value)
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_tensors_in_layouts_of_their_own_are_turned_back() -> None:
    asked = compared(CONVOLUTION)
    layouts = {tensor.layout for tensor in asked.recipe.tensors}
    assert any(layouts), "a convolution's result is in blocks of channels"
    report = compare_tensors(asked, reference(asked))
    assert report.clean and all(row.verdict == "ok" for row in report.tensors)
    assert {row.name for row in report.tensors} >= {"c", "e", "y"}


@pytest.mark.parametrize("target", ["cpu", "trn1"])
def test_the_first_bad_tensor_is_the_damaged_kernels(target: str) -> None:
    asked = compared(CONVOLUTION, target, damaged="v")
    report = compare_tensors(asked, reference(asked))
    by_name = {row.name: row for row in report.tensors}
    assert report.first_bad in ("d", "e") and report.suspect == report.first_bad
    assert by_name["c"].verdict == "ok" and by_name["y"].verdict == "inherited"
    assert "v" not in by_name and by_name[report.first_bad].sources
    swap = report.replacement
    assert swap is not None and swap.before["y"] > 1e-3 and swap.after["y"] < 1e-5


def test_the_artifact_knows_where_its_tensors_lie(tmp_path: Path) -> None:
    asked = compared(CONVOLUTION)
    asked.executable.save(tmp_path / "model.tsm")
    loaded = Executable.load(tmp_path / "model.tsm")
    assert loaded.recipe.tensors == asked.recipe.tensors
    report = compare_tensors(replace(asked, executable=loaded), reference(asked))
    assert report.clean and len(report.tensors) == len(asked.tensors())


def test_not_a_number_is_found_where_it_arises() -> None:
    model = model_of(
        "g (float[4] x) => (float[4] y) { a = Sub(x, one) b = Log(a) c = Add(b, x) y = Exp(c) }",
        one=np.float32(1.0),
    )
    asked = compared(model)
    clean = reference(asked)
    report = compare_tensors(asked, clean)
    assert report.first_bad is None, "the reference has the same"
    assert report.first_nan is not None
    row = next(row for row in report.tensors if row.name == report.first_nan)
    assert row.error.nan == 0 and row.error.reference_nan > 0
    assert report.clean, "nothing is wrong"


SAME_AS_INPUT_AND_CONSTANT = model_of(
    "g (float[4] x) => (float[4] y, float[4] k, float[4] c) { y = Exp(x) c = Neg(k) }",
    k=random(4),
)
DRAWN = model_of(
    "g (float[4] x) => (float[4] y) { n = RandomNormalLike(x) y = Add(n, x) }", opset=22
)
OUT_OF_RANGE = model_of(
    """g (float[4] x) => (uint8[4] u, float[4] y) {
    a = Mul(x, big) u = Cast<to=2>(a) b = Cast<to=1>(u) y = Neg(b) }""",
    big=np.array([300, -300, 1, 1e9], np.float32),
)


def test_outputs_that_are_constants_are_compared() -> None:
    asked = compared(SAME_AS_INPUT_AND_CONSTANT)
    report = compare_tensors(asked, reference(asked))
    assert report.clean and {row.name for row in report.tensors} == {"y", "k", "c"}
    wrong = {**reference(asked), "k": random(4, seed=9), "c": random(4, seed=9)}
    found = {row.name: row.verdict for row in compare_tensors(asked, wrong).tensors}
    assert found["y"] == "ok" and "ok" not in (found["k"], found["c"])


def test_random_numbers_are_the_references() -> None:
    asked = compared(DRAWN)
    wanted = reference(asked)
    report = compare_tensors(asked, wanted)
    assert report.clean and [row.name for row in report.tensors] == ["n", "y"]
    wanted["y"] = wanted["y"] + 1
    assert compare_tensors(asked, wanted).tensors[1].verdict != "ok"


def test_what_onnx_leaves_open_is_nobodys_fault() -> None:
    asked = replace(compared(OUT_OF_RANGE), inputs={"x": np.ones(4, np.float32)})
    wanted = reference(asked)
    wanted["u"] = np.array([7, 9, 1, 11], np.uint8)  # the third alone is in range
    wanted["y"] = -wanted["u"].astype(np.float32)
    report = compare_tensors(asked, wanted)
    assert report.clean
    assert next(row.verdict for row in report.tensors if row.name == "u") == "sensitive"
    wanted["u"] = np.array([7, 9, 3, 11], np.uint8)
    rows = compare_tensors(asked, wanted).tensors
    assert next(row.verdict for row in rows if row.name == "u") == "bad"


def test_measures_are_what_they_say() -> None:
    wanted = np.array([3.0, -4.0, 0.0, 0.0])
    error = tensor_error(np.array([3.0, -4.0, 0.5, 0.0]), wanted)
    assert error.max_abs == 0.5 and error.mean_abs == 0.125 and error.worst == (2,)
    assert error.max_rel == pytest.approx(0.5 / 2.5), "relative to the root mean square"
    assert tensor_error(wanted * 1.5, wanted).cosine == pytest.approx(1.0)
    assert tensor_error(wanted * 1.5, wanted).max_rel == pytest.approx(0.5)
    same = np.array([np.inf, np.nan, -np.inf])
    assert tensor_error(same, same).max_rel == 0.0
    odd = tensor_error(np.array([np.nan, 1.0, np.inf]), np.array([1.0, 1.0, 1.0]))
    assert (odd.nan, odd.inf, odd.max_rel) == (1, 1, np.inf)
    zero = np.zeros(3)
    assert tensor_error(zero, zero).cosine == 1.0 and tensor_error(zero, zero).max_rel == 0.0


def test_a_tensor_of_another_shape_is_infinitely_wrong() -> None:
    found = tensor_error(np.zeros((5, 3)), np.zeros((4, 3)))
    assert found.max_rel == found.distance == np.inf and found.cosine == 0.0


def test_a_model_in_float64_has_no_float32_in_it() -> None:
    model = model_of(
        """g (float[2, 3] x) => (float[2, 3] y) {
        k = Constant<value = float[1] {0.1}>() a = Mul(x, k) b = Cast<to=1>(a) y = Add(b, w) }""",
        w=random(3),
    )
    graph = import_model(model)
    inputs = {"x": random(2, 3)}
    found = Evaluator(in_float64(graph), sessions=False).values(
        {name: wide(value) for name, value in inputs.items()}, ["a", "b", "y"]
    )
    assert all(value.dtype == np.float64 for value in found.values())
    weight = numpy_helper.to_array(model.graph.initializer[0]).astype(np.float64)
    exact = inputs["x"].astype(np.float64) * np.float64(np.float32(0.1)) + weight
    np.testing.assert_allclose(found["y"], exact, rtol=1e-15)


def test_passes_keep_the_values_of_tensors_under_their_names() -> None:
    """What comparisons rest on: a tensor with other values has another name."""
    graph = import_model(CONVOLUTION)
    inputs = {"x": random(1, 3, 8, 8, seed=2)}
    names = [name for node in graph.nodes for name in node.writes]
    known = Evaluator(graph, sessions=False).values(inputs, names)
    told: list[str] = []

    def look(step: object, before: object, after: object) -> None:
        names = [n for node in after.nodes for n in node.writes if n in known]  # type: ignore[attr-defined]
        found = Evaluator(after, sessions=False).values(inputs, names)  # type: ignore[arg-type]
        for name, value in found.items():
            np.testing.assert_allclose(value, known[name], rtol=1e-4, atol=1e-5)
        told.extend(names)

    with observed(look):
        build(graph, host_target())
    assert told


def test_a_replaced_tensor_is_what_later_steps_read() -> None:
    asked = compared(ON_HOST)
    zeros = np.zeros((2, 12), np.float32)
    found = run_steps(asked.executable, asked.inputs, None, {"b": zeros}).tensors
    np.testing.assert_allclose(found["c"], asked.inputs["x"], rtol=1e-6)


CHAIN = model_of(
    """g (float[16, 64] x) => (float[16, 64] y) {
    a = MatMul(x, w) b = Tanh(a) c = MatMul(b, v) d = Softplus(c) e = MatMul(d, u)
    f = Tanh(e) g = MatMul(f, t) h = Relu(g) y = MatMul(h, s) }""",
    w=random(64, 64) / 8, v=random(64, 64, seed=1) / 8, u=random(64, 64, seed=2) / 8,
    t=random(64, 64, seed=3) / 8, s=random(64, 64, seed=4) / 8,
)  # fmt: skip


def by_ratio(graph: Graph, precision: str, target: str = "cpu", noise: float = 0.0) -> Any:
    """A model compared by R; noise that the kernels' weight `v` has more than the model's."""
    changed = graph
    if noise:
        weight = graph.constants["v"]
        weight = weight * (1 + noise * random(*weight.shape, seed=9))
        changed = graph.with_(constants={**graph.constants, "v": weight})
    machine = host_target() if target == "cpu" else load_target(target)
    found = build(
        changed, machine, None, BuildOptions(precision="fp32" if precision == "int8" else precision)
    )
    inputs = {info.name: random(*info.dims, seed=5) for info in graph.inputs}
    asked = Compared(found, graph, inputs, "onnx.reference")
    names = [tensor.name for tensor in asked.tensors()]
    exact = Evaluator(graph, sessions=False).values(inputs, names)
    return compare_ratios(asked, precision_of(precision, graph, inputs, exact, names))


@pytest.mark.parametrize(
    ("target", "precision"), [("cpu", "bf16"), ("cpu", "fp16"), ("trn1", "bf16")]
)
def test_a_precision_costs_what_its_reference_does(target: str, precision: str) -> None:
    report = by_ratio(import_model(CHAIN), precision, target)
    assert report.clean and report.suspect is None and report.replacement is None
    ratios = [row.ratio for row in report.tensors]
    assert len(ratios) > 3 and all(0.7 < found < 1.2 for found in ratios)
    assert {row.verdict for row in report.tensors} == {"ok"}


def test_a_decision_that_rounding_turns_is_nobodys_fault() -> None:
    text = "g (float[2, 3] x) => (int64[2] k) { a = Relu(x) k = ArgMax<axis=1, keepdims=0>(a) }"
    graph = import_model(model_of(text))
    x = np.array([[1.0, 1.001, 0.5], [0.2, 0.1, 0.5]], np.float32)  # bfloat16 has no 1.001
    executable = build(graph, host_target(), None, BuildOptions(precision="bf16"))
    asked = Compared(executable, graph, {"x": x}, "onnx.reference")
    names = [tensor.name for tensor in asked.tensors()]
    wanted = Evaluator(graph, sessions=False).values(asked.inputs, names)
    report = compare_ratios(asked, precision_of("bf16", graph, asked.inputs, wanted, names))
    assert report.tensors[-1].name == "k" and report.tensors[-1].verdict == "inherited"
    assert report.clean and "rounding turns the decision" in report.notes[0]


def test_what_is_lost_beside_the_precision_is_a_step() -> None:
    report = by_ratio(import_model(CHAIN), "bf16", noise=0.1)
    by_name = {row.name: row for row in report.tensors}
    assert by_name["b"].verdict == "ok", "before the damaged weight"
    assert report.suspect == report.first_bad == ("c" if "c" in by_name else "d")
    row = by_name[report.suspect]
    assert row.verdict in ("likely", "missing") and row.deviation == "step"
    swap = report.replacement
    assert swap.ratio_before["y"] > 2 and swap.ratio_after["y"] < 1.2


def test_int8_is_compared_as_the_numbers_that_bytes_stand_for() -> None:
    model = model_of(
        """g (float[4, 16] x) => (float[4, 16] y) {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = DequantizeLinear(w, t, o)
        m = MatMul(d, r) n = Relu(m) p = QuantizeLinear(n, s, z) k = DequantizeLinear(p, s, z)
        y = Mul(k, two) }""",
        s=np.float32(0.03), z=np.uint8(128), t=np.float32(0.01), o=np.int8(0), two=np.float32(2),
        w=np.random.default_rng(3).integers(-100, 100, (16, 16)).astype(np.int8),
    )  # fmt: skip
    graph = import_model(model)
    report = by_ratio(graph, "int8")
    rows = {row.name: row for row in report.tensors}
    assert {"q", "p"} & set(rows) and report.clean
    assert all(row.ratio == pytest.approx(1.0, abs=0.05) for row in report.tensors)
    with pytest.raises(InputError, match="has no QuantizeLinear"):
        by_ratio(import_model(CHAIN), "int8")


def row(name: str, found: float) -> TensorRow:
    error = tensor_error(np.ones(1), np.ones(1))
    return TensorRow(name, name, "Add", name, (), "float32", "", (64,), error,
                     verdict_of(found, 64), ratio=found)  # fmt: skip


def test_a_spike_returns_and_a_step_stays() -> None:
    chain = {"a": (), "b": ("a",), "c": ("b",), "d": ("c",), "e": ("d",), "f": ("e",)}

    def named(*ratios: float) -> dict[str, str]:
        rows = [row(name, found) for name, found in zip(chain, ratios, strict=True)]
        return {r.name: r.deviation for r in with_deviations(rows, chain) if r.deviation}

    assert named(1, 1, 1, 1, 1, 1) == {}
    assert named(1, 8, 1.1, 1, 1, 1) == {"b": "spike"}
    assert named(1, 8, 7, 6, 5, 4) == {"b": "step"}
    assert named(1, 5, 1, 1, 40, 30) == {"b": "spike", "e": "step"}
    words = [verdict_of(r, 64) for r in (0.2, 1.0, 1.5, 5.0, 20.0)]
    assert words == ["upcast", "ok", "possible", "likely", "missing"]
    rows = with_deviations(
        [row(n, r) for n, r in zip("abcdef", (1, 2, 2, 9, 9, 9), strict=True)], chain
    )
    assert suspect_of(rows) == "d", "what is likely goes before what is possible"


def test_references_that_contradict_each_other_are_told_apart() -> None:
    asked = compared(CONVOLUTION)
    wanted = reference(asked)
    off = {name: value + 1 if name == "c" else value for name, value in wanted.items()}
    names: list[str] = []

    def second(asked_for: Any) -> Any:
        names.extend(asked_for)
        return {name: wanted[name] for name in asked_for}

    alone = {"c": off["c"]}
    report = compare_tensors(replace(asked, second=second), alone)
    assert names == ["c"] and report.clean and report.tensors[0].verdict == "sensitive"
    assert "contradict each other on c" in report.notes[0]
    assert not compare_tensors(asked, alone).clean, "no second reference agrees with ours"
    bad = replace(compared(CONVOLUTION, damaged="w"), second=second)
    assert not compare_tensors(bad, alone).clean
