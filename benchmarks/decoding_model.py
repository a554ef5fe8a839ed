"""A decoder of the Llama kind as an ONNX model, with random weights quantised by blocks.

Layers of com.microsoft's MatMulNBits (4 or 8 bits, blocks of 32, accuracy level 4) and
GroupQueryAttention over a cache that a run writes in place; the head is quantised, too. It takes
embedded tokens `x` and gives the last one's `logits`; `seqlens_k` is the place of the last key.
Files are made once, in a folder of the system's temporary one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

BLOCK = 32


@dataclass(frozen=True)
class Shape:
    """Of a decoder; the default has 0.6 G weights."""

    layers: int = 12
    width: int = 2048
    inner: int = 5632
    heads: int = 32
    shared: int = 8
    vocabulary: int = 32000

    @property
    def size(self) -> int:
        """Features of a head."""
        return self.width // self.heads

    @property
    def products(self) -> tuple[tuple[str, int, int], ...]:
        """Name, columns and rows of a layer's weights."""
        keys = self.shared * self.size
        return (
            ("qkv", self.width + 2 * keys, self.width),
            ("o", self.width, self.width),
            ("gate", self.inner, self.width),
            ("up", self.inner, self.width),
            ("down", self.width, self.inner),
        )

    @property
    def weights(self) -> int:
        """Of all products that a token is multiplied by."""
        layer = sum(columns * rows for _, columns, rows in self.products)
        return self.layers * layer + self.vocabulary * self.width

    def weight_bytes(self, bits: int) -> int:
        """Codes and scales of all products, as the model holds them."""
        return self.weights * bits // 8 + self.weights // BLOCK * 4

    def cache_bytes(self, length: int) -> int:
        """Keys and values of so many tokens, in float32."""
        return self.layers * 2 * self.shared * length * self.size * 4


class _Builder:
    """Nodes and weights of one model."""

    def __init__(self, shape: Shape, bits: int) -> None:
        self.shape, self.bits = shape, bits
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(bits)

    def constant(self, name: str, array: NDArray[Any]) -> str:
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, inputs: list[str], outputs: list[str], **stated: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, outputs, outputs[0], **stated))
        return outputs[0]

    def product(self, x: str, name: str, columns: int, rows: int) -> str:
        """x times random weights, their scales as many as fit float16."""
        blocks = rows // BLOCK
        codes = self._rng.integers(0, 256, (columns, blocks, BLOCK * self.bits // 8), np.uint8)
        spread = (0.75 + self._rng.random((columns, blocks)) / 2) * 3.5 / 2**self.bits
        scales = (spread / rows**0.5).astype(np.float16).astype(np.float32)
        given = [
            x,
            self.constant(f"{name}.q", codes),
            self.constant(f"{name}.s", scales),
        ]
        stated = {"K": rows, "N": columns, "bits": self.bits, "block_size": BLOCK}
        return self.add(
            "MatMulNBits", given, [f"{name}.y"], domain="com.microsoft", accuracy_level=4, **stated
        )

    def normalised(self, x: str, name: str) -> str:
        weight = self.constant(f"{name}.g", np.ones(self.shape.width, np.float32))
        return self.add(
            "SimplifiedLayerNormalization", [x, weight], [f"{name}.y"], axis=-1, epsilon=1e-5
        )

    def layer(self, x: str, i: int) -> str:
        shape = self.shape
        keys = shape.shared * shape.size
        products = {name: (columns, rows) for name, columns, rows in shape.products}

        def product(source: str, name: str) -> str:
            return self.product(source, f"l{i}.{name}", *products[name])

        qkv = product(self.normalised(x, f"l{i}.n1"), "qkv")
        parts = [f"l{i}.{name}" for name in ("query", "key", "value")]
        sizes = np.array([shape.width, keys, keys], np.int64)
        self.add("Split", [qkv, self.constant(f"l{i}.sizes", sizes)], parts, axis=-1)
        attended = [f"l{i}.attended", f"present_key.{i}", f"present_value.{i}"]
        given = [*parts, f"past_key.{i}", f"past_value.{i}", "seqlens_k", "total", "cos", "sin"]
        self.add(
            "GroupQueryAttention", given, attended, domain="com.microsoft", do_rotary=1,
            num_heads=shape.heads, kv_num_heads=shape.shared,
        )  # fmt: skip
        x = self.add("Add", [x, product(attended[0], "o")], [f"l{i}.x1"])
        inner = self.normalised(x, f"l{i}.n2")
        gate = product(inner, "gate")
        gate = self.add(
            "Mul", [gate, self.add("Sigmoid", [gate], [f"l{i}.sigmoid"])], [f"l{i}.silu"]
        )
        both = self.add("Mul", [gate, product(inner, "up")], [f"l{i}.both"])
        return self.add("Add", [x, product(both, "down")], [f"l{i}.x2"])


def decoder(shape: Shape, bits: int, tokens: int, length: int) -> onnx.ModelProto:
    """The model for so many tokens at a time, with a cache of `length`."""
    b = _Builder(shape, bits)
    b.constant("total", np.array(length, np.int32))
    angles = np.arange(length)[:, None] / 10000.0 ** (np.arange(shape.size // 2) * 2 / shape.size)
    b.constant("cos", np.cos(angles).astype(np.float32))
    b.constant("sin", np.sin(angles).astype(np.float32))
    x = "x"
    for i in range(shape.layers):
        x = b.layer(x, i)
    if tokens > 1:
        ends = [b.constant(f"end.{v}", np.array([v], np.int64)) for v in (tokens - 1, tokens, 1)]
        x = b.add("Slice", [x, *ends], ["last"])
    b.product(b.normalised(x, "final"), "head", shape.vocabulary, shape.width)
    b.nodes[-1].output[0] = "logits"
    cache = [1, shape.shared, length, shape.size]
    past = [f"past_{kind}.{i}" for i in range(shape.layers) for kind in ("key", "value")]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        b.nodes,
        f"decoder-int{bits}",
        [
            value("x", TensorProto.FLOAT, [1, tokens, shape.width]),
            value("seqlens_k", TensorProto.INT32, [1]),
            *(value(name, TensorProto.FLOAT, cache) for name in past),
        ],
        [
            value("logits", TensorProto.FLOAT, [1, 1, shape.vocabulary]),
            *(value(n.replace("past", "present"), TensorProto.FLOAT, cache) for n in past),
        ],
        b.weights,
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains)
    model.ir_version = 10
    return model


def model_file(shape: Shape, bits: int, tokens: int, length: int) -> Path:
    """The model's file, its weights in another that all models of a shape and bits share."""
    folder = Path(tempfile.gettempdir()) / "tilesmith-decoding"
    name = f"{shape.layers}x{shape.width}-int{bits}"
    path = folder / f"{name}-{tokens}-{length}.onnx"
    if not path.exists():
        folder.mkdir(exist_ok=True)
        model = decoder(shape, bits, tokens, length)
        data = f"{name}-{tokens}-{length}.data"
        onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=1 << 16)
    return path


def inputs(shape: Shape, tokens: int, length: int) -> dict[str, NDArray[Any]]:
    """Random inputs: the cache full but for these tokens, which are its last."""
    rng = np.random.default_rng(0)

    def normal(*extents: int) -> Iterator[NDArray[np.float32]]:
        while True:
            yield rng.standard_normal(extents, np.float32)

    caches = normal(1, shape.shared, length, shape.size)
    found: dict[str, NDArray[Any]] = {
        "x": next(normal(1, tokens, shape.width)),
        "seqlens_k": np.array([length - 1], np.int32),
    }
    for i in range(shape.layers):
        for kind in ("key", "value"):
            found[f"past_{kind}.{i}"] = next(caches)
    return found


def product_model(bits: int, rows: int, size: int) -> tuple[Path, dict[str, NDArray[Any]]]:
    """The file of one product, `rows` by a square matrix of weights, and its input."""
    path = Path(tempfile.gettempdir()) / "tilesmith-decoding" / f"{rows}x{size}-int{bits}.onnx"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        b = _Builder(Shape(), bits)
        b.product("x", "p", size, size)
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            b.nodes,
            path.stem,
            [value("x", TensorProto.FLOAT, [rows, size])],
            [value("p.y", TensorProto.FLOAT, [rows, size])],
            b.weights,
        )
        domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=domains)
        model.ir_version = 10
        onnx.save(model, path)
    return path, {"x": np.random.default_rng(0).standard_normal((rows, size), np.float32)}
