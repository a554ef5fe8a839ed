"""Pools whose rows SBUF does not hold, on accelerators: pieces of them, with the right values."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.model_builder import expected, model_of, random
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.hardware.target import load_target

CASES = {
    "windows one after another": (
        (1, 1, 2, 60000), (1, 1, 2, 600), "MaxPool<kernel_shape=[1,100],strides=[1,100]>",
    ),
    "means in one dimension": ((1, 2, 60000), (1, 2, 30000), "AveragePool<kernel_shape=[2],"
                               "strides=[2]>"),
    "windows that overlap, padded": (
        (1, 1, 1, 30000), (1, 1, 1, 30000), "MaxPool<kernel_shape=[1,3],pads=[0,1,0,1]>",
    ),
    "a last window that is cut": (
        (1, 1, 1, 50001), (1, 1, 1, 25001), "MaxPool<kernel_shape=[1,2],strides=[1,2],ceil_mode=1>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("behind", ["y = Add(a, z)", "b = Mul(a, z) y = Tanh(b)", "y = Add(a, s)"])
def test_what_follows_may_read_tensors(name: str, behind: str) -> None:
    given, made, operator = CASES[name]
    x, y = (", ".join(map(str, dims)) for dims in (given, made))
    model = model_of(
        f"g (float[{x}] x, float[{y}] z) => (float[{y}] y) {{ "
        f"p = {operator}(x) a = Relu(p) {behind} }}",
        s=random(1, given[1], *(1 for _ in given[2:]), seed=5),
    )
    executable = build(import_model(model), load_target("trn1"))
    assert not executable.report.host_nodes
    inputs = {"x": random(*given), "z": random(*made, seed=3)}
    wanted = expected(model, inputs)["y"]
    np.testing.assert_allclose(executable.run(inputs)["y"], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_long_rows_are_pooled_in_pieces(name: str) -> None:
    given, made, operator = CASES[name]
    x, y = (", ".join(map(str, dims)) for dims in (given, made))
    model = model_of(f"g (float[{x}] x) => (float[{y}] y) {{ p = {operator}(x) y = Relu(p) }}")
    executable = build(import_model(model), load_target("trn1"))
    assert not executable.report.host_nodes
    inputs = {"x": random(*given)}
    wanted = expected(model, inputs)["y"]
    np.testing.assert_allclose(executable.run(inputs)["y"], wanted, rtol=1e-6, atol=1e-6)
