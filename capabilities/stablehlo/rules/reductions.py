"""Reductions: sums, products, extremes, positions of extremes, and by any associative function."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilesmith.capabilities.stablehlo.attributes import integers
from tilesmith.capabilities.stablehlo.builder import GraphBuilder, Shape, TensorValue
from tilesmith.capabilities.stablehlo.pairs import Complex, flat, packed
from tilesmith.capabilities.stablehlo.rules.shapes import concatenate, part
from tilesmith.capabilities.stablehlo.translator import Translation, Values, rules
from tilesmith.search_space.expressions.dtypes import is_floating, to_numpy

_KINDS = {
    "stablehlo.add": "sum", "stablehlo.multiply": "product", "stablehlo.maximum": "max",
    "stablehlo.minimum": "min", "stablehlo.and": "and", "stablehlo.or": "or",
}  # fmt: skip

_REDUCERS = {
    "sum": "ReduceSum", "product": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin",
}  # fmt: skip

COMBINERS = {
    "sum": "Add", "product": "Mul", "max": "Max", "min": "Min", "and": "And", "or": "Or",
}  # fmt: skip
"""The operator that joins two results of a kind."""

_REDUCED = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint32", "uint64")
"""Element types that ONNX's reductions take."""


Joins = Callable[[Values, Values], list[TensorValue]]
"""What joins two tuples of elements, or of whole tensors."""


class ReductionBody:
    """The function by which a reduction joins two (tuples of) elements, or two whole tensors."""

    def __init__(self, translation: Translation, operation: Any, region: int = 0) -> None:
        self._translation, self._outer = translation, translation.known
        self._region = operation.regions[region]

    def __call__(self, first: Values, second: Values) -> list[TensorValue]:
        return list(self._translation.region(self._region, [*first, *second], self._outer))

    def of_parts(self, like: Values) -> Joins:
        """The function of the parts of values, some of which are complex as in `like`."""
        return lambda first, second: flat(self(packed(first, like), packed(second, like)))

    def replaces(self) -> bool:
        """Whether it gives the second of two elements."""
        (block,) = self._region.blocks
        (*_, end) = block.operations
        count = len(block.arguments) // 2
        return list(end.operands) == list(block.arguments)[count:]

    def kind(self, dtype: str) -> str | None:
        """What it is called where it is one operation on its two arguments; None if it is not."""
        (block,) = self._region.blocks
        operations = list(block.operations)
        arguments = list(block.arguments)
        if len(operations) != 2 or len(arguments) != 2:
            return None
        operation, end = operations
        given = list(operation.operands)
        if len(given) != 2 or {*given} != {*arguments}:
            return None
        if list(end.operands) != [operation.results[0]]:
            return None
        kind = _KINDS.get(operation.operation.name)
        if dtype == "bool":
            return {"sum": "or", "max": "or", "product": "and", "min": "and"}.get(kind or "", kind)
        return None if kind in ("and", "or") else kind

    def numbers(self, b: GraphBuilder, first: list[Any], second: list[Any]) -> list[Any]:
        """What it gives for constants; None for what is not known."""
        pairs = [[b.constant(array) for array in side] for side in (first, second)]
        return [b.single(value) for value in self(pairs[0], pairs[1])]


def identity(kind: str, dtype: str) -> Any:
    """The number that changes nothing in a reduction of a kind."""
    if kind in ("sum", "or"):
        return 0
    if kind in ("product", "and"):
        return 1
    if is_floating(dtype):
        return -np.inf if kind == "max" else np.inf
    limits = np.iinfo(to_numpy(dtype))
    return limits.min if kind == "max" else limits.max


@rules.register("stablehlo.reduce")
def _reduce(translation: Translation, operation: Any, values: Values) -> Values:
    b = translation.builder
    count = len(values) // 2
    operands, initial = list(values[:count]), list(values[count:])
    axes = integers(operation, "dimensions")
    body = ReductionBody(translation, operation)
    of_pairs = any(isinstance(value, Complex) for value in operands)
    if count == 1 and not of_pairs:
        kind = body.kind(operands[0].dtype)
        if kind is not None:
            reduced = reduce(b, kind, operands[0], axes)
            return [_with_initial(b, kind, reduced, initial[0])]
    if count == 2 and len(axes) == 1 and not of_pairs:
        positions = _extremes(b, body, operands, axes[0])
        if positions is not None:
            return positions
    joined = fold(b, body.of_parts(operands), flat(operands), flat(initial), axes)
    return packed(joined, operands)


def _with_initial(
    b: GraphBuilder, kind: str, reduced: TensorValue, initial: TensorValue
) -> TensorValue:
    known = b.single(initial)
    if known is not None and known == np.asarray(identity(kind, reduced.dtype)).astype(known.dtype):
        return reduced
    return b.elementwise(COMBINERS[kind], reduced, initial)


def reduce(b: GraphBuilder, kind: str, value: TensorValue, axes: Shape) -> TensorValue:
    """A reduction without the axes; where an axis has no elements, its identity."""
    axes = tuple(sorted(axes))
    left = tuple(extent for axis, extent in enumerate(value.shape) if axis not in axes)
    if all(value.shape[axis] == 1 for axis in axes):
        return b.reshape(value, left)
    if 0 in value.shape:
        return replace(b.like(identity(kind, value.dtype), value), shape=left)
    if value.dtype == "bool":  # flags as numbers, which kernels reduce
        numbers = b.cast(value, "float32")
        reduced = reduce(b, "min" if kind == "and" else "max", numbers, axes)
        return b.elementwise("Greater", reduced, b.like(0, reduced), dtype="bool")
    if value.dtype not in _REDUCED:
        return b.cast(reduce(b, kind, b.cast(value, "int32"), axes), value.dtype)
    kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(value.shape))
    listed = b.constant(np.array(axes, np.int64))
    names = [b.full(value).name, listed.name]
    result = b.add(_REDUCERS[kind], names, value.dtype, kept, keepdims=1)
    return b.reshape(result, left)


def _extremes(
    b: GraphBuilder, body: ReductionBody, operands: list[TensorValue], axis: int
) -> Values | None:
    """(extreme, its first position) where that is what the body keeps of pairs."""
    value, positions = operands
    own = (1,) * (len(positions.shape) - len(positions.own)) + positions.own
    counted = b.known(positions)
    if counted is None or math.prod(own) != value.shape[axis] or own[axis] != value.shape[axis]:
        return None
    if not np.array_equal(counted.reshape(-1), np.arange(value.shape[axis])):
        return None
    if not is_floating(value.dtype) and value.dtype not in ("int32", "int64"):
        return None
    kind = _kept(b, body, value.dtype, positions.dtype)
    if kind is None or 0 in value.shape:
        return None
    left = tuple(extent for a, extent in enumerate(value.shape) if a != axis)
    operator = "ArgMax" if kind == "max" else "ArgMin"
    place = b.add(operator, [b.full(value).name], "int64", left, axis=axis, keepdims=0)
    return [reduce(b, kind, value, (axis,)), b.cast(place, positions.dtype)]


def _kept(b: GraphBuilder, body: ReductionBody, dtype: str, index: str) -> str | None:
    """What of two (value, position) pairs a body keeps: "max", "min", or nothing of that kind."""

    def probe(first: tuple[int, int], second: tuple[int, int]) -> list[Any]:
        sides = [
            [np.array(value).astype(to_numpy(dtype)), np.array(place).astype(to_numpy(index))]
            for value, place in (first, second)
        ]
        return body.numbers(b, sides[0], sides[1])

    ties = probe((3, 1), (3, 4)) == [3, 1] == probe((3, 4), (3, 1))
    if not ties:
        return None
    for kind, best in (("max", 5), ("min", -2)):
        if probe((5, 1), (-2, 4)) == [best, 1 if best == 5 else 4] and probe((-2, 1), (5, 4)) == [
            best,
            4 if best == 5 else 1,
        ]:
            return kind
    return None


def fold(
    b: GraphBuilder,
    body: Joins,
    operands: list[TensorValue],
    initial: list[TensorValue],
    axes: Shape,
) -> list[TensorValue]:
    """Halves joined by the body until one element is left; the body is associative."""
    rank = len(operands[0].shape)
    left = tuple(axis for axis in range(rank) if axis not in axes)
    shape = tuple(operands[0].shape[axis] for axis in left)
    extent = math.prod(operands[0].shape[axis] for axis in axes)
    if extent == 0:
        return [replace(value, shape=shape) for value in initial]
    values = [b.reshape(b.transpose(value, (*axes, *left)), (extent, *shape)) for value in operands]
    while extent > 1:
        half, odd = divmod(extent, 2)
        lows, highs = (
            [part(b, value, 0, start, start + half) for value in values] for start in (0, half)
        )
        joined = [replace(value, shape=(half, *shape)) for value in body(lows, highs)]
        if odd:
            rest = [part(b, value, 0, 2 * half, extent) for value in values]
            joined = [concatenate(b, [*pair], 0) for pair in zip(joined, rest, strict=True)]
        values, extent = joined, half + odd
    return body(initial, [b.reshape(value, shape) for value in values])
