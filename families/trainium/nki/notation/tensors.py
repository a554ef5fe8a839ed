"""Tensors in HBM and tiles in SBUF and PSUM as a kernel in NKI sees them, and views of both.

A tile may have block axes in front of its partitions (`nl.par_dim`): each block is a place of its
own, found when the kernel is lowered. A view is affine:

    x[i, nl.arange(128)[:, None], 512 * j + nl.arange(512)[None, :]]

is block i, 128 partitions and 512 elements from 512 j on. Invariants: a view stays inside its
tensor; whatever is written or read goes through the trace that its tensor belongs to.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.nki.notation.dtypes import DType
from tilesmith.families.trainium.nki.notation.errors import NkiError, author_line
from tilesmith.families.trainium.nki.notation.indices import AffineIndex, whole
from tilesmith.families.trainium.nki.notation.tracing import Trace, of_number

HBM, SBUF, PSUM = "hbm", "sbuf", "psum"
BLOCK, PARTITION, FREE = range(3)


class ParDim(int):
    """An extent that `nl.par_dim` marks as the partitions'."""


class ViewAxis(NamedTuple):
    """An axis of a view: what it runs over, how many, and how far from one to the next."""

    kind: int
    count: int  # type: ignore[assignment]
    step: int


@dataclass(eq=False)
class NkiArray:
    """PlacingMemory that a kernel declares.

    Attributes:
        shape: with block axes in front; `partition`: which axis is the partitions'.
        role: of a tensor in HBM "input", "output" or "temporary".
        fill: what its elements are before they are written, if that is said.
        given: elements of a constant in HBM; masked: a mask cut off some of what was written.
    """

    trace: Trace
    name: str
    shape: tuple[int, ...]
    dtype: DType
    space: str
    partition: int = 0
    role: str = "temporary"
    fill: float | None = None
    given: NDArray[Any] | None = None
    masked: bool = False
    line: str = field(default_factory=author_line)

    @property
    def free(self) -> tuple[int, ...]:
        """Extents of a block beside its partitions; all of a tensor in HBM."""
        return self.shape if self.space == HBM else self.shape[self.partition + 1 :]

    def view(self) -> "TensorView":
        """All of it."""
        first = -1 if self.space == HBM else self.partition
        axes = []
        for at, count in enumerate(self.shape):
            kind = BLOCK if at < first else PARTITION if at == first else FREE
            end = max(first, 0) if kind == BLOCK else at + 1 if kind == PARTITION else None
            axes.append(ViewAxis(kind, count, prod(self.shape[at + 1 : end])))
        return TensorView(self, tuple(axes), (0, 0, 0))


class TensorView:
    """A part of an array that instructions read and write; see the module's docstring."""

    def __init__(
        self,
        array: NkiArray,
        axes: tuple[ViewAxis, ...],
        first: tuple[int, int, int],
        limits: tuple[tuple[AffineIndex, int], ...] = (),
    ) -> None:
        self.array, self.axes, self.first, self.limits = array, axes, first, limits

    # -- what kernels ask -----------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.count for axis in self.axes)

    @property
    def ndim(self) -> int:
        return len(self.axes)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def dtype(self) -> DType:
        return self.array.dtype

    @property
    def buffer(self) -> str:
        return self.array.space

    space = buffer

    @property
    def name(self) -> str:
        return self.array.name

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{self.array.name}{list(self.shape)} of {self.dtype} in {self.array.space}"

    def reshape(self, *extents: Any, shape: Any = None) -> "TensorView":
        """The same elements in row-major order in other axes."""
        shape = extents if shape is None else (shape,)
        wanted = [whole(n) for n in (shape[0] if isinstance(shape[0], (tuple, list)) else shape)]
        if -1 in wanted:
            wanted[wanted.index(-1)] = self.size // -prod(wanted)
        if prod(wanted) != self.size:
            raise NkiError(f"{self!r} does not reshape to {tuple(wanted)}")
        if self.array.space == HBM:
            return replace_axes(self, _reshaped(self, self.axes, wanted))
        if wanted[:1] != [self.shape[0]]:
            raise NkiError(f"{self!r} does not reshape to {tuple(wanted)}: partitions stay")
        return replace_axes(self, self.axes[:1] + _reshaped(self, self.axes[1:], wanted[1:]))

    def broadcast_to(self, shape: Any) -> "TensorView":
        """Axes of one element repeated."""
        wanted = tuple(map(whole, shape))
        axes = (ViewAxis(FREE, 1, 0),) * (len(wanted) - len(self.axes)) + self.axes
        repeated = []
        for axis, count in zip(axes, wanted, strict=True):
            if axis.count not in (1, count):
                raise NkiError(f"{self!r} does not broadcast to {wanted}")
            repeated.append(axis if axis.count == count else ViewAxis(axis.kind, count, 0))
        return replace_axes(self, tuple(repeated))

    def expand_dims(self, axis: Any) -> "TensorView":
        """A new axis of one element."""
        at = whole(axis) % (self.ndim + 1)
        return replace_axes(self, (*self.axes[:at], ViewAxis(FREE, 1, 0), *self.axes[at:]))

    def permute(self, *order: int) -> "TensorView":
        """Axes in another order."""
        return replace_axes(self, tuple(self.axes[at] for at in order))

    def astype(self, dtype: Any) -> Any:
        """A copy of another type."""
        return self.array.trace.function("copy")(self, dtype=dtype)

    # -- indices --------------------------------------------------------------------------------
    def __getitem__(self, key: Any) -> "TensorView":
        parts = _spelled_out(key, self)
        indices = [part for part in parts if isinstance(part, AffineIndex)]
        spanned = _spanned(tuple(index.shape for index in indices)) if indices else ()
        crossed = [ViewAxis(-1, count, 0) for count in spanned]
        first, sliced, limits = list(self.first), [], []
        for axis, part in zip(self.axes, [p for p in parts if p is not None], strict=True):
            if isinstance(part, slice):
                places = self._places(part, axis)
                first[axis.kind] += places.start * axis.step
                sliced.append(ViewAxis(axis.kind, len(places), axis.step * places.step))
            elif isinstance(part, AffineIndex):
                if part.lowest < 0 or part.highest >= axis.count:
                    padded = ((1, 0),) * (len(spanned) - len(part.axes)) + part.axes
                    limits.append((AffineIndex(part.base, padded), axis.count))
                first[axis.kind] += part.base * axis.step
                _cross(crossed, part, axis, self)
            else:
                place = whole(part)
                if not -axis.count <= place < axis.count:
                    raise NkiError(f"{self!r}: index {place} is outside an axis of {axis.count}")
                first[axis.kind] += (place % axis.count) * axis.step
        axes = [ViewAxis(FREE if a.kind < 0 else a.kind, a.count, a.step) for a in crossed] + sliced
        view = TensorView(self.array, tuple(axes), (first[0], first[1], first[2]), tuple(limits))
        for at, part in enumerate(parts):
            if part is None:
                view = view.expand_dims(at)
        column = view.ndim == 1 < len(self.array.shape) and self.array.space != HBM
        return view.expand_dims(1) if column else view

    def _places(self, part: slice, axis: ViewAxis) -> range:
        bounds = [None if b is None else whole(b) for b in (part.start, part.stop, part.step)]
        places = range(*slice(*bounds).indices(axis.count))
        if not len(places) or (bounds[1] is not None and bounds[1] > axis.count):
            raise NkiError(
                f"{self!r}: elements {part.start} to {part.stop} are not inside an axis of "
                f"{axis.count}"
            )
        return places

    def cut(self, box: Sequence[tuple[int, int]]) -> "TensorView":
        """A part of it by (first, count) of each axis; axes of one element stay."""
        first, axes, places = list(self.first), [], []
        shift = max(len(box) - self.ndim, 0)
        for at, axis in enumerate(self.axes):
            begin, count = box[at + shift] if at + shift < len(box) else (0, axis.count)
            if axis.count == 1:
                begin, count = 0, 1
            places.append((begin, count))
            first[axis.kind] += begin * axis.step
            axes.append(ViewAxis(axis.kind, count, axis.step))
        left = ((index.cut(places[: len(index.axes)]), count) for index, count in self.limits)
        outside = tuple(one for one in left if one[0].lowest < 0 or one[0].highest >= one[1])
        return TensorView(self.array, tuple(axes), (first[0], first[1], first[2]), outside)

    def __setitem__(self, key: Any, value: Any) -> None:
        self[key].assign(value)

    def assign(self, value: Any) -> None:
        """Write `value` here: what a call returned, another tile, or a number."""
        if isinstance(value, TensorView) and self.same(value):
            return
        if isinstance(value, LoopReduction):
            value.into(self)
        elif of_number(value):
            self.array.trace.emit("memset", out=self, value=float(value))
        elif not isinstance(value, TensorView):
            raise NkiError(
                f"a tile or a number is written to {self!r}, not a {type(value).__name__}"
            )
        elif HBM in (self.array.space, value.array.space):
            self.array.trace.move(self, value)
        else:
            fitted = value if value.shape == self.shape else fitting(value, self.shape)
            self.array.trace.emit("copy", implicit=True, out=self, a=fitted, engine="scalar")

    def same(self, other: "TensorView") -> bool:
        """Whether it is the same part of the same array."""
        mine = (self.array, self.first, [a for a in self.axes if a.count > 1])
        return mine == (other.array, other.first, [a for a in other.axes if a.count > 1])

    # -- arithmetic -----------------------------------------------------------------------------
    def _binary(self, op: str, other: Any, reverse: bool = False) -> Any:
        one, two = (other, self) if reverse else (self, other)
        return self.array.trace.function(op)(one, two)

    def _into(self, op: str, other: Any) -> "TensorView":
        """`self op= other`, in place."""
        if isinstance(other, TensorView) and other.shape == self.shape and op == "add":
            self.array.trace.emit(
                "tensor_tensor", implicit=True, out=self, a=self, op="add", b=other
            )
        else:
            self.assign(self._binary(op, other))
        return self

    def __neg__(self) -> Any:
        return self._binary("multiply", -1.0)

    def __bool__(self) -> bool:
        raise NkiError(f"the elements of {self!r} are not known while a kernel is traced")

    __hash__ = object.__hash__


_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "pow": "power",
}  # fmt: skip
_COMPARISONS = {
    "gt": "greater", "ge": "greater_equal", "lt": "less", "le": "less_equal", "eq": "equal",
    "ne": "not_equal",
}  # fmt: skip


def _operators() -> None:
    """Python's operators of views, each a function of the language."""

    def binary(op: str, reverse: bool) -> Any:
        return lambda self, other: self._binary(op, other, reverse)

    def inplace(op: str) -> Any:
        return lambda self, other: self._into(op, other)

    for word, op in _OPERATORS.items():
        setattr(TensorView, f"__{word}__", binary(op, False))
        setattr(TensorView, f"__r{word}__", binary(op, True))
        setattr(TensorView, f"__i{word}__", inplace(op))
    for word, op in _COMPARISONS.items():
        setattr(TensorView, f"__{word}__", binary(op, False))


_operators()


@dataclass(frozen=True)
class LoopReduction:
    """What `nl.loop_reduce` returns: a value that is reduced over loops into where it is put."""

    value: TensorView
    op: str
    first: bool

    def into(self, out: TensorView) -> None:
        """Begin with the first value, and reduce every further one into what is there."""
        emit = out.array.trace.emit
        value = fitting(self.value, out.shape)
        if self.first:
            emit("copy", implicit=True, out=out, a=value, engine="scalar")
        else:
            emit("tensor_tensor", implicit=True, out=out, a=out, op=self.op, b=value)


def replace_axes(view: TensorView, axes: tuple[ViewAxis, ...]) -> TensorView:
    """The same array from the same place on over other axes."""
    return TensorView(view.array, axes, view.first, view.limits)


def fitting(view: TensorView, shape: Sequence[int]) -> TensorView:
    """A view read in a shape of as many elements."""
    if view.shape == tuple(shape):
        return view
    if view.size != prod(shape):
        return view.broadcast_to(shape)
    mine = [a for a in view.axes if a.count > 1]
    if [a.count for a in mine] == [n for n in shape if n > 1]:
        left = iter(mine)
        return replace_axes(
            view, tuple(ViewAxis(FREE, 1, 0) if n == 1 else next(left) for n in shape)
        )
    return view.reshape(tuple(shape))


@lru_cache(4096)
def _spanned(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The axes that indices span together."""
    return np.broadcast_shapes(*shapes)


def _spelled_out(key: Any, view: TensorView) -> tuple[Any, ...]:
    """An index as a tuple, one for every axis, beside None for new ones."""
    parts = key if isinstance(key, tuple) else (key,)
    named = sum(part is not None and part is not Ellipsis for part in parts)
    if named > view.ndim:
        raise NkiError(f"{view!r} has {view.ndim} axes; {named} indices were given")
    rest = [slice(None)] * (view.ndim - named)
    at = next((n for n, part in enumerate(parts) if part is Ellipsis), None)
    return (*parts, *rest) if at is None else (*parts[:at], *rest, *parts[at + 1 :])


def _cross(crossed: list[ViewAxis], index: AffineIndex, axis: ViewAxis, view: TensorView) -> None:
    """Add an index of one axis to the axes that all indices span together."""
    shift = len(crossed) - len(index.axes)
    for at, (count, step) in enumerate(index.axes, start=shift):
        if count > 1 and step:
            known = crossed[at]
            if known.kind not in (-1, axis.kind):
                raise NkiError(
                    f"{view!r}: one axis of an index runs over partitions and what stands beside "
                    "them; each has axes of its own"
                )
            crossed[at] = ViewAxis(axis.kind, known.count, known.step + step * axis.step)
        elif count == 1 and axis.kind == PARTITION and crossed[at].kind == -1 and at == 0:
            crossed[at] = ViewAxis(axis.kind, crossed[at].count, 0)


def _reshaped(
    view: TensorView, axes: tuple[ViewAxis, ...], wanted: Sequence[int]
) -> tuple[ViewAxis, ...]:
    """Axes of one kind cut and joined.

    Raises:
        NkiError: what is joined is not adjacent.
    """
    sizes: list[ViewAxis] = []
    for axis in axes:
        if axis.count == 1:
            continue
        if sizes and sizes[-1].step == axis.step * axis.count:
            sizes[-1] = ViewAxis(axis.kind, sizes[-1].count * axis.count, axis.step)
        else:
            sizes.append(axis)
    result, left = [], sizes[::-1]
    for count in wanted:
        if count == 1:
            result.append(ViewAxis(FREE, 1, 0))
            continue
        axis = left.pop()
        if axis.count % count:
            raise NkiError(f"{view!r} does not reshape to {tuple(wanted)}: its parts lie apart")
        rest = axis.count // count
        result.append(ViewAxis(axis.kind, count, axis.step * rest))
        if rest > 1:
            left.append(ViewAxis(axis.kind, rest, axis.step))
    return tuple(result)
