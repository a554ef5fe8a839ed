"""Lowering of softmax, normalisations and reductions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.compiler.lowering_checks import check_both, model_without_output_shape
from tests.compiler.model_builder import model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model


@pytest.mark.parametrize("size", [3, 5, 13, 15])
def test_local_response_normalisation(size: int) -> None:
    model = model_of(
        "g (float[2, 7, 4, 3] x) => (float[2, 7, 4, 3] y) "
        f"{{ y = LRN<size={size}, alpha=0.1, beta=0.75, bias=1.5>(x) }}"
    )
    check_both(model)


@pytest.mark.parametrize("size", [14, 2**31 - 1])
def test_local_response_over_more_channels_than_there_are(size: int) -> None:
    """Which takes no longer than over those that there are."""
    model = model_of(
        "g (float[2, 7, 4] x) => (float[2, 7, 4] y) "
        f"{{ y = LRN<size={size}, alpha=1000000.0, beta=0.75, bias=1.5>(x) }}"
    )
    x = random(2, 7, 4)
    wanted = x / (1.5 + 1e6 / size * (x**2).sum(axis=1, keepdims=True)) ** 0.75
    found = build(import_model(model), host_target()).run({"x": x})["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_softmax(name: str, axis: int) -> None:
    text = f"g (float[3, 5, 7] x) => (float[3, 5, 7] y) {{ y = {name}<axis={axis}>(x) }}"
    check_both(model_of(text))


@pytest.mark.parametrize(
    "text",
    [
        "y = LayerNormalization<axis=-1>(x, g6, b6)",
        "y = LayerNormalization<axis=1, epsilon=0.01>(x, g3, b3)",
        "y = InstanceNormalization(x, c4, d4)",
    ],
)
def test_normalisations(text: str) -> None:
    model = model_of(
        f"g (float[2, 4, 5, 6] x) => (float[2, 4, 5, 6] y) {{ {text} }}",
        g6=random(6), b6=random(6), g3=random(4, 5, 6), b3=random(4, 5, 6, seed=4), c4=random(4),
        d4=random(4, seed=2),
    )  # fmt: skip
    check_both(model)


@pytest.mark.parametrize(
    "text",
    [
        "y = ReduceMean<axes=[-1], keepdims=0>(x)",
        "y = ReduceSum(x, at)",
        "y = ReduceMax<axes=[1]>(x)",
        "y = ReduceMin<keepdims=1>(x)",
        "y = ReduceProd<axes=[0, 1]>(x)",
        "m = ReduceMean<axes=[2]>(x) y = Sub(x, m)",
    ],
)
def test_reductions(text: str) -> None:
    model = model_of("g (float[3, 5, 7] x) => (float y) { " + text + " }", at=np.array([0, 2]))
    inferred = onnx.shape_inference.infer_shapes(model_without_output_shape(model))
    check_both(inferred)
