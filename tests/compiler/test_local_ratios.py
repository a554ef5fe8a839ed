"""Defects as small as rounding is, injected into 16-bit models one at a time, are named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.compiler.model_builder import model_of, random
from tilesmith.codegen.host import host_target
from tilesmith.compiler.build import BuildOptions, build
from tilesmith.compiler.comparison import precisions
from tilesmith.compiler.comparison.compare import Compared
from tilesmith.compiler.comparison.evaluation import Evaluator
from tilesmith.compiler.comparison.precisions import compare_ratios, precision_of
from tilesmith.compiler.comparison.stepping import Hooks, run_steps
from tilesmith.compiler.executable import Executable
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.passes.narrow_kernels import as_narrow

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

    def injected(executable: Executable, inputs: Any, hooks: Hooks) -> Any:
        return run_steps(executable, inputs, replace(hooks, replaced={name: value}))

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
