"""`Spec`: how one tensor lies over a mesh: which axis cuts which dimension, or holds partial sums.

    x = data,-,tensor          dimension 0 cut over `data`, dimension 2 over `tensor`
    y = data+tensor,-          dimension 0 cut over both, `data` outside
    w = -,tensor/3             each third of dimension 1 cut over `tensor`

An axis that a spec does not name holds copies. What reshaping makes of a cut dimension is again a
cut one only if a cut may lie inside blocks: of (B, S) cut along S, the B x S rows as one dimension
are cut in each of B blocks. So a dimension is a number in mixed radix, and an axis cuts one digit.
Invariants: cuts of a dimension nest (each begins where the one before ends, or further inside); an
axis occurs once in a spec; whatever is cut divides.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
from tilesmith.search_space.support.errors import InputError

Array = NDArray[Any]
Sizes = Mapping[str, int]


@dataclass(frozen=True, order=True)
class Cut:
    """An axis that cuts each of `blocks` equal blocks of a dimension."""

    blocks: int
    axis: str


Dimension = tuple[Cut, ...]
"""The cuts of one dimension, outermost first."""


@dataclass(frozen=True)
class Spec:
    """How a tensor lies over a mesh.

    Attributes:
        dims: the cuts of each dimension.
        partial: axes along which cores hold terms of a sum.
    """

    dims: tuple[Dimension, ...]
    partial: frozenset[str] = frozenset()

    @classmethod
    def whole(cls, rank: int) -> "Spec":
        """A copy on every core."""
        return cls(((),) * rank)

    def place(self, axis: str) -> tuple[int, int] | None:
        """(dimension, blocks) that an axis cuts; None if it cuts none."""
        for number, cuts in enumerate(self.dims):
            for cut in cuts:
                if cut.axis == axis:
                    return number, cut.blocks
        return None

    @property
    def axes(self) -> set[str]:
        """Axes that cut a dimension."""
        return {cut.axis for cuts in self.dims for cut in cuts}

    def without(self, axis: str) -> "Spec":
        """The spec without an axis: there are copies, or one sum, along it."""
        dims = tuple(tuple(cut for cut in cuts if cut.axis != axis) for cuts in self.dims)
        return Spec(dims, self.partial - {axis})

    def cutting(self, axis: str, place: tuple[int, int]) -> "Spec":
        """The spec with one more axis that cuts a dimension."""
        number, blocks = place
        cuts = tuple(sorted((*self.dims[number], Cut(blocks, axis))))
        return replace(self, dims=(*self.dims[:number], cuts, *self.dims[number + 1 :]))

    def summing(self, axes: Iterable[str]) -> "Spec":
        """The spec with partial sums along more axes."""
        return replace(self, partial=self.partial | frozenset(axes))

    def __str__(self) -> str:
        dims = ",".join(_text(cuts) for cuts in self.dims) or "scalar"
        return dims + "".join(f";sum={axis}" for axis in sorted(self.partial))


def _text(cuts: Dimension) -> str:
    return (
        "+".join(
            cut.axis if number or cut.blocks == 1 else f"{cut.axis}/{cut.blocks}"
            for number, cut in enumerate(cuts)
        )
        or "-"
    )


def parse(text: str, shape: Sequence[int], sizes: Sizes, name: str) -> Spec:
    """The spec that a text says, as in the module's docstring, or as JSON has it.

    Raises:
        InputError: an unknown axis, too many dimensions, or what does not divide.
    """
    dims: list[Dimension] = []
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if len(parts) > len(shape):
        raise InputError(
            f"spec '{text}' names {len(parts)} dimensions and '{name}' has {len(shape)}; name "
            "at most as many, '-' for one that is not cut"
        )
    seen: set[str] = set()
    for part in parts:
        own: list[Cut] = []
        inside = 1
        for word in part.split("+") if part not in ("", "-", "none") else ():
            axis, _, blocks = word.strip().partition("/")
            if axis not in sizes:
                known = ", ".join(sizes) or "none longer than one core"
                raise InputError(f"spec of '{name}': the mesh has no axis '{axis}'; it has {known}")
            if axis in seen or not (blocks or "1").isdecimal() or blocks == "0":
                raise InputError(
                    f"spec '{text}' of '{name}': '{word}' is none that can be cut by; each axis "
                    "may be named once, blocks are a number as in 'tensor/3'"
                )
            seen.add(axis)
            inside *= int(blocks or 1)
            own.append(Cut(inside, axis))
            inside *= sizes[axis]
        dims.append(tuple(own))
    spec = Spec((*dims, *(((),) * (len(shape) - len(dims)))))
    for number, (cuts, extent) in enumerate(zip(spec.dims, shape, strict=True)):
        if not divides(cuts, extent, sizes):
            pieces = math.prod(sizes[cut.axis] for cut in cuts)
            raise InputError(
                f"dimension {number} of '{name}' is {extent} long, which {pieces} cores "
                f"({_text(cuts)}) do not divide; {_divisors(extent)} do"
            )
    return spec


def _divisors(extent: int) -> str:
    return ", ".join(str(n) for n in range(1, min(extent, 512) + 1) if extent % n == 0)


def divides(cuts: Dimension, extent: int, sizes: Sizes) -> bool:
    """Whether cuts nest and divide a dimension."""
    inside = 1
    for cut in cuts:
        if cut.blocks % inside:
            return False
        inside = cut.blocks * sizes[cut.axis]
    return extent > 0 and extent % inside == 0


def legal(spec: Spec, shape: Sequence[int], sizes: Sizes) -> bool:
    """Whether a tensor of a shape can lie so."""
    axes = [cut.axis for cuts in spec.dims for cut in cuts]
    apart = len(set(axes)) == len(axes) and not spec.partial & set(axes)
    return apart and all(divides(c, n, sizes) for c, n in zip(spec.dims, shape, strict=True))


def local_shape(spec: Spec, shape: Sequence[int], sizes: Sizes) -> tuple[int, ...]:
    """The shape of the part that one core holds."""
    return tuple(
        extent // math.prod(sizes[cut.axis] for cut in cuts)
        for cuts, extent in zip(spec.dims, shape, strict=True)
    )


def pieces(spec: Spec, sizes: Sizes) -> int:
    """Into how many different parts a tensor is cut."""
    return math.prod(sizes[axis] for axis in spec.axes)


@dataclass(frozen=True)
class Digits:
    """A tensor's dimensions as digits: the shape to view it in, and which digit an axis cuts."""

    shape: tuple[int, ...]
    places: Mapping[str, int]


def digits(spec: Spec, shape: Sequence[int], sizes: Sizes, opened: Iterable[str]) -> Digits:
    """The digits of a core's part; those that axes cut are 1 long but for `opened` ones, which are
    there whole."""
    wanted, parts, places = set(opened), [], {}
    for cuts, extent in zip(spec.dims, shape, strict=True):
        inside = 1
        for cut in cuts:
            parts.append(cut.blocks // inside)
            places[cut.axis] = len(parts)
            parts.append(sizes[cut.axis] if cut.axis in wanted else 1)
            inside = cut.blocks * sizes[cut.axis]
        parts.append(extent // inside)
    return Digits(tuple(parts), places)


def part(
    array: Array, spec: Spec, shape: Sequence[int], mesh: LogicalMesh, at: Mapping[str, int]
) -> Array:
    """What the core at a place holds of a whole array: of partial sums the first core all."""
    if any(at[axis] for axis in spec.partial):
        array = np.zeros_like(array)
    view = digits(spec, shape, mesh.sizes, spec.axes)
    index: list[Any] = [slice(None)] * len(view.shape)
    for axis, digit in view.places.items():
        index[digit] = at[axis]
    local = array.reshape(view.shape)[tuple(index)]
    return np.ascontiguousarray(local.reshape(local_shape(spec, shape, mesh.sizes)))


def assembled(parts: Sequence[Array], spec: Spec, shape: Sequence[int], mesh: LogicalMesh) -> Array:
    """The whole array of what the cores hold; partial sums are added in the cores' order."""
    view = digits(spec, shape, mesh.sizes, spec.axes)
    result = np.zeros(view.shape, parts[0].dtype)
    for local, at in zip(parts, mesh.coordinates(), strict=True):
        if any(at[n] for n in mesh.names if n not in spec.axes and n not in spec.partial):
            continue  # a copy
        index: list[Any] = [slice(None)] * len(view.shape)
        for axis, digit in view.places.items():
            index[digit] = at[axis]
        place = tuple(index)
        value = local.reshape(result[place].shape)
        result[place] = result[place] + value if spec.partial else value
    return result.reshape(tuple(shape))
