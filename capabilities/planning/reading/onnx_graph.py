"""An ONNX file as an architecture: its products, convolutions, attentions, normalisations and what
works number by number (`onnx_pointwise.py`), with their sizes.

Only shapes are read: weights kept in files of their own need not be there. A product with a
constant has weights; one of two computed tensors is one of attention's. How cores share weights
follows the tensors: a product of whole rows is split by outputs, one whose input is split sums over
the cores (as Megatron pairs them); what works number by number hands on what it gets.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilesmith.capabilities.planning.architecture import (
    Architecture,
    AttentionOperator,
    Layer,
    Operator,
    PointwiseOperator,
    ProductOperator,
    Split,
)
from tilesmith.capabilities.planning.reading.onnx_pointwise import (
    WATCHED,
    PointwiseChain,
    PointwiseChains,
)
from tilesmith.capabilities.planning.reading.onnx_shapes import with_shapes
from tilesmith.search_space.support.errors import ModelError

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_PRODUCTS = ("MatMul", "Gemm", "Conv")
_NORMS = (
    "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "GroupNormalization",
    "InstanceNormalization",
)  # fmt: skip
_UNCHANGED = ("Identity", "Cast")
_FLOATS = (1, 10, 11, 16, 17, 18, 19, 20, 2, 3, 21, 22)
"""TensorProto's element types that weights have: floats, bytes, and integers of 4 bits."""


def architecture_of_graph(path: Path) -> Architecture:
    """The architecture of an ONNX file; one pass is one run of its graph.

    Raises:
        ModelError: it cannot be read, sizes are unknown, or there is no product in it.
    """
    from tilesmith.compiler.onnx.files.file import read_model

    graph = with_shapes(read_model(path).proto, str(path)).graph
    read = _Reader(path, graph)
    for node in graph.node:
        read.add(node)
    computing = read.layers
    widths = [
        op.n for layer in computing for op in layer.operators if isinstance(op, ProductOperator)
    ]
    if not widths:
        raise ModelError(
            f"'{path}' has no products with weights (initializers); there is nothing to plan"
        )
    counted = sum(layer.parameters for layer in computing)
    others = PointwiseOperator("other parameters", 1, max(0, read.parameters - counted))
    layers = (*computing, Layer("others", (others,), rows=1))
    return Architecture(path.stem, "onnx", "pass", layers, max(widths))


class _Reader:
    """A graph, read node by node."""

    def __init__(self, path: Path, graph: "GraphProto") -> None:
        self.path = path
        self.constants = {t.name: tuple(t.dims) for t in graph.initializer}
        wrong = next((t.name for t in graph.initializer if any(size < 0 for size in t.dims)), None)
        if wrong is not None:
            raise ModelError(f"'{path}': weight '{wrong}' has a negative size")
        values = (*graph.input, *graph.output, *graph.value_info)
        self.types = {value.name: value.type.tensor_type.shape.dim for value in values}
        self._numbers = {v.name for v in values if v.type.tensor_type.elem_type in _FLOATS}
        self.parameters = sum(
            math.prod(t.dims) for t in graph.initializer if t.data_type in _FLOATS
        )
        self.split: set[str] = set()
        self.weighed: set[str] = set()
        self._found: list[Layer | PointwiseChain] = []
        self._chains = PointwiseChains(graph.node, self._shape, self.constants.keys())

    @property
    def layers(self) -> tuple[Layer, ...]:
        """What was read, in order; chains that came to nothing left out."""
        layers = (one.layer if isinstance(one, PointwiseChain) else one for one in self._found)
        return tuple(layer for layer in layers if layer.operators)

    def add(self, node: "NodeProto") -> None:
        """What a node costs, and whether its outputs are split."""
        split = any(name in self.split for name in node.input)
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    self.constants[node.output[0]] = tuple(attribute.t.dims)
            return
        if node.op_type in _UNCHANGED and node.input[0] in self.constants:
            self.constants[node.output[0]] = self.constants[node.input[0]]
            return
        if node.op_type in _PRODUCTS:
            split = self._product(node, split)
        elif node.op_type in _NORMS:
            shape, split = self._shape(node.output[0]), False
            norm = PointwiseOperator("norm", shape[-1])
            self._layer(node, norm, math.prod(shape[:-1]))
        elif node.op_type in WATCHED and self._is_counted(node):
            computed = [name for name in node.input if name and name not in self.constants]
            split = split and all(name in self.split for name in computed)
            begun = self._chains.add(node, split)
            self._found += [] if begun is None else [begun]
        if split:
            self.split.update(node.output)
        moved = any(name in self.weighed for name in node.input) and node.op_type != "MatMul"
        if moved or node.op_type == "Softmax":
            self.weighed.update(node.output)

    def _product(self, node: "NodeProto", split: bool) -> bool:
        """A product or a convolution; whether its output is split."""
        out = self._shape(node.output[0])
        weight = self._weight(node)
        if weight is None:
            left, right = (self._shape(name) for name in node.input[:2])
            heads = math.prod(out[:-2]) or 1
            weighs = node.input[0] in self.weighed
            keys, width, value = (left[-1], 0, right[-1]) if weighs else (right[-1], left[-1], 0)
            product = AttentionOperator(
                "product", heads, heads, width, value, causal=False, keys=keys
            )
            self._layer(node, product, out[-2])
            return split
        if node.op_type == "Conv":
            k, n, rows = math.prod(weight[1:]), weight[0], math.prod(out) // out[1]
        else:
            turned = node.op_type == "Gemm" and _integer(node, "transB")
            k, n = (weight[-1], weight[-2]) if turned else (weight[-2], weight[-1])
            rows = math.prod(out) // n
        kind: Split = "rows" if split else "columns"
        self._layer(node, ProductOperator(node.op_type, k, n, kind, bias=len(node.input) > 2), rows)
        return not split

    def _is_counted(self, node: "NodeProto") -> bool:
        """Whether a node makes floats, of sizes that are known: what is beside products need not
        be."""
        if node.output[0] not in self._numbers:
            return False
        try:
            for name in filter(None, (*node.input, node.output[0])):
                self._shape(name)
        except ModelError:
            return False
        return True

    def _weight(self, node: "NodeProto") -> tuple[int, ...] | None:
        name = node.input[1]
        return self.constants.get(name)

    def _layer(self, node: "NodeProto", operator: Operator, rows: int) -> None:
        self._found.append(Layer(node.name or node.op_type, (operator,), rows=rows))

    def _shape(self, name: str) -> tuple[int, ...]:
        """Sizes of a tensor; a symbolic first one (a batch) is 1.

        Raises:
            ModelError: another is not known.
        """
        if name in self.constants:
            return self.constants[name]
        dims = self.types.get(name)
        if dims is None:
            raise ModelError(
                f"'{self.path}': the sizes of tensor '{name}' are unknown; infer the file's "
                "shapes, or export it with fixed sizes"
            )
        sizes = [dim.dim_value for dim in dims]
        if sizes and sizes[0] < 1:
            sizes[0] = 1
        if any(size < 1 for size in sizes):
            symbol = next(dim.dim_param or "?" for dim in list(dims)[1:] if dim.dim_value < 1)
            raise ModelError(
                f"'{self.path}': tensor '{name}' has the symbolic size '{symbol}'; export the file "
                "with fixed sizes (a symbolic batch is taken as 1)"
            )
        return tuple(sizes)


def _integer(node: "NodeProto", name: str) -> int:
    attributes: Mapping[str, Any] = {a.name: a.i for a in node.attribute}
    return int(attributes.get(name, 0))
