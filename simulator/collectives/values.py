"""What collectives leave on each core, number by number, sums in the order of their algorithm.

A sum of many numbers depends on its order. Here every algorithm has one, for the part of each
member of the group: a ring adds from the member after it around to it, each hop rounded to the
tensor's dtype, as partial sums travel in it; a mesh adds all in the order of the group, in float32;
halving and doubling adds pairs of pairs. Over several levels, partial sums of the inner one are
what the outer one adds. What a part sums up to is made once: all members hold the same bits.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.meshes.mesh import CollectiveKind, Mesh
from tilesmith.simulator.collectives.algorithms import KANGARING, axes_of, cycles_of
from tilesmith.simulator.collectives.cost import cheapest
from tilesmith.simulator.collectives.stages import LaneSpan, plan_spans
from tilesmith.simulator.collectives.transfers import Lane

Array = NDArray[Any]
Operation = Callable[[Array, Array], Array]
Partial = Callable[[int], Array]
"""The partial sum that a core holds after the stages so far, of one part of the tensor."""

OPERATIONS: dict[str, Operation] = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "multiply": np.multiply,
}


def exchanged(
    mesh: Mesh,
    kind: CollectiveKind,
    group: tuple[int, ...],
    arrays: Sequence[Array],
    operation: str = "add",
) -> list[Array]:
    """What each member of a group has after a collective.

    Args:
        arrays: what each has before, one-dimensional and of one dtype, in the group's order.
        operation: of sums, one of `OPERATIONS`.
    """
    p = len(group)
    if kind == "all_gather":
        return [np.concatenate(arrays)] * p
    if kind == "all_to_all":
        return [np.concatenate([np.split(a, p)[i] for a in arrays]) for i in range(p)]
    if kind == "send":
        return [arrays[0], arrays[0]]
    sums = _sums(mesh, kind, group, arrays, OPERATIONS[operation])
    return sums if kind == "reduce_scatter" else [np.concatenate(sums)] * p


def _sums(
    mesh: Mesh,
    kind: CollectiveKind,
    group: tuple[int, ...],
    arrays: Sequence[Array],
    operation: Operation,
) -> list[Array]:
    """The sum of each member's part."""
    stages = _stages(mesh, kind, group, arrays[0].nbytes)
    parts = {core: np.array_split(a, len(group)) for core, a in zip(group, arrays, strict=True)}

    def held(number: int, stage: int) -> Partial:
        if stage < 0:
            return lambda core: parts[core][number]
        span, name = stages[stage]
        inner = held(number, stage - 1)
        return lambda core: _reduced(span, name, core, inner, operation)

    return [held(i, len(stages) - 1)(core) for i, core in enumerate(group)]


def _stages(
    mesh: Mesh, kind: CollectiveKind, group: tuple[int, ...], size: int
) -> list[tuple[LaneSpan, str]]:
    """The spans that sum, from the inside out, with the algorithm of each."""
    if len(group) == 1:
        return []
    lines = cheapest(mesh, kind, group, size)
    together = any(line.algorithm == KANGARING for line in lines)
    spans = plan_spans(mesh, group, together)
    return [(span, line.algorithm) for span, line in zip(spans, lines, strict=False)]


def _reduced(span: LaneSpan, name: str, core: int, inner: Partial, operation: Operation) -> Array:
    """The sum over the lane of a core, in the order of the part that it ends up with."""
    lane = next(lane for lane in span.lanes if core in lane)
    if name == KANGARING:
        return _around_chips(span, lane, core, inner, operation)
    if name == "rdh":
        return _halved(span, lane, core, inner, operation)
    order = _around(cycles_of(span.level, lane)[0], core) if name == "ring" else lane
    partial = inner(order[0])
    total = partial.astype(np.float32) if partial.dtype != np.float64 else partial
    for other in order[1:]:
        total = operation(total, inner(other).astype(total.dtype))
        if name == "ring":
            total = total.astype(partial.dtype).astype(total.dtype)
    return total.astype(partial.dtype)


def _around(cycle: Lane, core: int) -> Lane:
    """The members of a cycle from the one after a core around to it."""
    at = cycle.index(core) + 1
    return (*cycle[at:], *cycle[:at])


def _around_chips(
    span: LaneSpan, lane: Lane, core: int, inner: Partial, operation: Operation
) -> Array:
    """Chip after chip: what came, and the parts of all cores of the chip."""
    inside = span.level.inside
    cores = [other for one in span.lanes for other in one]
    total: Array | None = None
    for member in _around(cycles_of(span.level, lane)[0], core):
        chip = sorted(other for other in cores if other // inside == member // inside)
        for other in chip:
            part = inner(other)
            wide = part.astype(np.float32)
            total = wide if total is None else operation(total, wide)
        assert total is not None
        total = total.astype(part.dtype).astype(np.float32)
    assert total is not None
    return total.astype(part.dtype)


def _halved(span: LaneSpan, lane: Lane, core: int, inner: Partial, operation: Operation) -> Array:
    """Pairs along the axes, then pairs of pairs."""
    order = axes_of(span.level, lane)
    place = {lane[member]: i for i, member in enumerate(order)}

    def tree(at: int, bits: int) -> Array:
        if bits == 0:
            return inner(lane[order[at]])
        one, other = tree(at, bits - 1), tree(at ^ 1 << (bits - 1), bits - 1)
        low, high = (one, other) if not at >> (bits - 1) & 1 else (other, one)
        return operation(low.astype(np.float32), high.astype(np.float32)).astype(one.dtype)

    return tree(place[core], len(lane).bit_length() - 1)
