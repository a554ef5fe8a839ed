"""What was taken out of images is put back: native, and the values of `onnx.reference`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from tests.compiler.lowering_checks import model_without_output_shape
from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model

Array = NDArray[Any]


def check_native(text: str, inputs: dict[str, Array], **weights: Array) -> None:
    """No host node, and on the host the same, by `onnx.reference`."""
    model = model_without_output_shape(model_of(text, 18, **weights))
    model = onnx.shape_inference.infer_shapes(model)
    wanted = {"y": np.asarray(ReferenceEvaluator(model).run(None, inputs)[0])}
    graph = import_model(model)
    assert_close(run_reference(graph, inputs), wanted)
    executable = build(graph, host_target())
    assert executable.report.host_nodes == ()
    assert_close(executable.run(inputs), wanted)


@pytest.mark.parametrize(
    ("image", "block", "attributes", "length"),
    [
        ((5, 6), (3, 2), "pads=[1, 0, 1, 1]", 30),
        ((8, 7), (2, 3), "strides=[2, 3]", 8),
        ((9, 8), (3, 2), "strides=[2, 1], dilations=[2, 3], pads=[1, 0, 0, 1]", 18),
        ((7,), (3,), "strides=[2]", 3),
        ((8, 8), (6, 6), "strides=[1, 1]", 9),
    ],
)
def test_columns(
    image: tuple[int, ...], block: tuple[int, ...], attributes: str, length: int
) -> None:
    count = 3 * int(np.prod(block))
    check_native(
        f"g (float[2, {count}, {length}] x) => (float y) "
        f"{{ y = Col2Im<{attributes}>(x, image, block) }}",
        {"x": random(2, count, length)}, image=np.array(image), block=np.array(block),
    )  # fmt: skip


def test_columns_of_volumes_are_added_on_the_host() -> None:
    model = model_of(
        "g (float[1, 12, 45] x) => (float[1, 2, 4, 5, 3] y) "
        "{ y = Col2Im<pads=[0, 1, 0, 0, 1, 0]>(x, image, block) }",
        18, image=np.array([4, 5, 3]), block=np.array([2, 3, 1]),
    )  # fmt: skip
    inputs = {"x": random(1, 12, 45)}
    found = run_reference(import_model(model), inputs)
    assert_close(found, expected(model, inputs))


def test_pooled_images() -> None:
    rng = np.random.default_rng(0)
    places = rng.permutation(2 * 3 * 6 * 8)[: 2 * 3 * 3 * 4].reshape(2, 3, 3, 4)
    check_native(
        "g (float[2, 3, 3, 4] x, int64[2, 3, 3, 4] i) => (float y) "
        "{ y = MaxUnpool<kernel_shape=[2, 2], strides=[2, 2]>(x, i) }",
        {"x": random(2, 3, 3, 4), "i": places},
    )
