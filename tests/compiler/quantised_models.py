"""Small quantised models for tests, and what they compute, in numpy and double precision.

A `Layer` is one product of quantised tensors and what stands around it, as exporters write it. What
it computes is known but for numbers that lie between two bytes: `assert_bytes` lets those be
either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]

KINDS = {
    "uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32,
    "float32": TensorProto.FLOAT,
}  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """One quantised layer.

    Attributes:
        operator: "Conv", "MatMul" or "Gemm".
        shape: of the activations.
        weights: shape of the weights, as the operator takes them.
        signed: whether activations are int8.
        unsigned_weights: whether weights are uint8, around 128.
        per_channel: whether weights have a scale for each channel.
        zeros: zero points of activations, result and residual.
        relu, residual, bias: whether there is one; the bias is "int32", "float32" or "".
        attributes: of the operator.
        spelling: "qdq" or "qlinear" (which has no relu and no residual).
        numbers: whether the result is float32.
    """

    operator: str
    shape: tuple[int, ...]
    weights: tuple[int, ...]
    signed: bool = False
    unsigned_weights: bool = False
    per_channel: bool = True
    zeros: tuple[int, int, int] = (3, 120, 7)
    relu: bool = False
    residual: bool = False
    bias: str = "int32"
    attributes: tuple[tuple[str, Any], ...] = ()
    spelling: str = "qdq"
    numbers: bool = False
    seed: int = 0

    @property
    def coded(self) -> str:
        return "int8" if self.signed else "uint8"

    @property
    def channels(self) -> int:
        turned = self.operator == "Gemm" and dict(self.attributes).get("transB", 0)
        return self.weights[0 if self.operator == "Conv" or turned else -1]

    @property
    def channel_axis(self) -> int:
        turned = self.operator == "Gemm" and dict(self.attributes).get("transB", 0)
        return 0 if self.operator == "Conv" or turned else len(self.weights) - 1

    def constants(self) -> dict[str, Array]:
        """Scales, zero points and weights, by name."""
        rng = np.random.default_rng((self.seed, *self.shape, *self.weights))
        count = self.channels if self.per_channel else 1
        scales = (rng.random(count) * 0.02 + 0.005).astype(np.float32)
        codes = rng.integers(-127, 128, self.weights)
        middle = 128 if self.unsigned_weights else 0
        kind = np.uint8 if self.unsigned_weights else np.int8
        shift = 128 if self.signed else 0
        zeros = [np.array(zero - shift, self.coded) for zero in self.zeros]
        found: dict[str, Array] = {
            "xs": np.float32(0.021), "xz": zeros[0], "w": (codes + middle).astype(kind),
            "ws": scales if self.per_channel else scales[0],
            "wz": np.full(scales.shape if self.per_channel else (), middle, kind),
            "ys": np.float32(0.09), "yz": zeros[1],
        }  # fmt: skip
        if self.residual:
            found |= {"rs": np.float32(0.05), "rz": zeros[2]}
        if self.bias == "int32":
            found["b"] = rng.integers(-4000, 4000, self.channels).astype(np.int32)
            found["bs"] = (found["xs"] * found["ws"]).astype(np.float32)
        elif self.bias:
            found["b"] = rng.standard_normal(self.channels).astype(np.float32)
        return {name: np.asarray(value) for name, value in found.items()}

    def result_shape(self) -> tuple[int, ...]:
        return tuple(self._product(np.zeros(self.shape), np.zeros(self.weights)).shape)

    def inputs(self) -> dict[str, Array]:
        rng = np.random.default_rng((self.seed, 1, *self.shape))
        info = np.iinfo(self.coded)
        found = {"x": rng.integers(info.min, info.max + 1, self.shape).astype(self.coded)}
        if self.residual:
            shape = self.result_shape()
            found["r"] = rng.integers(info.min, info.max + 1, shape).astype(self.coded)
        return found

    # -- what it computes -----------------------------------------------------------------------
    def _product(self, x: Array, w: Array) -> Array:
        stated = dict(self.attributes)
        if self.operator != "Conv":
            return np.matmul(x, w.T if stated.get("transB", 0) else w)
        pads, strides = stated.get("pads", [0] * 4), stated.get("strides", [1, 1])
        group = stated.get("group", 1)
        x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
        size = w.shape[2:]
        windows = np.lib.stride_tricks.sliding_window_view(x, size, axis=(2, 3))
        windows = windows[:, :, :: strides[0], :: strides[1]]
        n, c, h, v = windows.shape[:4]
        grouped = windows.reshape(n, group, c // group, h, v, *size)
        own = w.reshape(group, -1, *w.shape[1:])
        found = np.einsum("ngchvij,gocij->ngohv", grouped, own, optimize=True)
        return found.reshape(n, -1, h, v)

    def numbers_of(self, inputs: dict[str, Array]) -> Array:
        """The result before it is quantised, in double precision."""
        c = {name: value.astype(np.float64) for name, value in self.constants().items()}
        along = [1] * len(self.weights)
        along[self.channel_axis] = -1
        wide = [1] * len(self.result_shape())
        wide[1 if self.operator == "Conv" else -1] = -1
        x = (inputs["x"].astype(np.float64) - c["xz"]) * c["xs"]
        w = (c["w"] - c["wz"].reshape(along)) * c["ws"].reshape(along)
        y = self._product(x, w)
        if self.bias:
            steps = c["xs"] * c["ws"] if self.bias == "int32" else 1.0
            y = y + (c["b"] * steps).reshape(wide)
        if self.residual:
            y = y + (inputs["r"].astype(np.float64) - c["rz"]) * c["rs"]
        return np.maximum(y, 0) if self.relu else y

    # -- as a model -----------------------------------------------------------------------------
    def model(self, opset: int = 17) -> onnx.ModelProto:
        constants = self.constants()
        nodes = self._qlinear(constants) if self.spelling == "qlinear" else self._qdq(constants)
        values = [
            helper.make_tensor_value_info(name, KINDS[self.coded], array.shape)
            for name, array in self.inputs().items()
        ]
        kind = KINDS["float32" if self.numbers else self.coded]
        result = helper.make_tensor_value_info("y", kind, None)
        arrays = [numpy_helper.from_array(value, name) for name, value in constants.items()]
        graph = helper.make_graph(nodes, "g", values, [result], arrays)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        model.ir_version = 8
        return model

    def _qlinear(self, constants: dict[str, Array]) -> list[onnx.NodeProto]:
        names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
        if self.operator == "Conv" and "b" in constants:
            names.append("b")
            del constants["bs"]
        return [helper.make_node(f"QLinear{self.operator}", names, ["y"], **dict(self.attributes))]

    def _qdq(self, constants: dict[str, Array]) -> list[onnx.NodeProto]:
        def number(code: str, scale: str, zero: str, axis: int | None = None) -> onnx.NodeProto:
            stated = {} if axis is None else {"axis": axis}
            operands = [code, scale, *([zero] if zero else [])]
            return helper.make_node("DequantizeLinear", operands, [f"{code}.n"], **stated)

        nodes = [number("x", "xs", "xz"), number("w", "ws", "wz", self.channel_axis)]
        names = ["x.n", "w.n"]
        if self.bias and self.operator != "MatMul":
            if self.bias == "int32":
                nodes.append(number("b", "bs", "", 0))
            names.append("b.n" if self.bias == "int32" else "b")
        nodes.append(helper.make_node(self.operator, names, ["p"], **dict(self.attributes)))
        last = "p"
        if self.bias and self.operator == "MatMul":
            if self.bias == "int32":
                nodes.append(number("b", "bs", "", 0))
            last = "s"
            bias = "b.n" if self.bias == "int32" else "b"
            nodes.append(helper.make_node("Add", [bias, "p"], [last]))
        if self.residual:
            nodes += [number("r", "rs", "rz"), helper.make_node("Add", [last, "r.n"], ["a"])]
            last = "a"
        if self.relu:
            nodes.append(helper.make_node("Relu", [last], ["l"]))
            last = "l"
        if self.numbers:
            return [*nodes, helper.make_node("Identity", [last], ["y"])]
        return [*nodes, helper.make_node("QuantizeLinear", [last, "ys", "yz"], ["y"])]


LAST_SCALE, RESIDUAL_SCALE = (float(np.float32(value)) for value in (0.11, 0.04))


def requantised(layer: Layer, residual: bool, zero: int) -> onnx.ModelProto:
    """A layer whose bytes become numbers again, perhaps with others (`r`) added, and bytes `y` of
    another scale."""
    model = layer.model()
    graph = model.graph
    del graph.output[:], graph.node[-1].output[:]
    graph.node[-1].output.append("q")
    constants = {"ts": np.float32(LAST_SCALE), "rs": np.float32(RESIDUAL_SCALE)}
    for name, value in {**constants, "tz": np.uint8(zero)}.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    graph.node.append(helper.make_node("DequantizeLinear", ["q", "ys", "yz"], ["n"]))
    if residual:
        shape = layer.result_shape()
        graph.input.append(helper.make_tensor_value_info("r", TensorProto.UINT8, shape))
        graph.node.append(helper.make_node("DequantizeLinear", ["r", "rs", "tz"], ["rn"]))
        graph.node.append(helper.make_node("Add", ["rn", "n"], ["s"]))
    numbers = "s" if residual else "n"
    graph.node.append(helper.make_node("QuantizeLinear", [numbers, "ts", "tz"], ["y"]))
    graph.output.append(helper.make_tensor_value_info("y", TensorProto.UINT8, None))
    return model


def assert_bytes(layer: Layer, found: Array, numbers: Array) -> None:
    """The bytes of some numbers: exactly, but where a number lies between two."""
    c = layer.constants()
    info = np.iinfo(layer.coded)
    exact = numbers / float(c["ys"]) + float(c["yz"])
    wanted = np.clip(np.rint(exact), info.min, info.max).astype(int)
    assert found.dtype == np.dtype(layer.coded) and found.shape == wanted.shape
    between = np.abs(np.abs(exact - np.rint(exact)) - 0.5) < 2e-3
    difference = np.abs(found.astype(int) - wanted)
    assert difference.max(initial=0) <= 1, difference.max()
    assert not np.any(difference[~between]), int(np.count_nonzero(difference[~between]))
