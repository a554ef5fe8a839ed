"""Graphs of TorchDynamo with their weights and numbers in them, as modules that can be traced.

Dynamo lifts a module's parameters and buffers to arguments, and Python numbers that vary to
tensors of no dimension. Kernels want weights that are known, and shapes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

_PREFIX = "held_"


class BoundGraph(torch.nn.Module):  # type: ignore[misc]
    """A graph that is called with those arguments alone that are tensors and vary.

    Args:
        graph: takes what `args` are.
        static: which arguments become parameters and buffers, by number.
        literal: which arguments are tensors that stand for Python numbers, by number.
    """

    def __init__(
        self,
        graph: GraphModule,
        args: Sequence[Any],
        static: Sequence[int],
        literal: Sequence[int],
    ) -> None:
        super().__init__()
        for number in static:
            if isinstance(args[number], torch.nn.Parameter):
                self.register_parameter(f"{_PREFIX}{number}", args[number])
            else:
                self.register_buffer(f"{_PREFIX}{number}", args[number])
        self._static, self._count = tuple(static), len(args)
        self._known: dict[int, Any] = {
            number: value
            for number, value in enumerate(args)
            if not isinstance(value, torch.Tensor)
        }
        self._known |= dict.fromkeys(literal)  # nothing reads them any more
        inner = _with_literals(graph, {number: args[number].item() for number in literal})
        self._inner = [inner]  # a list, for a module would take it for a part of itself
        self.train(graph.training)

    def forward(self, *tensors: torch.Tensor) -> Any:
        known = self._known | {n: getattr(self, f"{_PREFIX}{n}") for n in self._static}
        rest = iter(tensors)
        args = [known[n] if n in known else next(rest) for n in range(self._count)]
        return self._inner[0](*args)


def number_of(name: str) -> int:
    """The argument that a bound graph's parameter or buffer is, by its name."""
    return int(name.removeprefix(_PREFIX))


def is_static(placeholder: Node) -> bool:
    """Whether an argument is a parameter or a buffer of the module that is compiled."""
    return "_dynamo_static_input_type" in (placeholder.meta.get("tensor_dict") or {})


def is_literal(placeholder: Node) -> bool:
    """Whether an argument is a Python number that Dynamo passes as a tensor."""
    users = list(placeholder.users)
    return bool(users) and all(u.op == "call_method" and u.target == "item" for u in users)


@dataclass(frozen=True)
class ArgumentView:
    """A result of a graph that is an argument, or a view of one: it shares the argument's memory.

    Attributes:
        output, argument: numbers of the result and the argument.
        size, stride, offset: of the view, counted in elements; the offset from the argument's own.
    """

    output: int
    argument: int
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any

    @property
    def varies(self) -> bool:
        """Whether a number of it is symbolic."""
        numbers = (*self.size, *self.stride, self.offset)
        return any(isinstance(number, torch.SymInt) for number in numbers)

    def of(self, argument: torch.Tensor) -> torch.Tensor:
        """The view of an actual argument."""
        offset = argument.storage_offset() + self.offset
        return argument.as_strided(self.size, self.stride, offset)


def argument_views(graph: GraphModule) -> list[ArgumentView]:
    """The results of a graph of Dynamo's that share memory with arguments."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    owners = {_storage(node): number for number, node in enumerate(placeholders)}
    output = next(node for node in graph.graph.nodes if node.op == "output")
    found = []
    for number, node in enumerate(output.args[0]):
        storage = _storage(node)
        if storage is not None and storage in owners:
            value, owner = node.meta["example_value"], owners[storage]
            start = placeholders[owner].meta["example_value"].storage_offset()
            place = tuple(value.shape), tuple(value.stride()), value.storage_offset() - start
            found.append(ArgumentView(number, owner, *place))
    return found


def _storage(node: Any) -> int | None:
    """What tells the memory of a node's tensor from others; None for what is no tensor."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return int(value.untyped_storage()._cdata)


def _with_literals(graph: GraphModule, values: Mapping[int, Any]) -> GraphModule:
    """The graph with the values of some placeholders, all `is_literal`, where it reads them."""
    if not values:
        return graph
    changed = Graph()
    changed.output(changed.graph_copy(graph.graph, {}))
    placeholders = [node for node in changed.nodes if node.op == "placeholder"]
    for number, value in values.items():
        for item in list(placeholders[number].users):
            known = {item: value}
            for reader in list(item.users):
                reader.args = map_arg(reader.args, lambda node, known=known: known.get(node, node))
                reader.kwargs = map_arg(
                    reader.kwargs, lambda node, known=known: known.get(node, node)
                )
            changed.erase_node(item)
    return GraphModule(graph, changed)
