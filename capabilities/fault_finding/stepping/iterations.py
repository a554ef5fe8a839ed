"""From a loop that goes wrong to the first iteration and kernel in which it does.

The loop is run by hand, one iteration and one step after the other, in the memory it has in the
model: moves and kernels are the recipe's own. Each kernel is compared with what its template's
reference makes of the operands that lie in memory just before it, so that nothing an earlier
iteration did is blamed on a later one. Loops and branches inside are gone through likewise.

What a body reads is compared with what is to be moved there:

    entry of a carried tensor    the exit's value of the iteration before, at first what begins it
    a row of a tensor outside    that row of what lies outside
    a tensor of the body         what its kernel wrote in this iteration

So a move from or to another place, and a tensor written over before it is read, are told from a
kernel that is wrong. Invariant: values are those that kernels were seen to write; no place and no
move has a part in what is expected.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.fault_finding.stepping.errors import tensor_error
from tilesmith.capabilities.fault_finding.stepping.steps import stepping
from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.graph.graph import Body, Graph, Node
from tilesmith.compiler.host.kernels import run_kernel
from tilesmith.compiler.recipe.layouts import normal, physical_shape, unpack
from tilesmith.compiler.recipe.program import (
    NOWHERE,
    BranchStep,
    DeviceStep,
    HostStep,
    KernelStep,
    LoopStep,
    MoveStep,
    Place,
    Recipe,
    Step,
)
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.runtime.workspace import Workspace
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.support.json_object import JsonObject
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

Array = NDArray[Any]
Outside = Callable[[str], Array | None]
"""The value of a tensor outside of the loop, where it is known."""


@dataclass
class MovedValues:
    """Values of one loop while it runs.

    Attributes:
        node: that the loop is of.
        body: what it runs.
        graph: of the body, with schedules.
        outside: what lies outside of it.
        written, before: what kernels wrote in this iteration, and in the one before.
        rows: what each iteration wrote, by tensor.
    """

    node: Node
    body: Body
    graph: Graph
    outside: Outside
    written: dict[str, Array] = field(default_factory=dict)
    before: dict[str, Array] = field(default_factory=dict)
    rows: dict[str, list[Array]] = field(default_factory=dict)

    def next(self) -> None:
        """An iteration is over."""
        for row in self.body.writes:
            value = self._of(row.inside, self.written)
            if value is not None:
                self.rows.setdefault(row.inside, []).append(value)
        self.before, self.written = self.written, {}

    def expected(self, name: str, iteration: int) -> Array | None:
        """What a tensor of the body has to be when it is read; None where that is not known."""
        here = self._of(name, self.written)
        if here is not None:
            return here
        for carried in self.body.carried:
            if carried.entry != name:
                continue
            if iteration > 0:
                return self._of(carried.exit, self.before)
            return self._input(carried.initial) if carried.initial >= 0 else None
        for row in self.body.reads:
            if row.inside == name:
                whole = self._input(row.outside)
                return None if whole is None else _part(whole, row.start + row.step * iteration)
        return None

    def apart(self) -> tuple[str, int, Array, Array] | None:
        """The first row outside that is not what an iteration wrote: tensor, iteration, what stands
        there and what should."""
        for row in self.body.writes:
            name = self.node.outputs[row.outside]
            whole = self.outside(name) if row.step else None
            for iteration, wanted in enumerate(self.rows.get(row.inside, ())):
                number = row.start + row.step * iteration
                part = None if whole is None else _part(whole, number, wanted.size)
                if part is not None and not same(part, wanted):
                    return name, iteration, part, wanted
        return None

    def _of(self, name: str, values: Mapping[str, Array]) -> Array | None:
        """A tensor's value, or that of the one which it is a view of."""
        while name not in values:
            producer = self.graph.producers.get(name)
            if producer is None or producer.kind != "view":
                return None
            name = producer.inputs[0]
        return values[name]

    def _input(self, number: int) -> Array | None:
        return self.outside(self.node.inputs[number])


def body_of(graphs: Sequence[Graph], graph: Graph) -> tuple[Node, Body] | None:
    """The control node and the body that a graph with schedules was made of."""
    names = {info.name for info in graph.inputs}
    for outer in graphs:
        for node in outer.nodes:
            for body in node.bodies:
                if body.graph is graph or names == {info.name for info in body.graph.inputs}:
                    return node, body
    return None


def same(row: Array, wanted: Array) -> bool:
    """Whether values are the same, bit by bit, whatever their shapes."""
    return row.reshape(-1).tobytes() == wanted.reshape(-1).tobytes()


def _part(whole: Array, number: int, size: int = 0) -> Array | None:
    """A part of a tensor, parts being its rows, or of a size each; None beyond its ends."""
    size = size or whole.size // max(1, whole.shape[0] if whole.ndim else 1)
    flat = whole.reshape(-1)
    if not 0 <= number * size <= flat.size - size:
        return None
    return np.asarray(flat[number * size : (number + 1) * size])


Close = Callable[[str, NDArray[Any], NDArray[Any]], bool]
"""Whether a result of an element type is its reference's but for rounding."""

_MOST = 10_000
"""Iterations that are gone through."""


@dataclass(frozen=True)
class WrongIteration(JsonObject, keys="found:ours ... sentence"):
    """The first kernel in a loop that is wrong on its own operands.

    Attributes:
        loop: its name.
        iteration: from 0 on, of loops inside others of each, outermost first; none of kernels that
            do a part of the same node's work before the loop begins.
        kernel: name of the step: of the tensor it writes, where its node has none.
        sources: the model's nodes whose work it does.
        workload, config: what it is.
        index, ours, wanted: the element that is farthest off.
        max_rel: how far, relative.
        moved: the tensor that is another than what was to be moved to it, or left in it, where that
            is at fault and no kernel.
    """

    loop: str
    iteration: tuple[int, ...]
    kernel: str
    sources: tuple[str, ...]
    workload: str
    config: str
    index: tuple[int, ...]
    ours: float
    wanted: float
    max_rel: float
    moved: str = ""

    @property
    def sentence(self) -> str:
        where = ", in it ".join(str(number) for number in self.iteration)
        work = f", which does the work of {', '.join(self.sources[:4])}" if self.sources else ""
        begin = f"the loop '{self.loop}' goes wrong in iteration {where}"
        if not self.iteration:
            begin = f"what '{self.loop}' computes before its loop goes wrong"
        if self.moved:
            reader = f", as '{self.kernel}' reads it," if self.kernel else ""
            return (
                f"{begin}: its kernels are right, and '{self.moved}'{reader} holds "
                f"{self.ours:.7g} at {list(self.index)} where {self.wanted:.7g} was to be moved "
                "or left"
            )
        return (
            f"{begin}: kernel '{self.kernel}' "
            f"({self.workload}){work} gives {self.ours:.7g} at {list(self.index)} where "
            f"{self.wanted:.7g} is expected of its operands there"
        )


def loop_of(steps: Sequence[Step], number: int) -> int | None:
    """The loop that wrote what a step did: it, or the one before the moves out of it; None of
    others."""
    loops = [at for at, step in enumerate(steps[: number + 1]) if isinstance(step, LoopStep)]
    if not loops or not all(isinstance(s, MoveStep) for s in steps[loops[-1] + 1 : number + 1]):
        return None
    return loops[-1]


def first_wrong_iteration(
    executable: Executable,
    inputs: Mapping[str, Any],
    number: int,
    graphs: Sequence[Graph],
    close: Close,
) -> WrongIteration | None:
    """The first wrong kernel of a loop; None where each is right, or that cannot be told.

    Args:
        number: of the loop among the recipe's steps.
        graphs: with schedules, that were made on the way, those of bodies too.
    """
    recipe = executable.recipe
    held = {tensor.name: tensor for tensor in recipe.tensors}
    loop = recipe.steps[number]
    of_node = set(getattr(loop, "sources", ()))
    kernels = [step for step in recipe.steps if not isinstance(step, HostStep)]
    with suppress(TilesmithError), stepping(executable, inputs) as run:

        def outside(name: str) -> NDArray[Any] | None:
            for graph in graphs:
                if name in graph.constants:
                    return np.asarray(graph.constants[name])
            return np.asarray(run.read(held[name])) if name in held else None

        name = str(getattr(loop, "name", ""))
        by_hand = _ByHand(name, recipe, run.workspace, graphs, close, outside)
        for step in recipe.steps[: number + 1]:
            if step is loop and isinstance(step, LoopStep):
                return by_hand.loop(step, ())
            if isinstance(step, KernelStep) and of_node.intersection(step.sources):
                wrong = by_hand.kernel(step, by_hand.node(step, kernels), ())
                if wrong is not None:
                    return wrong
            run.advance()
    return None


class _ByHand:
    """Runs loops step by step."""

    def __init__(
        self, name: str, recipe: Recipe, work: Workspace, graphs: Sequence[Graph], close: Close,
        outside: Outside,
    ) -> None:  # fmt: skip
        self.name, self.outside = name, outside
        self.recipe, self.work, self.graphs, self.close = recipe, work, graphs, close
        self._moved: dict[int, MovedValues | None] = {}
        self._runners: dict[int, Callable[[dict[str, Any]], None]] = {}
        self._nodes: dict[int, Node] = {}

    def loop(self, step: LoopStep, outer: tuple[int, ...]) -> WrongIteration | None:
        trips = step.trips
        if step.limit != NOWHERE:
            trips = min(trips, int(self._at(step.limit, np.int64)[0]))
        for iteration in range(min(trips, _MOST)):
            if step.test != NOWHERE and not self._at(step.test, np.uint8)[0]:
                return None
            self._at(step.counter, np.int64)[0] = iteration
            wrong = self._steps(step.steps, (*outer, iteration))
            if wrong is not None:
                return wrong
            for moved in filter(None, () if outer else self._moved.values()):
                moved.next()
        return None if outer else self._written_outside()

    def _written_outside(self) -> WrongIteration | None:
        """Rows that were moved out of a loop, when it is over."""
        for moved in filter(None, self._moved.values()):
            if (apart := moved.apart()) is not None:
                name, iteration, row, wanted = apart
                return self._wrong((iteration,), "", row, wanted, moved=name)
        return None

    def _wrong(
        self, at: tuple[int, ...], kernel: str, ours: Array, wanted: Array, **more: Any
    ) -> WrongIteration:
        """What a kernel wrote, or what lies somewhere, beside what should."""
        error = tensor_error(ours, wanted.reshape(ours.shape))
        one, other = float(ours[error.worst]), float(wanted.reshape(ours.shape)[error.worst])
        details = {"sources": (), "workload": "", "config": "", **more}
        return WrongIteration(
            self.name, at, kernel, index=error.worst, ours=one, wanted=other,
            max_rel=error.max_rel, **details,
        )  # fmt: skip

    def _moved_to(self, graph: Graph) -> MovedValues | None:
        """Values of the loop that a body is of; none of loops inside others."""
        if id(graph) not in self._moved:
            of = body_of(self.graphs, graph)
            self._moved[id(graph)] = None if of is None else MovedValues(*of, graph, self.outside)
        return self._moved[id(graph)]

    def _steps(self, steps: Sequence[DeviceStep], at: tuple[int, ...]) -> WrongIteration | None:
        for step in steps:
            wrong = None
            match step:
                case LoopStep():
                    wrong = self.loop(step, at)
                case BranchStep():
                    taken = 0 if self._at(step.test, np.uint8)[0] else 1
                    wrong = self._steps(step.steps[taken], at)
                case KernelStep():
                    wrong = self.kernel(step, self.node(step, steps), at)
                case _:
                    self._run(step)
            if wrong is not None:
                return wrong
        return None

    def _run(self, step: DeviceStep) -> None:
        if id(step) not in self._runners:
            self._runners[id(step)] = self.work.runner((step,))
        self._runners[id(step)]({})

    def kernel(
        self, step: KernelStep, node: Node | None, at: tuple[int, ...]
    ) -> WrongIteration | None:
        if node is None:
            self._run(step)
            return None
        graph, workload = self._graph_of(node), Workload.parse(step.workload)
        config = Config.from_json(step.config)
        compiled = backend_of(self.recipe.target).compile(workload, self.recipe.target, config)
        places = dict(zip(compiled.parameters, step.arguments, strict=True))
        template = template_of(workload.operator)
        result = template.output(workload)
        source, target = map(normal, template.layouts(workload, config))
        operands: dict[str, Any] = {}
        for place, (operand, name) in enumerate(
            zip(template.operands(workload), node.inputs, strict=True)
        ):
            if name in graph.constants:
                operands[name] = graph.constants[name]
                continue
            like = operand.role == "epilogue" and operand.shape == result.shape
            layout = source if place == 0 else target if like else ""
            operands[name] = self._array(places[operand.name], operand, layout)
        moved = self._moved_to(graph) if len(at) == 1 else None
        for name, array in operands.items() if moved is not None else ():
            expected = moved.expected(name, at[0]) if moved is not None else None
            if expected is not None and expected.size == array.size and not same(array, expected):
                return self._wrong(at, step.name, array, expected, moved=name)
        wanted = run_kernel(node, operands)
        self._run(step)
        ours = self._array(places[compiled.output], result, target)
        if moved is not None:
            moved.written[node.writes[0]] = ours
        if self.close(result.dtype, ours, wanted.reshape(ours.shape)):
            return None
        work = {"sources": step.sources, "workload": step.workload, "config": step.config}
        return self._wrong(at, step.name, ours, wanted, **work)

    def _array(self, place: Place, operand: Any, layout: str) -> NDArray[Any]:
        shape = physical_shape(layout, operand.shape)
        view = self.work.memory.view(place, to_numpy(operand.dtype), shape)
        return np.array(unpack(layout, view, operand.shape))

    def _at(self, place: Place, dtype: Any) -> NDArray[Any]:
        return self.work.memory.view(place, np.dtype(dtype), (1,))

    def node(self, step: KernelStep, beside: Sequence[DeviceStep]) -> Node | None:
        """The node that a kernel is of: of the body with the same kernels in the same order."""
        if id(step) not in self._nodes:
            kernels = [one for one in beside if isinstance(one, KernelStep)]
            own = [(one.name, one.workload) for one in kernels]
            for graph in reversed(self.graphs):
                nodes = [node for node in graph.nodes if node.workload is not None]
                keys = [(n.name, n.workload.key) for n in nodes if n.workload is not None]
                if keys == own:
                    self._nodes |= {id(k): n for k, n in zip(kernels, nodes, strict=True)}
                    break
        return self._nodes.get(id(step))

    def _graph_of(self, node: Node) -> Graph:
        return next(graph for graph in self.graphs if node in graph.nodes)
