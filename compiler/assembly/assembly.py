"""Assembly: a settled graph and compiled kernels become a `Recipe`.

Every operand gets its place in the arena or among the constants (`assembly.nodes`).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tilesmith.compiler.assembly.control import control_steps, scratch_bytes
from tilesmith.compiler.assembly.nodes import CheckedSteps, NodeAssembler, RecipeStore, host_words
from tilesmith.compiler.assembly.weights import Constants
from tilesmith.compiler.backends.backend import Compiled, backend_of
from tilesmith.compiler.graph.graph import Body, Node, TensorInfo
from tilesmith.compiler.graph.indices import index_fault
from tilesmith.compiler.numerics.index_ranges import IndexRanges, index_operands
from tilesmith.compiler.numerics.precision import precision_of
from tilesmith.compiler.recipe.areas import starts_of
from tilesmith.compiler.recipe.layouts import PLAIN, physical_bytes
from tilesmith.compiler.recipe.memory import Arrange, plan_arena, side_by_side
from tilesmith.compiler.recipe.placement import Placement, device_tensors, held_tensors, place
from tilesmith.compiler.recipe.program import (
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
from tilesmith.compiler.recipe.updates import written_over
from tilesmith.compiler.settling.options import Option
from tilesmith.compiler.settling.settlement import Settled
from tilesmith.search_space.expressions.ranges import WholeRange
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ModelError, VerificationError
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
    store = RecipeStore(Constants(backend.in_callers_memory))
    in_place = bool(settled.graph.updates) and backend.in_callers_memory
    updated = written_over(settled.graph, settled.layouts) if in_place else {}
    placing = arrange if backend.reuses_memory else side_by_side
    assembler = _Assembler(settled, kernels, placing, store, updated=updated)
    recipe = assembler.recipe(target, threads)
    store.constants.known.clear()  # its keys hold the assembler: a graph's weights would outlive it
    return recipe


def _counted(node: Node, body: Body) -> dict[str, WholeRange]:
    """The range of a loop's counter inside its body."""
    return {body.counter: (0, node.attribute("trips") - 1)} if body.counter else {}


class _Assembler(NodeAssembler):
    """A graph being assembled: the model, or the body of a control node inside another.

    Args:
        around: what the body is inside of; None for the model.
        body: whose graph it is.
        updated: of the model, inputs that are written where they are (`updates.written_over`).
        counted: of a loop's body, the range of its counter.
        base: byte of the arena at which its own memory starts, once that is known.
    """

    def __init__(
        self,
        settled: Settled,
        kernels: Kernels,
        arrange: Arrange,
        store: RecipeStore,
        around: "_Assembler | None" = None,
        body: Body | None = None,
        updated: Mapping[str, tuple[str, str]] | None = None,
        counted: Mapping[str, WholeRange] | None = None,
    ) -> None:
        super().__init__(settled, store)
        self._ranges = IndexRanges(self.graph, counted)
        self.kernels = kernels
        self.base = 0
        self._around, self._body = around, body
        self._node: Node | None = None
        self._inside = {
            node: tuple(
                _Assembler(inner, kernels, arrange, store, self, own, counted=_counted(node, own))
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
            return self.constant(name)
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
        flag = self.store.constants.add(("\0true", PLAIN), np.ones(1, np.bool_), None)
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
        steps = CheckedSteps()
        checked: set[tuple[str, tuple[int, ...]]] = set()
        ends: dict[Node, int] = {}
        for node in graph.nodes:
            if node.kind == "kernel":
                checks = []
                for name, check in self._checks(node).items():
                    if (known := (self._origin(name), check.extents)) not in checked:
                        checked.add(known)
                        checks.append((check, self._sources(name)))
                kernel = self._kernel(node, self.settled.options[node])
                steps.add_kernel(kernel, node.writes[0], checks)
            elif node.kind == "control":
                steps.add(*self._control(node))
            elif node.kind == "host":
                steps.add(self._host(node))
            ends[node] = len(steps.steps) - 1
        done = tuple(steps.steps)
        inputs = tuple(self._ref(info) for info in graph.inputs)
        outputs = tuple(self._ref(info) for info in graph.outputs)
        return Recipe(
            graph.name, target, threads, inputs, outputs, done,
            tuple(self.store.codes), self.store.constants.joined(), self.placement.nbytes,
            graph.opsets, self._report(done),
            private=self.placement.private,
            lent=tuple(self.store.constants.lent),
            updates=tuple(Update(name, result) for name, result in graph.updates.items()),
            tensors=held_tensors(graph, self.settled.layouts, ends, self._ref),
        )  # fmt: skip

    def _checks(self, node: Node) -> dict[str, IndexCheck]:
        """What has to be made sure of before a kernel runs, by the tensor looked at.

        Raises:
            ModelError: constant indices are out of range.
        """
        where, checks = f"{node.work.operator} '{node.name}'", {}
        for name, axes in index_operands(node):
            if name in self.graph.constants:
                if fault := index_fault(self.graph.constants[name], axes):
                    raise ModelError(f"{where} {fault}")
            elif not self._ranges.within(name, axes):
                checks[name] = IndexCheck(where, self._ref(self.graph.info(name)), axes)
        return checks

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
        nbytes = (compiled.nbytes[parameter] for parameter in compiled.parameters)
        places = tuple(
            self._arena(argument, size) if isinstance(argument, str) else argument
            for argument, size in zip(self.arguments(node, option, compiled), nbytes, strict=True)
        )
        return KernelStep(
            self._called(node.name), workload.key, config.key, option.origin,
            self.store.code(compiled.code), places, threads=option.threads,
            sources=tuple(map(self._called, node.sources)),
        )  # fmt: skip

    def _called(self, name: str) -> str:
        """What a node of the graph is called here, if it is a body's that others have, too."""
        return name if self._body is None else self._body.called.get(name, name)

    def _arena(self, name: str, nbytes: int) -> Place:
        layout = self.settled.layouts.get(name, PLAIN)
        info = self.graph.info(name)
        size = physical_bytes(layout, info.dims, info.dtype)
        if size != nbytes:  # an error, not an assertion: it guards memory
            raise VerificationError(f"'{name}' has {size} bytes; its kernel expects {nbytes}")
        return self.where(name)

    def _host(self, node: Node) -> HostStep:
        reads, writes = (
            tuple(self._ref(self.graph.info(name)) for name in names)
            for names in (dict.fromkeys(node.reads), node.writes)
        )
        return HostStep(*host_words(node, self.graph), reads, writes, node.sources)

    def _ref(self, info: TensorInfo) -> TensorRef:
        if info.name in self.graph.constants:
            place = self.constant(info.name)
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
        hosts = [step for step in steps if isinstance(step, HostStep)]
        nbytes, precision = self.placement.nbytes, precision_of(self.graph)
        return self.report(kernels_of(steps), hosts, peak_bytes=nbytes, precision=precision)
