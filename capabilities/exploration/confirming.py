"""Designs confirmed: whole models compiled for them with the schedules found, and played.

What the search adds up operator by operator is what `simulate --fidelity analytical` adds up; the
timeline plays one program, in which kernels overlap and tensors stay on chip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads.workload import Workload

if TYPE_CHECKING:
    from tilesmith.compiler.graph.graph import Graph
    from tilesmith.simulator import SimulationResult


def confirmed(
    model: str,
    precision: str,
    shapes: Mapping[str, Sequence[int]],
    target: str,
    schedules: Mapping[str, str],
) -> dict[str, Any]:
    """A model, or an operator if its text is one, on a design, most faithfully.

    Args:
        model: path of a model; or the key of a workload.
        target: of the design, as JSON.
        schedules: by workload's key.

    Returns:
        `latency_us`, `bound` and `engines` (the share each is busy); or `reason` where the model
        cannot be compiled for the design.
    """
    from tilesmith.jobs.requests.graphs import graph_of
    from tilesmith.simulator import simulate

    described = Target.from_json(target)
    chosen = {Workload.parse(key): Config.from_json(text) for key, text in schedules.items()}
    try:
        if model in schedules:
            workload = Workload.parse(model)
            result = simulate(workload, described, chosen[workload], "timeline")
        else:
            fixed = {name: tuple(shape) for name, shape in shapes.items()}
            result = _played(graph_of(model, fixed), precision, described, chosen)
    except TilesmithError as error:
        return {"reason": str(error)}
    engines = {name: float(busy) for name, busy in result.engines.items()}
    return {"latency_us": result.latency_us, "bound": result.bound, "engines": engines}


def _played(
    graph: Graph, precision: str, target: Target, chosen: Mapping[Workload, Config]
) -> SimulationResult:
    from tilesmith.compiler.backends.backend import backend_of
    from tilesmith.compiler.driver.build import BuildOptions, build

    def pins(kernels: Graph) -> Mapping[Workload, Config]:
        workloads = {node.workload for node in kernels.nodes}
        return {workload: config for workload, config in chosen.items() if workload in workloads}

    options = BuildOptions(precision=precision)
    executable = build(graph, target, None, options, pins)
    return backend_of(target).simulate(executable.recipe)
