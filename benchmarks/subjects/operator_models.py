"""ONNX models of one operator each, with seeded constant weights, for the benchmarks.

Weights are initialisers, so that every runtime may pack or transform them ahead of time; inputs and
outputs are plain row-major (NCHW for images), so that a runtime's own layout conversions are
counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

_OPSET = 17
_DRAWN_OPSET = 18
_IR_VERSION = 9

Array = NDArray[np.float32]


def weight(rng: np.random.Generator, *shape: int) -> Array:
    """Normal numbers scaled so that sums over all but the first axis keep unit variance."""
    fan_in = max(1, int(np.prod(shape[1:])))
    return (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, ...]],
    output: str,
    weights: Mapping[str, Array],
) -> onnx.ModelProto:
    """A float32 model; the output's shape is left to inference."""
    graph = helper.make_graph(
        list(nodes),
        "benchmark",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
    )
    return onnx.shape_inference.infer_shapes(made, strict_mode=True)


def matmul(m: int, n: int, k: int) -> onnx.ModelProto:
    """x (m, k) times a constant (k, n)."""
    w = np.ascontiguousarray(weight(np.random.default_rng(0), n, k).T)
    return model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (m, k)}, "y", {"w": w})


def conv2d(
    channels: int, out_channels: int, size: int, kernel: int, groups: int = 1
) -> onnx.ModelProto:
    """A stride-1 convolution that keeps height and width, batch 1, without bias."""
    w = weight(np.random.default_rng(0), out_channels, channels // groups, kernel, kernel)
    node = helper.make_node(
        "Conv", ["x", "w"], ["y"], kernel_shape=[kernel, kernel], group=groups,
        pads=[kernel // 2] * 4,
    )  # fmt: skip
    return model([node], {"x": (1, channels, size, size)}, "y", {"w": w})


def softmax(rows: int, columns: int) -> onnx.ModelProto:
    """Softmax over the last axis."""
    return model(
        [helper.make_node("Softmax", ["x"], ["y"], axis=-1)], {"x": (rows, columns)}, "y", {}
    )


@dataclass(frozen=True)
class Drawn:
    """An operator's node as drawn: its attributes, inputs and constants, by position.

    Attributes:
        inputs: arrays given at each call, before the constants.
        constants: arrays of the model.
    """

    operator: str
    inputs: tuple[NDArray[Any], ...]
    constants: tuple[NDArray[Any], ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The node in one line: shapes and attributes."""
        shapes = [
            "x".join(map(str, a.shape)) + ("" if a.dtype == np.float32 else f":{a.dtype}")
            for a in (*self.inputs, *self.constants)
        ]
        rest = [f"{name}={value}".replace(" ", "") for name, value in self.attributes.items()]
        return " ".join([self.operator, *shapes, *rest])

    def model(self) -> onnx.ModelProto:
        """The node as a model with the inputs' shapes and inferred outputs."""
        names = [f"x{number}" for number in range(len(self.inputs))]
        weights = [f"w{number}" for number in range(len(self.constants))]
        outputs = ["y", "places"] if self.operator == "TopK" else ["y"]
        node = helper.make_node(self.operator, names + weights, outputs, **self.attributes)
        if self.operator == "Resize":
            node.input.insert(1, "")
        kinds = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in self.inputs]
        graph = helper.make_graph(
            [node],
            "operator",
            [
                helper.make_tensor_value_info(name, kind, a.shape)
                for name, kind, a in zip(names, kinds, self.inputs, strict=True)
            ],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            [numpy_helper.from_array(a, n) for n, a in zip(weights, self.constants, strict=True)],
        )
        opset = helper.make_opsetid("", _DRAWN_OPSET)
        return onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=[opset], ir_version=9), strict_mode=True
        )


def save(proto: onnx.ModelProto, path: Path) -> Path:
    """Write a model; returns the path."""
    onnx.save(proto, str(path))
    return path


def random_inputs(proto: onnx.ModelProto, seed: int = 1) -> dict[str, NDArray[Any]]:
    """Seeded normal numbers for every float input, by name."""
    rng = np.random.default_rng(seed)
    weights = {tensor.name for tensor in proto.graph.initializer}
    return {
        value.name: rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim])
        .astype(np.float32)
        for value in proto.graph.input
        if value.name not in weights
    }  # fmt: skip
