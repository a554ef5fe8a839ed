"""ONNX models of one quantised operator each, for the benchmarks: bytes in, bytes out.

    y = QuantizeLinear(Relu(op(DequantizeLinear(x), DequantizeLinear(w))))

Scales are those of the operator's own range on random bytes; activations are uint8 per tensor,
weights int8 per output channel, as quantisation tools make them. `floating` is the same operator in
float32, numbers in and out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

_OPSET, _IR_VERSION = 17, 9
_SCALE, _ZERO = 0.02, 131


@dataclass(frozen=True)
class Operator:
    """A matrix product (m, n, k), or a convolution of stride 1 that keeps height and width.

    Attributes:
        shape: of the input.
        weight: shape of the constant, (k, n) or (oc, c / groups, kernel, kernel).
        groups: of a convolution.
    """

    shape: tuple[int, ...]
    weight: tuple[int, ...]
    groups: int = 1

    @property
    def convolution(self) -> bool:
        return len(self.weight) == 4

    @property
    def channel(self) -> int:
        """The axis of the weights that scales run along."""
        return 0 if self.convolution else 1

    def node(self, x: str, w: str, y: str) -> onnx.NodeProto:
        if not self.convolution:
            return helper.make_node("MatMul", [x, w], [y])
        size = self.weight[2]
        return helper.make_node(
            "Conv", [x, w], [y], kernel_shape=[size] * 2, pads=[size // 2] * 4, group=self.groups
        )

    def steps(self) -> float:
        """A scale for sums of random products of these weights."""
        terms = int(np.prod(self.weight)) // self.weight[self.channel]
        return _SCALE * 0.01 * 70.0 * 73.0 * float(np.sqrt(terms)) / 60.0


def quantised(operator: Operator) -> onnx.ModelProto:
    """The operator between bytes."""
    rng = np.random.default_rng(0)
    channels = operator.weight[operator.channel]
    constants = {
        "w": rng.integers(-127, 128, operator.weight, dtype=np.int8),
        "w.scale": np.full(channels, 0.01, np.float32),
        "w.zero": np.zeros(channels, np.int8),
        "x.scale": np.array(_SCALE, np.float32),
        "x.zero": np.array(_ZERO, np.uint8),
        "y.scale": np.array(operator.steps(), np.float32),
        "y.zero": np.array(0, np.uint8),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x.scale", "x.zero"], ["x.f"]),
        helper.make_node(
            "DequantizeLinear", ["w", "w.scale", "w.zero"], ["w.f"], axis=operator.channel
        ),
        operator.node("x.f", "w.f", "sum"),
        helper.make_node("Relu", ["sum"], ["relu"]),
        helper.make_node("QuantizeLinear", ["relu", "y.scale", "y.zero"], ["y"]),
    ]
    return _model(nodes, operator.shape, TensorProto.UINT8, constants)


def floating(operator: Operator) -> onnx.ModelProto:
    """The operator and its Relu between numbers."""
    weight = np.random.default_rng(0).standard_normal(operator.weight).astype(np.float32)
    nodes = [operator.node("x", "w", "sum"), helper.make_node("Relu", ["sum"], ["y"])]
    return _model(nodes, operator.shape, TensorProto.FLOAT, {"w": weight})


def _model(
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    kind: int,
    constants: dict[str, NDArray[np.generic]],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "benchmark",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True)
