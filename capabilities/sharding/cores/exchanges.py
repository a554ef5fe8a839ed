"""Moves of a sharded program as exchanges of one core: which elements go where, without a kernel.

A spec's cuts are digits of a tensor's dimensions (`specs.Digits`). A collective sends or joins
parts along the digits of its axes; read with these digits outermost, a tensor is its parts one
after the other, whatever lies outside or inside of the cut.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
from tilesmith.capabilities.sharding.layouts.specs import Digits, Spec, digits, legal, local_shape
from tilesmith.capabilities.sharding.partitioning.program import Move
from tilesmith.compiler.backends.many_cores import Exchange, ExchangeKind, View
from tilesmith.compiler.recipe.program import Place
from tilesmith.search_space.expressions.dtypes import size_of


@dataclass(frozen=True)
class CoreTensor:
    """A tensor in a core's memory."""

    place: Place
    dtype: str
    elements: int

    def dense(self) -> View:
        """All of it, as it lies."""
        return View(self.place, self.dtype, self.elements, 0, ((self.elements, 1),))

    def piece(self, number: int, pieces: int) -> View:
        """One of equal pieces, in the order in which they lie."""
        count = self.elements // pieces
        offset = self.place.offset + number * count * size_of(self.dtype)
        place = Place(self.place.region, offset)
        return View(place, self.dtype, count, 0, ((count, 1),))

    def along(self, view: Digits, axes: Sequence[str]) -> View:
        """All of it, the digits of some axes outermost."""
        outer = [view.places[axis] for axis in axes]
        order = [*outer, *(d for d in range(len(view.shape)) if d not in outer)]
        return View(self.place, self.dtype, self.elements, 0, merged(view.shape, order))

    def part(self, view: Digits, axis: str, number: int) -> View:
        """One of the parts along an axis's digit, in the order in which they lie."""
        digit = view.places[axis]
        order = [d for d in range(len(view.shape)) if d != digit]
        first = number * math.prod(view.shape[digit + 1 :])
        return View(self.place, self.dtype, self.elements, first, merged(view.shape, order))


def merged(shape: Sequence[int], order: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(count, stride) of axes of a row-major shape in an order; those that continue each other are
    one."""
    joined: list[tuple[int, int]] = []
    for axis in order:
        count, stride = shape[axis], math.prod(shape[axis + 1 :])
        if count == 1:
            continue
        if joined and joined[-1][1] == count * stride:
            joined[-1] = joined[-1][0] * count, stride
        else:
            joined.append((count, stride))
    return tuple(joined) or ((1, 1),)


@dataclass(frozen=True)
class Seat:
    """A core of a mesh: which it is, counted in `mesh.cores`."""

    mesh: LogicalMesh
    number: int

    def group(self, axes: Sequence[str]) -> tuple[tuple[int, ...], int]:
        """Machine's numbers of the cores along axes, and which of them this one is."""
        mine = next(g for g in self.mesh.groups(axes) if self.number in g)
        return tuple(self.mesh.cores[place] for place in mine), mine.index(self.number)


def exchanges(
    move: Move,
    seat: Seat,
    source: CoreTensor,
    result: CoreTensor,
    spare: CoreTensor,
    pieces: int = 1,
) -> list[Exchange]:
    """What one core does for a move.

    Args:
        pieces: into how many a sum goes, if they are equal: each begins when its rows are there.
        spare: room for all parts of its group, which moves to other blocks of a digit need.
    """
    step, mesh = move.step, seat.mesh
    group, rank = seat.group(step.axes)
    shape, sizes = move.shape, mesh.sizes
    axis = step.axes[0]

    def one(kind: ExchangeKind, given: View, after: View) -> Exchange:
        return Exchange(f"{kind} {move.tensor}", kind, group, given, after)

    match step.kind:
        case "all_reduce":
            count = pieces if source.elements % pieces == 0 else 1
            return [
                one("all_reduce", source.piece(n, count), result.piece(n, count))
                for n in range(count)
            ]
        case "reduce_scatter":
            view = digits(step.after, shape, sizes, (axis,))
            return [one("reduce_scatter", source.along(view, (axis,)), result.dense())]
        case "all_gather":
            view = digits(step.before, shape, sizes, step.axes)
            return [one("all_gather", source.dense(), result.along(view, step.axes))]
        case "slice":
            view = digits(step.after, shape, sizes, (axis,))
            return [one("copy", source.part(view, axis, rank), result.dense())]
        case "first":
            return [one("zero" if rank else "copy", source.dense(), result.dense())]
        case "all_to_all":
            pass
    both, renamed = _renamed(step.before, step.after, axis, mesh)
    if legal(renamed, shape, both):
        given = digits(renamed, shape, both, (f"{axis}'",))
        target = digits(renamed, shape, both, (axis,))
        sent, joined = source.along(given, (f"{axis}'",)), result.along(target, (axis,))
        return [one("all_to_all", sent, joined)]
    gathered = digits(step.before, shape, sizes, (axis,))
    view = digits(step.after, shape, sizes, (axis,))
    return [
        one("all_gather", source.dense(), spare.along(gathered, (axis,))),
        one("copy", spare.part(view, axis, rank), result.dense()),
    ]


def _renamed(
    before: Spec, after: Spec, axis: str, mesh: LogicalMesh
) -> tuple[dict[str, int], Spec]:
    """What is cut before and, under another name of the axis, after as well."""
    number, blocks = after.place(axis) or (0, 1)
    both = {f"{axis}'": mesh.sizes[axis], **mesh.sizes}
    return both, before.cutting(f"{axis}'", (number, blocks))


def needs_spare(move: Move, mesh: LogicalMesh) -> int:
    """Elements of the spare room that `exchanges` takes; 0: none."""
    step = move.step
    if step.kind != "all_to_all":
        return 0
    both, renamed = _renamed(step.before, step.after, step.axes[0], mesh)
    if legal(renamed, move.shape, both):
        return 0
    bare = step.before.without(step.axes[0])
    return math.prod(local_shape(bare, move.shape, mesh.sizes))
