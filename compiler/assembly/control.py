"""Control nodes become steps: what is moved in and out of their bodies, and when.

A body's tensors lie in memory of the node's own, inside the arena: what an iteration hands on is
copied from where it comes out to where the next reads it, rows of tensors outside are copied from
and to their places there, and what is the same in all iterations stays where it is.

Invariant: of the tensors that are handed on none is written before all that lie over it are read.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from tilesmith.compiler.graph.graph import BRANCH, Body, Carried, Graph, Node
from tilesmith.compiler.graph.sources import source_name
from tilesmith.compiler.recipe.memory import ALIGNMENT, aligned
from tilesmith.compiler.recipe.program import (
    NOWHERE,
    BranchStep,
    DeviceStep,
    LoopStep,
    MoveStep,
    Place,
)


class Inside(Protocol):
    """A body with its places.

    Attributes:
        graph: what is run.
        base: where its own part of the arena starts.
        nbytes: how long that is.
    """

    graph: Graph
    base: int

    @property
    def nbytes(self) -> int: ...

    def where(self, name: str) -> Place:
        """The place of a tensor."""

    def lies_outside(self, name: str) -> bool:
        """Whether an input is where it is outside."""

    def device_steps(self) -> tuple[DeviceStep, ...]:
        """What computes it."""


def scratch_bytes(node: Node, sizes: Sequence[int]) -> int:
    """What a node needs while it runs: its bodies' arenas, which are never alive together, a
    counter, and room for all that an iteration hands on."""
    held = [body.graph.info(c.entry).nbytes for body in node.bodies for c in body.carried]
    return max(sizes) + ALIGNMENT + sum(aligned(size) for size in held)


def control_steps(
    node: Node, bodies: Sequence[Inside], outside: Callable[[str], Place], flag: Place
) -> list[DeviceStep]:
    """The steps of a node.

    Args:
        bodies: of the node, placed.
        outside: the place of a tensor that the node reads or writes.
        flag: of a byte that is 1.
    """
    if node.operator == BRANCH:
        first, second = (
            (*_shared(node, body, inside, outside), *inside.device_steps(),
             *_written(node, body, inside, outside, NOWHERE))
            for body, inside in zip(node.bodies, bodies, strict=True)
        )  # fmt: skip
        flagged = outside(node.inputs[0])
        return [BranchStep(node.name, flagged, (first, second), node.sources)]
    (body,), (inside,) = node.bodies, bodies
    counter = Place("arena", inside.base + inside.nbytes)
    if body.counter:
        counter = inside.where(body.counter)
    limit, test = int(node.attribute("limit")), str(node.attribute("test"))
    loop = LoopStep(
        node.name,
        int(node.attribute("trips")),
        outside(node.inputs[limit]) if limit >= 0 else NOWHERE,
        inside.where(test) if test else NOWHERE,
        counter,
        (
            *_read(node, body, inside, outside, counter),
            *inside.device_steps(),
            *_written(node, body, inside, outside, counter),
            *_handed_on(body, inside),
        ),
        node.sources,
    )
    return [
        *_shared(node, body, inside, outside),
        *_entering(node, body, inside, outside, flag),
        loop,
        *_leaving(node, body, inside, outside),
    ]


Outside = Callable[[str], Place]


def _shared(node: Node, body: Body, inside: Inside, outside: Outside) -> list[MoveStep]:
    return _useful(
        MoveStep(
            outside(node.inputs[number]),
            inside.where(name),
            inside.graph.info(name).nbytes,
            name=f"{name} into {_called(node)}",
        )
        for number, name in body.shared
        if not inside.lies_outside(name)
    )


def _entering(
    node: Node, body: Body, inside: Inside, outside: Outside, flag: Place
) -> list[MoveStep]:
    return _useful(
        MoveStep(
            outside(node.inputs[carried.initial]) if carried.initial >= 0 else flag,
            inside.where(carried.entry),
            inside.graph.info(carried.entry).nbytes,
            name=f"{carried.entry} into {_called(node)}",
        )
        for carried in body.carried
    )


def _leaving(node: Node, body: Body, inside: Inside, outside: Outside) -> list[MoveStep]:
    return _useful(
        MoveStep(
            inside.where(carried.entry),
            outside(node.outputs[carried.final]),
            inside.graph.info(carried.entry).nbytes,
            name=f"{node.outputs[carried.final]} out of {_called(node)}",
        )
        for carried in body.carried
        if carried.final >= 0
    )


def _read(
    node: Node, body: Body, inside: Inside, outside: Outside, counter: Place
) -> list[MoveStep]:
    moves = []
    for row in body.reads:
        size = inside.graph.info(row.inside).nbytes
        source = _after(outside(node.inputs[row.outside]), row.start * size)
        target = inside.where(row.inside)
        name = f"{row.inside} into {_called(node)}"
        moves.append(MoveStep(source, target, size, row.step * size, 0, counter, name))
    return _useful(moves)


def _written(
    node: Node, body: Body, inside: Inside, outside: Outside, counter: Place
) -> list[MoveStep]:
    moves = []
    for row in body.writes:
        size = inside.graph.info(row.inside).nbytes
        target = _after(outside(node.outputs[row.outside]), row.start * size)
        source = inside.where(row.inside)
        step = row.step * size
        counted = counter if step else NOWHERE
        name = f"{node.outputs[row.outside]} out of {_called(node)}"
        moves.append(MoveStep(source, target, size, 0, step, counted, name))
    return _useful(moves)


def _handed_on(body: Body, inside: Inside) -> list[MoveStep]:
    """From exits to entries; through a place of its own what lies where another enters."""
    first: list[MoveStep] = []
    second: list[MoveStep] = []
    free = inside.base + inside.nbytes + ALIGNMENT
    for carried in body.carried:
        size = inside.graph.info(carried.entry).nbytes
        source, target = inside.where(carried.exit), inside.where(carried.entry)
        if any(_meets(inside, carried, other) for other in body.carried if other is not carried):
            first.append(MoveStep(source, Place("arena", free), size, name=f"{carried.exit} aside"))
            source, free = Place("arena", free), free + aligned(size)
        second.append(MoveStep(source, target, size, name=f"{carried.exit} to {carried.entry}"))
    return _useful([*first, *second])


def _meets(inside: Inside, carried: Carried, other: Carried) -> bool:
    """Whether what comes out of one lies where another goes in."""
    source, target = inside.where(carried.exit), inside.where(other.entry)
    own, size = (inside.graph.info(c.entry).nbytes for c in (carried, other))
    return (
        source.region == target.region
        and source.offset < target.offset + size
        and target.offset < source.offset + own
    )


def _called(node: Node) -> str:
    return source_name(node.name, node.outputs)


def _useful(moves: Iterable[MoveStep]) -> list[MoveStep]:
    return [move for move in moves if move.nbytes and move.source != move.target]


def _after(place: Place, distance: int) -> Place:
    return replace(place, offset=place.offset + distance)
