"""Assembly: a settled graph and compiled kernels become a `Recipe`.

Weights are packed here, once; every operand gets its place in the arena or among the constants.
Invariant: each distinct constant is stored once, on a cache line, and those that no code reads any
more (weights that were packed) are not stored at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.assembly.control import control_steps, scratch_bytes
from tilesmith.compiler.assembly.weights import Constants
from tilesmith.compiler.backends.backend import Compiled, backend_of
from tilesmith.compiler.graph.graph import Body, Graph, Node, TensorInfo
from tilesmith.compiler.graph.indices import index_fault
from tilesmith.compiler.host.nodes import REFERENCE, node_proto
from tilesmith.compiler.numerics.precision import precision_of
from tilesmith.compiler.recipe.areas import starts_of
from tilesmith.compiler.recipe.layouts import PLAIN, pack, physical_bytes
from tilesmith.compiler.recipe.memory import Arrange, plan_arena, side_by_side
from tilesmith.compiler.recipe.placement import Placement, device_tensors, place
from tilesmith.compiler.recipe.program import (
    NOWHERE,
    CodeObject,
    DeviceStep,
    HostStep,
    IndexCheck,
    KernelStep,
    Place,
    Recipe,
    Report,
    Step,
    TensorRef,
    Update,
    kernels_of,
)
from tilesmith.compiler.recipe.tensor_map import held_tensors
from tilesmith.compiler.recipe.updates import written_over
from tilesmith.compiler.settling.options import Option
from tilesmith.compiler.settling.settlement import TRANSFORM, Settled
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ModelError, VerificationError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

Kernels = Mapping[tuple[Workload, Config], Compiled]


def assemble(
    settled: Settled,
    kernels: Kernels,
    target: Target,
    threads: int,
    arrange: Arrange = plan_arena,
) -> Recipe:
    """Put everything in its place.

    Args:
        kernels: compiled code of every (workload, configuration) that the graph runs.
        arrange: places what lies in arenas.
    """
    backend = backend_of(target)
    constants = Constants(backend.lends_weights)
    updated = written_over(settled.graph, settled.layouts) if backend.updates_in_place else {}
    placing = arrange if backend.reuses_memory else side_by_side
    assembler = _Assembler(settled, kernels, placing, constants, updated=updated)
    recipe = assembler.recipe(target, threads)
    constants.known.clear()  # its keys hold the assembler: a graph's weights would outlive it
    return recipe


class _Assembler:
    """A graph being assembled: the model, or the body of a control node inside another.

    Args:
        around: what the body is inside of; None for the model.
        body: whose graph it is.
        updated: of the model, inputs that are written where they are (`updates.written_over`).
        base: byte of the arena at which its own memory starts, once that is known.
    """

    def __init__(
        self,
        settled: Settled,
        kernels: Kernels,
        arrange: Arrange,
        constants: Constants,
        around: _Assembler | None = None,
        body: Body | None = None,
        updated: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self.settled = settled
        self.graph: Graph = settled.graph
        self.kernels = kernels
        self.base = 0
        self.constants = constants
        self.codes: dict[CodeObject, int] = around.codes if around else {}
        self.code_list: list[CodeObject] = around.code_list if around else []
        self._around, self._body = around, body
        self._node: Node | None = None
        self._inside = {
            node: tuple(
                _Assembler(inner, kernels, arrange, constants, self, own)
                for inner, own in zip(settled_bodies, node.bodies, strict=True)
            )
            for node, settled_bodies in settled.bodies.items()
        }
        scratch = {
            node: scratch_bytes(node, [body.nbytes for body in bodies])
            for node, bodies in self._inside.items()
        }
        updated = updated or {}
        shared = [name for _, name in body.shared] if body else [*updated]
        sizes, ties = self._sizes(), updated.values()
        self.placement: Placement = place(self.graph, sizes, arrange, scratch, shared, ties)
        away = {source for source, _ in self.placement.elsewhere.values()}
        here = [name for name in updated if name in away]
        starts = starts_of([sizes[name] for name in here])
        self._callers: dict[str, int] = dict(zip(here, starts, strict=False))

    @property
    def nbytes(self) -> int:
        """Of its own part of the arena."""
        return self.placement.nbytes

    def where(self, name: str) -> Place:
        """The place of a tensor that is no value of the host's alone."""
        if name in self.graph.constants:
            return self.constants.add((name, PLAIN), self.graph.constants[name], self)
        if name not in self.placement.elsewhere:
            return Place("arena", self.base + self.placement.offsets[name])
        source, distance = self.placement.elsewhere[name]
        if self._around is None:
            return Place("caller", self._callers[source] + distance)
        assert self._body is not None and self._node is not None
        number = next(number for number, own in self._body.shared if own == source)
        outer = self._around.where(self._node.inputs[number])
        return Place(outer.region, outer.offset + distance)

    def lies_outside(self, name: str) -> bool:
        """Whether an input is where it is outside."""
        return name in self.placement.elsewhere

    def device_steps(self) -> tuple[DeviceStep, ...]:
        """The steps of a body, which has none on the host and nothing to check."""
        steps: list[DeviceStep] = []
        for node in self.graph.nodes:
            if node.kind == "kernel":
                if self._checks(node):
                    raise VerificationError(f"a body checks indices of {node.describe()}")
                steps.append(self._kernel(node, self.settled.options[node]))
            elif node.kind == "control":
                steps += self._control(node)
            elif node.kind == "host":
                raise VerificationError(f"a body has {node.describe()} on the host")
        return tuple(steps)

    def _control(self, node: Node) -> list[DeviceStep]:
        bodies: Sequence[_Assembler] = self._inside[node]
        for body in bodies:
            body.base, body._node = self.base + self.placement.scratch[node], node
        flag = self.constants.add(("\0true", PLAIN), np.ones(1, np.bool_), None)
        return control_steps(node, bodies, self.where, flag)

    def _sizes(self) -> dict[str, int]:
        sizes = {}
        names = device_tensors(self.graph)
        if self._body is not None:
            names |= {info.name for info in (*self.graph.inputs, *self.graph.outputs)}
        for name in names - self.graph.constants.keys():
            info = self.graph.info(name)
            layout = self.settled.layouts.get(name, PLAIN)
            sizes[name] = physical_bytes(layout, info.dims, info.dtype)
        return sizes

    def recipe(self, target: Target, threads: int) -> Recipe:
        graph = self.graph
        steps: list[Step] = []
        run: dict[str, int] = {}
        """What the kernels since the last host step write, and which step does."""
        checked: set[tuple[str, tuple[int, ...]]] = set()
        ends: dict[Node, int] = {}
        for node in graph.nodes:
            if node.kind == "kernel":
                checks = self._checks(node)
                steps.append(self._kernel(node, self.settled.options[node]))
                for name, check in checks.items():
                    known = self._origin(name), check.extents
                    if known in checked:
                        continue
                    checked.add(known)
                    # As early as can be: kernels that no check parts are one native call.
                    computed_in_run = not run.keys().isdisjoint(self._sources(name))
                    first = (
                        len(steps) - 1 if computed_in_run or not run else next(iter(run.values()))
                    )
                    step = steps[first]
                    assert isinstance(step, KernelStep)
                    steps[first] = replace(step, checks=(*step.checks, check))
                run |= dict.fromkeys(node.outputs, len(steps) - 1)
            elif node.kind == "control":
                steps += self._control(node)
                run = {}
            elif node.kind == "host":
                steps.append(self._host(node))
                run = {}
            ends[node] = len(steps) - 1
        done = tuple(steps)
        inputs = tuple(self._ref(info) for info in graph.inputs)
        outputs = tuple(self._ref(info) for info in graph.outputs)
        return Recipe(
            graph.name, target, threads, inputs, outputs, done, tuple(self.code_list),
            self.constants.joined(), self.placement.nbytes, graph.opsets, self._report(done),
            private=self.placement.private,
            lent=tuple(self.constants.lent),
            updates=tuple(Update(name, result) for name, result in graph.updates.items()),
            tensors=held_tensors(graph, self.settled.layouts, ends, self._ref),
        )  # fmt: skip

    def _checks(self, node: Node) -> dict[str, IndexCheck]:
        """What has to be made sure of before a kernel runs, by the tensor looked at.

        Raises:
            ModelError: constant indices are out of range.
        """
        workload = node.workload
        assert workload is not None
        template = template_of(workload.operator)
        extents = template.index_extents(workload)
        checks: dict[str, IndexCheck] = {}
        for operand, name in zip(template.operands(workload), node.inputs, strict=True):
            if operand.name not in extents:
                continue
            where, axes = f"{workload.operator} '{node.name}'", extents[operand.name]
            if name in self.graph.constants:
                if fault := index_fault(self.graph.constants[name], axes):
                    raise ModelError(f"{where} {fault}")
            elif (bound := self._index_bound(name)) is None or bound > min(axes):
                checks[name] = IndexCheck(where, self._ref(self.graph.info(name)), axes)
        return checks

    def _index_bound(self, name: str) -> int | None:
        """What a tensor's elements are below, if a kernel made them as indices."""
        node = self.graph.producers.get(name)
        if node is None or node.kind == "host":
            return None
        if node.workload is not None:
            return template_of(node.workload.operator).index_bound(node.workload)
        bounds = [self._index_bound(source) for source in node.inputs]
        return (
            max((b for b in bounds if b is not None), default=None) if None not in bounds else None
        )

    def _origin(self, name: str) -> str:
        """The tensor whose elements a view shows, all of them."""
        node = self.graph.producers.get(name)
        if node is None or node.kind != "view":
            return name
        same = self.graph.info(node.inputs[0]).elements == self.graph.info(name).elements
        return self._origin(node.inputs[0]) if same else name

    def _sources(self, name: str) -> set[str]:
        """The tensor and those that its bytes are parts or wholes of."""
        node = self.graph.producers.get(name)
        if node is None or node.kind not in ("view", "join"):
            return {name}
        return {name}.union(*(self._sources(source) for source in node.inputs))

    def _kernel(self, node: Node, option: Option) -> KernelStep:
        workload, config = option.workload, option.config
        assert workload is not None and config is not None
        compiled = self.kernels[workload, config]
        operands = dict(
            zip((o.name for o in template_of(workload.operator).operands(workload)), node.inputs,
                strict=True)
        )  # fmt: skip
        layouts = dict(zip(operands, option.operands, strict=True))
        prepared = self._packed(node, compiled, operands) or self._prepared(
            workload, compiled, operands
        )
        places = []
        for parameter in compiled.parameters:
            if parameter == compiled.output:
                places.append(self._arena(node.outputs[0], compiled.nbytes[parameter]))
            elif parameter in prepared:
                key = (f"{node.outputs[0]}\0{parameter}", "prepared")
                places.append(self.constants.add(key, prepared[parameter], self))
            elif parameter in compiled.unread:
                places.append(NOWHERE)
            elif operands[parameter] in self.graph.constants:
                name, layout = operands[parameter], layouts[parameter]
                array = _logical(self.graph.constants[name], layout, _shape(workload, parameter))
                places.append(self.constants.add((name, layout), pack(layout, array), self))
            else:
                places.append(self._arena(operands[parameter], compiled.nbytes[parameter]))
        return KernelStep(
            node.name, workload.key, config.key, option.origin, self._code(compiled.code),
            tuple(places), threads=option.threads, sources=node.sources,
        )  # fmt: skip

    def _packed(
        self, node: Node, compiled: Compiled, operands: Mapping[str, str]
    ) -> Mapping[str, NDArray[Any]]:
        """The prepared buffers, where all of them are constants of the graph; else none."""
        own = {*compiled.parameters} - operands.keys() - {compiled.output}
        known = {buffer: self.settled.packed.get((node.outputs[0], buffer), "") for buffer in own}
        packed = {b: self.graph.constants[name] for b, name in known.items() if name}
        whole = len(packed) == len(own)
        return (
            packed
            if whole and all(a.nbytes == compiled.nbytes[b] for b, a in packed.items())
            else {}
        )

    def _prepared(
        self, workload: Workload, compiled: Compiled, operands: Mapping[str, str]
    ) -> Mapping[str, NDArray[Any]]:
        known = {
            operand: self.graph.constants[name].reshape(_shape(workload, operand))
            for operand, name in operands.items()
            if workload.is_constant(operand)
        }
        return compiled.prepare(known)

    def _arena(self, name: str, nbytes: int) -> Place:
        layout = self.settled.layouts.get(name, PLAIN)
        info = self.graph.info(name)
        size = physical_bytes(layout, info.dims, info.dtype)
        if size != nbytes:  # an error, not an assertion: it guards memory
            raise VerificationError(f"'{name}' has {size} bytes; its kernel expects {nbytes}")
        return self.where(name)

    def _code(self, code: CodeObject) -> int:
        if code not in self.codes:
            self.codes[code] = len(self.code_list)
            self.code_list.append(code)
        return self.codes[code]

    def _host(self, node: Node) -> HostStep:
        proto = node_proto(node, dict(self.graph.opsets)).SerializeToString()
        names = dict.fromkeys(node.reads)
        operator = node.operator
        if operator == REFERENCE:
            operator = str(node.attribute("workload")).split()[0]
        return HostStep(
            f"{operator} '{node.name or node.writes[0]}'",
            operator,
            proto,
            tuple(self._ref(self.graph.info(name)) for name in names),
            tuple(self._ref(self.graph.info(name)) for name in node.writes),
            node.sources,
        )

    def _ref(self, info: TensorInfo) -> TensorRef:
        if info.name in self.graph.constants:
            array = self.graph.constants[info.name]
            place = self.constants.add((info.name, PLAIN), array, self)
        elif info.name in self.placement.offsets or info.name in self.placement.elsewhere:
            place = self.where(info.name)
        else:
            place = Place("value")
        outside = self.graph.converted.get(info.name)
        if outside is None:
            return TensorRef(info, place)
        held = place.region != "value"  # else its kernels have fallen back to the host
        inside = self.graph.info(info.name).dtype if held else ""
        return TensorRef(TensorInfo(info.name, outside, info.shape), place, inside)

    def _report(self, steps: tuple[Step, ...]) -> Report:
        kernels = list(kernels_of(steps))
        hosts = [step.name for step in steps if isinstance(step, HostStep)]
        conversions = sum(map(_is_conversion, kernels))
        return Report.of(
            (step.origin for step in kernels if not _is_conversion(step)),
            host=len(hosts), host_nodes=tuple(hosts), conversions=conversions,
            peak_bytes=self.placement.nbytes, constant_bytes=self.constants.size,
            estimated_s=self.settled.seconds, precision=precision_of(self.graph),
        )  # fmt: skip


def _is_conversion(step: KernelStep) -> bool:
    return step.workload.split()[0] == TRANSFORM


def _logical(array: NDArray[Any], layout: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """A constant in the shape that its layout speaks of: an image's four axes, whatever the shape
    its kernel knows it in (that of an elementwise one is of what is stored)."""
    if layout == PLAIN:
        return array.reshape(shape)
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def _shape(workload: Workload, operand: str) -> tuple[int, ...]:
    """Logical shape of an operand in its template."""
    operands = template_of(workload.operator).operands(workload)
    return next(o.shape for o in operands if o.name == operand)
