"""Convolutions of bytes against ONNX's own `ConvInteger`: zero points inside and in the frame."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from tests.conformance.template_checks import run
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

IMAGE, TAPS = (2, 6, 7, 9), (3, 3)
PADS = (1, 0, 2, 1)


def conv_integer(
    data: NDArray[np.uint8], weight: NDArray[np.int8], zero: int, groups: int
) -> NDArray[np.int32]:
    """`ConvInteger` by ONNX's reference, of a stride of two."""
    node = onnx.helper.make_node(
        "ConvInteger", ["x", "w", "z"], ["y"], pads=PADS, strides=[2, 2], group=groups
    )
    inputs = [
        onnx.helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, data.shape),
        onnx.helper.make_tensor_value_info("w", onnx.TensorProto.INT8, weight.shape),
        onnx.helper.make_tensor_value_info("z", onnx.TensorProto.UINT8, []),
    ]
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT32, None)
    graph = onnx.helper.make_graph([node], "g", inputs, [output])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    (found,) = ReferenceEvaluator(model).run(None, {"x": data, "w": weight, "z": np.uint8(zero)})
    return np.asarray(found, np.int32)


@pytest.mark.parametrize("groups", [1, 3, 6])
def test_a_zero_point_is_a_constant_of_each_channel_at_the_border_too(groups: int) -> None:
    rng, zero, channels = np.random.default_rng(groups), 131, 6
    data = rng.integers(0, 256, IMAGE, dtype=np.uint8)
    weight = rng.integers(-127, 128, (channels, IMAGE[1] // groups, *TAPS), dtype=np.int8)
    arrays = {
        "data": data,
        "weight": weight,
        "pad_value": np.array([zero], np.uint8),
        "correction0": -zero * weight.sum(axis=(1, 2, 3), dtype=np.int32),
    }
    operator = "depthwise_conv2d" if groups == channels else f"conv2d oc={channels} groups={groups}"
    workload = Workload.parse(
        f"{operator} n=2 c=6 h=7 w=9 kh=3 kw=3 stride=2 pad=1x0x2x1 weights=int8 dtype=uint8 "
        "const=weight epilogue=correction"
    )
    expected = conv_integer(data, weight, zero, groups)
    names = [operand.name for operand in template_of(workload.operator).operands(workload)]
    assert names == list(arrays)
    for config in space_of(workload, host_target()).sample(rng, 4):
        np.testing.assert_array_equal(run(workload, config, arrays), expected, err_msg=str(config))


def test_only_frames_of_whole_numbers_are_operands() -> None:
    for text in (
        "conv2d c=3 h=5 w=5 oc=4 kh=3 kw=3 pad=1",
        "conv2d c=3 h=5 w=5 oc=4 kh=3 kw=3 weights=int8 dtype=uint8",
    ):
        workload = Workload.parse(text)
        found = template_of("conv2d").inputs(workload)
        assert [operand.name for operand in found] == ["data", "weight"]
