"""Operations that move elements and change none: shapes, slices, padding, constants."""

from dataclasses import replace
from typing import Any

import numpy as np

from tilesmith.capabilities.stablehlo.attributes import constant_of, integer, integers, tensor_type
from tilesmith.capabilities.stablehlo.builder import GraphBuilder, Shape, TensorValue
from tilesmith.capabilities.stablehlo.pairs import paired, read_constant
from tilesmith.capabilities.stablehlo.translator import Translation, Values, rules

_LONG = 1 << 20
"""Elements from which a count is left to an operator."""


@rules.register("stablehlo.constant")
def _constant(translation: Translation, operation: Any, values: Values) -> Values:
    kind, array = constant_of(operation)
    constant = translation.builder.constant(array, kind.dtype if array.ndim == 0 else "")
    return [replace(constant, dtype=kind.dtype, shape=kind.shape)]


@rules.register("complex.stablehlo.constant")
def _complex_constant(translation: Translation, operation: Any, values: Values) -> Values:
    kind = tensor_type(operation.results[0].type, operation.name)
    try:
        arrays = read_constant(operation.get_asm(), kind.dtype, kind.shape)
    except ValueError as error:
        raise translation.refuse(
            operation, "holds its numbers in a way that is not supported"
        ) from (error)
    constants = (translation.builder.constant(array) for array in arrays)
    return [paired(*(replace(each, shape=kind.shape) for each in constants))]


@rules.register("stablehlo.iota")
def _iota(translation: Translation, operation: Any, values: Values) -> Values:
    kind = tensor_type(operation.results[0].type, operation.name)
    axis = integer(operation, "iota_dimension")
    counted = count(translation.builder, kind.shape[axis], kind.dtype)
    return [translation.builder.broadcast(counted, kind.shape, (axis,))]


def count(b: GraphBuilder, extent: int, dtype: str) -> TensorValue:
    """0, 1, ..., extent - 1."""
    if extent <= _LONG:
        return b.constant(np.arange(extent), dtype)
    ends = [b.constant(np.array(n, np.int64)).name for n in (0, extent, 1)]
    return b.cast(b.add("Range", ends, "int64", (extent,)), dtype)


@rules.register("stablehlo.broadcast_in_dim")
def _broadcast_in_dim(translation: Translation, operation: Any, values: Values) -> Values:
    shape = tensor_type(operation.results[0].type, operation.name).shape
    axes = integers(operation, "broadcast_dimensions")
    return [translation.builder.broadcast(values[0], shape, axes)]


@rules.register("stablehlo.dynamic_broadcast_in_dim")
def _dynamic_broadcast(translation: Translation, operation: Any, values: Values) -> Values:
    return _broadcast_in_dim(translation, operation, values[:1])


@rules.register("stablehlo.reshape")
def _reshape(translation: Translation, operation: Any, values: Values) -> Values:
    shape = tensor_type(operation.results[0].type, operation.name).shape
    return [translation.builder.reshape(values[0], shape)]


rules.register("stablehlo.dynamic_reshape")(_reshape)


@rules.register("stablehlo.transpose")
def _transpose(translation: Translation, operation: Any, values: Values) -> Values:
    return [translation.builder.transpose(values[0], integers(operation, "permutation"))]


@rules.register("stablehlo.get_dimension_size")
def _dimension_size(translation: Translation, operation: Any, values: Values) -> Values:
    extent = values[0].shape[integer(operation, "dimension")]
    return [translation.builder.constant(np.array(extent, np.int32))]


@rules.register("stablehlo.concatenate")
def _concatenate(translation: Translation, operation: Any, values: Values) -> Values:
    return [concatenate(translation.builder, list(values), integer(operation, "dimension"))]


def concatenate(b: GraphBuilder, values: list[TensorValue], axis: int) -> TensorValue:
    parts = [value for value in values if value.shape[axis]] or values[:1]
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[axis] = sum(value.shape[axis] for value in parts)
    names = [b.full(value).name for value in parts]
    return b.add("Concat", names, parts[0].dtype, tuple(shape), axis=axis)


@rules.register("stablehlo.slice")
def _slice(translation: Translation, operation: Any, values: Values) -> Values:
    parts = (integers(operation, n) for n in ("start_indices", "limit_indices", "strides"))
    starts, limits, strides = parts
    return [cut(translation.builder, values[0], starts, limits, strides)]


def cut(
    b: GraphBuilder, x: TensorValue, starts: Shape, limits: Shape, strides: Shape = ()
) -> TensorValue:
    """Elements from `starts` to before `limits`, in steps."""
    strides = strides or (1,) * len(starts)
    shape = tuple(
        max(0, -(-(limit - start) // stride))
        for start, limit, stride in zip(starts, limits, strides, strict=True)
    )
    if shape == x.shape:
        return x
    own = (1,) * (len(shape) - len(x.own)) + x.own
    axes = [a for a, extent in enumerate(own) if shape[a] != x.shape[a] and extent > 1]
    # what is repeated is cut by repeating it less often
    small = x if x.whole else b.reshape(replace(x, shape=x.own), own)
    if not axes:
        return replace(small, shape=shape)
    extents = tuple(shape[a] if a in axes else own[a] for a in range(len(own)))
    lists = ([each[a] for a in axes] for each in (starts, limits, range(len(own)), strides))
    names = [b.constant(np.array(entry, np.int64)).name for entry in lists]
    sliced = b.add("Slice", [small.name, *names], x.dtype, extents)
    return replace(sliced, shape=shape)


def part(
    b: GraphBuilder, x: TensorValue, axis: int, start: int, end: int, step: int = 1
) -> TensorValue:
    """Elements of one axis, and all of the others."""
    starts, limits, steps = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    starts[axis], limits[axis], steps[axis] = start, end, step
    return cut(b, x, tuple(starts), tuple(limits), tuple(steps))


@rules.register("stablehlo.reverse")
def _reverse(translation: Translation, operation: Any, values: Values) -> Values:
    return [reverse(translation.builder, values[0], integers(operation, "dimensions"))]


def reverse(b: GraphBuilder, x: TensorValue, axes: Shape) -> TensorValue:
    """Some axes from their ends to their starts."""
    moving = [axis for axis in axes if x.shape[axis] > 1]
    if not moving:
        return x
    x = b.full(x)
    ends = [-(x.shape[axis] + 1) for axis in moving]
    lists = ([-1] * len(moving), ends, moving, [-1] * len(moving))
    names = [b.constant(np.array(entry, np.int64)).name for entry in lists]
    return b.add("Slice", [x.name, *names], x.dtype, x.shape)


@rules.register("stablehlo.pad")
def _pad(translation: Translation, operation: Any, values: Values) -> Values:
    low = integers(operation, "edge_padding_low")
    high = integers(operation, "edge_padding_high")
    inner = integers(operation, "interior_padding")
    b, (x, value) = translation.builder, values
    return [pad(b, spread_out(b, x, value, inner), value, low, high)]


def pad(
    b: GraphBuilder, x: TensorValue, value: TensorValue, low: Shape, high: Shape
) -> TensorValue:
    """A number around a tensor; where sides are negative, elements are cut off."""
    if not any(low) and not any(high):
        return x
    starts = tuple(max(0, -side) for side in low)
    limits = tuple(extent - max(0, -side) for extent, side in zip(x.shape, high, strict=True))
    limits = tuple(max(start, limit) for start, limit in zip(starts, limits, strict=True))
    if any(starts) or limits != x.shape:
        x = cut(b, x, starts, limits)
    low, high = tuple(max(0, s) for s in low), tuple(max(0, s) for s in high)
    if not any(low) and not any(high):
        return x
    shape = tuple(lo + e + hi for lo, e, hi in zip(low, x.shape, high, strict=True))
    sides = b.constant(np.array([*low, *high], np.int64))
    names = [b.full(x).name, sides.name, b.full(value).name]
    return b.add("Pad", names, x.dtype, shape)


def spread_out(b: GraphBuilder, x: TensorValue, value: TensorValue, inner: Shape) -> TensorValue:
    """A number put between neighbours, `inner` times along each axis."""
    for axis, times in enumerate(inner):
        extent = x.shape[axis]
        if times < 1 or extent < 2:
            continue
        split = (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])
        behind = [0] * len(split)
        behind[axis + 1] = times
        wide = pad(b, b.reshape(x, split), value, (0,) * len(split), tuple(behind))
        joined = (*x.shape[:axis], extent * (times + 1), *x.shape[axis + 1 :])
        whole = b.reshape(wide, joined)
        limits = list(joined)
        limits[axis] -= times
        x = cut(b, whole, (0,) * len(joined), tuple(limits))
    return x
