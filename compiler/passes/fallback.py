"""Fallback: a model runs although its target lacks some of its operators."""

from dataclasses import dataclass
from functools import lru_cache

from tilesmith.codegen.programs.structures import space_of
from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Graph, Node, attributes_of
from tilesmith.compiler.host.nodes import REFERENCE
from tilesmith.compiler.numerics.precision import in_precision
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ConfigError, ModelError
from tilesmith.search_space.workloads.scheduler import is_scheduled, scheduler_of
from tilesmith.search_space.workloads.workload import Workload


def has_schedule(workload: Workload, target: Target) -> bool:
    """Whether a target can run a workload as one kernel: it has schedules, of which some fit."""
    return is_scheduled(workload, target) and not space_of(workload, target).empty


def unscheduled(graph: Graph, target: Target) -> frozenset[Workload]:
    """Workloads of a lowered graph whose operators have no schedule for the target.

    Raises:
        ModelError: an operator has one, but its smallest tile does not fit the target.
    """
    workloads = set()
    for workload in {node.workload for node in graph.nodes if node.workload is not None}:
        if not is_scheduled(workload, target):
            workloads.add(workload)
            continue
        try:
            _default(workload, target)
        except ConfigError as error:
            raise ModelError(
                f"'{workload}' of model '{graph.title}' does not fit target '{target.name}': "
                f"{error}"
            ) from error
    return frozenset(workloads)


@lru_cache(maxsize=1024)
def _default(workload: Workload, target: Target) -> Config:
    """The scheduler's own; bodies of loops and branches ask for the same ones again and again."""
    return scheduler_of(workload, target).default(workload, target)


@dataclass(frozen=True)
class FallBack(Pass):
    """Kernels that a target has no schedule for, or no code came of, run on the host.

        y = Kernel(transpose ...)(x)                  before
        y = Reference[transpose ...](x)               after, on the host

    Contract: a lowered graph in, the same values out; only kernels change. A workload that has a
    schedule but does not fit the target is not moved: its space says why, which is the caller's to
    hear.

    Attributes:
        refused: the workloads to move; None: those without a schedule.
    """

    name = "fall-back"

    target: Target
    refused: frozenset[Workload] | None = None

    def run(self, graph: Graph) -> Graph:
        moved = unscheduled(graph, self.target) if self.refused is None else self.refused
        return graph.with_nodes(
            reference_of(graph, node) if node.workload in moved else node for node in graph.nodes
        )


def reference_of(graph: Graph, node: Node) -> Node:
    """The host node that computes what a kernel does."""
    wide = in_precision(node.work, "float32")
    what = attributes_of(workload=wide.key, shape=graph.info(node.outputs[0]).dims)
    return Node(REFERENCE, node.inputs, node.outputs, node.name, INTERNAL_DOMAIN, what)
