"""Layout settlement: every kernel gets a schedule and every tensor a layout, conversions counted.

Each kernel's options (see `compiler.settling.options`) read and write certain layouts; where
producer and consumer differ, a `layout_transform` kernel has to stand between. The sum of all
kernels' and all conversions' seconds is minimised over the graph as a partitioned quadratic problem
(`compiler.settling.pbqp`), exactly on residual networks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilesmith.codegen.programs.structures import default_of
from tilesmith.compiler.graph.graph import ENDLESS, Graph, Node, TensorInfo, kernel
from tilesmith.compiler.recipe.layouts import IMAGE, PLAIN, normal, physical_bytes, same_bytes
from tilesmith.compiler.rewriting.graph_pass import Pass, announce
from tilesmith.compiler.settling.chooser import ScheduleChooser, copy_seconds
from tilesmith.compiler.settling.options import Option, options_of
from tilesmith.compiler.settling.pbqp import Costs, Problem, Solution
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.support.errors import CodegenError, WorkloadError
from tilesmith.search_space.workloads.scheduler import is_scheduled
from tilesmith.search_space.workloads.template import templates
from tilesmith.search_space.workloads.workload import Workload, shape_text

TRANSFORM = "layout_transform"
"""The operator of conversions."""


@dataclass(frozen=True)
class Settled:
    """A graph with its schedules chosen.

    Attributes:
        graph: with conversions in it.
        options: what runs each kernel, and how each join and view is laid out.
        layouts: layout of each tensor that is not plain.
        seconds: of all kernels and conversions, by measurement or estimate.
        exact: whether the choice is proved the best of all.
        bodies: the same of each graph that a control node runs, in order.
        packed: of kernels' prepared buffers those that are constants of the graph, by output of the
            kernel and name of the buffer.
    """

    graph: Graph
    options: Mapping[Node, Option]
    layouts: Mapping[str, str]
    seconds: float
    exact: bool
    bodies: "Mapping[Node, tuple[Settled, ...]]" = field(default_factory=dict)
    packed: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def every(self) -> "Iterator[Settled]":
        """Itself, and those of bodies."""
        yield self
        for bodies in self.bodies.values():
            for body in bodies:
                yield from body.every()


@dataclass(frozen=True)
class SettleLayouts(Pass):
    """Every kernel gets a schedule, and conversions stand where layouts differ.

        y = Kernel(conv2d ...)(x, w); z = Relu[host](y)                                 before
        x.NCHW16c = Kernel(layout_transform ... dst=NCHW16c)(x)                         after
        y.NCHW16c = Kernel(conv2d ...)(x.NCHW16c, w)
        y = Kernel(layout_transform ... src=NCHW16c)(y.NCHW16c); z = Relu[host](y)

    Contract: a lowered graph in; out, the same graph with conversions inserted, a layout for every
    tensor and an option for every kernel; graph inputs and outputs, views and host nodes see plain
    tensors, under their old names; same values.
    """

    name = "settle-layouts"

    chooser: ScheduleChooser

    def settle(self, graph: Graph) -> Settled:
        """The graph and what was chosen for it."""
        return _Settlement(graph, self.chooser).run()

    def run(self, graph: Graph) -> Graph:
        return self.settle(graph).graph


def settle(graph: Graph, chooser: ScheduleChooser) -> Settled:
    """Choose schedules and layouts for a lowered graph."""
    step = SettleLayouts(chooser)
    settled = step.settle(graph)
    announce(step, graph, settled.graph)
    return settled


Layouts = tuple[tuple[str, ...], str]
"""Of the operands of a node, and of its output."""


def layouts_of(settled: Settled) -> list[Layouts]:
    """What was chosen for each node but host nodes and conversions, in order."""
    return [
        (option.operands, option.output)
        for option in settled.options.values()
        if option.workload is None or option.workload.operator != TRANSFORM
    ]


def settle_as(graph: Graph, chooser: ScheduleChooser, layouts: Sequence[Layouts]) -> Settled | None:
    """A lowered graph in layouts that are given (`layouts_of` another with the same nodes); None
    where a node cannot have them."""
    return _Settlement(graph, chooser).run_as(layouts)


IMPOSSIBLE = 1e6
"""Seconds of a conversion that nothing does: more than any model takes (eleven days), and a number,
so that the rest of a model that needs it is still compared."""


class UnconvertibleError(CodegenError):
    """Kernels whose layouts the target cannot convert to those of their neighbours.

    Attributes:
        workloads: whom another place would have to compute.
    """

    def __init__(self, model: str, workloads: frozenset[Workload]) -> None:
        names = ", ".join(f"'{w}'" for w in sorted(map(str, workloads))) or "its joins"
        super().__init__(
            f"model '{model}' needs tensors of {names} in layouts that nothing on the target "
            "converts; compile it for another target"
        )
        self.workloads = workloads


class _Settlement:
    def __init__(self, graph: Graph, chooser: ScheduleChooser) -> None:
        self.graph = graph
        self.chooser = chooser
        self.nodes = [node for node in graph.nodes if node.kind not in ("host", "control")]
        chooser.prepare([node.workload for node in self.nodes if node.workload is not None])
        self.options = {node: options_of(graph, node, chooser) for node in self.nodes}

    def run(self) -> Settled:
        solution, chosen = self._solved()
        while self.chooser.simulate(self._doubtful(chosen)):
            self.options = {node: options_of(self.graph, node, self.chooser) for node in self.nodes}
            solution, chosen = self._solved()
        if solution.cost >= IMPOSSIBLE:
            raise UnconvertibleError(self.graph.name, self._stuck(chosen))
        graph, options, layouts = _Conversions(self, chosen).run()
        inside = {body.graph: None for node in graph.nodes for body in node.bodies}
        settled = {body: settle(body, self.chooser) for body in inside}
        bodies = {
            node: tuple(settled[body.graph] for body in node.bodies)
            for node in graph.nodes
            if node.bodies
        }
        seconds = solution.cost + sum(_seconds(node, inner) for node, inner in bodies.items())
        return Settled(graph, options, layouts, seconds, solution.exact, bodies)

    def _doubtful(self, chosen: Mapping[Node, Option]) -> Iterator[Workload]:
        """Kernels that are to run in other layouts than their default's, to save conversions, by
        estimates that know nothing of schedules; and these conversions."""
        for node, option in chosen.items():
            if node.workload is None or option.origin is not Origin.UNMEASURED:
                continue
            usual = default_of(node.workload, self.chooser.target)
            pair = self.chooser.layouts(node.workload, usual)
            if option.config in (None, usual) or pair == (PLAIN, PLAIN):
                continue
            if self.chooser.layouts(node.workload, option.config) == pair:
                continue
            yield node.workload
            for name, layout in ((node.inputs[0], pair[0]), (node.writes[0], pair[1])):
                for ends in ((PLAIN, layout), (layout, PLAIN)):
                    workload = conversion(self.graph.info(name), *ends)
                    if workload is not None and is_scheduled(workload, self.chooser.target):
                        yield workload

    def _solved(self) -> tuple[Solution, dict[Node, Option]]:
        """The cheapest options of all."""
        problem = Problem()
        numbers = {
            node: problem.add_node(np.array([o.seconds for o in self.options[node]]))
            for node in self.nodes
        }
        for node in self.nodes:
            for position, name in enumerate(node.inputs):
                self._connect(problem, numbers, node, position, name)
            problem.nodes[numbers[node]] += self._output_costs(node)
        solution = problem.solve()
        chosen = {
            node: self.options[node][solution.choices[number]] for node, number in numbers.items()
        }
        return solution, chosen

    def _stuck(self, chosen: Mapping[Node, Option]) -> frozenset[Workload]:
        """Kernels that no chosen layout connects with a neighbour: who writes another layout than
        plain if anybody does, else who reads one."""
        nodes: list[Node] = []
        for node, option in chosen.items():
            if self._output_costs(node)[self.options[node].index(option)] >= IMPOSSIBLE:
                nodes.append(node)
            for name, wanted in zip(node.inputs, option.operands, strict=True):
                writer = self.graph.producers.get(name)
                given = chosen[writer].output if writer is not None and writer in chosen else PLAIN
                if name in self.graph.constants or self.seconds(name, given, wanted) < IMPOSSIBLE:
                    continue
                nodes.append(node if writer is None or given == PLAIN else writer)
        return frozenset(node.workload for node in nodes if node.workload is not None)

    def run_as(self, layouts: Sequence[Layouts]) -> Settled | None:
        """The graph in these layouts, if every node has an option with its own."""
        chosen: dict[Node, Option] = {}
        for node, wanted in zip(self.nodes, layouts, strict=True):
            options = [o for o in self.options[node] if (o.operands, o.output) == wanted]
            if not options:
                return None
            chosen[node] = options[0]
        graph, options_of_nodes, conversions = _Conversions(self, chosen).run()
        return Settled(graph, options_of_nodes, conversions, 0.0, False)

    def _connect(
        self, problem: Problem, numbers: Mapping[Node, int], node: Node, position: int, name: str
    ) -> None:
        """Costs of what an operand may need before it can be read."""
        if name in self.graph.constants:
            return
        wanted = [option.operands[position] for option in self.options[node]]
        producer = self.graph.producers.get(name)
        if producer is None or producer not in numbers:
            given = [PLAIN]
        else:
            given = [option.output for option in self.options[producer]]
        costs: Costs = np.array([[self.seconds(name, a, b) for b in wanted] for a in given])
        if producer is None or producer not in numbers:
            problem.nodes[numbers[node]] += costs[0]
        else:
            problem.add_edge(numbers[producer], numbers[node], costs)

    def _output_costs(self, node: Node) -> Costs:
        """Costs of making an output plain for those who read nothing else."""
        name = node.writes[0]
        return np.array(
            [
                self.seconds(name, option.output, PLAIN) if self.needs_plain(name) else 0.0
                for option in self.options[node]
            ]
        )

    def needs_plain(self, name: str) -> bool:
        """Whether a host node, a control node or the caller reads the tensor."""
        readers = self.graph.consumers.get(name, ())
        return name in self.graph.output_names or any(
            reader.kind in ("host", "control") for reader in readers
        )

    def seconds(self, name: str, source: str, result: str) -> float:
        """Of converting a tensor; `IMPOSSIBLE` where nothing can."""
        info = self.graph.info(name)
        if same_bytes(source, result, info.dims):
            return 0.0
        workload = conversion(info, source, result)
        if workload is None or not is_scheduled(workload, self.chooser.target):
            return IMPOSSIBLE
        best = self.chooser.best(workload)
        if best.origin.on_record:
            return best.seconds
        if (estimated := self.chooser.estimate_by_family(workload, best.config)) is not None:
            return estimated
        return copy_seconds(max(physical_bytes(s, info.dims, info.dtype) for s in (source, result)))


def _seconds(node: Node, bodies: Iterable[Settled]) -> float:
    """Of a control node: of its longer branch, or of as many iterations as it is known to run."""
    trips = int(node.attribute("trips", 1))
    return (trips if trips < ENDLESS else 1) * max(body.seconds for body in bodies)


def conversion(info: TensorInfo, source: str, result: str) -> Workload | None:
    """The workload that converts a tensor between two layouts; None without a template for it."""
    if TRANSFORM not in templates or len(info.dims) != 4:
        return None
    names = {"src": normal(source) or IMAGE, "dst": normal(result) or IMAGE}
    try:
        parameters = {"shape": shape_text(info.dims), **names}
        return Workload.of(TRANSFORM, parameters, dtype=info.dtype)
    except WorkloadError:
        return None


class _Conversions:
    """Puts the conversions that a choice of options needs into the graph."""

    def __init__(self, settlement: _Settlement, chosen: Mapping[Node, Option]) -> None:
        self.settlement = settlement
        self.graph = settlement.graph
        self.chosen = chosen
        self.tensors = dict(self.graph.tensors)
        self.layouts: dict[str, str] = {}
        self.options: dict[Node, Option] = {}
        self.converted: dict[tuple[str, str], str] = {}
        self.nodes: list[Node] = []

    def run(self) -> tuple[Graph, dict[Node, Option], dict[str, str]]:
        for node in self.graph.nodes:
            option = self.chosen.get(node)
            if option is None:
                self.nodes.append(node)
            else:
                self._place(node, option)
        graph = self.graph.with_(nodes=tuple(self.nodes), tensors=self.tensors)
        return graph, self.options, self.layouts

    def _place(self, node: Node, option: Option) -> None:
        inputs = tuple(
            self._converted(name, layout)
            for name, layout in zip(node.inputs, option.operands, strict=True)
        )
        output = node.writes[0]
        renamed = output
        needs_plain = self.settlement.needs_plain(output)
        if needs_plain and not self._same(output, option.output, PLAIN):
            renamed = self._declare(output, option.output)
        placed = replace(node, inputs=inputs, outputs=(renamed,), workload=option.workload)
        self.nodes.append(placed)
        self.options[placed] = option
        if normal(option.output) != PLAIN:
            self.layouts[renamed] = option.output
        if renamed != output:
            self._convert(renamed, output, PLAIN)
            self.converted[output, option.output] = renamed

    def _same(self, name: str, first: str, second: str) -> bool:
        return same_bytes(first, second, self.tensors[name].dims)

    def _converted(self, name: str, layout: str) -> str:
        """The tensor that holds `name` in `layout`, converting it here the first time."""
        if name in self.graph.constants or self.tensors[name].shape is None:
            return name
        present = self.layouts.get(name, PLAIN)
        if self._same(name, present, layout):
            return name
        if (name, layout) not in self.converted:
            result = self._declare(name, layout)
            self._convert(name, result, layout)
            self.converted[name, layout] = result
        return self.converted[name, layout]

    def _declare(self, name: str, layout: str) -> str:
        info = self.tensors[name]
        new = next(n for n in _names(f"{name}.{layout or 'plain'}") if n not in self.tensors)
        self.tensors[new] = TensorInfo(new, info.dtype, info.shape)
        return new

    def _convert(self, source: str, result: str, layout: str) -> None:
        present = self.layouts.get(source, PLAIN)
        workload = conversion(self.tensors[source], present, layout)
        assert workload is not None, "whoever needs what is impossible was refused"
        node = kernel(workload, (source,), result, f"{source} to {layout or 'plain'}")
        best = self.settlement.chooser.best(workload)
        self.nodes.append(node)
        self.options[node] = Option.of(workload, best, (present,), layout)
        if normal(layout) != PLAIN:
            self.layouts[result] = layout


def _names(base: str) -> Iterator[str]:
    yield base
    number = 1
    while True:
        number += 1
        yield f"{base}.{number}"
