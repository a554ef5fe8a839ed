"""What is computed, apart from how: a small graph of tensor stages over named axes.

A matmul is one stage; a Winograd convolution has four and two constant matrices; a softmax has
three.
Every stage writes one tensor of its own name:

    for each point of `axes`:  tensor[store] = reduce over `reduce_axes` of value

Accesses are affine or quasi-affine in the axes, or read from tensors of indices. Invariants: stages
stand in topological order; names are unique; the last stage writes the output.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions import scalar
from tilesmith.search_space.expressions.expression import Expr, ExprLike, as_expr, var


@dataclass(frozen=True)
class Axis:
    """A named iteration axis from 0 to `extent`."""

    name: str
    extent: Expr

    @property
    def var(self) -> Expr:
        return var(self.name)


def axis(name: str, extent: ExprLike) -> Axis:
    """An axis; plain integers allowed."""
    return Axis(name, as_expr(extent))


@dataclass(frozen=True)
class Tensor:
    """An input, or a matrix of constants (`values`, flattened, row-major)."""

    name: str
    extents: tuple[ExprLike, ...]
    dtype: str = "float32"
    constant: bool = False
    values: tuple[float, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents as numbers: only of a tensor that does not vary."""
        extents = tuple(as_expr(extent).constant for extent in self.extents)
        assert None not in extents, (self.name, self.extents)
        return tuple(extent or 0 for extent in extents)

    @classmethod
    def literal(cls, name: str, values: NDArray[np.float64]) -> "Tensor":
        """A matrix whose numbers are folded into the code."""
        flat = tuple(float(v) for v in values.ravel())
        return cls(name, tuple(values.shape), "float32", constant=True, values=flat)


@dataclass(frozen=True)
class Stage:
    """One tensor and the rule for its elements.

    Attributes:
        name: of the stage and of the tensor it writes.
        axes: spatial axes.
        value: scalar over the axes and earlier tensors.
        reduce_axes, reducer: what is reduced over, and how (see `REDUCERS`). A name that is not
            there raises `ScheduleError`.
        store: indices written, over `axes`; None means the axes themselves. Where one is read from
            a tensor the stage *scatters*: it changes what an earlier stage wrote `into` its tensor,
            at places known at run time only, and goes over `reduce_axes` in their order: one write
            after the other, or combined by the reducer.
        shape: of the tensor written; None means the axes' extents.
        guard: the element is written only where all of these are >= 0.
        dtype: of the elements written.
        into: the later stage whose tensor this one writes a part of (a concatenation has one stage
            for each part); empty means a tensor of its own.
        onto: the earlier stage, over the same axes, whose tensor this reduction goes on from, in
            place; who reads the sum names this stage. Empty: it starts from the identity.
        scan: a reduction that writes every partial result ("inclusive": with the element it has
            come to; "exclusive": without it) at `store`, which then has the reduce axis in it. It
            needs an accumulator tile.
    """

    name: str
    axes: tuple[Axis, ...]
    value: scalar.Scalar
    reduce_axes: tuple[Axis, ...] = ()
    reducer: str | None = None
    store: tuple[Expr, ...] | None = None
    shape: tuple[Expr, ...] | None = None
    guard: scalar.Condition = ()
    dtype: str = "float32"
    into: str = ""
    onto: str = ""
    scan: Literal["", "inclusive", "exclusive"] = ""

    def __post_init__(self) -> None:
        scalar.check_reducer(self.reducer, f"stage '{self.name}'")
        reduces = self.reducer is not None
        assert bool(self.reduce_axes) == reduces or (self.scatters and not reduces), self.name
        assert not self.scan or (self.reducer is not None and self.store), self.name
        assert (self.store is None) == (self.shape is None), self.name
        assert not self.onto or (self.reducer is not None and not self.into), self.name

    @cached_property
    def scatters(self) -> bool:
        """Whether what it writes is known at run time only."""
        return any(index.tensors() for index in self.store or ())

    @property
    def indices(self) -> tuple[Expr, ...]:
        """Indices it writes."""
        return self.store if self.store is not None else tuple(a.var for a in self.axes)

    @property
    def tensor_shape(self) -> tuple[Expr, ...]:
        return self.shape if self.shape is not None else tuple(a.extent for a in self.axes)

    @cached_property
    def reads(self) -> frozenset[str]:
        """Names of the tensors it loads, takes indices from, or goes on from."""
        names = frozenset(load.buffer for load in scalar.loads(self.value))
        for index in (*scalar.expressions(self.value), *self.guard, *(self.store or ())):
            names |= index.tensors()
        return names | {self.onto} if self.onto else names


@dataclass(frozen=True)
class ComputeDefinition:
    """Inputs and stages of one operator; the last stage is the output."""

    name: str
    inputs: tuple[Tensor, ...]
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        known = {tensor.name for tensor in self.inputs}
        for stage in self.stages:
            assert stage.reads <= known, (
                f"{stage.name} reads {stage.reads - known} before they exist"
            )
            assert stage.name not in known, f"two tensors named {stage.name}"
            known.add(stage.name)

    @property
    def output(self) -> Stage:
        return self.stages[-1]

    def stage(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)

    def is_constant(self, name: str) -> bool:
        """Whether a tensor is known at compile time: made from constant inputs only, with
        all parts that other stages write into it."""
        for tensor in self.inputs:
            if tensor.name == name:
                return tensor.constant
        parts = (stage.name for stage in self.stages if stage.into == name)
        return all(self.is_constant(read) for read in (*self.stage(name).reads, *parts))

    def home(self, name: str) -> str:
        """The stage or input in whose tensor the result of `name` stands."""
        onto = {stage.name: stage.onto for stage in self.stages if stage.onto}
        while name in onto:
            name = onto[name]
        return name

    def dtype(self, name: str) -> str:
        """Element type of an input or of a stage's tensor."""
        for tensor in self.inputs:
            if tensor.name == name:
                return tensor.dtype
        return self.stage(name).dtype

    def tensor_shape(self, name: str) -> tuple[Expr, ...]:
        for tensor in self.inputs:
            if tensor.name == name:
                return tuple(as_expr(extent) for extent in tensor.extents)
        return self.stage(name).tensor_shape
