"""Runs a sharded model: the program core by core, collectives between them, in one fixed order.

Every core runs a segment on its own parts; a collective is computed by what its kind says, sums in
the order of the cores. Segments run by whatever is given: in numpy (`by_reference`), or compiled
for the target of a core by the same `build` as whole models (`compiled_for`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from tilesmith.compiler.graph import Graph
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.sharding.program import Move, Program
from tilesmith.compiler.sharding.resharding import run_step
from tilesmith.compiler.sharding.specs import assembled, part
from tilesmith.search_space.errors import ModelError
from tilesmith.search_space.target import Target

Arrays = Mapping[str, NDArray[Any]]
Runner = Callable[[Graph], Callable[[Arrays], Arrays]]
"""Makes something that runs a segment's graph."""


def by_reference(graph: Graph) -> Callable[[Arrays], Arrays]:
    """A segment in numpy, by what its operators mean."""
    return lambda arrays: run_reference(graph, arrays)


def compiled_for(target: Target) -> Runner:
    """Segments compiled for a core and run there; on a described core by functional execution."""
    from tilesmith.compiler.build import build

    def runner(graph: Graph) -> Callable[[Arrays], Arrays]:
        return build(graph, target).run

    return runner


def execute(
    program: Program, inputs: Arrays, runner: Runner = by_reference
) -> dict[str, NDArray[Any]]:
    """The model's outputs by name, from its whole inputs by name.

    Raises:
        ModelError: an input is missing or of another shape.
        JobError: a segment failed.
    """
    mesh = program.mesh
    places = list(mesh.coordinates())
    held: list[dict[str, NDArray[Any]]] = [{} for _ in places]
    for number, at in enumerate(places):
        for placed in program.inputs:
            given = inputs.get(placed.info.name)
            if given is None or given.shape != placed.info.dims:
                raise ModelError(
                    f"input '{placed.info.name}' of '{program.name}' is "
                    f"{'missing' if given is None else given.shape}; {placed.info.dims} is expected"
                )
            held[number][placed.local] = part(given, placed.spec, placed.info.dims, mesh, at)
        for placed in program.weights:
            value = program.values[placed.info.name]
            held[number][placed.local] = part(value, placed.spec, placed.info.dims, mesh, at)
        for name, start in program.starts.items():
            held[number][name] = start.value(at, mesh)
    for item in program.order:
        if isinstance(item, Move):
            moved = run_step(item.step, [own[item.source] for own in held], item.shape, mesh)
            for own, value in zip(held, moved, strict=True):
                own[item.result] = value
            continue
        run = runner(item.graph)
        for own in held:
            own.update(run({info.name: own[info.name] for info in item.graph.inputs}))
    return {
        placed.info.name: assembled(
            [own[placed.local] for own in held], placed.spec, placed.info.dims, mesh
        )
        for placed in program.outputs
    }
