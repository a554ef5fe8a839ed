"""Pooling by norms and MeanVarianceNormalization: native, and onnxruntime's values."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.compiler.lowering_checks import check_both, model_without_output_shape
from tests.compiler.model_builder import assert_close, inputs_of, model_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model


def check_native(text: str, opset: int = 17) -> None:
    model = model_without_output_shape(model_of(text, opset))
    check_both(onnx.shape_inference.infer_shapes(model), tolerance=5e-5)


@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ("2, 3, 11", "kernel_shape=[3], strides=[2], pads=[1, 0]"),
        ("2, 3, 9, 8", "kernel_shape=[3, 2], strides=[2, 3]"),
        ("2, 3, 9, 8", "kernel_shape=[2, 2], pads=[1, 0, 1, 1]"),
        ("1, 2, 5, 6, 7", "kernel_shape=[2, 3, 2], strides=[2, 1, 3], pads=[1, 0, 1, 0, 1, 0]"),
    ],
)
def test_windows(shape: str, attributes: str, p: int) -> None:
    check_native(f"g (float[{shape}] x) => (float y) {{ y = LpPool<p={p}, {attributes}>(x) }}")


@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape=[2, 3], dilations=[2, 2], strides=[1, 2]",
        "kernel_shape=[3, 2], strides=[2, 3], ceil_mode=1",
        'kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER"',
    ],
)
def test_windows_as_the_host_has_them(attributes: str) -> None:
    """onnxruntime's numbers differ by dilations and `ceil_mode`, which it forgets."""
    text = f"g (float[1, 3, 9, 8] x) => (float y) {{ y = LpPool<{attributes}>(x) }}"
    model = model_without_output_shape(model_of(text, 18))
    graph = import_model(onnx.shape_inference.infer_shapes(model))
    executable = build(graph, host_target())
    assert executable.report.host_nodes == ()
    inputs = inputs_of(graph)
    assert_close(executable.run(inputs), run_reference(graph, inputs))


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("shape", ["2, 3, 5, 7", "2, 3, 11", "1, 2, 3, 4, 5"])
def test_whole_images(shape: str, p: int) -> None:
    check_native(f"g (float[{shape}] x) => (float y) {{ y = GlobalLpPool<p={p}>(x) }}")


@pytest.mark.parametrize("axes", ["", "<axes=[1, 3]>", "<axes=[-1]>"])
@pytest.mark.parametrize("opset", [13, 18])
def test_mean_and_variance(axes: str, opset: int) -> None:
    check_native(
        f"g (float[2, 3, 5, 7] x) => (float y) {{ y = MeanVarianceNormalization{axes}(x) }}", opset
    )


def test_zeros_have_no_norm() -> None:
    graph = import_model(
        model_of("g (float[1, 1, 4] x) => (float[1, 1, 2] y) "
                 "{ y = LpPool<kernel_shape=[2], strides=[2], p=3>(x) }")
    )  # fmt: skip
    zeros = np.zeros((1, 1, 4), np.float32)
    assert build(graph, host_target()).run({"x": zeros})["y"].tolist() == [[[0.0, 0.0]]]
