"""Affine indices and masks: `nl.arange`, `nl.mgrid`, `nl.ds`, and what arithmetic makes of them.

An index is `base + sum of step * i` over the axes of the tile it spans; a mask says where affine
expressions are not negative. Loop variables are whole numbers that know their first and last value.
Invariant: an index is affine, so that it is an access pattern of the hardware.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilesmith.families.trainium.nki.notation.errors import NkiError

Axes = tuple[tuple[int, int], ...]
"""(count, step) of each axis."""


class LoopIndex(int):
    """A loop's variable: a whole number, and whether it is the loop's first."""

    first: bool


class NkiRange(list[LoopIndex]):
    """The values of a loop; `affine_range`'s iterations are worked on side by side."""

    overlapping = 0

    def __init__(self, *bounds: Any, overlaps: bool = False, **_: Any) -> None:
        values = range(*(operator.index(bound) for bound in bounds))
        super().__init__(LoopIndex(value) for value in values)
        for index in super().__iter__():
            index.first = index is self[0]
        self._overlaps = overlaps

    def __iter__(self) -> Iterator[LoopIndex]:
        NkiRange.overlapping += self._overlaps
        try:
            yield from super().__iter__()
        finally:
            NkiRange.overlapping -= self._overlaps


@dataclass(frozen=True, eq=False)
class AffineIndex:
    """An affine index: see the module's docstring."""

    base: int
    axes: Axes

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(count for count, _ in self.axes)

    @property
    def lowest(self) -> int:
        return self.base + sum(min(step * (count - 1), 0) for count, step in self.axes)

    @property
    def highest(self) -> int:
        return self.base + sum(max(step * (count - 1), 0) for count, step in self.axes)

    def cut(self, box: Sequence[tuple[int, int]]) -> "AffineIndex":
        """The part of it over (first, count) of each axis."""
        pairs = [*zip(self.axes, box, strict=True)]
        base = self.base + sum(step * first for (_, step), (first, _) in pairs)
        return AffineIndex(base, tuple((count, step) for (_, step), (_, count) in pairs))

    def __getitem__(self, key: Any) -> "AffineIndex":
        parts = key if isinstance(key, tuple) else (key,)
        if Ellipsis in parts:
            at = parts.index(Ellipsis)
            kept = len(self.axes) - sum(part is not None for part in parts) + 1
            parts = (*parts[:at], *[slice(None)] * kept, *parts[at + 1 :])
        axes, base, left = [], self.base, list(self.axes)
        for part in parts:
            if part is None:
                axes.append((1, 0))
            elif isinstance(part, slice) and left:
                count, step = left.pop(0)
                places = range(*part.indices(count))
                base += places.start * step
                axes.append((len(places), step * places.step))
            else:
                raise NkiError("an index takes None and slices in its brackets, one for each axis")
        return AffineIndex(base, (*axes, *left))

    def __add__(self, other: Any) -> "AffineIndex":
        if not isinstance(other, AffineIndex):
            return replace(self, base=self.base + whole(other))
        axes = []
        for one, two in zip(*aligned(self.axes, other.axes), strict=True):
            if one[0] != two[0] and 1 not in (one[0], two[0]):
                raise NkiError(f"indices of shapes {self.shape} and {other.shape} do not broadcast")
            axes.append((max(one[0], two[0]), one[1] + two[1]))
        return AffineIndex(self.base + other.base, tuple(axes))

    __radd__ = __add__

    def __mul__(self, other: Any) -> "AffineIndex":
        factor = whole(other)
        return AffineIndex(self.base * factor, tuple((n, step * factor) for n, step in self.axes))

    __rmul__ = __mul__

    def __neg__(self) -> "AffineIndex":
        return self * -1

    def __sub__(self, other: Any) -> "AffineIndex":
        return self.__add__(-other)

    def __rsub__(self, other: Any) -> "AffineIndex":
        return (-self).__add__(other)

    def __ge__(self, other: Any) -> "AffineMask":
        return AffineMask((self - other,))

    def __gt__(self, other: Any) -> "AffineMask":
        return AffineMask((self - other - 1,))

    def __le__(self, other: Any) -> "AffineMask":
        return AffineMask((other - self,))

    def __lt__(self, other: Any) -> "AffineMask":
        return AffineMask((other - self - 1,))


def aligned(one: Axes, two: Axes) -> tuple[Axes, Axes]:
    """Axes of both, as many of either: further ones of one element come first."""
    most = max(len(one), len(two))
    return ((1, 0),) * (most - len(one)) + one, ((1, 0),) * (most - len(two)) + two


def whole(value: Any) -> int:
    """A whole number in an index."""
    try:
        return operator.index(value)
    except TypeError:
        raise NkiError(
            f"an index is made of whole numbers, nl.arange and loop variables, not of {value!r}"
        ) from None


@dataclass(frozen=True)
class AffineMask:
    """Where every one of `terms` is at least 0."""

    terms: tuple[AffineIndex, ...]

    def __and__(self, other: Any) -> Any:
        if isinstance(other, AffineMask):
            return AffineMask(self.terms + other.terms)
        return self if other else False

    __rand__ = __and__

    def box(self, shape: Sequence[int]) -> list[tuple[int, int]] | None:
        """(first, count) of each axis of a tile where the mask holds; None: nowhere.

        Raises:
            NkiError: what is left is no box.
        """
        first, stop = [0] * len(shape), list(shape)
        for term in self.terms:
            axes = term.axes[len(term.axes) - len(shape) :] if len(shape) else ()
            axes = ((1, 0),) * (len(shape) - len(axes)) + axes
            span = [step * (n - 1) for n, (_, step) in zip(shape, axes, strict=True)]
            if term.base + sum(min(s, 0) for s in span) >= 0:
                continue
            if term.base + sum(max(s, 0) for s in span) < 0:
                return None
            moving = [at for at, s in enumerate(span) if s]
            if len(moving) != 1:
                raise NkiError(
                    f"mask over {len(moving)} axes of a tile {tuple(shape)}: an instruction's mask "
                    "cuts axes one by one; nisa.affine_select selects by others"
                )
            at, step = moving[0], axes[moving[0]][1]
            if step < 0:
                stop[at] = min(stop[at], term.base // -step + 1)
            else:
                first[at] = max(first[at], -(term.base // step))
        if any(a >= b for a, b in zip(first, stop, strict=True)):
            return None
        return [(a, b - a) for a, b in zip(first, stop, strict=True)]


def arange(*bounds: Any) -> AffineIndex:
    """`nl.arange`: one axis of whole numbers."""
    places = range(*map(whole, bounds))
    return AffineIndex(places.start, ((len(places), places.step),))


class MeshIndices(tuple[AffineIndex, ...]):
    """`nl.mgrid[...]`: an index an axis; `p` is the first, `x`, `y`, `z`, `w` the innermost."""

    def __getattr__(self, name: str) -> AffineIndex:
        if name == "p" and self:
            return self[0]
        free = {letter: at for at, letter in enumerate("xyzw"[: len(self) - 1][::-1], start=1)}
        if name not in free:
            raise AttributeError(name)
        return self[free[name]]


class MeshGrid:
    """`nl.mgrid`, and `nl.ogrid`: see `MeshIndices`."""

    def __getitem__(self, key: Any) -> MeshIndices:
        parts = key if isinstance(key, tuple) else (key,)
        indices = []
        for at, part in enumerate(parts):
            places = range(whole(part.start or 0), whole(part.stop), whole(part.step or 1))
            axes = [(1, 0)] * len(parts)
            axes[at] = (len(places), places.step)
            indices.append(AffineIndex(places.start, tuple(axes)))
        return MeshIndices(indices)


def ds(start: Any, size: Any) -> Any:
    """`nl.ds`: `size` elements from `start` on."""
    if isinstance(start, AffineIndex):
        raise NkiError("nl.ds begins at a whole number or a loop variable")
    return slice(whole(start), whole(start) + whole(size))
