"""Bytes that are a step off at most, and rounded wrongly, are told from those rounded rightly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.model_builder import model_of, random
from tilesmith.capabilities.fault_finding.comparison import compare, precisions
from tilesmith.capabilities.fault_finding.comparison.compare import Compared, compare_tensors
from tilesmith.capabilities.fault_finding.comparison.precisions import compare_ratios, precision_of
from tilesmith.capabilities.fault_finding.comparison.tensors import Judge
from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator
from tilesmith.capabilities.fault_finding.references.quantised import Scale
from tilesmith.capabilities.fault_finding.rounding.local_bytes import byte_ratio, byte_ratios
from tilesmith.capabilities.fault_finding.stepping.errors import tensor_error
from tilesmith.capabilities.fault_finding.stepping.report import TensorRow
from tilesmith.capabilities.fault_finding.stepping.steps import run_steps
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable

BYTES = np.random.default_rng(3).integers(-100, 100, (32, 32)).astype(np.int8)
LAYERS = model_of(
    """g (float[16, 32] x) => (float[16, 32] y) {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = DequantizeLinear<axis=1>(w, t, o)
    a = MatMul(d, r) b = QuantizeLinear(a, u, z) c = DequantizeLinear(b, u, z)
    e = MatMul(c, r) f = QuantizeLinear(e, v, z) g = DequantizeLinear(f, v, z)
    h = MatMul(g, r) i = QuantizeLinear(h, k, n) y = DequantizeLinear(i, k, n) }""",
    s=np.float32(0.03), z=np.uint8(128), u=np.float32(0.06), v=np.float32(0.12),
    k=np.float32(0.25), n=np.uint8(0),  # no byte stands for less than zero: a Relu
    w=BYTES, t=np.linspace(0.004, 0.006, 32, dtype=np.float32), o=np.zeros(32, np.int8),
)  # fmt: skip
ZERO = {"b": 128, "f": 128, "i": 0}
STEP = {"b": 0.06, "f": 0.12, "i": 0.25}


def damaged(name: str, before: np.ndarray, defect: str) -> np.ndarray:
    """Bytes as numpy makes them of those before, with a defect."""
    scale, step = {"b": 0.03, "f": 0.06, "i": 0.12}[name], STEP[name]
    factors = np.linspace(0.004, 0.006, 32, dtype=np.float32)
    if defect == "another channel's scale":
        factors = np.roll(factors, 1)
    sums = (before.astype(np.int64) - 128) @ BYTES.astype(np.int64)
    exact = sums * (factors * scale / step)
    whole = np.floor(exact) if defect == "cut off" else np.rint(exact)
    shift = ZERO[name] + (1 if defect == "zero point" else 0)
    whole = whole + shift
    if defect == "wraps":
        return whole.astype(np.int64).astype(np.uint8)
    return np.clip(whole, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("name", ["b", "f", "i"])
@pytest.mark.parametrize(
    "defect", ["right", "cut off", "zero point", "another channel's scale", "wraps"]
)
def test_wrong_roundings_are_named_at_any_depth(
    defect: str, name: str, lower: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = import_model(LAYERS)
    executable = build(graph, host_target(), None, BuildOptions())
    inputs = {"x": random(16, 32, seed=5) * 3}
    found = run_steps(executable, inputs).tensors
    value = damaged(name, found[{"b": "q", "f": "b", "i": "f"}[name]], defect)
    if defect == "right":
        assert np.mean(value != found[name]) < 0.01, "ties alone"

    def injected(executable: Executable, inputs: Any, names: Any, replaced: Any = None) -> Any:
        return run_steps(executable, inputs, names, {name: value})

    asked = Compared(executable, graph, inputs, "onnx.reference")
    names = [tensor.name for tensor in asked.tensors()]
    wanted = Evaluator(graph, sessions=False).values(inputs, names)
    monkeypatch.setattr(compare, "unlike_whole", lambda *_: ())
    monkeypatch.setattr(precisions, "unlike_whole", lambda *_: ())
    monkeypatch.setattr(compare, "run_steps", injected)
    monkeypatch.setattr(precisions, "run_steps", injected)
    monkeypatch.setattr(compare, "replacement", lambda *_: None)
    monkeypatch.setattr(precisions, "replaced_ratios", lambda *_: None)
    if lower:
        report = compare_ratios(asked, precision_of("int8", graph, inputs, wanted, names))
    else:
        report = compare_tensors(asked, wanted)
    assert report.first_bad == (None if defect == "right" else name)
    blamed = [row.name for row in report.tensors if row.verdict in ("bad", "likely", "missing")]
    assert blamed == ([] if defect == "right" else [name])


def test_a_tie_is_right_either_way() -> None:
    exact = np.array([[0.5, 1.5, 2.5, 7.0]])
    down, up = np.array([[0, 1, 2, 7]], np.uint8), np.array([[1, 2, 3, 7]], np.uint8)
    assert byte_ratio(down, up, exact) == byte_ratio(up, down, exact) == 1.0
    assert byte_ratio(up, down, exact - 0.4) > 1.5


def test_numbers_beyond_the_range_are_its_ends() -> None:
    scale = Scale("x", np.float32([0.5, 2]), np.uint8([0, 10]), 1)
    numbers = np.array([[-3.0, -30.0], [1.1, 1.0], [500.0, 1000.0]], np.float32)
    np.testing.assert_allclose(scale.steps(numbers), [[0, 0], [2.2, 10.5], [255, 255]], rtol=1e-6)
    np.testing.assert_allclose(scale.within(numbers), [[0, -20], [1.1, 1], [127.5, 490]], rtol=1e-6)


def test_other_tensors_have_no_ratio() -> None:
    graph = import_model(LAYERS)
    values = Evaluator(graph, sessions=False).values({"x": random(16, 32)}, ["q", "a", "b"])
    assert byte_ratios(graph, {"x": random(16, 32)}, values, values).keys() == {"q", "b"}


def test_a_residual_of_another_scale_may_move_bytes_by_more_than_a_step() -> None:
    """What is added is rounded before, to larger steps, and falls the other way."""
    graph = import_model(
        model_of(
            """g (float[4] x, float[4] t) => (uint8[4] b) {
            q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
            a = Add(d, t) b = QuantizeLinear(a, u, z) }""",
            s=np.float32(1), u=np.float32(0.4), z=np.uint8(100),
        )
    )  # fmt: skip
    inputs = {"x": np.float32([0.5, 1.5, 2, 4]), "t": np.zeros(4, np.float32)}
    wanted = Evaluator(graph, sessions=False).values(inputs, ["b"])
    error = tensor_error(wanted["b"], wanted["b"])
    row = TensorRow("b", "b", "QuantizeLinear", "b", (), "uint8", "", (4,), error)
    for moved, verdict in ((4, "inherited"), (5, "bad")):
        ours = wanted["b"] + np.array([moved, 0, 0, 0], np.uint8)
        assert Judge(graph, inputs, {"b": ours}, wanted).judged(row).verdict == verdict
