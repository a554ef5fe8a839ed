"""A decoder of the Llama kind as an ONNX model, with random weights quantised by blocks.

Layers of com.microsoft's MatMulNBits (4 or 8 bits, blocks of 32, accuracy level 4) and
GroupQueryAttention over a cache that a run writes in place; the head is quantised, too. It takes
embedded tokens `x` and gives the last one's `logits`; `seqlens_k` is the place of the last key.
Files are made once, in a folder of the system's temporary one.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
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
        """Codes of all products and their scales, of two bytes each where these lose nothing."""
        return self.weights * bits // 8 + self.weights // BLOCK * 2

    def cache_bytes(self, length: int) -> int:
        """Keys and values of so many tokens, in float32."""
        return self.layers * 2 * self.shared * length * self.size * 4


class _Builder:
    """Nodes and weights of one model; large weights go to a file, unless they are there already."""

    def __init__(self, shape: Shape, bits: int, data: Path) -> None:
        self.shape, self.bits = shape, bits
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(bits)
        self._data, self._offset, self._written = data, 0, data.exists()

    def large(
        self, name: str, dtype: type, shape: tuple[int, ...], made: Callable[[], NDArray[Any]]
    ) -> str:
        """A weight in the file."""
        number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        tensor = onnx.TensorProto(name=name, data_type=number, dims=shape)
        length = math.prod(shape) * np.dtype(dtype).itemsize
        tensor.data_location = onnx.TensorProto.EXTERNAL
        where = {"location": self._data.name, "offset": self._offset, "length": length}
        for key, value in where.items():
            tensor.external_data.add(key=key, value=str(value))
        if not self._written:
            with self._data.with_suffix(".part").open("r+b" if self._offset else "wb") as file:
                file.seek(self._offset)
                file.write(made().astype(dtype, copy=False).tobytes())
        self._offset += -(-length // 4096) * 4096
        self.weights.append(tensor)
        return name

    def finish(self) -> None:
        """All large weights are in the file."""
        if not self._written:
            self._data.with_suffix(".part").rename(self._data)

    def constant(self, name: str, array: NDArray[Any]) -> str:
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, inputs: list[str], outputs: list[str], **stated: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, outputs, outputs[0], **stated))
        return outputs[0]

    def product(self, x: str, name: str, columns: int, rows: int) -> str:
        """x times random weights, their scales as many as fit float16."""
        blocks, rng = rows // BLOCK, self._rng

        def scales() -> NDArray[np.float16]:
            spread = (0.75 + rng.random((columns, blocks)) / 2) * 3.5 / 2**self.bits
            return np.asarray(spread / rows**0.5, np.float16)

        codes = (columns, blocks, BLOCK * self.bits // 8)
        given = [
            x,
            self.large(f"{name}.q", np.uint8, codes, lambda: rng.integers(0, 256, codes, np.uint8)),
            self.large(f"{name}.s", np.float32, codes[:2], scales),
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


def decoder(shape: Shape, bits: int, sizes: tuple[int, int], data: Path) -> onnx.ModelProto:
    """The model for so many tokens at a time, with a cache of so many; its weights in a file."""
    tokens, length = sizes
    b = _Builder(shape, bits, data)
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
    b.finish()
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


def _folder() -> Path:
    found = Path(tempfile.gettempdir()) / "tilesmith-decoding"
    found.mkdir(exist_ok=True)
    return found


def model_file(shape: Shape, bits: int, tokens: int, length: int) -> Path:
    """The model's file, its weights in another that all models of a shape and bits share."""
    name = f"{shape.layers}x{shape.width}-int{bits}"
    path = _folder() / f"{name}-{tokens}-{length}.onnx"
    if not path.exists():
        onnx.save(decoder(shape, bits, (tokens, length), _folder() / f"{name}.data"), path)
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
    path = _folder() / f"{rows}x{size}-int{bits}.onnx"
    if not path.exists():
        b = _Builder(Shape(), bits, _folder() / f"{size}-int{bits}.data")
        b.product("x", "p", size, size)
        b.finish()
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
