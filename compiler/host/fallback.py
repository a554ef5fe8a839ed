"""Fallback: kernels that a target has no schedule for run on the host.

    y = Kernel(transpose ...)(x)                  before
    y = Reference[transpose ...](x)               after, on the host

Contract: a lowered graph in, the same values out; only kernels change. A workload that has a
schedule but does not fit the target is not moved: its space says why, which is the caller's to
hear.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilesmith.compiler.graph import INTERNAL_DOMAIN, Graph, Node, attributes_of
from tilesmith.compiler.host.nodes import REFERENCE
from tilesmith.search_space.errors import ConfigError, ModelError, TargetError, WorkloadError
from tilesmith.search_space.target import Target
from tilesmith.search_space.template import template_of
from tilesmith.search_space.workload import Workload


def has_schedule(workload: Workload, target: Target) -> bool:
    """Whether a target can run a workload as one kernel."""
    try:
        template_of(workload.operator).default(workload, target)
    except (TargetError, ConfigError, WorkloadError):
        return False
    return True


def unscheduled(graph: Graph, target: Target) -> frozenset[Workload]:
    """Workloads of a lowered graph whose operators have no schedule for the target.

    Raises:
        ModelError: an operator has one, but its smallest tile does not fit the target.
    """
    found = set()
    for workload in {node.workload for node in graph.nodes if node.workload is not None}:
        try:
            template_of(workload.operator).default(workload, target)
        except (TargetError, WorkloadError):  # no schedule at all, or none for these parameters
            found.add(workload)
        except ConfigError as error:
            raise ModelError(
                f"'{workload}' of model '{graph.name}' does not fit target '{target.name}': {error}"
            ) from error
    return frozenset(found)


def to_host(graph: Graph, workloads: Collection[Workload]) -> Graph:
    """The graph with the kernels of these workloads on the host."""
    if not workloads:
        return graph
    nodes = tuple(
        _reference(graph, node)
        if node.workload is not None and node.workload in workloads
        else node
        for node in graph.nodes
    )
    return graph.with_(nodes=nodes)


def _reference(graph: Graph, node: Node) -> Node:
    assert node.workload is not None
    wide = replace(node.workload, dtype="float32")
    what = attributes_of(workload=wide.key, shape=graph.info(node.outputs[0]).dims)
    return Node(REFERENCE, node.inputs, node.outputs, node.name, INTERNAL_DOMAIN, what)
