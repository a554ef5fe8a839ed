"""Resharding: the collectives that turn one spec of a tensor into another, costed and executed.

    partial -> copies      all_reduce          partial -> cut       reduce_scatter
    cut     -> copies      all_gather          cut     -> cut       all_to_all
    copies  -> cut         slice (each core keeps its part: nothing is sent)
    copies  -> partial     first (the first core keeps the value, the others hold zeros)

Cheap steps come first: what is cut early is sent in smaller pieces. Invariant: sums are made in the
order of the cores along the axes, so that every core of a group gets the same bits and every run
the same values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
from tilesmith.capabilities.sharding.layouts.specs import Digits, Spec, digits, legal, local_shape
from tilesmith.compiler.rewriting.rounds import Rounds

Array = NDArray[Any]

StepKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "slice", "first"]

COLLECTIVES: tuple[StepKind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Steps in which cores send to one another."""


@dataclass(frozen=True)
class ReshardingStep:
    """One collective (or local change) between two specs.

    Attributes:
        kind: see the module's docstring.
        axes: of the mesh, along which groups of cores take part.
        before, after: the tensor's specs.
    """

    kind: StepKind
    axes: tuple[str, ...]
    before: Spec
    after: Spec

    def wire_bytes(self, shape: Sequence[int], element: int, mesh: LogicalMesh) -> int:
        """Bytes of the tensor on one core before the collective; of an all_gather, after it."""
        spec = self.after if self.kind == "all_gather" else self.before
        return int(np.prod(local_shape(spec, shape, mesh.sizes), dtype=np.int64)) * element


def steps_between(
    source: Spec, wanted: Spec, shape: Sequence[int], mesh: LogicalMesh
) -> tuple[ReshardingStep, ...]:
    """The collectives that make `wanted` of `source`; both are legal for the shape."""
    steps: list[ReshardingStep] = []
    current = source
    rounds = Rounds(f"resharding {source} to {wanted}", 16 * (len(mesh.names) + 1))
    while current != wanted:
        rounds.another()
        step = _next(current, wanted, shape, mesh)
        steps.append(step)
        current = step.after
    return tuple(steps)


def _next(current: Spec, wanted: Spec, shape: Sequence[int], mesh: LogicalMesh) -> ReshardingStep:
    moves: list[tuple[StepKind, str, Spec]] = []
    gone: list[str] = []
    summed: list[str] = []
    for axis in mesh.names:
        here, there = current.place(axis), wanted.place(axis)
        partial, sums = axis in current.partial, axis in wanted.partial
        if here == there and partial == sums:
            continue
        bare = current.without(axis)
        if there is not None:
            kind: StepKind = (
                "reduce_scatter" if partial else "slice" if here is None else "all_to_all"
            )
            moves.append((kind, axis, bare.cutting(axis, there)))
        elif sums and here is None:
            moves.append(("first", axis, bare.summing((axis,))))
        if here is not None:
            gone.append(axis)
        elif partial and there is None:
            summed.append(axis)
    order: tuple[StepKind, ...] = ("slice", "reduce_scatter", "all_to_all", "first")
    for kind, axis, after in sorted(moves, key=lambda move: order.index(move[0])):
        if legal(after, shape, mesh.sizes):
            return ReshardingStep(kind, (axis,), current, after)
    if summed:
        after = Spec(current.dims, current.partial - set(summed))
        return ReshardingStep("all_reduce", tuple(summed), current, after)
    if gone:
        after = reduce(lambda spec, axis: spec.without(axis), gone, current)
        return ReshardingStep("all_gather", tuple(gone), current, after)
    blocked = next(axis for _, axis, _ in moves if axis in current.partial)
    return ReshardingStep("all_reduce", (blocked,), current, current.without(blocked))


# -- execution ----------------------------------------------------------------------------------
def run_step(
    step: ReshardingStep, parts: Sequence[Array], shape: Sequence[int], mesh: LogicalMesh
) -> list[Array]:
    """What every core holds afterwards, from what every core holds before, in the cores' order."""
    places = list(mesh.coordinates())
    results: list[Array] = list(parts)
    if step.kind == "all_gather":
        for axis in sorted(step.axes, key=lambda a: _inside(step.before, a), reverse=True):
            results = _gathered(results, step.before, axis, shape, mesh)
            step = ReshardingStep(step.kind, step.axes, step.before.without(axis), step.after)
        return results
    for group in mesh.groups(step.axes):
        held = [parts[number] for number in group]
        if step.kind in ("all_reduce", "reduce_scatter"):
            total = _summed(held)
            held = [total] * len(group)
        for place, number in enumerate(group):
            if step.kind == "first":
                zeros = any(places[number][axis] for axis in step.axes)
                results[number] = np.zeros_like(held[place]) if zeros else held[place]
            elif step.kind == "all_reduce":
                results[number] = held[place].copy()
            elif step.kind == "all_to_all":
                results[number] = _exchanged(step, held, place, shape, mesh)
            else:
                results[number] = _kept(held[place], step.after, step.axes[0], place, shape, mesh)
    return results


def _inside(spec: Spec, axis: str) -> int:
    return (spec.place(axis) or (0, 0))[1]


def _summed(held: Sequence[Array]) -> Array:
    """The sum in the order of the cores."""
    total = held[0].copy()
    for value in held[1:]:
        total += value
    return total


def _kept(
    array: Array, after: Spec, axis: str, place: int, shape: Sequence[int], mesh: LogicalMesh
) -> Array:
    """The part of an array that the core at a place along an axis keeps under a spec."""
    view = digits(after, shape, mesh.sizes, (axis,))
    kept = array.reshape(view.shape).take(place, view.places[axis])
    return np.ascontiguousarray(kept.reshape(local_shape(after, shape, mesh.sizes)))


def _joined(
    held: Sequence[Array], view: Digits, axis: str, after: Spec, shape: Sequence[int],
    mesh: LogicalMesh,
) -> Array:  # fmt: skip
    """Parts of a tensor, one after the other along the digit that an axis cut."""
    viewed = [array.reshape(view.shape) for array in held]
    joined = np.concatenate(viewed, axis=view.places[axis])
    return joined.reshape(local_shape(after, shape, mesh.sizes))


def _gathered(
    parts: Sequence[Array], before: Spec, axis: str, shape: Sequence[int], mesh: LogicalMesh
) -> list[Array]:
    results = list(parts)
    view = digits(before, shape, mesh.sizes, ())
    for group in mesh.groups((axis,)):
        held = [parts[number] for number in group]
        whole = _joined(held, view, axis, before.without(axis), shape, mesh)
        for number in group:
            results[number] = whole.copy()
    return results


def _exchanged(
    step: ReshardingStep, held: Sequence[Array], place: int, shape: Sequence[int], mesh: LogicalMesh
) -> Array:
    """What the core at a place gets: its part of each of the others', joined."""
    (axis,) = step.axes
    bare = step.before.without(axis)
    number, blocks = step.after.place(axis) or (0, 1)
    both = {f"{axis}'": mesh.sizes[axis], **mesh.sizes}
    renamed = step.before.cutting(f"{axis}'", (number, blocks))
    if not legal(renamed, shape, both):  # the same digit, in other blocks: all of it, then a part
        view = digits(step.before, shape, mesh.sizes, ())
        whole = _joined(held, view, axis, bare, shape, mesh)
        return _kept(whole, step.after, axis, place, shape, mesh)
    view = digits(renamed, shape, both, (f"{axis}'",))
    sent = [a.reshape(view.shape).take([place], view.places[f"{axis}'"]) for a in held]
    joined = np.concatenate(sent, axis=view.places[axis])
    return np.ascontiguousarray(joined.reshape(local_shape(step.after, shape, mesh.sizes)))
