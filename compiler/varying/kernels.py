"""Schedules and code of a varying graph: chosen at one point, compiled once for the region.

Invariants: layouts and configurations are the same at every point; a kernel that no code for
ranges comes of runs on the host by its reference, in plain layouts.
"""

from collections.abc import Mapping, Sequence

from tilesmith.codegen.programs.structures import KernelSpec
from tilesmith.compiler.backends.backend import Compiled, backend_of
from tilesmith.compiler.driver.build import Schedules
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.passes.fallback import reference_of
from tilesmith.compiler.rewriting.rounds import Rounds
from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.compiler.settling.settlement import TRANSFORM, Settled, layouts_of, settle, settle_as
from tilesmith.compiler.varying.assembly import Kernels, Lowered
from tilesmith.compiler.varying.sizes.fitting import Fitter
from tilesmith.compiler.varying.sizes.regions import Region
from tilesmith.compiler.varying.sizes.unify import NotAlikeError, unified
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import (
    CodegenError,
    ConfigError,
    ScheduleError,
    VerificationError,
    WorkloadError,
)
from tilesmith.search_space.workloads.workload import Workload


def settled_kernels(
    graphs: Sequence[Graph], fitter: Fitter, region: Region, schedules: Schedules
) -> tuple[Lowered, Kernels]:
    """Schedules, layouts and code of the same graph at several points.

    Args:
        graphs: lowered, one for each point of `fitter`.

    Raises:
        NotAlikeError: layouts cannot be the same at all points.
        ModelError: only tuned schedules are wanted, and one is missing.
    """
    chooser = schedules.chooser(graphs[0])
    compiler = _Compiler(region, fitter.points[0], schedules.target)
    rounds = Rounds(
        f"giving kernels of '{graphs[0].name}' to the host", len(_kernels_of(graphs[0])) + 1
    )
    while True:
        rounds.another()
        first = settle(graphs[0], chooser)
        others = [_settled_like(first, graphs[0], graph, schedules) for graph in graphs[1:]]
        settled = (first, *others)
        graph = unified([one.graph for one in settled], fitter)
        lowered = Lowered(settled, graph, fitter)
        kernels = compiler.kernels(lowered)
        refused = _refused(graphs[0], first, kernels)
        if not refused:
            if None in kernels.values():
                raise NotAlikeError("there is no code for a conversion of layouts")
            return lowered, kernels
        graphs = [_on_host(graph, refused) for graph in graphs]


def _settled_like(first: Settled, before: Graph, graph: Graph, schedules: Schedules) -> Settled:
    """The graph at another point, with the schedules and layouts of the first."""
    pairs = zip(_kernels_of(before), _own_kernels(first), _kernels_of(graph), strict=True)
    choices: dict[Workload, Config] = {}
    for original, placed, here in pairs:
        config = first.options[placed].config
        if placed.workload == original.workload and here.workload and config is not None:
            choices[here.workload] = config
    chooser = ScheduleChooser(schedules.target, None, schedules.options.threads, choices)
    settled = settle_as(graph, chooser, layouts_of(first))
    if settled is None:
        raise NotAlikeError("its layouts differ")
    return settled


def _kernels_of(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.workload is not None]


def _own_kernels(settled: Settled) -> list[Node]:
    """The kernels of a settled graph that the graph had before: conversions left out."""
    return [
        node
        for node in settled.graph.nodes
        if node.workload is not None and node.workload.operator != TRANSFORM
    ]


def _refused(before: Graph, settled: Settled, kernels: Kernels) -> set[str]:
    """Outputs of the kernels (as they were before settling) that no code came of, or that stand
    beside a conversion of which none came."""
    missing = {name for name, code in kernels.items() if code is None}
    for node in settled.graph.nodes:
        if node.workload is not None and node.workload.operator == TRANSFORM:
            if node.writes[0] not in missing:
                continue
            for other in settled.graph.nodes:
                near = node.writes[0] in other.reads or node.reads[0] in other.writes
                if near and other.workload is not None:
                    missing.add(other.writes[0])
    pairs = zip(_kernels_of(before), _own_kernels(settled), strict=True)
    return {original.writes[0] for original, placed in pairs if placed.writes[0] in missing}


def _on_host(graph: Graph, refused: set[str]) -> Graph:
    return graph.with_nodes(
        reference_of(graph, node)
        if node.workload is not None and node.writes[0] in refused
        else node
        for node in graph.nodes
    )


class _Compiler:
    """Makes code for a region, each workload and configuration once."""

    def __init__(self, region: Region, typical: Mapping[str, int], target: Target) -> None:
        self.region, self.typical, self.target = region, typical, target
        self.known: dict[tuple[str, Config], Compiled | None] = {}

    def kernels(self, lowered: Lowered) -> Kernels:
        """Code of every kernel, by what it writes; None where there is none."""
        kernels: dict[str, Compiled | None] = {}
        settled = lowered.settled[0]
        for node in settled.graph.nodes:
            if node.workload is not None:
                config = settled.options[node].config
                assert config is not None
                key = (lowered.graph.workloads[node.writes[0]], config)
                if key not in self.known:
                    self.known[key] = self._code(key[0], node.workload, config)
                kernels[node.writes[0]] = self.known[key]
        return kernels

    def _code(self, text: str, workload: Workload, config: Config) -> Compiled | None:
        backend = backend_of(self.target)
        try:
            if text == workload.key:
                return backend.compile(workload, self.target, config)
            varying = Workload.parse(text)
            return backend.compile_varying(
                KernelSpec(varying, self.target, config, self.region, self.typical)
            )
        except (
            CodegenError, VerificationError, WorkloadError, ScheduleError, ConfigError,
        ):  # fmt: skip
            return None
