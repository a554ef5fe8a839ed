"""Expansion: operators that ONNX does not have, written as those it has while a model is read.

Exporters and optimisers write operators of the domain `com.microsoft`, and some of ONNX's own at
opsets that do not have them yet. A rule of `contrib/` says what such a node is put together from;
shapes, constant folding, kernels and the host's fallback are then those of ONNX's operators. Adding
an operator is one function in a file of its family, registered as `com.microsoft.Name` (or
`ai.onnx.Name`) with its numbers of inputs and its attributes' defaults.

    y = com.microsoft.FastGelu(x, bias)                   before
    t = Add(x, bias); y = gelu_tanh(t)                    after

Invariants: a rule writes nodes in an order in which they can be read; a node that no rule takes, or
whose attributes and inputs are none of its operator's, is refused in one sentence.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Node, TensorInfo, attributes_of
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.support.registry import Registry

OPTIMISERS = "com.microsoft"
"""The domain of operators that ONNX Runtime's optimisers and exporters for it write."""

Rule = Callable[["Expansion"], "str | tuple[str, ...]"]

REQUIRED: Mapping[type, str] = {
    int: "an integer",
    float: "a number",
    str: "a text",
    tuple: "a list",
}
"""Types that stand for attributes without a default, and how messages call them."""


@dataclass(frozen=True)
class Expandable:
    """An operator that is expanded.

    Attributes:
        rule: writes it down and names its outputs.
        inputs: fewest and most.
        attributes: defaults by name; a type where there is none and one has to be given.
        when: which nodes, of an operator that ONNX has; None for one that it does not have.
    """

    rule: Rule
    inputs: tuple[int, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    when: Callable[[Node], bool] | None = None


expansions: Registry[Expandable] = Registry("expansion", "tilesmith.compiler.contrib")


def operator(
    name: str,
    fewest: int,
    most: int,
    *,
    when: Callable[[Node], bool] | None = None,
    **attributes: Any,
) -> Callable[[Rule], Rule]:
    """Register a rule for an operator.

    Args:
        name: with its domain, e.g. "com.microsoft.FastGelu".
        fewest, most: numbers of inputs.
        when: as `Expandable`.
        attributes: defaults, or the type of one that has none.
    """

    def add(rule: Rule) -> Rule:
        expansions.register(name)(Expandable(rule, (fewest, most), attributes, when))
        return rule

    return add


def expansion_for(node: Node, opset: int) -> Expandable | None:
    """How a node is expanded; None where it is read as it is."""
    if not node.domain:
        entry = expansions.find(f"ai.onnx.{node.operator}")
        if entry is not None and entry.when is not None and entry.when(node):
            return entry
    return expansion_of(node.operator, node.domain, opset)


def expansion_of(operator: str, domain: str, opset: int) -> Expandable | None:
    """How an operator is expanded; None for one of ONNX's own, or one that nobody knows."""
    if domain in ("", "ai.onnx"):
        known = onnx.defs.has(operator, opset, "")
        return None if known else expansions.find(f"ai.onnx.{operator}")
    return expansions.find(f"{domain}.{operator}")


class Reading(Protocol):
    """A model that is being read."""

    tensors: dict[str, TensorInfo]
    values: dict[str, NDArray[Any]]

    def take(self, node: Node) -> None:
        """Read a node after those before it."""

    def set_value(self, name: str, array: NDArray[Any]) -> None:
        """Declare a constant."""

    def unused(self, name: str) -> str:
        """A name that nothing has."""

    def declared_shape(self, name: str) -> tuple[int, ...] | None:
        """The shape that the file states for a tensor, None where it does not."""


class Expansion:
    """One node being written as others; tensors are named by what the methods return."""

    def __init__(
        self, node: Node, entry: Expandable, reading: Reading, opsets: Mapping[str, int]
    ) -> None:
        self.node, self._reading = node, reading
        self.opset = opsets.get("", 1)
        self._entry = entry
        self._check()

    def _check(self) -> None:
        """Raise `ModelError` for attributes and inputs that the operator does not have."""
        known, describe = self._entry.attributes, self.node.describe()
        for name, value in self.node.attributes:
            if name not in known:
                listed = ", ".join(sorted(known)) or "none"
                raise ModelError(
                    f"{describe}: attribute '{name}' is none that is understood; {listed} are"
                )
            wanted = known[name] if isinstance(known[name], type) else type(known[name])
            if not isinstance(value, wanted):
                raise ModelError(f"{describe}: attribute '{name}' is not {REQUIRED[wanted]}")
        for name, default in known.items():
            if isinstance(default, type) and self.node.attribute(name) is None:
                raise ModelError(f"{describe} lacks the attribute '{name}', which it has to have")
        fewest, most = self._entry.inputs
        if not fewest <= len(self.node.inputs) <= most:
            raise ModelError(
                f"{describe} has {len(self.node.inputs)} inputs; from {fewest} to {most} are taken"
            )

    def write(self) -> None:
        """Read what the node is put together from.

        Raises:
            ModelError: it cannot be computed of these inputs.
        """
        try:
            written = self._entry.rule(self)
        except (ValueError, IndexError, ZeroDivisionError, OverflowError) as error:
            raise self.wrong(f"its inputs do not go together ({error})") from error
        results = (written,) if isinstance(written, str) else written
        for position, output in enumerate(self.node.outputs):
            if not output:
                continue
            if position >= len(results) or not results[position]:
                raise self.wrong(f"its output {position} is not supported")
            self._reading.take(Node("Identity", (results[position],), (output,), self.node.name))

    def wrong(self, text: str) -> ModelError:
        """An error that names the node."""
        return ModelError(f"{self.node.describe()} cannot be computed: {text}")

    # -- questions ----------------------------------------------------------------------------
    def input(self, position: int) -> str:
        """An input's name, "" where it is left out."""
        return self.node.input(position)

    def wants(self, position: int) -> bool:
        """Whether the model names an output."""
        return position < len(self.node.outputs) and bool(self.node.outputs[position])

    def attribute(self, name: str) -> Any:
        """An attribute, its default where it is left out."""
        return self.node.attribute(name, self._entry.attributes[name])

    def count(self, name: str) -> int:
        """An attribute that counts something there is at least one of."""
        number = int(self.attribute(name))
        if number < 1:
            raise self.wrong(f"attribute '{name}' is {number}; it has to be at least 1")
        return number

    def dims(self, name: str) -> tuple[int, ...]:
        """A tensor's shape; raises `ModelError` where only running the model tells it."""
        shape = self._info(name).shape
        if shape is None:
            raise self.wrong(
                f"the shape of '{name}' is not known before the model runs; export the model with "
                "fixed or named sizes"
            )
        return shape

    def shape(self, name: str) -> tuple[int, ...] | None:
        """A tensor's shape, None where only running the model tells it."""
        return self._info(name).shape

    def rank(self, name: str) -> int:
        return len(self.dims(name))

    def dtype(self, name: str) -> str:
        return self._info(name).dtype

    def _info(self, name: str) -> TensorInfo:
        if not name:
            raise self.wrong("an input is left out that it has to have")
        return self._reading.tensors[name]

    def value(self, name: str) -> NDArray[Any] | None:
        """A tensor's value, None if it is not constant."""
        return self._reading.values.get(name)

    def constant_input(self, position: int) -> NDArray[Any]:
        """An input that has to be constant."""
        array = self.value(self.input(position))
        if array is None:
            raise self.wrong(f"input {position} has to be a constant of the model")
        return array

    def declared(self, position: int) -> tuple[int, ...] | None:
        """The shape that the file states for an output."""
        output = self.node.outputs[position] if self.wants(position) else ""
        return self._reading.declared_shape(output) if output else None

    # -- parts --------------------------------------------------------------------------------
    def constant(self, value: Any, dtype: str = "") -> str:
        """A new constant, of `dtype` or as it is."""
        name = self._name()
        array = np.asarray(value)
        self._reading.set_value(name, array.astype(to_numpy(dtype)) if dtype else array)
        return name

    def number(self, value: float, like: str) -> str:
        """A number of another tensor's element type."""
        return self.constant(value, self.dtype(like))

    def whole(self, *values: int) -> str:
        """A list of int64."""
        return self.constant(np.array(values, dtype=np.int64))

    def apply(self, operator: str, *sources: str, **attributes: Any) -> str:
        """An operator of one output in the model's own opset; "" for inputs left out."""
        return self.outputs(1, operator, *sources, **attributes)[0]

    def outputs(self, count: int, operator: str, *sources: str, **attributes: Any) -> list[str]:
        """An operator of several outputs in the model's own opset."""
        return self._add("", count, operator, sources, attributes)

    def newest(self, operator: str, *sources: str, **attributes: Any) -> str:
        """An operator of one output as the newest opset has it; or an activation of epilogues."""
        return self.newest_outputs(1, operator, *sources, **attributes)[0]

    def newest_outputs(
        self, count: int, operator: str, *sources: str, **attributes: Any
    ) -> list[str]:
        return self._add(INTERNAL_DOMAIN, count, operator, sources, attributes)

    def since(self, opset: int, operator: str, *sources: str, **attributes: Any) -> str:
        """The model's own form of an operator if its opset has it from `opset` on, else the
        newest."""
        write = self.apply if self.opset >= opset else self.newest
        return write(operator, *sources, **attributes)

    def _add(
        self,
        domain: str,
        count: int,
        operator: str,
        sources: Sequence[str],
        attributes: Mapping[str, Any],
    ) -> list[str]:
        names = [self._name() for _ in range(count)]
        inputs = list(sources)
        while inputs and not inputs[-1]:
            inputs.pop()
        stated = attributes_of(**attributes)
        self._check_given(operator, inputs)
        node = Node(operator, tuple(inputs), tuple(names), self.node.name, domain, stated)
        self._reading.take(node)
        return names

    def _check_given(self, operator: str, inputs: Sequence[str]) -> None:
        """Raise `ModelError` where a part lacks what it needs, for the node lacks it."""
        if not onnx.defs.has(operator):
            return
        schema = onnx.defs.get_schema(operator)
        optional = onnx.defs.OpSchema.FormalParameterOption.Optional
        pairs = zip(schema.inputs, inputs, strict=False)
        blank = any(not name and formal.option != optional for formal, name in pairs)
        if blank or len(inputs) < schema.min_input:
            raise self.wrong("an input is left out that it has to have")

    def _name(self) -> str:
        return self._reading.unused(f"{self.node.writes[0]}.part")

    # -- forms that opsets spell differently ---------------------------------------------------
    def cast(self, source: str, dtype: str) -> str:
        """A tensor in another element type; itself where it has that."""
        if self.dtype(source) == dtype:
            return source
        number = helper.np_dtype_to_tensor_dtype(to_numpy(dtype))
        return self.apply("Cast", source, to=int(number))

    def reshape(self, source: str, *shape: int) -> str:
        """0 keeps an extent, -1 is what is left."""
        return self.apply("Reshape", source, self.whole(*shape))

    def transpose(self, source: str, *order: int) -> str:
        return self.apply("Transpose", source, perm=order)

    def unsqueeze(self, source: str, *axes: int) -> str:
        if self.opset < 13:
            return self.apply("Unsqueeze", source, axes=axes)
        return self.apply("Unsqueeze", source, self.whole(*axes))

    def slice(self, source: str, axis: int, start: int, end: int) -> str:
        """Part of one axis."""
        if self.opset < 10:
            return self.apply("Slice", source, axes=(axis,), starts=(start,), ends=(end,))
        return self.apply("Slice", source, *map(self.whole, (start, end, axis)))

    def squeeze(self, source: str, axis: int) -> str:
        if self.opset < 13:
            return self.apply("Squeeze", source, axes=(axis,))
        return self.apply("Squeeze", source, self.whole(axis))

    # -- sizes, as tensors: a constant of a size would be of that size alone --------------------
    def size(self, source: str, axis: int) -> str:
        """An extent, as a list of one."""
        return self.apply("Gather", self.apply("Shape", source), self.whole(axis))

    def steps(self, count: str) -> str:
        """0, 1, 2, ... so many, a list of one."""
        one, zero = (self.constant(np.array(n, dtype=np.int64)) for n in (1, 0))
        return self.since(11, "Range", zero, self.reshape(count), one)

    def part(self, source: str, axis: int, start: str, end: str) -> str:
        """Part of one axis between lists of one."""
        axes = self.whole(axis)
        if self.opset < 10:
            return self.newest("Slice", source, start, end, axes)
        return self.apply("Slice", source, start, end, axes)

    def sum(self, source: str, axis: int) -> str:
        """Over one axis, which stays as an extent of one."""
        return self.newest("ReduceSum", source, self.whole(axis), keepdims=1)

    def add(self, source: str, other: str) -> str:
        """A sum; `source` itself where `other` is left out."""
        return self.apply("Add", source, other) if other else source
