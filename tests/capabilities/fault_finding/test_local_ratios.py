"""Defects as small as rounding is, injected into 16-bit models one at a time, are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.model_builder import model_of, random
from tilesmith.capabilities.fault_finding.comparison import precisions
from tilesmith.capabilities.fault_finding.comparison.compare import Compared
from tilesmith.capabilities.fault_finding.comparison.precisions import compare_ratios, precision_of
from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator
from tilesmith.capabilities.fault_finding.rounding.local_ratios import local_ratios
from tilesmith.capabilities.fault_finding.stepping.steps import run_steps
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.passes.narrow_kernels import as_narrow
from tilesmith.compiler.runtime.executable import Executable

DEEP = model_of(
    "g (float[32, 64] x) => (float[32, 64] y) {"
    + " ".join(f"a{n} = MatMul({'x' if n == 0 else f'r{n - 1}'}, w) r{n} = Tanh(a{n})"
               for n in range(6))
    + " y = MatMul(r5, w) }",
    w=random(64, 64) / 4,
)  # fmt: skip


def cut_off(array: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16 toward zero."""
    return (array.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def summed_narrow(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """A product whose sum is kept in bfloat16."""
    total = np.zeros((len(rows), weight.shape[1]), np.float32)
    for k in range(rows.shape[1]):
        total = as_narrow(total + rows[:, k : k + 1] * weight[k], "bfloat16").astype(np.float32)
    return total


@pytest.mark.parametrize("layer", [0, 5])
@pytest.mark.parametrize("defect", ["right", "cut off", "narrow sum", "no epilogue", "stale tile"])
def test_small_defects_in_16_bits_are_named_at_any_depth(
    defect: str, layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = import_model(DEEP)
    executable = build(graph, host_target(), None, BuildOptions(precision="bf16"))
    inputs = {"x": random(32, 64, seed=5)}
    found = run_steps(executable, inputs).tensors
    name, weight = f"r{layer}", graph.constants["w"]
    weight = as_narrow(weight, "bfloat16").astype(np.float32)
    before = inputs["x"] if layer == 0 else found[f"r{layer - 1}"]
    before = as_narrow(before.astype(np.float32), "bfloat16").astype(np.float32)
    value = found[name].astype(np.float32)
    if defect == "cut off":
        value = cut_off(np.tanh(before @ weight))
    elif defect == "narrow sum":
        value = np.tanh(summed_narrow(before, weight))
    elif defect == "no epilogue":
        value = before @ weight
    elif defect == "stale tile":
        value = np.concatenate([value[16:], value[16:]])

    def injected(executable: Executable, inputs: Any, names: Any, replaced: Any = None) -> Any:
        return run_steps(executable, inputs, names, {name: value})

    asked = Compared(executable, graph, inputs, "onnx.reference")
    names = [tensor.name for tensor in asked.tensors()]
    wanted = Evaluator(graph, sessions=False).values(inputs, names)
    precision = precision_of("bf16", graph, inputs, wanted, names)
    monkeypatch.setattr(precisions, "run_steps", injected)
    report = compare_ratios(asked, precision)
    if defect == "right":
        assert report.clean and all(row.local_ratio < 1.1 for row in report.tensors)
        return
    assert report.suspect == report.first_bad == name
    (row,) = (row for row in report.tensors if row.name == name)
    assert row.deviation and row.local_ratio > 1.5
    others = [row for row in report.tensors if row.name != name]
    assert all(row.local_ratio < 1.1 for row in others), "what follows is right on what it is given"


def rounded(array: np.ndarray) -> np.ndarray:
    return as_narrow(array.astype(np.float32), "bfloat16").astype(np.float32)


def test_an_operand_may_be_as_the_model_has_it() -> None:
    """Of a difference that cancels, what rounding the operand costs is most."""
    graph = import_model(
        model_of(
            """g (float[8,16] x) => (float[8,16] y)
            { m = ReduceMax <axes=[1]> (x)  y = Sub(x, m) }"""
        )
    )
    x = random(8, 16, seed=2) + 8
    most = rounded(x.max(axis=1, keepdims=True))

    def found(y: np.ndarray) -> float:
        return local_ratios(graph, {"x": x}, {"m": most, "y": y}, "bfloat16", ["y"])["y"]

    for operand in (x, rounded(x)):
        assert found(rounded(operand - most)) < 1.2
    assert found(cut_off(x - most)) > 1.5


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("folded", [False, True])
def test_weights_may_be_rounded_with_what_is_folded_into_them(folded: bool, computed: bool) -> None:
    """Weights that are all alike are all off by the same, which one reference has by luck."""
    filled = "w = ConstantOfShape <value = float[1] {0.02}> (shape)" if computed else ""
    held = {} if computed else {"w": np.full((4, 5, 1, 1), 0.02, np.float32)}
    graph = import_model(
        model_of(
            f"""g (float[1,5,6,6] x) => (float[1,4,6,6] y)
            {{ {filled} a = Conv(x, w)  b = BatchNormalization(a, s, c, m, v)
              d = Mul(b, e)  f = Add(d, h)  y = Relu(f) }}""",
            s=np.full(4, 0.3, np.float32), c=np.full(4, 0.02, np.float32),
            m=np.full(4, 0.02, np.float32), v=np.full(4, 0.7, np.float32),
            e=np.full((4, 1, 1), 3.3, np.float32), h=np.full((4, 1, 1), 0.07, np.float32),
            **held, **({"shape": np.array([4, 5, 1, 1])} if computed else {}),
        )
    )  # fmt: skip
    x = rounded(np.abs(random(1, 5, 6, 6, seed=3)))
    scale = np.float32(0.3 / np.sqrt(0.7 + 1e-5))
    summed = x.sum(axis=1, keepdims=True).repeat(4, axis=1)
    if folded:
        weight = rounded(np.array([0.02 * scale * 3.3, (0.02 - 0.02 * scale) * 3.3 + 0.07]))
        value = np.maximum(summed * weight[0] + weight[1], 0)
    else:
        w, s, c, m, v, e, h = rounded(np.array([0.02, 0.3, 0.02, 0.02, 0.7, 3.3, 0.07]))
        value = ((summed * w - m) * s / np.sqrt(v + np.float32(1e-5)) + c) * e + h

    def found(y: np.ndarray) -> float:
        return local_ratios(graph, {"x": x}, {"y": y}, "bfloat16", ["y"])["y"]

    assert found(rounded(value)) < 1.2
    assert found(rounded(value * 1.02)) > 1.5


def test_numbers_too_large_for_the_type_are_no_defect() -> None:
    graph = import_model(model_of("g (float[8,8] x) => (float[8,8] y) { y = Mul(x, x) }"))
    x = random(8, 8, seed=1) * 300
    y = np.where(x * x > 65504, np.inf, x * x).astype(np.float16).astype(np.float32)
    assert np.isinf(y).any()
    assert local_ratios(graph, {"x": x}, {"y": y}, "float16", ["y"])["y"] < 1.2
    assert local_ratios(graph, {"x": x}, {"y": -y}, "float16", ["y"])["y"] > 10
