"""Programs that cannot be compiled whole: what can be is cut out in parts, the rest stays.

    pure program -- nodes that stay --> PyTorch's partitioner
        --> a graph of parts and single operators, which PyTorch runs

A node stays where the exporter has no function for its operator; where it draws random numbers, so
that seeds mean what they mean to PyTorch; and, if all that leaves a program that still cannot be
written, where the node by itself cannot be. Parts that compute nothing (views alone) stay, too.
Invariant: parts are acyclic and maximal, as the partitioner makes them.
"""

import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from tilesmith.capabilities.pytorch.exporter import has_function
from tilesmith.capabilities.pytorch.model import exported, is_random, pure_program, quiet
from tilesmith.search_space.support.errors import ModelError

_PREFIX = "part_"


@dataclass(frozen=True, eq=False)
class Partition:
    """A program in parts.

    Attributes:
        graph: calls the parts, which are its submodules, and the operators that stay.
        parts: by name the arguments (numbers) of it that are weights; each gives a tuple.
        stay: what stays, how often.
        weights: of the arguments of the program, by number; the others are its inputs, in order.
    """

    graph: GraphModule
    parts: Mapping[str, tuple[int, ...]]
    stay: Mapping[str, int]
    weights: Mapping[int, torch.Tensor]

    def run(self, tensors: Sequence[Any]) -> list[Any]:
        """The program's outputs, of its inputs."""
        rest = iter(tensors)
        count = sum(node.op == "placeholder" for node in self.graph.graph.nodes)
        args = [self.weights[n] if n in self.weights else next(rest) for n in range(count)]
        with torch.no_grad():
            return list(self.graph(*args))


def partitioned(program: ExportedProgram) -> Partition | None:
    """The program in parts; None if nothing of it can be compiled, or nothing tells what cannot.

    Args:
        program: pure, as `pure_program` makes it.
    """
    with quiet(), torch.no_grad():
        return _partitioned(program)


def _partitioned(program: ExportedProgram) -> Partition | None:
    module = program.graph_module
    _without_views_of_all(module)
    stay = _unwritable(module) or _unwritable_alone(module)
    if not stay:
        return None
    weights = _weights(program)
    support = _Others(stay)
    partitioner = CapabilityBasedPartitioner(module, support, allows_single_node_partition=True)
    proposed = [p for p in partitioner.propose_partitions() if any(map(_computes, p.nodes))]
    if not proposed:
        return None
    graph = partitioner.fuse_partitions(proposed, prefix=_PREFIX)
    names = [node for node in graph.graph.nodes if node.op == "placeholder"]
    held = {node: number for number, node in enumerate(names) if number in weights}
    parts = {}
    for node in graph.graph.nodes:
        if node.op == "call_module":
            parts[str(node.target)] = tuple(i for i, arg in enumerate(node.args) if arg in held)
            _gives_a_tuple(graph, node)
    graph.recompile()
    return Partition(graph, parts, Counter(map(named, stay)), weights)


def named(node: Node) -> str:
    """An operator as PyTorch names it: "aten.bernoulli.p"."""
    target = node.target
    return str(target) if not callable(target) or isinstance(target, torch._ops.OperatorBase) else (
        getattr(target, "__name__", str(target))
    )  # fmt: skip


def _without_views_of_all(module: GraphModule) -> None:
    """Read what decompositions gave another name, which no program that is traced may contain."""
    for node in module.graph.find_nodes(op="call_function", target=torch.ops.prims.view_of.default):
        node.replace_all_uses_with(node.args[0])
        module.graph.erase_node(node)


# -- what stays ----------------------------------------------------------------------------------
def _unwritable(module: GraphModule) -> set[Node]:
    """Nodes the exporter has no function for, and those that draw random numbers."""
    return {n for n in _calls(module) if is_random(n) or not has_function(n)}


def _unwritable_alone(module: GraphModule) -> set[Node]:
    """Nodes that cannot be written though each operator has a function: each is tried alone."""
    tried: dict[str, bool] = {}
    stay = set()
    for node in _calls(module):
        given = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        key = f"{node.target} {given}"
        if key not in tried:
            tried[key] = _writable_alone(node)
        if not tried[key]:
            stay.add(node)
    return stay


def _writable_alone(node: Node) -> bool:
    examples = {n: n.meta.get("val") for n in node.all_input_nodes}
    tensors = [e for e in examples.values() if isinstance(e, torch.Tensor)]
    sizes = [size for t in tensors for size in t.shape]
    if len(tensors) < len(examples) or not all(isinstance(size, int) for size in sizes):
        return True  # nothing to try it with
    graph, copies = Graph(), {}
    for given in examples:
        copies[given] = graph.placeholder(given.name)
    result = graph.node_copy(node, copies.__getitem__)
    graph.output((result,) if isinstance(node.meta.get("val"), torch.Tensor) else result)
    args = tuple(torch.zeros(t.shape, dtype=t.dtype) for t in tensors)
    try:
        alone = exported(GraphModule(torch.nn.Module(), graph), args, name=node.name)
        pure_program(alone, node.name).model().graph({})
    except ModelError:
        return False
    return True


def _calls(module: GraphModule) -> list[Node]:
    return [
        node
        for node in module.graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
    ]


class _Others(OperatorSupportBase):  # type: ignore[misc]
    """Supports every call but those that stay; what takes a result out goes with who gives it."""

    def __init__(self, stay: Collection[Node]) -> None:
        self._stay = stay

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        while node.op == "call_function" and node.target is operator.getitem:
            node = node.args[0]
        return node.op == "call_function" and node not in self._stay


def _computes(node: Node) -> bool:
    view = getattr(node.target, "is_view", False)
    return isinstance(node.target, torch._ops.OpOverload) and not view


# -- the graph of parts --------------------------------------------------------------------------
def _weights(program: ExportedProgram) -> dict[int, torch.Tensor]:
    weights = {}
    for number, spec in enumerate(program.graph_signature.input_specs):
        if spec.kind is not InputKind.USER_INPUT:
            held = program.state_dict.get(spec.target)
            weights[number] = program.constants[spec.target] if held is None else held
    return weights


def _gives_a_tuple(graph: GraphModule, node: Node) -> None:
    """Let a part that gives one tensor give a tuple of it, as graphs of Dynamo's do."""
    part = graph.get_submodule(str(node.target))
    output = next(n for n in part.graph.nodes if n.op == "output")
    if isinstance(output.args[0], Node):
        output.args = ((output.args[0],),)
        part.recompile()
        with graph.graph.inserting_after(node):
            only = graph.graph.call_function(operator.getitem, (node, 0))
        node.replace_all_uses_with(only, delete_user_cb=lambda user: user is not only)


def replaced(partition: Partition, runs: Callable[[str, GraphModule], Any]) -> None:
    """Put what `runs` makes of each part in the part's place."""
    for name in partition.parts:
        part = partition.graph.get_submodule(name)
        setattr(partition.graph, name, _Calls(runs(name, part)))


class _Calls(torch.nn.Module):  # type: ignore[misc]
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = [function]

    def forward(self, *args: Any) -> Any:
        return self._function[0](*args)
