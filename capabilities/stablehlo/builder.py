"""`GraphBuilder`: a graph under construction, in ONNX operators; `TensorValue`: what an operation
gave.

StableHLO writes every broadcast out; ONNX's operators broadcast by themselves, and passes know them
so. A `TensorValue` therefore may stand for a smaller tensor than its shape says, and becomes a
whole one only where something needs it whole.

Invariants: every tensor's shape and element type is known; an operator on the same inputs is
written once; what is computed from small constants is a constant at once; nodes of a nested scope
(the body of a loop) read what lies outside by name.
"""

from collections import ChainMap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import AttributeValue, Graph, Node, TensorInfo, attributes_of
from tilesmith.compiler.graph.sources import sourced
from tilesmith.compiler.host.nodes import HostFunction, foldable
from tilesmith.compiler.onnx.inference.inference import DTYPE_NUMBERS, dtype_of
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import JobError, ModelError

Shape = tuple[int, ...]

OPSET = min(26, onnx.defs.onnx_opset_version())
"""Version of ONNX's operators that graphs are written in."""

_FOLDED = 4096
"""Elements up to which a result of constants is computed at once."""

_SMALL = 64
"""Bytes up to which equal constants are one."""

_MOST_NODES = 500_000
"""Nodes of one model: functions that call functions can stand for any number."""


@dataclass(frozen=True)
class TensorValue:
    """A tensor as an operation gave it.

    Attributes:
        name: the tensor that holds its numbers.
        dtype: their element type.
        own: that tensor's shape, which broadcasts to `shape` as ONNX broadcasts.
        shape: the value's shape.
    """

    name: str
    dtype: str
    own: Shape
    shape: Shape

    @property
    def whole(self) -> bool:
        return self.own == self.shape


class GraphBuilder:
    """See the module's docstring.

    Attributes:
        turns: loops of known turns whose bodies are being translated (`turns.Turns`, which knows
            builders), the innermost last.
        levels: by tensor, how many scopes were open when it was declared.
        written: what was written already, by operator and inputs, in the scopes that are open.
        means: by tensor that holds sums over windows, their means and how many elements each is of.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.tensors: dict[str, TensorInfo] = {}
        self.constants: dict[str, NDArray[Any]] = {}
        self.inputs: list[TensorInfo] = []
        self.nodes: list[Node] = []
        self.place = ""
        self.turns: list[Any] = []
        self.means: dict[str, tuple[TensorValue, int]] = {}
        self.levels: dict[str, int] = {}
        self._producers: dict[str, Node] = {}
        self.written: ChainMap[Any, tuple[str, ...]] = ChainMap()
        self._equal: dict[Any, str] = {}
        self._taken: dict[str, int] = {}
        self._count = 0

    # -- tensors --------------------------------------------------------------------------------
    def name(self, base: str) -> str:
        """A tensor name not in use, made from `base`."""
        if base not in self.tensors and base not in self._taken:
            self._taken[base] = 0
            return base
        while True:
            self._taken[base] = self._taken.get(base, 0) + 1
            name = f"{base}.{self._taken[base]}"
            if name not in self.tensors:
                return name

    def declare(self, name: str, dtype: str, shape: Shape) -> TensorValue:
        self.tensors[name] = TensorInfo(name, dtype, shape)
        self.levels[name] = self.level
        return TensorValue(name, dtype, shape, shape)

    @property
    def level(self) -> int:
        """How many scopes are open."""
        return len(self.written.maps)

    def input(self, base: str, dtype: str, shape: Shape) -> TensorValue:
        """An input of the graph."""
        value = self.declare(self.name(base), dtype, shape)
        self.inputs.append(self.tensors[value.name])
        return value

    def constant(self, array: Any, dtype: str = "") -> TensorValue:
        """A constant; an array is kept, not copied."""
        numbers = np.asarray(array) if not dtype else np.asarray(array).astype(to_numpy(dtype))
        dtype = dtype or dtype_of(numbers)
        key = (dtype, numbers.shape, numbers.tobytes()) if numbers.nbytes <= _SMALL else None
        if key is not None and key in self._equal:
            return self.value(self._equal[key])
        value = self.declare(self.name("constant"), dtype, tuple(numbers.shape))
        numbers = numbers.view()
        numbers.setflags(write=False)
        self.constants[value.name] = numbers
        if key is not None:
            self._equal[key] = value.name
        return value

    def value(self, name: str) -> TensorValue:
        info = self.tensors[name]
        return TensorValue(name, info.dtype, info.dims, info.dims)

    def known(self, value: TensorValue) -> NDArray[Any] | None:
        """The numbers of a value that is constant, in its own shape."""
        return self.constants.get(value.name)

    def single(self, value: TensorValue) -> Any:
        """The one number that a constant holds everywhere, else None."""
        array = self.known(value)
        if array is None or array.size == 0:
            return None
        first = array.reshape(-1)[0]
        return first if array.size == 1 or bool(np.all(array == first)) else None

    def producer(self, name: str) -> Node | None:
        return self._producers.get(name)

    # -- nodes ----------------------------------------------------------------------------------
    def add(
        self, operator: str, inputs: Sequence[str], dtype: str, shape: Shape, **attributes: Any
    ) -> TensorValue:
        """A node of one output."""
        (value,) = self.add_many(operator, inputs, [(dtype, shape)], **attributes)
        return value

    def add_many(
        self,
        operator: str,
        inputs: Sequence[str],
        results: Sequence[tuple[str, Shape]],
        captures: Sequence[str] = (),
        domain: str = "",
        **attributes: AttributeValue,
    ) -> tuple[TensorValue, ...]:
        """A node; or what it gives, where it is written already or its inputs are constants."""
        listed = attributes_of(**attributes)
        key = (operator, tuple(inputs), repr(listed), tuple(d for d, _ in results))
        nested = bool(captures) or operator in ("Loop", "If")
        if not nested and key in self.written:
            return tuple(self.value(name) for name in self.written[key])
        self._count += 1
        if self._count > _MOST_NODES:
            raise ModelError(
                f"'{self.model}' comes to more than {_MOST_NODES} operators when its functions are "
                "put where they are called; compile it in parts"
            )
        base = (self.place or operator.lower()).rpartition("/")[2] or operator.lower()
        outputs = [self.declare(self.name(base), dtype, shape) for dtype, shape in results]
        node = Node(
            operator, tuple(inputs), tuple(v.name for v in outputs), self.place or outputs[0].name,
            domain, listed, captures=tuple(captures),
        )  # fmt: skip
        if not self._folded(node):
            self.nodes.append(node)
            self._producers.update(dict.fromkeys(node.outputs, node))
        self.written[key] = node.outputs
        return tuple(outputs)

    def _folded(self, node: Node) -> bool:
        """Whether the node's outputs have become constants."""
        if not node.inputs or not foldable(node):
            return False
        if not all(name in self.constants for name in node.reads):
            return False
        infos = [self.tensors[name] for name in node.outputs]
        if any(info.elements > _FOLDED for info in infos):
            return False
        try:
            constants = HostFunction.of(node, self.opsets).run(self.constants)
        except JobError:
            return False
        for info in infos:
            array = constants[info.name]
            if array.shape != info.dims or array.dtype != to_numpy(info.dtype):
                return False
        for name, array in constants.items():
            array = np.array(array)
            array.setflags(write=False)
            self.constants[name] = array
        return True

    @property
    def opsets(self) -> tuple[tuple[str, int], ...]:
        return (("", OPSET),)

    @contextmanager
    def scope(self) -> Iterator[list[Node]]:
        """Nodes written inside the block go to the list it gives; what they gave is forgotten."""
        outer, written = self.nodes, self.written
        self.nodes, self.written = [], written.new_child()
        try:
            yield self.nodes
        finally:
            self.nodes, self.written = outer, written

    # -- common steps ---------------------------------------------------------------------------
    def elementwise(
        self, operator: str, *values: TensorValue, dtype: str = "", **attributes: Any
    ) -> TensorValue:
        """An operator that broadcasts, on values as small as they are.

        Args:
            dtype: of the result; of the first value, where left out.
        """
        reshaped = self._before_reshape(values)
        if reshaped is not None:
            result = self.elementwise(operator, *reshaped, dtype=dtype, **attributes)
            shape = np.broadcast_shapes(*(v.shape for v in values))
            return self.reshape(result, shape)
        own = np.broadcast_shapes(*(v.own for v in values))
        shape = np.broadcast_shapes(*(v.shape for v in values))
        names = [v.name for v in values]
        result = self.add(operator, names, dtype or values[0].dtype, own, **attributes)
        return replace(result, shape=shape)

    def _before_reshape(self, values: Sequence[TensorValue]) -> list[TensorValue] | None:
        """The values with the one that is no single number as it was before it was reshaped."""
        large = [i for i, v in enumerate(values) if np.prod(v.own) != 1]
        if len(large) != 1 or not values[large[0]].whole:
            return None
        before = self.producer(values[large[0]].name)
        if before is None or not before.is_onnx("Reshape"):
            return None
        source = self.value(before.inputs[0])
        numbers = [v for i, v in enumerate(values) if i != large[0]]
        if any(v.own or np.prod(v.shape) > np.prod(source.shape) for v in numbers):
            return None
        plain = (replace(v, shape=()) for v in values)
        return [source if i == large[0] else v for i, v in enumerate(plain)]

    def full(self, value: TensorValue) -> TensorValue:
        """The value as a tensor of its whole shape."""
        if value.whole:
            return value
        if np.prod(value.own) == np.prod(value.shape):
            return self._reshaped(self.value(value.name), value.shape)
        shape = self.constant(np.array(value.shape, np.int64))
        return self.add("Expand", [value.name, shape.name], value.dtype, value.shape)

    def reshape(self, value: TensorValue, shape: Shape) -> TensorValue:
        """The same elements in another shape."""
        if value.shape == shape:
            return value
        if np.prod(value.own) != np.prod(shape):
            value = self.full(value)
        return self._reshaped(self.value(value.name), shape)

    def _reshaped(self, value: TensorValue, shape: Shape) -> TensorValue:
        if value.shape == shape:
            return value
        known = self.known(value)
        if known is not None:
            return self.constant(known.reshape(shape))
        before = self.producer(value.name)
        if before is not None and before.is_onnx("Reshape"):
            value = self.value(before.inputs[0])
        if value.shape == shape:
            return value
        target = self.constant(np.array(shape, np.int64))
        return self.add("Reshape", [value.name, target.name], value.dtype, shape, allowzero=1)

    def transpose(self, value: TensorValue, order: Sequence[int]) -> TensorValue:
        """Axes in another order: axis i of the result is axis `order[i]`."""
        order = tuple(order)
        if order == tuple(range(len(order))):
            return value
        known = self.known(value)
        if known is not None and value.whole:
            return self.constant(known.transpose(order))
        if not value.whole:  # as small as it was
            own = (1,) * (len(order) - len(value.own)) + value.own
            small = self.reshape(replace(value, shape=value.own), own)
            moved = self.transpose(small, order)
            return replace(moved, shape=tuple(value.shape[axis] for axis in order))
        shape = tuple(value.shape[axis] for axis in order)
        moving = [axis for axis in order if value.shape[axis] > 1]
        if moving == sorted(moving):
            return self.reshape(value, shape)
        before = self.producer(value.name)
        if before is not None and before.is_onnx("Reshape"):
            squeezed = self._without_ones(value, order)
            if squeezed is not None:
                return self.reshape(squeezed, shape)
        if before is not None and before.is_onnx("Transpose"):
            first = before.attribute("perm")
            return self.transpose(
                self.value(before.inputs[0]), tuple(first[axis] for axis in order)
            )
        return self.add("Transpose", [value.name], value.dtype, shape, perm=order)

    def _without_ones(self, value: TensorValue, order: Shape) -> TensorValue | None:
        """The transposed value without its axes of one element, where it is transposed already."""
        kept = [axis for axis, extent in enumerate(value.shape) if extent > 1]
        small = self.reshape(value, tuple(value.shape[axis] for axis in kept))
        before = self.producer(small.name)
        if before is None or not before.is_onnx("Transpose"):
            return None
        return self.transpose(small, [kept.index(axis) for axis in order if axis in kept])

    def broadcast(self, value: TensorValue, shape: Shape, axes: Sequence[int]) -> TensorValue:
        """Axis i of the value is axis `axes[i]` of the result, and repeated where that is
        longer."""
        lead = len(value.shape) - len(value.own)
        places = tuple(axes)[lead:]
        if places == tuple(range(len(shape) - len(places), len(shape))):
            return replace(value, shape=shape)
        order = sorted(range(len(places)), key=places.__getitem__)
        small = self.transpose(replace(value, shape=value.own), order)
        first = min(places, default=len(shape))
        own = [1] * (len(shape) - first)
        for axis, extent in zip(places, value.own, strict=True):
            own[axis - first] = extent
        return replace(self.reshape(small, tuple(own)), shape=shape)

    def cast(self, value: TensorValue, dtype: str) -> TensorValue:
        if value.dtype == dtype:
            return value
        return self.elementwise("Cast", value, dtype=dtype, to=DTYPE_NUMBERS[dtype])

    def like(self, number: float, value: TensorValue) -> TensorValue:
        """One number of the value's element type."""
        return self.constant(number, value.dtype)

    def graph(self, outputs: Sequence[tuple[str, TensorValue]]) -> Graph:
        """The whole graph.

        Args:
            outputs: names to give to results.
        """
        given: list[TensorInfo] = []
        for base, value in outputs:
            name = self.name(base)
            source = self.full(value)
            result = self.declare(name, value.dtype, value.shape)
            given.append(self.tensors[result.name])
            self.nodes.append(Node("Identity", (source.name,), (name,), name))
        used = {name for node in self.nodes for name in node.reads}
        written = {name for node in self.nodes for name in node.writes}
        named = used | written | {info.name for info in self.inputs}
        return Graph(
            self.model,
            tuple(self.inputs),
            tuple(given),
            tuple(map(sourced, self.nodes)),
            {name: array for name, array in self.constants.items() if name in used},
            {name: info for name, info in self.tensors.items() if name in named},
            self.opsets,
        )
