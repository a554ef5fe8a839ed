"""`QuantisationPlan`: which tensors of a model become bytes, and who reads them as such.

    Plan.of(model, layers) -> Plan

A layer is a convolution or product with constant weights. Placement goes by demand: a layer wants
its input in bytes; where what makes a wanted tensor only moves numbers (MaxPool, Reshape, Concat,
...) its inputs are wanted too, with the same scale, and where it is a sum of two tensors or an
average its inputs are wanted with scales of their own. So a chain of layers stays in bytes, a pair
of QuantizeLinear and DequantizeLinear stands behind Relu and not before it, and whatever does not
lead to a layer (softmax, normalisations, the model's outputs) stays in float32. Readers that are
not quantised read the float32 tensor. With `fuse_residuals`, what a layer gives to a sum with other
bytes, and to nobody else, is not rounded before it is added: who runs the model may add as it
requantises.

Invariant: of fewer layers the plan is a part of the plan of more.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx

from tilesmith.capabilities.quantisation.preparation.float_model import FloatModel, attribute
from tilesmith.compiler.graph.operator_traits import having

PRODUCTS = ("Conv", "MatMul", "Gemm")
"""Operators with weights: the layers."""

SUMS = ("Add", "AveragePool", "GlobalAveragePool")
"""Operators that compute on bytes of one scale and give bytes of another."""

MOVES: Mapping[str, int] = {
    **dict.fromkeys((*having("reorders"), "MaxPool", "Expand", "Slice", "Split"), 1),
    "DepthToSpace": 1,
    "SpaceToDepth": 1,
    "Concat": -1,
}
"""Operators that move numbers, and how many inputs they move (-1: all)."""

OPERATORS = (*PRODUCTS, *SUMS, "MaxPool", "Concat")
"""What a user may choose among; the other moves go with them."""

_BOUNDS = ("Relu", "Clip")
"""What may stand between a sum and the rounding of its result."""


@dataclass(frozen=True)
class WeightedLayer:
    """A convolution or product with constant weights.

    Attributes:
        node: the node's name.
        operator: its ONNX operator.
        source: the tensor that is multiplied.
        weights: the constant it is multiplied by.
        axis: of the output channels in the weights.
        bias: the constant that is added, "" if there is none.
    """

    node: str
    operator: str
    source: str
    weights: str
    axis: int
    bias: str = ""


@dataclass(frozen=True)
class _Read:
    """An input of a node that it reads in bytes."""

    node: str
    position: int
    tensor: str


@dataclass(frozen=True)
class QuantisationPlan:
    """See the module's docstring.

    Attributes:
        layers: those that are quantised, in the order of the model.
        reads: every input that is read in bytes, in the order of the model.
        groups: by tensor in bytes the one whose scale it has; itself where it has its own.
    """

    layers: tuple[WeightedLayer, ...]
    reads: tuple[_Read, ...]
    groups: Mapping[str, str]

    @cached_property
    def members(self) -> dict[str, list[str]]:
        """The tensors of each scale."""
        members: dict[str, list[str]] = {}
        for tensor, group in self.groups.items():
            members.setdefault(group, []).append(tensor)
        return members

    @classmethod
    def of(
        cls,
        model: FloatModel,
        layers: Iterable[WeightedLayer],
        operators: tuple[str, ...] = OPERATORS,
        kept: frozenset[str] = frozenset(),
        fuse_residuals: bool = False,
    ) -> "QuantisationPlan":
        """The plan that quantises the layers.

        Args:
            operators: those of `OPERATORS` that may be computed on bytes.
            kept: names of nodes that are not.
            fuse_residuals: see the module's docstring.
        """
        wanted = tuple(layers)
        work = _Placement(model, operators, kept, fuse_residuals)
        for layer in wanted:
            work.read(model.by_name[layer.node], 0)
        order = {node.name: number for number, node in enumerate(model.nodes)}
        reads = sorted(work.reads, key=lambda read: (order[read.node], read.position))
        groups = {name: work.group(name) for name in work.parents}
        return cls(wanted, tuple(reads), groups)


class _Placement:
    """Places bytes in a graph, from the layers that read them up to the nodes that write them."""

    def __init__(
        self,
        model: FloatModel,
        operators: tuple[str, ...],
        kept: frozenset[str],
        fuse_residuals: bool,
    ) -> None:
        self._model = model
        self._operators = operators
        self._kept = kept
        self._depths = _depths(model) if fuse_residuals else {}
        self.reads: set[_Read] = set()
        self.parents: dict[str, str] = {}

    def read(self, node: onnx.NodeProto, position: int) -> None:
        """A node reads an input in bytes; so does, as far as can be, what makes it."""
        tensor = node.input[position]
        self.reads.add(_Read(node.name, position, tensor))
        if tensor in self.parents:
            return
        self.parents[tensor] = tensor
        maker = self._model.producers.get(tensor)
        if maker is not None and self._moves(maker):
            for number in self._moved(maker):
                self.read(maker, number)
                self._join(tensor, maker.input[number])
            for other in maker.output:  # parts of a Split that are wanted
                if other in self.parents:
                    self._join(tensor, other)
            return
        maker = self._behind_bounds(tensor)
        if maker is not None and self._sums(maker):
            unrounded = self._unrounded(maker)
            for number in range(len(maker.input)):
                if number != unrounded:
                    self.read(maker, number)

    def _unrounded(self, node: onnx.NodeProto) -> int | None:
        """The input of a sum that it takes as the layer before gives it: the deepest such, since
        what it is added to is there by then."""
        if node.op_type != "Add":
            return None
        summed = [n for n, name in enumerate(node.input) if self._only_summed(name)]
        return max(summed, key=lambda n: self._depths[node.input[n]], default=None)

    def _only_summed(self, tensor: str) -> bool:
        """Whether a layer gives a tensor, to one reader; which layers are quantised is no matter,
        see the module's invariant."""
        maker = self._model.producers.get(tensor)
        if tensor not in self._depths or self._model.readers[tensor] != 1 or maker is None:
            return False
        if maker.op_type == "Add" and len(constants := self._constants(maker)) == 1:
            (other,) = (name for name in maker.input if name not in constants)
            return self._only_summed(other)  # a bias
        return _layer(self._model, maker) is not None

    def _constants(self, node: onnx.NodeProto) -> set[str]:
        return {name for name in node.input if name in self._model.constants}

    def group(self, tensor: str) -> str:
        """The tensor whose scale it has."""
        while self.parents[tensor] != tensor:
            tensor = self.parents[tensor]
        return tensor

    def _join(self, one: str, other: str) -> None:
        self.parents[self.group(other)] = self.group(one)

    def _may(self, node: onnx.NodeProto) -> bool:
        chosen = node.op_type in self._operators or node.op_type not in OPERATORS
        return chosen and not node.domain and node.name not in self._kept

    def _moved(self, node: onnx.NodeProto) -> range:
        count = MOVES[node.op_type]
        return range(len(node.input) if count < 0 else count)

    def _moves(self, node: onnx.NodeProto) -> bool:
        if node.op_type not in MOVES or not self._may(node):
            return False
        if node.op_type == "MaxPool" and len([name for name in node.output if name]) > 1:
            return False  # indices are of the float32 tensor
        return all(node.input[n] not in self._model.constants for n in self._moved(node))

    def _sums(self, node: onnx.NodeProto) -> bool:
        if node.op_type not in SUMS or not self._may(node):
            return False
        return all(name not in self._model.constants for name in node.input)

    def _behind_bounds(self, tensor: str) -> onnx.NodeProto | None:
        """What computes a tensor, but for bounds on it that nothing else reads."""
        maker = self._model.producers.get(tensor)
        while maker is not None and maker.op_type in _BOUNDS and not maker.domain:
            if self._model.readers[maker.input[0]] != 1:
                return None
            maker = self._model.producers.get(maker.input[0])
        return maker


def _depths(model: FloatModel) -> dict[str, int]:
    """By tensor how many layers there are on the longest way to it."""
    depths: dict[str, int] = {}
    for node in model.nodes:
        depth = max((depths.get(name, 0) for name in node.input), default=0)
        depth += node.op_type in PRODUCTS
        depths.update(dict.fromkeys(node.output, depth))
    return depths


def layers_of(model: FloatModel) -> tuple[WeightedLayer, ...]:
    """Every layer of a model, in its order."""
    layers = (_layer(model, node) for node in model.nodes)
    return tuple(layer for layer in layers if layer is not None)


def _layer(model: FloatModel, node: onnx.NodeProto) -> WeightedLayer | None:
    if node.op_type not in PRODUCTS or node.domain or len(node.input) < 2:
        return None
    weights, source = model.constants.get(node.input[1]), node.input[0]
    if weights is None or weights.dtype != np.float32 or source in model.constants:
        return None
    bias = node.input[2] if len(node.input) > 2 else ""
    if node.op_type == "Conv":
        return WeightedLayer(node.name, "Conv", source, node.input[1], 0, bias)
    if weights.ndim != 2:
        return None
    if node.op_type == "MatMul":
        return WeightedLayer(node.name, "MatMul", source, node.input[1], 1)
    if attribute(node, "transA", 0):
        return None
    axis = 0 if attribute(node, "transB", 0) else 1
    return WeightedLayer(node.name, "Gemm", source, node.input[1], axis, bias)


def multiplications(model: FloatModel, layer: WeightedLayer, elements: int) -> int:
    """How many multiplications a layer takes on a source of so many elements; about, where windows
    hang over edges."""
    weights, node = model.constants[layer.weights], model.by_name[layer.node]
    if layer.operator != "Conv":
        return elements // max(1, int(weights.shape[1 - layer.axis])) * int(weights.size)
    channels = weights.shape[1] * int(attribute(node, "group", 1))
    strides = math.prod(attribute(node, "strides", [1]))
    return elements // max(1, int(channels) * int(strides)) * int(weights.size)
