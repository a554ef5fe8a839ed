"""Graphs of TorchDynamo with their weights and numbers in them, as modules that can be traced.

Dynamo lifts a module's parameters and buffers to arguments, and Python numbers that vary to
tensors of no dimension. Kernels want weights that are known, and shapes too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from tilesmith.search_space.support.errors import ModelError

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
        inner = _simplified(graph, {number: args[number].item() for number in literal})
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
class ResultView:
    """A result of a graph that shares memory with an argument, or with an earlier result.

    Attributes:
        output: number of the result.
        argument, result: number of the argument, or of the result; the other is -1.
        size, stride, offset: of the view, counted in elements; the offset from the owner's own.
        plain: whether those numbers say it all: its elements are read as the owner's are.
    """

    output: int
    argument: int
    result: int
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    plain: bool

    def at(self, symbols: Mapping[Any, int]) -> "ResultView":
        """The view at certain sizes.

        Raises:
            ModelError: a number of it depends on something else.
        """

        def known(number: Any) -> int:
            if not isinstance(number, torch.SymInt):
                return int(number)
            value = number.node.expr.xreplace(symbols)
            if getattr(value, "free_symbols", ()):
                raise ModelError(f"it gives a view of an argument whose size {value} is not known")
            return int(value)

        size, stride = tuple(map(known, self.size)), tuple(map(known, self.stride))
        return replace(self, size=size, stride=stride, offset=known(self.offset))

    def of(self, owner: torch.Tensor) -> torch.Tensor:
        """The view of an actual tensor."""
        return owner.as_strided(self.size, self.stride, owner.storage_offset() + self.offset)


def views_of(graph: GraphModule) -> list[ResultView]:
    """The results of a graph of Dynamo's that share memory with arguments or with each other."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    owners = {_storage(node): (number, -1, node) for number, node in enumerate(placeholders)}
    output = next(node for node in graph.graph.nodes if node.op == "output")
    results = output.args[0]
    for number, node in enumerate(results):
        if _storage(node) not in owners and _is_whole(node):
            owners[_storage(node)] = (-1, number, node)
    views = []
    for number, node in enumerate(results):
        if (storage := _storage(node)) is None or storage not in owners:
            continue
        argument, result, owner = owners[storage]
        if result != number:
            value, whole = node.meta["example_value"], owner.meta["example_value"]
            offset = value.storage_offset() - whole.storage_offset()
            plain = _reading(value) == _reading(whole)
            place = tuple(value.shape), tuple(value.stride()), offset
            views.append(ResultView(number, argument, result, *place, plain))
    return views


def orders_of(graph: GraphModule) -> dict[int, tuple[int, ...]]:
    """By result of a graph, the order in which its axes lie in memory, where it is not their own:
    PyTorch's results keep the order of what they are computed of."""
    output = next(node for node in graph.graph.nodes if node.op == "output")
    orders = {}
    for number, node in enumerate(output.args[0]):
        meta = node.meta if isinstance(node, Node) else {}
        value = meta.get("example_value", meta.get("val"))
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            continue
        strides = [getattr(getattr(s, "node", None), "hint", s) for s in value.stride()]
        if None in strides or 0 in strides:
            continue
        order = sorted(range(len(strides)), key=strides.__getitem__, reverse=True)
        if order != list(range(len(strides))):
            orders[number] = tuple(order)
    return orders


def laid_out(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The same tensor, its axes in this order in memory."""
    back = [order.index(axis) for axis in range(len(order))]
    return tensor.permute(order).contiguous().permute(back)


def symbols_of(graph: GraphModule, args: Sequence[Any]) -> dict[Any, int]:
    """What the symbols of a graph's sizes are in a call."""
    numbers: dict[Any, int] = {}
    placeholders = (node for node in graph.graph.nodes if node.op == "placeholder")
    for node, arg in zip(placeholders, args, strict=True):
        example = node.meta.get("example_value")
        pairs = [(example, arg)]
        if isinstance(example, torch.Tensor):
            pairs = list(zip(example.shape, arg.shape, strict=True))
        for symbolic, actual in pairs:
            if isinstance(symbolic, torch.SymInt) and symbolic.node.expr.is_symbol:
                numbers[symbolic.node.expr] = int(actual)
    return numbers


def _reading(value: torch.Tensor) -> tuple[Any, ...]:
    return value.dtype, value.is_conj(), value.is_neg()


def _is_whole(node: Any) -> bool:
    """Whether a result is all of its memory, in order: others can be views of it."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor) or not value.is_contiguous():
        return False
    return bool(value.untyped_storage().nbytes() == value.numel() * value.element_size())


def _storage(node: Any) -> int | None:
    """What tells the memory of a node's tensor from others; None for what is no tensor."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return int(value.untyped_storage()._cdata)


def _simplified(graph: GraphModule, values: Mapping[int, Any]) -> GraphModule:
    """The graph with the values of some placeholders, all `is_literal`, where it reads them, and
    without what is there for gradients alone: nothing here has any."""
    if not values and not any(map(_is_for_gradients, graph.graph.nodes)):
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
    while waiting := [node for node in changed.nodes if _is_for_gradients(node)]:
        for node in waiting:
            if node.target is not torch._C._set_grad_enabled:
                _inline(graph, changed, node)
            changed.erase_node(node)
    return GraphModule(graph, changed)


_INLINED = {"autograd_function_apply": 2, "tag_activation_checkpoint": 1}
"""Functions whose forward is their first argument: by which argument its own begin."""


def _is_for_gradients(node: Node) -> bool:
    """Switches of gradients, functions that have a backward of their own, and checkpoints."""
    return node.target is torch._C._set_grad_enabled or str(node.target) in _INLINED


def _inline(module: GraphModule, graph: Graph, node: Node) -> None:
    """Put the body of a function's forward, which may hold such functions, in its place."""
    forward, arguments = node.args[0], node.args[_INLINED[str(node.target)] :]
    body = module.get_submodule(forward.target).graph
    inner = [n for n in body.nodes if n.op == "placeholder"]
    copies = dict(zip(inner, arguments, strict=True))
    with graph.inserting_before(node):
        results = graph.graph_copy(body, copies)
    if str(node.target) == "autograd_function_apply":
        results = results[0]  # what is kept for the backward comes behind
    for of_body in body.nodes:
        if of_body.op == "get_attr":
            copies[of_body].target = f"{forward.target}.{of_body.target}"
    _give(node, results)


def _give(node: Node, results: Any) -> None:
    """Let those who read the results of a node read these."""
    if isinstance(results, Node):
        node.replace_all_uses_with(results)
        return
    for reader in list(node.users):
        reader.replace_all_uses_with(results[reader.args[1]])
        reader.graph.erase_node(reader)
