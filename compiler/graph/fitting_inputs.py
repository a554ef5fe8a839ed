"""Values for inputs that become shapes, axes or counts: random ones would make no model.

    graph (float[2, 3] x, int64[2] s) => (float[3, 2] y) { y = Reshape(x, s) }     s = [3, 2]

What an operand has to be follows from the shapes around its node (`_WANTED`); it is carried back to
the input through what rearranges or shifts it: casts, concatenations, picks, sums and products with
constants. Invariant: inputs that are no such operands are left as they are.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import CHECK, Graph, Node, TensorInfo
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.search_space.support.errors import InputError

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class _At:
    """An operand that has to fit: its node, and how many numbers it is."""

    graph: Graph
    node: Node
    count: int

    def shape(self, position: int) -> Shape | None:
        """Return an operand's shape; None if it is unknown or the operand is left out."""
        name = self.node.input(position)
        return self.graph.info(name).shape if name else None

    @property
    def result(self) -> Shape | None:
        """The first output's shape: inferred, or as the model declares it; None if unknown."""
        return _shape(self.graph, self.node.writes[0])

    def axis(self, default: int) -> int:
        return int(self.node.attribute("axis", default))


def _shape(graph: Graph, name: str) -> Shape | None:
    known = graph.info(name).shape
    stated = [n for n in graph.consumers.get(name, ()) if n.operator == CHECK]
    return graph.info(stated[0].writes[0]).shape if known is None and stated else known


def _as_result(at: _At) -> Any:
    shape = at.result or at.shape(0) or (2,) * at.count
    axes = at.node.attribute("axes") if at.node.operator in _OF_AXES else None
    return shape if axes is None else [shape[int(axis)] for axis in axes]


def _reshaped(at: _At) -> Any:
    """As the result is; else as the data, its last axes as one, or with axes of one before."""
    data = at.shape(0)
    if at.result is not None or data is None:
        return at.result
    if len(data) < at.count:
        return [*[1] * (at.count - len(data)), *data]
    return [*data[: at.count - 1], math.prod(data[at.count - 1 :])][: at.count]


def _broadcast(at: _At) -> Any:
    """As the result is; else as the data, with ones before it where it has fewer axes."""
    if at.result is not None:
        return [1] * (at.count - len(at.result)) + list(at.result)[-at.count :]
    data = at.shape(0) or ()
    return [1] * (at.count - len(data)) + list(data)[-at.count :]


def _repeats(at: _At) -> Any:
    data, result = at.shape(0), at.result
    return np.ones(at.count) if not data or result is None else np.divide(result, data)


def _padding(at: _At) -> Any:
    data, result = at.shape(0), at.result
    padding = np.zeros(at.count, np.int64)
    if data and result is not None and at.count == 2 * len(data):
        padding[len(data) :] = np.subtract(result, data)
    return padding


def _grid(at: _At) -> Any:
    """Of (n, h, w, 2), or (n, d, h, w, 3): with one channel."""
    theta, result = at.shape(0), at.result
    if result is not None:
        return [result[0], 1, *result[1:-1]]
    return [theta[0] if theta else 1, 1, *[2] * (at.count - 2)]


def _along(at: _At, default: int, axis: int = -1) -> Any:
    return default if at.result is None else at.result[at.axis(axis)]


def _ends(at: _At) -> Any:
    data, result = at.shape(0), at.result
    axes = at.graph.constants.get(at.node.input(3), np.arange(at.count))
    full = result if result is not None else data
    return np.full(at.count, 1) if full is None else [full[int(axis)] for axis in axes]


def _parts(at: _At) -> Any:
    data = at.shape(0)
    shapes = [at.graph.info(name).shape for name in at.node.writes]
    if all(shape is not None for shape in shapes):
        return [shape[at.axis(0)] for shape in shapes if shape is not None]
    return None if data is None else np.full(at.count, data[at.axis(0)] // at.count)


def _single(at: _At) -> Any:
    """Axes of length one."""
    data = at.shape(0) or ()
    axes = [axis for axis, extent in enumerate(data) if extent == 1][: at.count]
    return axes if len(axes) == at.count else None


def _elements(at: _At) -> Any:
    return 4 if at.result is None else at.result[0]


def _each(value: int) -> Callable[[_At], Any]:
    return lambda at: np.full(at.count, value)


def _first(at: _At) -> Any:
    return np.arange(at.count)


_OF_AXES = ("Resize", "CenterCropPad")

_WANTED: Mapping[tuple[str, int], Callable[[_At], Any]] = {
    ("Reshape", 1): _reshaped, ("Expand", 1): _broadcast,
    ("ConstantOfShape", 0): lambda at: at.result or (2,) * at.count,
    ("Resize", 3): _as_result, ("CenterCropPad", 1): _as_result,
    ("MaxUnpool", 2): lambda at: at.result,
    ("Tile", 1): _repeats, ("Pad", 1): _padding, ("AffineGrid", 1): _grid,
    ("TopK", 1): lambda at: _along(at, 1), ("OneHot", 1): lambda at: _along(at, 3),
    ("Range", 0): _each(0), ("Range", 1): _elements, ("Range", 2): _each(1),
    ("Slice", 1): _each(0), ("Slice", 2): _ends, ("Slice", 3): _first, ("Slice", 4): _each(1),
    ("Split", 1): _parts, ("Squeeze", 1): _single, ("Unsqueeze", 1): _first,
    ("CumSum", 1): _each(0), ("CumProd", 1): _each(0), ("SplitToSequence", 1): _each(1),
    ("Col2Im", 1): lambda at: None, ("Col2Im", 2): lambda at: None,
    ("Trilu", 1): _each(0), ("Loop", 0): _each(3),
    ("HannWindow", 0): _elements, ("HammingWindow", 0): _elements,
    ("BlackmanWindow", 0): _elements, ("NonMaxSuppression", 2): _each(2),
    **{(name, 1): _first for name in having("reduces")},
}  # fmt: skip
"""By operator and operand: what numbers fit; None where that cannot be told."""

_INDICES = {("Gather", 1): 0, ("RoiAlign", 2): 0}
"""Operands that are indices, by the operand whose axis they are of: zeros, if it has one entry."""

_SAME = (*having("reshapes"), "Identity", "Cast", "CastLike")
_UNDONE: Mapping[str, Callable[[Array, Array], Array]] = {
    "Add": np.subtract, "Sub": np.add, "Mul": np.floor_divide, "Div": np.multiply,
}  # fmt: skip

_FEW = 64
"""Elements: what is larger is data, and no shape."""


def fitted(
    graph: Graph, inputs: Mapping[str, Array], declared: Mapping[str, Shape] | None = None
) -> dict[str, Array]:
    """Replace inputs that become shapes, axes or counts by numbers that fit the model.

    Args:
        graph: the model as imported.
        inputs: seeded random ones.
        declared: shapes that the model's file states of outputs: where they follow from inputs, the
            graph has none.

    Raises:
        InputError: an input becomes one of these, and no number that fits follows from the model.
    """
    arrays = dict(inputs)
    stated = {n: replace(i, shape=(declared or {}).get(n, i.shape)) for n, i in _open(graph)}
    graph = graph.with_(tensors={**graph.tensors, **stated})
    for name, value in inputs.items():
        if value.dtype.kind not in "iu" or value.ndim > 1 or value.size > _FEW:
            continue
        wanted = _wanted(graph, name, value.shape)
        if wanted is not None:
            arrays[name] = wanted.astype(value.dtype)
        elif _of_one(graph, name):
            arrays[name] = np.zeros_like(value)
        elif (reached := _reached(graph, name)) is not None:
            raise InputError(
                f"input '{name}' of '{graph.title}' becomes a shape, or an axis or count, of "
                f"{reached.describe()}, and which numbers fit cannot be told from the model; give "
                "them, and the other inputs, with --input"
            )
    return arrays


def _open(graph: Graph) -> list[tuple[str, TensorInfo]]:
    return [(name, info) for name, info in graph.tensors.items() if info.shape is None]


def _of_one(graph: Graph, name: str) -> bool:
    """Whether a tensor is of indices of an axis with one entry."""
    for node in graph.consumers.get(name, ()):
        for position, source in enumerate(node.inputs):
            data = _INDICES.get((node.operator, position))
            if source == name and data is not None:
                shape = graph.info(node.inputs[data]).shape
                return bool(shape) and shape[int(node.attribute("axis", 0))] == 1  # type: ignore
    return False


def _wanted(graph: Graph, name: str, shape: Shape) -> Array | None:
    """What a tensor of `shape` has to be, from who reads it."""
    count = int(np.prod(shape))
    for node in graph.consumers.get(name, ()):
        for position in (p for p, source in enumerate(node.inputs) if source == name):
            rule = _WANTED.get((node.operator, position)) if node.domain == "" else None
            value = None if rule is None else rule(_At(graph, node, count))
            if value is None and node.domain == "":
                value = _carried_back(graph, node, position, count)
            if value is not None and np.size(value) == count:
                return np.asarray(value).astype(np.int64).reshape(shape)
    return None


def _carried_back(graph: Graph, node: Node, position: int, count: int) -> Any:
    """What an operand has to be for its node's result to fit; None if anything does."""
    shape = _shape(graph, node.writes[0]) if node.writes else None
    if shape is None or len(shape) > 1 or int(np.prod(shape)) > _FEW:
        return None
    same = node.operator in _SAME and position == 0
    if not same and node.operator not in ("Concat", "Gather", "Slice", *_UNDONE):
        return None
    wanted = _wanted(graph, node.writes[0], shape)
    if wanted is None or same:
        return wanted
    if node.operator == "Concat":
        return _share(graph, node, position, wanted)
    if node.operator in _UNDONE:
        other = graph.constants.get(node.input(1 - position))
        undo = _UNDONE[node.operator]
        return None if other is None or (position and undo is np.add) else undo(wanted, other)
    return _picked(graph, node, wanted, count) if position == 0 else None


def _share(graph: Graph, node: Node, position: int, wanted: Array) -> Any:
    """An operand's part of a concatenation; None where a constant part is something else."""
    shapes = [graph.info(name).shape for name in node.inputs]
    if any(shape is None for shape in shapes):
        return None
    ends = np.cumsum([shape[0] for shape in shapes if shape])
    parts = np.split(wanted, ends[:-1])
    for name, part in zip(node.inputs, parts, strict=True):
        known = graph.constants.get(name)
        if known is not None and not np.array_equal(known, part):
            return None
    return parts[position]


def _picked(graph: Graph, node: Node, wanted: Array, count: int) -> Any:
    """The whole of which a part has to be `wanted`: ones elsewhere."""
    whole, numbers = np.ones(count, np.int64), np.arange(count)
    operands = [graph.constants.get(name) for name in node.inputs[1:] if name]
    if any(operand is None for operand in operands):
        return None
    known = [np.asarray(operand).reshape(-1) for operand in operands if operand is not None]
    if node.operator == "Gather":
        whole[numbers[known[0]]] = wanted.reshape(-1)
    elif known:
        step = int(known[3][0]) if len(known) > 3 else 1
        whole[numbers[int(known[0][0]) : int(known[1][0]) : step]] = wanted
    return whole


def _reached(graph: Graph, name: str) -> Node | None:
    """A node of which a tensor becomes a shape, axis or count, through few numbers alone."""
    waiting, seen = [name], set[str]()
    while waiting:
        tensor = waiting.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        for node in graph.consumers.get(tensor, ()):
            positions = [p for p, source in enumerate(node.inputs) if source == tensor]
            if any((node.operator, p) in _WANTED for p in positions) and node.domain == "":
                return node
            few = [graph.info(one) for one in node.writes]
            waiting += [
                one.name for one in few
                if one.shape is not None and len(one.shape) < 2 and one.elements <= _FEW
            ]  # fmt: skip
    return None
