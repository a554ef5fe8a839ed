"""Host operators of old opsets: their own meanings, compared with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.compiler.driver.build import prepared
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model

WEIGHTS = {
    "scales": np.array([1, 1, 2, 3], np.float32),
    "quarter": np.array([1, 1, 0.75, 1], np.float32),
    "mixed": np.array([1, 1, 0.75, 2], np.float32),
    "less": np.array([1, 1, 0.5, 0.6], np.float32),
    "grid": 0.6 * random(2, 3, 3, 2),
    "regions": np.array([[0, 0, 3, 3], [1, 1, 4, 3]], np.float32),
    "images": np.array([0, 1]),
}


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("Softmax(x)", 7),
        ("Softmax<axis=2>(x)", 12),
        ("Softmax<axis=-1>(x)", 11),
        ("Softmax(x)", 13),
        ("LogSoftmax<axis=0>(x)", 11),
        ("LogSoftmax<axis=2>(x)", 13),
        ("LpNormalization<axis=1, p=1>(x)", 17),
        ("LpNormalization<axis=0, p=2>(x)", 7),
        ("RoiAlign<output_height=2, output_width=2, sampling_ratio=2>(x, regions, images)", 10),
        ("RoiAlign<output_height=2, output_width=2, sampling_ratio=2>(x, regions, images)", 16),
        ("GridSample<padding_mode='reflection', align_corners=1>(x, grid)", 16),
        ("GridSample<mode='bicubic'>(x, grid)", 16),
        ("GridSample<mode='nearest'>(x, grid)", 16),
        ("GridSample<mode='cubic'>(x, grid)", 20),
        ("Upsample<scales=[1.0, 1.0, 2.0, 3.0]>(x)", 7),
        ("Upsample<mode='linear', scales=[1.0, 1.0, 2.0, 3.0]>(x)", 8),
        ("Upsample(x, scales)", 9),
        ("Upsample<mode='linear'>(x, scales)", 9),
        ("Resize(x, scales)", 10),
        ("Resize<mode='linear'>(x, scales)", 10),
        ("Resize(x, less)", 10),
        ("Resize<mode='linear'>(x, less)", 10),
        ("Resize(x, quarter)", 10),
        ("Resize(x, mixed)", 10),
    ],
)
def test_an_old_operator_means_what_its_opset_says(body: str, opset: int) -> None:
    weights: dict[str, Any] = {n: v for n, v in WEIGHTS.items() if n in body.partition(">(")[2]}
    weights |= {n: v for n, v in WEIGHTS.items() if f", {n})" in body}
    text = body.replace("'", '"')
    model = model_of(
        f"g (float[2, 3, 4, 5] x) => (float[A, B, C, D] y) {{ y = {text} }}", opset, **weights
    )
    inputs = {"x": random(2, 3, 4, 5)}
    graph = import_model(model)
    for stage in (graph, prepared(graph)):
        assert_close(run_reference(stage, inputs), expected(model, inputs))


@pytest.mark.parametrize("opset", [7, 11])
def test_negative_axes_are_axes_in_every_opset(opset: int) -> None:
    model = model_of(
        "g (float[1, 3, 1, 5] x) => (float[1, 3, 5] y) { y = Squeeze<axes=[-2]>(x) }", opset
    )
    assert import_model(model).outputs[0].shape == (1, 3, 5)
