"""ResNets of 50, 101 and 152 layers as ONNX models with seeded random weights (He et al., 2015).

Bottlenecks of 1 x 1, 3 x 3 (which strides) and 1 x 1 convolutions with what normalisation leaves
behind, biases: numbers are worth nothing, shapes are real.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DEPTHS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}


class _Builder:
    """Nodes and weights of a model under way."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        fan = max(1, int(np.prod(shape[1:])))
        values = self.random.standard_normal(shape).astype(np.float32) * np.float32(fan**-0.5)
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def conv(self, x: str, channels: tuple[int, int], kernel: int, stride: int = 1) -> str:
        weight, bias = (
            self.weight(channels[1], channels[0], kernel, kernel),
            self.weight(channels[1]),
        )
        sides = [kernel // 2] * 4
        return self.add("Conv", x, weight, bias, pads=sides, strides=[stride] * 2)

    def bottleneck(self, x: str, channels: tuple[int, int], stride: int, first: bool) -> str:
        given, inner = channels
        y = self.add("Relu", self.conv(x, (given, inner), 1))
        y = self.add("Relu", self.conv(y, (inner, inner), 3, stride))
        y = self.conv(y, (inner, 4 * inner), 1)
        beside = self.conv(x, (given, 4 * inner), 1, stride) if first else x
        return self.add("Relu", self.add("Add", y, beside))


def resnet(name: str) -> onnx.ModelProto:
    """A model by its name in `DEPTHS`, for one image of 224 x 224."""
    builder = _Builder()
    x = builder.add("Relu", builder.conv("x", (3, 64), 7, 2))
    x = builder.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    given = 64
    for stage, depth in enumerate(DEPTHS[name]):
        inner = 64 << stage
        for number in range(depth):
            stride = 2 if stage and not number else 1
            x = builder.bottleneck(x, (given, inner), stride, not number)
            given = 4 * inner
    x = builder.add("Flatten", builder.add("GlobalAveragePool", x))
    x = builder.add("Gemm", x, builder.weight(1000, given), builder.weight(1000), transB=1)
    y = builder.add("Softmax", x)
    graph = helper.make_graph(
        builder.nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 224, 224])],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, [1, 1000])],
        builder.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
