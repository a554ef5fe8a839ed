"""Runs a sharded model: the program core by core, collectives between them, in one fixed order.

Every core runs a segment on its own parts; a collective is computed by what its kind says, sums in
the order of the cores. Segments run by whatever is given: in numpy (`by_reference`), or compiled
for the target of a core by the same `build` as whole models (`compiled_for`).
"""

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from tilesmith.capabilities.sharding.layouts.specs import assembled, part
from tilesmith.capabilities.sharding.partitioning.program import Move, ShardedProgram
from tilesmith.capabilities.sharding.partitioning.resharding import run_step
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.host.reference import run_reference
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import ModelError

Arrays = Mapping[str, NDArray[Any]]
Runner = Callable[[Graph], Callable[[Arrays], Arrays]]
"""Makes something that runs a segment's graph."""


def by_reference(graph: Graph) -> Callable[[Arrays], Arrays]:
    """A segment in numpy, by what its operators mean."""
    return lambda arrays: run_reference(graph, arrays)


def compiled_for(target: Target) -> Runner:
    """Segments compiled for a core and run there; on a described core by functional execution."""
    from tilesmith.compiler.driver.build import build

    def runner(graph: Graph) -> Callable[[Arrays], Arrays]:
        return build(graph, target).run

    return runner


def execute(
    program: ShardedProgram, inputs: Arrays, runner: Runner = by_reference
) -> dict[str, NDArray[Any]]:
    """The model's outputs by name, from its whole inputs by name.

    The cores of a stage of a pipeline get what the stages before send them, and nothing else.

    Raises:
        ModelError: an input is missing or of another shape.
        JobError: a segment failed.
    """
    given = parts_of(program, inputs)
    held: list[dict[str, NDArray[Any]]] = [{} for _ in given]
    outputs: dict[str, NDArray[Any]] = {}
    for stage in range(max(program.stages, default=0) + 1):
        sent = program.crossing(stage - 1)
        held = [
            own | {name: before[name] for name in sent}
            for own, before in zip(given, held, strict=True)
        ]
        _run(program, stage, held, runner)
        for placed in program.outputs:
            if program.made_in(placed.local) == stage:
                parts = [own[placed.local] for own in held]
                outputs[placed.info.name] = assembled(
                    parts, placed.spec, placed.info.dims, program.mesh
                )
    return outputs


def parts_of(program: ShardedProgram, inputs: Arrays) -> list[dict[str, NDArray[Any]]]:
    """What each core is given: its parts of inputs and weights, and where its parts begin.

    Raises:
        ModelError: an input is missing or of another shape.
    """
    mesh = program.mesh
    for placed in program.inputs:
        value = inputs.get(placed.info.name)
        if value is None or value.shape != placed.info.dims:
            raise ModelError(
                f"input '{placed.info.name}' of '{program.name}' is "
                f"{'missing' if value is None else value.shape}; {placed.info.dims} is expected"
            )
    whole = {**inputs, **program.values}
    return [
        {
            placed.local: part(whole[placed.info.name], placed.spec, placed.info.dims, mesh, at)
            for placed in (*program.inputs, *program.weights)
        }
        | {name: start.value(at, mesh) for name, start in program.starts.items()}
        for at in mesh.coordinates()
    ]


def _run(
    program: ShardedProgram, stage: int, held: list[dict[str, NDArray[Any]]], runner: Runner
) -> None:
    """Run a stage on what its cores hold, which then hold what they make as well."""
    for item in program.stage(stage):
        if isinstance(item, Move):
            parts = [own[item.source] for own in held]
            moved = run_step(item.step, parts, item.shape, program.mesh)
            for own, value in zip(held, moved, strict=True):
                own[item.result] = value
            continue
        run = runner(item.graph)
        for own in held:
            own.update(run({info.name: own[info.name] for info in item.graph.inputs}))
