"""What a node needs to become a step, whether sizes vary or not: its arguments, code and checks.

Weights are packed here, once. Invariant: each distinct constant is stored once, on a cache line,
and those that no code reads any more (weights that were packed) are not stored at all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from tilesmith.compiler.assembly.weights import Constants
from tilesmith.compiler.backends.backend import Compiled
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.host.nodes import REFERENCE, node_proto
from tilesmith.compiler.recipe.layouts import PLAIN, pack
from tilesmith.compiler.recipe.program import (
    NOWHERE,
    CodeObject,
    HostStep,
    IndexCheck,
    KernelStep,
    Place,
    Report,
    Step,
)
from tilesmith.compiler.recipe.variants import HostPart, KernelPart
from tilesmith.compiler.settling.options import Option
from tilesmith.compiler.settling.settlement import TRANSFORM, Settled
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


@dataclass
class RecipeStore:
    """What all that is assembled for one recipe shares: constants and code objects, equal ones
    once."""

    constants: Constants
    codes: dict[CodeObject, int] = field(default_factory=dict)

    def code(self, code: CodeObject) -> int:
        """The number of a code object."""
        return self.codes.setdefault(code, len(self.codes))


class NodeAssembler:
    """The nodes of a settled graph, one by one."""

    def __init__(self, settled: Settled, store: RecipeStore) -> None:
        self.settled, self.store = settled, store
        self.graph: Graph = settled.graph

    def constant(self, name: str, layout: str = PLAIN, shape: Sequence[int] | None = None) -> Place:
        """The place of a constant of the graph, in a layout of a logical shape."""
        array = self.graph.constants[name]
        if layout != PLAIN:  # an image's four axes, whatever the shape its kernel knows it in
            array = array.reshape((1,) * (4 - array.ndim) + array.shape)
        elif shape is not None:
            array = array.reshape(shape)
        return self.store.constants.add((name, layout), pack(layout, array), self)

    def arguments(self, node: Node, option: Option, compiled: Compiled) -> list[str | Place]:
        """What the code of a kernel is given: tensors by name, constants by place."""
        workload = option.workload
        assert workload is not None
        template = template_of(workload.operator)
        shapes = {operand.name: operand.shape for operand in template.operands(workload)}
        names = dict(zip(shapes, node.inputs, strict=True))
        layouts = dict(zip(shapes, option.operands, strict=True))
        prepared = self._packed(node, compiled, names)
        prepared = prepared or self._prepared(workload, compiled, names)
        arguments: list[str | Place] = []
        for parameter in compiled.parameters:
            if parameter == compiled.output:
                arguments.append(node.writes[0])
            elif parameter in prepared:
                key = (f"{node.writes[0]}\0{parameter}", "prepared")
                arguments.append(self.store.constants.add(key, prepared[parameter], self))
            elif parameter in compiled.unread:
                arguments.append(NOWHERE)
            elif (name := names[parameter]) in self.graph.constants:
                arguments.append(self.constant(name, layouts[parameter], shapes[parameter]))
            else:
                arguments.append(name)
        return arguments

    def _packed(
        self, node: Node, compiled: Compiled, names: Mapping[str, str]
    ) -> Mapping[str, NDArray[Any]]:
        """The prepared buffers, where all of them are constants of the graph; else none."""
        own = {*compiled.parameters} - names.keys() - {compiled.output}
        known = {buffer: self.settled.packed.get((node.writes[0], buffer), "") for buffer in own}
        packed = {b: self.graph.constants[name] for b, name in known.items() if name}
        fit = all(array.nbytes == compiled.nbytes[b] for b, array in packed.items())
        return packed if len(packed) == len(own) and fit else {}

    def _prepared(
        self, workload: Workload, compiled: Compiled, names: Mapping[str, str]
    ) -> Mapping[str, NDArray[Any]]:
        shapes = {o.name: o.shape for o in template_of(workload.operator).operands(workload)}
        known = {
            operand: self.graph.constants[name].reshape(shapes[operand])
            for operand, name in names.items()
            if workload.is_constant(operand)
        }
        return compiled.prepare(known)

    def report(
        self, kernels: Iterable[KernelStep | KernelPart], hosts: Iterable[HostStep | HostPart],
        **facts: Any,
    ) -> Report:  # fmt: skip
        """What became of the nodes."""
        every = list(kernels)
        own = [step.origin for step in every if step.workload.split()[0] != TRANSFORM]
        names = tuple(step.name for step in hosts)
        return Report.of(
            own, host=len(names), host_nodes=names, conversions=len(every) - len(own),
            constant_bytes=self.store.constants.size, estimated_s=self.settled.seconds, **facts,
        )  # fmt: skip


def host_words(node: Node, graph: Graph) -> tuple[str, str, bytes]:
    """Name, operator and serialised node of a step on the host."""
    operator = node.operator
    if operator == REFERENCE:
        operator = str(node.attribute("workload")).split()[0]
    proto = node_proto(node, dict(graph.opsets)).SerializeToString()
    return f"{operator} '{node.name or node.writes[0]}'", operator, proto


class CheckedSteps:
    """Steps in order, indices checked as early as can be: kernels that no check parts are one
    native call."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._run: dict[str, int] = {}
        """What the kernels since the last other step write, and which step does."""

    def add(self, *steps: Step) -> None:
        """Steps that are no kernels."""
        self.steps += steps
        self._run = {}

    def add_kernel(
        self, step: KernelStep, output: str, checks: Iterable[tuple[IndexCheck, set[str]]]
    ) -> None:
        """A kernel; each check comes with the tensors whose bytes its indices may be."""
        self.steps.append(step)
        last = len(self.steps) - 1
        for check, sources in checks:
            computed_in_run = not self._run.keys().isdisjoint(sources)
            first = last if computed_in_run or not self._run else next(iter(self._run.values()))
            checked = self.steps[first]
            assert isinstance(checked, KernelStep)
            self.steps[first] = replace(checked, checks=(*checked.checks, check))
        self._run[output] = last
