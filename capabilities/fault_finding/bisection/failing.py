"""A model that does not compile: the kernel that no code comes of, and at which stage.

Every kernel of the last graph with kernels is compiled by itself in its default configuration, so
that a failure which only says what was wrong is told with the nodes of the model that it is of.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.capabilities.fault_finding.bisection.finding import FaultFinding, Part
from tilesmith.capabilities.fault_finding.bisection.passes import Stages
from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.workloads.workload import Workload


def failed_build(stages: Stages, failure: str, target: Target) -> FaultFinding:
    """What a failure is of: a kernel, or what comes behind the last pass that was done."""
    for node, workload in _kernels(stages):
        fault = _stage(workload, target)
        if fault is not None:
            stage, words = fault
            doing = "its schedule or loop program" if stage == "lowering" else "its code"
            sentence = (
                f"kernel '{node.name}' ({workload.key}) does not compile: {doing} fails: {words}"
            )
            details = {"workload": workload.key, "failure": failure}
            tensor = node.writes[0]
            return FaultFinding(stage, node.name, tensor, sentence, node.sources, details)
    last = stages.steps[-1][0].name if stages.steps else ""
    behind = f"behind pass '{last}'" if last else "before the first pass is done"
    sentence = f"compiling fails {behind}, and each kernel compiles by itself: {failure}"
    return FaultFinding("unknown", last, "", sentence)


def _kernels(stages: Stages) -> Iterator[tuple[Node, Workload]]:
    """Kernels of the last graph that has any, those of bodies too, each workload once."""
    for _, _, graph in reversed(stages.steps):
        graphs: list[Graph] = [graph, *(inside for inside, _ in graph.inside())]
        nodes = {
            node.workload: node
            for one in graphs
            for node in reversed(one.nodes)
            if node.workload is not None
        }
        if nodes:
            yield from ((node, workload) for workload, node in reversed(nodes.items()))
            return


def _stage(workload: Workload, target: Target) -> tuple[Part, str] | None:
    """The stage at which a kernel fails, and how; None of one that compiles."""
    stage: Part = "lowering"
    try:
        config = default_of(workload, target)
        lowered(workload, target, config)
        stage = "code generation"
        backend_of(target).compile(workload, target, config)
    except Exception as error:  # a compiler with a fault in it may raise anything
        words = " ".join(str(error).split())[:300]
        return stage, f"{type(error).__name__}{': ' if words else ''}{words}"
    return None
