"""Models for the tests of sharding, made with onnx.helper: what people cut, small and large."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.onnx.importer import import_model


class ModelBuilder:
    """An ONNX graph in the making; `node` returns the output's name."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name, self.nodes, self.constants = name, [], []
        self.inputs: list[Any] = []
        self.generator = np.random.default_rng(seed)
        self.count = 0

    def input(self, name: str, *shape: int, dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def weight(self, name: str, *shape: int) -> str:
        scale = 1 / max(1.0, float(np.prod(shape[:-1]))) ** 0.5
        value = self.generator.standard_normal(shape) * scale
        return self.constant(name, value.astype(np.float32))

    def constant(self, name: str, value: NDArray[Any]) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def shape(self, *values: int) -> str:
        self.count += 1
        return self.constant(f"shape{self.count}", np.array(values, np.int64))

    def node(self, operator: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        self.count += 1
        name = to or f"{operator.lower()}{self.count}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def best(self, source: str, count: int) -> tuple[str, str]:
        """The largest of the last axis, and where they are."""
        self.count += 1
        names = f"values{self.count}", f"chosen{self.count}"
        inputs = [source, self.shape(count)]
        self.nodes.append(helper.make_node("TopK", inputs, names, name=names[0], axis=-1))
        return names

    def float(self, source: str) -> str:
        self.count += 1
        name = f"cast{self.count}"
        kind = TensorProto.FLOAT
        self.nodes.append(helper.make_node("Cast", [source], [name], name=name, to=kind))
        return name

    def split(self, source: str, parts: int, axis: int) -> list[str]:
        self.count += 1
        names = [f"split{self.count}_{n}" for n in range(parts)]
        self.nodes.append(helper.make_node("Split", [source], names, axis=axis, num_outputs=parts))
        return names

    def model(self, *outputs: str, opset: int = 18) -> onnx.ModelProto:
        results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, results, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        model.ir_version = 9
        return onnx.shape_inference.infer_shapes(model)


def mlp(batch: int = 8, width: int = 16, hidden: int = 32, layers: int = 1) -> onnx.ModelProto:
    """Blocks of two products with an activation between and a residual."""
    b = ModelBuilder("mlp")
    x = b.input("x", batch, width)
    for layer in range(layers):
        h = b.node("MatMul", x, b.weight(f"w{layer}.up", width, hidden), to=f"h{layer}")
        h = b.node("Add", h, b.weight(f"b{layer}.up", hidden))
        h = b.node("Relu", h)
        y = b.node("MatMul", h, b.weight(f"w{layer}.down", hidden, width))
        last = layer == layers - 1
        x = b.node("Add", y, x, to="y" if last else f"x{layer}")
    return b.model("y")


def transformer(
    batch: int = 2,
    sequence: int = 8,
    width: int = 16,
    heads: int = 4,
    layers: int = 1,
    *,
    fused: bool = False,
    vocabulary: int = 0,
) -> onnx.ModelProto:
    """Blocks of normalisation, attention, normalisation, MLP, with residuals.

    Args:
        fused: queries, keys and values are one product, split.
        vocabulary: rows of an embedding in front and columns of a head behind; 0: neither.
    """  # fmt: skip
    b = ModelBuilder("transformer")
    if vocabulary:
        ids = b.input("ids", batch, sequence, dtype=TensorProto.INT64)
        x = b.node("Gather", b.weight("embedding", vocabulary, width), ids, to="embedded")
    else:
        x = b.input("x", batch, sequence, width)
    for layer in range(layers):
        x = _attention(b, x, layer, (batch, sequence, width, heads), fused)
        x = _feed_forward(b, x, layer, width)
    if vocabulary:
        x = b.node("MatMul", x, b.weight("head", width, vocabulary))
    return b.model(b.node("Identity", x, to="y"))


def _normalised(b: ModelBuilder, x: str, name: str, width: int) -> str:
    scale, shift = b.weight(f"{name}.scale", width), b.weight(f"{name}.shift", width)
    return b.node("LayerNormalization", x, scale, shift, axis=-1, to=f"{name}.out")


def _attention(
    b: ModelBuilder, x: str, layer: int, sizes: tuple[int, int, int, int], fused: bool
) -> str:
    batch, sequence, width, heads = sizes
    name = f"l{layer}.attention"
    h = _normalised(b, x, f"{name}.norm", width)
    if fused:
        product = b.node("MatMul", h, b.weight(f"{name}.qkv", width, 3 * width))
        product = b.node("Add", product, b.weight(f"{name}.qkv.bias", 3 * width))
        parts = b.split(product, 3, 2)
    else:
        parts = [
            b.node("MatMul", h, b.weight(f"{name}.{part}", width, width), to=f"{name}.{part}.out")
            for part in "qkv"
        ]
    apart = b.shape(batch, sequence, heads, width // heads)
    orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    q, k, v = (
        b.node("Transpose", b.node("Reshape", part, apart), perm=order)
        for part, order in zip(parts, orders, strict=True)
    )
    scale = b.constant(f"{name}.scale", np.array((width // heads) ** -0.5, np.float32))
    scores = b.node("Softmax", b.node("Mul", b.node("MatMul", q, k), scale), axis=-1)
    out = b.node("Transpose", b.node("MatMul", scores, v), perm=[0, 2, 1, 3])
    out = b.node("Reshape", out, b.shape(batch, sequence, width))
    out = b.node("MatMul", out, b.weight(f"{name}.o", width, width))
    return b.node("Add", out, x, to=f"{name}.residual")


def _feed_forward(b: ModelBuilder, x: str, layer: int, width: int) -> str:
    name = f"l{layer}.mlp"
    h = _normalised(b, x, f"{name}.norm", width)
    h = b.node("MatMul", h, b.weight(f"{name}.up", width, 4 * width))
    h = b.node("Tanh", b.node("Add", h, b.weight(f"{name}.up.bias", 4 * width)))
    h = b.node("MatMul", h, b.weight(f"{name}.down", 4 * width, width))
    h = b.node("Add", h, b.weight(f"{name}.down.bias", width))
    return b.node("Add", h, x, to=f"{name}.residual")


def convolutions(batch: int = 4, channels: int = 8, size: int = 6) -> onnx.ModelProto:
    """Two convolutions, one of them depthwise, a pooling and a classifier."""
    b = ModelBuilder("convolutions")
    x = b.input("x", batch, 3, size, size)
    x = b.node("Conv", x, b.weight("c1", channels, 3, 3, 3), b.weight("c1.bias", channels),
               pads=[1, 1, 1, 1])  # fmt: skip
    x = b.node("Relu", x)
    x = b.node("Conv", x, b.weight("c2", channels, 1, 3, 3), pads=[1, 1, 1, 1], group=channels)
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Conv", x, b.weight("c3", 2 * channels, channels, 1, 1))
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    y = b.node("Gemm", x, b.weight("fc", 2 * channels, 10), b.weight("fc.bias", 10), to="y")
    return b.model(y)


def experts(tokens: int = 8, width: int = 8, hidden: int = 16, count: int = 4) -> onnx.ModelProto:
    """A mixture of experts: every token's gates, experts as a batch of products, a weighted sum."""
    b = ModelBuilder("experts")
    x = b.input("x", tokens, width)
    gates = b.node("Softmax", b.node("MatMul", x, b.weight("router", width, count)), axis=-1)
    gates = b.node("Transpose", gates, perm=[1, 0])
    gates = b.node("Unsqueeze", gates, b.shape(2))
    h = b.node("MatMul", x, b.weight("up", count, width, hidden))
    h = b.node("Relu", h)
    h = b.node("MatMul", h, b.weight("down", count, hidden, width))
    h = b.node("Mul", h, gates)
    y = b.node("ReduceSum", h, b.shape(0), keepdims=0, to="y")
    return b.model(y)


def routed(tokens: int = 8, width: int = 8, hidden: int = 16, count: int = 4) -> onnx.ModelProto:
    """Each token visits its two best experts: gates scattered into zeros."""
    b = ModelBuilder("routed")
    x = b.input("x", tokens, width)
    logits = b.node("MatMul", x, b.weight("router", width, count))
    values, chosen = b.best(logits, 2)
    zeros = b.constant("zeros", np.zeros((tokens, count), np.float32))
    gates = b.node("ScatterElements", zeros, chosen, b.node("Softmax", values, axis=-1), axis=-1,
                   to="gates")  # fmt: skip
    gates = b.node("Unsqueeze", b.node("Transpose", gates, perm=[1, 0]), b.shape(2))
    h = b.node("Relu", b.node("MatMul", x, b.weight("up", count, width, hidden)))
    h = b.node("MatMul", h, b.weight("down", count, hidden, width))
    return b.model(b.node("ReduceSum", b.node("Mul", h, gates), b.shape(0), keepdims=0, to="y"))


def dispatched(
    groups: int = 4, tokens: int = 8, width: int = 8, count: int = 4, capacity: int = 6
) -> onnx.ModelProto:
    """Experts as GShard has them (Lepikhin et al. 2020): of each group of tokens the first that
    chose an expert, as many as it has room for, are sent there, and come back weighted."""
    b, active = ModelBuilder("dispatched"), 2
    x = b.input("x", groups, tokens, width)
    gates = b.node("Softmax", b.node("MatMul", x, b.weight("router", width, count)), axis=-1)
    values, chosen = b.best(gates, active)
    numbers = b.constant("numbers", np.arange(count, dtype=np.int64))
    hot = b.float(b.node("Equal", b.node("Unsqueeze", chosen, b.shape(-1)), numbers))
    flat = b.node("Reshape", hot, b.shape(groups, tokens * active, count))
    one = b.constant("one", np.array(1, np.int64))
    before = b.node("Mul", b.node("Sub", b.node("CumSum", flat, one), flat), flat)
    place = b.node("ReduceSum", before, b.shape(-1), keepdims=0)
    place = b.node("Reshape", place, b.shape(groups, tokens, active, 1))
    slot = b.float(
        b.node("Equal", place, b.constant("slots", np.arange(capacity, dtype=np.float32)))
    )
    pair = b.node("Mul", b.node("Unsqueeze", hot, b.shape(-1)),
                  b.node("Unsqueeze", slot, b.shape(-2)))  # fmt: skip
    weighted = b.node("Mul", pair, b.node("Unsqueeze", values, b.shape(-1, -2)))
    places = b.shape(groups, tokens, count * capacity)
    send, combine = (
        b.node("Reshape", b.node("ReduceSum", one, b.shape(2), keepdims=0), places)
        for one in (pair, weighted)
    )
    h = b.node("MatMul", b.node("Transpose", send, perm=[0, 2, 1]), x)
    h = b.node("Reshape", h, b.shape(groups, count, capacity, width))
    h = b.node("Transpose", h, perm=[1, 0, 2, 3], to="sent")
    h = b.node("Reshape", h, b.shape(count, groups * capacity, width), to="waiting")
    h = b.node("Relu", b.node("MatMul", h, b.weight("up", count, width, 2 * width)))
    h = b.node("MatMul", h, b.weight("down", count, 2 * width, width), to="done")
    h = b.node("Reshape", h, b.shape(count, groups, capacity, width))
    h = b.node("Transpose", h, perm=[1, 0, 2, 3], to="back")
    h = b.node("Reshape", h, b.shape(groups, count * capacity, width))
    return b.model(b.node("MatMul", combine, h, to="y"))


def graph_of(model: onnx.ModelProto) -> Graph:
    return import_model(model)
