"""Constants as a kernel has them that factors and sums were folded into: rounded with these.

    round(w s) / s   instead of   round(w),   and what is added likewise

for a product by constants `w` whose result is multiplied by constants `s` and has constants added
(of a normalisation, a division, several of them). So the nodes of the model as imported compute
what the folded kernel computes, and no pass has a part in it.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator, Rounding
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.host.nodes import draws
from tilesmith.search_space.support.errors import JobError

Array = NDArray[Any]

_CHANNELS = {"Conv": 0, "ConvTranspose": 1, "MatMul": -1, "Gemm": -1}
"""Products, and the axis of the weight that becomes the result's channels."""

_ONE, _NONE = np.ones(1), np.zeros(1)


def constants_of(graph: Graph) -> dict[str, Any]:
    """Tensors that depend on no input and are read by nodes that do: those the model holds, and
    those that it computes."""
    moving = {info.name for info in graph.inputs}
    read: set[str] = set()
    for node in graph.nodes:
        if not moving.isdisjoint(node.reads) or draws(node, graph.constants):
            moving.update(node.writes)
            read.update(node.reads)
    names = read - moving
    constants = {name: graph.constants[name] for name in names & graph.constants.keys()}
    with suppress(JobError):
        constants |= Evaluator(graph).values({}, names - constants.keys())
    return constants


def folded_constants(
    graph: Graph, constants: Mapping[str, Any], rounding: Rounding
) -> dict[str, Any]:
    """Constants as folded kernels have them: weights of products rounded with the factor behind
    these, the last that is added rounded with all of them, others as the model has them."""
    folded = dict(constants)
    for node in graph.nodes:
        name = node.input(1)
        weight = constants.get(name)
        if not node.is_onnx(*_CHANNELS) or not isinstance(weight, np.ndarray):
            continue
        behind = _behind(graph, node, constants)
        factor = _along_channels(node, weight, behind.factor)
        if factor is None or not np.all(behind.factor):
            folded[name] = rounding(name, weight)
            continue
        rounded = rounding(name, (weight * factor).astype(np.float32))
        folded[name] = (rounded / factor).astype(weight.dtype)
        if behind.added:
            folded[behind.added] = behind.moved(constants[behind.added], rounding)
    return folded


@dataclass(frozen=True)
class _Affine:
    """What becomes of a product, channel by channel: factor * product + shift.

    Attributes:
        added: the constant that was added last, "" of none.
        sign: of it.
        since: what it was multiplied by then.
    """

    factor: Array
    shift: Array
    added: str = ""
    sign: float = 1.0
    since: Any = 1.0

    def times(self, factor: Array) -> "_Affine":
        since = self.since * factor
        return _Affine(self.factor * factor, self.shift * factor, self.added, self.sign, since)

    def plus(self, shift: Array, added: str, sign: float = 1.0) -> "_Affine":
        return _Affine(self.factor, self.shift + sign * shift, added, sign)

    def moved(self, constant: Array, rounding: Rounding) -> Array:
        """The last that was added, so that all that is added together is a rounded number."""
        away = rounding(self.added, self.shift.astype(np.float32)) - self.shift
        away = self.sign * away / self.since
        if away.size != constant.size:
            return constant
        moved: Array = constant + away.reshape(constant.shape)
        return moved.astype(constant.dtype)


def _behind(graph: Graph, node: Node, constants: Mapping[str, Any]) -> _Affine:
    """What constants make of a product's result."""
    spatial = node.is_onnx("Conv", "ConvTranspose")
    affine, bias = _Affine(_ONE, _NONE), node.input(2)
    if bias in constants:
        affine = affine.plus(constants[bias].astype(np.float64).reshape(-1), bias)
    name = node.writes[0]
    while True:
        readers = graph.consumers.get(name, ())
        if len(readers) != 1 or name in graph.output_names:
            return affine
        after = _after(graph, readers[0], name, constants, spatial, affine)
        if after is None:
            return affine
        affine, name = after, readers[0].writes[0]


def _after(
    graph: Graph,
    node: Node,
    name: str,
    constants: Mapping[str, Any],
    spatial: bool,
    affine: _Affine,
) -> _Affine | None:
    """The same behind one more node; None if that does something else."""
    if node.is_onnx("Identity"):
        return affine
    if node.is_onnx("BatchNormalization"):
        held = [constants.get(other) for other in node.inputs[1:5]]
        if any(value is None for value in held):
            return None
        scale, shift, mean, variance = (np.asarray(value, np.float64) for value in held)
        scale = scale / np.sqrt(variance + node.attribute("epsilon", 1e-5))
        return affine.plus(mean, "", -1.0).times(scale).plus(shift, node.inputs[2])
    if not node.is_onnx("Mul", "Div", "Add", "Sub"):
        return None
    first = node.inputs[0] == name
    beside = node.inputs[1 if first else 0]
    value, rank = constants.get(beside), len(graph.info(name).shape or ())
    if not isinstance(value, np.ndarray) or (node.is_onnx("Div", "Sub") and not first):
        return None
    shape = (1,) * (rank - value.ndim) + value.shape
    channels = 1 if spatial else rank - 1
    if any(extent != 1 for axis, extent in enumerate(shape) if axis != channels):
        return None
    flat = value.astype(np.float64).reshape(-1)
    if node.is_onnx("Add", "Sub"):
        return affine.plus(flat, beside, 1.0 if node.is_onnx("Add") else -1.0)
    if node.is_onnx("Div"):
        return affine.times(1 / flat) if np.all(flat) else None
    return affine.times(flat)


def _along_channels(node: Node, weight: Array, factor: Array) -> Array | None:
    """A factor in a shape that multiplies the weight."""
    axis = _CHANNELS[node.operator] % weight.ndim
    if node.is_onnx("Gemm") and node.attribute("transB", 0):
        axis = 0
    if factor.size not in (1, weight.shape[axis]):
        return None
    shape = [1] * weight.ndim
    shape[axis] = factor.size
    return factor.reshape(shape)
