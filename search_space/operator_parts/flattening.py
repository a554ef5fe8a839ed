"""Flattening: the fewest loops that walk several contiguous tensors together.

A pointwise operator over 1x64x56x56 with full operands is one loop of 200704; with an operand that
broadcasts along the last two axes it is two. Adjacent axes merge where every operand either runs
through both without a gap or stays put in both. Templates use it so that vector loops are as long
as the memory allows, whatever the shape looks like.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

from tilesmith.search_space.expressions.expression import ExprLike, as_expr
from tilesmith.search_space.support.errors import WorkloadError


@dataclass(frozen=True)
class Flattened:
    """Merged axes and, for each operand, along which of them it varies.

    Attributes:
        shape: extents of the merged axes, outermost first; none is 1 unless it is alone.
        varies: for each operand, one flag for each merged axis.
    """

    shape: tuple[ExprLike, ...]
    varies: tuple[tuple[bool, ...], ...]

    def operand_shape(self, operand: int) -> tuple[ExprLike, ...]:
        """The operand's flattened shape: the merged axes it varies along (row-major, no gaps)."""
        pairs = zip(self.shape, self.varies[operand], strict=True)
        return tuple(extent for extent, moves in pairs if moves)


def flatten(shape: Sequence[ExprLike], operands: Sequence[Sequence[ExprLike]]) -> Flattened:
    """Merge the axes of `shape` as far as the (right-aligned, broadcast) operand shapes allow.

    Extents that vary are no ones.
    """
    rank = len(shape)
    padded = [(1,) * (rank - len(operand)) + tuple(operand) for operand in operands]
    kept = [axis for axis in range(rank) if shape[axis] != 1]
    sizes: list[ExprLike] = []
    patterns: list[tuple[bool, ...]] = []
    for axis in kept:
        pattern = tuple(operand[axis] != 1 for operand in padded)
        if patterns and patterns[-1] == pattern:
            sizes[-1] = sizes[-1] * shape[axis]
        else:
            sizes.append(shape[axis])
            patterns.append(pattern)
    if not sizes:
        sizes, patterns = [1], [tuple(False for _ in padded)]
    return Flattened(tuple(sizes), tuple(zip(*patterns, strict=True)) if padded else ())


def flatten_rows(shape: Sequence[ExprLike], operands: Sequence[Sequence[ExprLike]]) -> Flattened:
    """`flatten` for memories of rows: the last axis stays by itself, the others merge."""
    rank = len(shape)
    if rank < 2:
        return flatten(shape, operands)
    padded = [(1,) * (rank - len(operand)) + tuple(operand) for operand in operands]
    lead = flatten(shape[:-1], [operand[:-1] for operand in padded])
    last = tuple(operand[-1] != 1 for operand in padded)
    if lead.shape == (1,):
        return Flattened((shape[-1],), tuple((own,) for own in last))
    varies = tuple((*own, along) for own, along in zip(lead.varies, last, strict=True))
    return Flattened((*lead.shape, shape[-1]), varies)


def check_broadcast(operator: str, name: str, shape: Sequence[int], full: Sequence[int]) -> None:
    """Raise `WorkloadError` unless `shape` broadcasts to `full` (aligned right, 1 or equal)."""
    tail = full[len(full) - len(shape) :]
    if len(shape) > len(full) or any(
        a not in (1, b) for a, b in zip(shape, tail, strict=len(shape) <= len(full))
    ):
        raise WorkloadError(
            f"operator '{operator}': {name}={'x'.join(map(str, shape))} does not broadcast to "
            f"{'x'.join(map(str, full))}"
        )


@overload
def product(extents: Sequence[int]) -> int: ...
@overload
def product(extents: Sequence[ExprLike]) -> ExprLike: ...
def product(extents: Sequence[Any]) -> Any:
    """Number of elements."""
    total: Any = 1
    for extent in extents:
        total = total * extent
    return total


def around(shape: Sequence[ExprLike], position: int) -> tuple[ExprLike, ExprLike, ExprLike]:
    """Numbers of elements before an axis, along it, and behind it."""
    return product(shape[:position]), shape[position], product(shape[position + 1 :])


@dataclass(frozen=True)
class Span:
    """What is done along one axis: `size` elements from `start` on, `step` apart, out of `extent`.

    A start below zero or an end behind the extent means padding.
    """

    extent: ExprLike
    start: ExprLike
    size: ExprLike
    step: int = 1

    @property
    def whole(self) -> bool:
        return _zero(self.start) and _zero(as_expr(self.size) - self.extent) and self.step == 1


def _zero(value: ExprLike) -> bool:
    return as_expr(value).constant == 0


def merge(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Merge each axis that is copied whole into the one before it, and drop axes of one element."""
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        if last is not None and span.whole and last.step == 1:
            t = span.extent
            merged[-1] = Span(last.extent * t, last.start * t, last.size * t)
        else:
            merged.append(span)
    kept = [s for s in merged if not (s.whole and s.extent == 1)]
    return tuple(kept) or (Span(1, 0, 1),)
