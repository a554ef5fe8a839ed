"""Sums of products: `dot_general` as MatMul, `convolution` as Conv, whatever the axes' order."""

import math
from dataclasses import dataclass, replace
from typing import Any

from tilesmith.capabilities.stablehlo.attributes import flags, integer, integers, pairs, tensor_type
from tilesmith.capabilities.stablehlo.bindings import stablehlo
from tilesmith.capabilities.stablehlo.builder import GraphBuilder, Shape, TensorValue
from tilesmith.capabilities.stablehlo.rules.shapes import pad, reverse, spread_out
from tilesmith.capabilities.stablehlo.translator import Translation, Values, rules

_MULTIPLIED = (
    "float32", "float64", "float16", "bfloat16", "int32", "int64", "uint32", "uint64",
)  # fmt: skip
"""Element types that MatMul takes."""


@dataclass(frozen=True)
class Side:
    """An operand of a product and what its axes are for."""

    value: TensorValue
    batch: Shape
    contracted: Shape

    @property
    def free(self) -> Shape:
        named = {*self.batch, *self.contracted}
        return tuple(axis for axis in range(len(self.value.shape)) if axis not in named)

    def extents(self, axes: Shape) -> Shape:
        return tuple(self.value.shape[axis] for axis in axes)


@rules.register("stablehlo.dot_general")
def _dot_general(translation: Translation, operation: Any, values: Values) -> Values:
    axes = stablehlo().DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
    left = Side(
        values[0], tuple(axes.lhs_batching_dimensions), tuple(axes.lhs_contracting_dimensions)
    )
    right = Side(
        values[1], tuple(axes.rhs_batching_dimensions), tuple(axes.rhs_contracting_dimensions)
    )
    return [_product(translation, operation, left, right)]


@rules.register("stablehlo.dot")
def _dot(translation: Translation, operation: Any, values: Values) -> Values:
    left = Side(values[0], (), (len(values[0].shape) - 1,))
    return [_product(translation, operation, left, Side(values[1], (), (0,)))]


def _product(translation: Translation, operation: Any, left: Side, right: Side) -> TensorValue:
    b = translation.builder
    dtype = tensor_type(operation.results[0].type, operation.name).dtype
    wide = dtype if dtype in _MULTIPLIED else "int32"
    sides = [replace(side, value=b.cast(side.value, wide)) for side in (left, right)]
    return b.cast(multiply(b, sides[0], sides[1]), dtype)


def multiply(b: GraphBuilder, left: Side, right: Side) -> TensorValue:
    """[batch, left's free axes, right's free axes] of two operands of one element type."""
    shape = (*left.extents(left.batch), *left.extents(left.free), *right.extents(right.free))
    left, right = _without_ones(b, left), _without_ones(b, right)
    if 0 in (*left.value.shape, *right.value.shape):
        return replace(b.like(0, left.value), shape=shape)
    if _is_last(right) and not _is_last(left):  # as exporters write v' p': p v, transposed
        swapped = multiply(b, right, left)
        lead, own = len(left.batch), len(right.free)
        axes = range(lead, lead + own + len(left.free))
        turned = b.transpose(swapped, (*range(lead), *axes[own:], *axes[:own]))
        return b.reshape(turned, shape)
    rows, columns = left.extents(left.free), right.extents(right.free)
    depth = math.prod(left.extents(left.contracted))
    batch = left.extents(left.batch)
    x = b.transpose(left.value, (*left.batch, *left.free, *left.contracted))
    order = right.contracted
    if len(order) > 1:  # both in the order in which the left one has them
        x = b.transpose(left.value, (*left.batch, *left.free, *sorted(left.contracted)))
        ranked = sorted(range(len(order)), key=left.contracted.__getitem__)
        order = tuple(right.contracted[i] for i in ranked)
    y = b.transpose(right.value, (*right.batch, *order, *right.free))
    rows = rows if not batch and rows else (math.prod(rows),)
    x = b.full(b.reshape(x, (*batch, *rows, depth)))
    y = b.full(b.reshape(y, (*batch, depth, math.prod(columns))))
    product = b.add("MatMul", [x.name, y.name], x.dtype, (*batch, *rows, math.prod(columns)))
    return b.reshape(product, shape)


def _is_last(side: Side) -> bool:
    return bool(side.contracted) and max(side.contracted) == len(side.value.shape) - 1


def _without_ones(b: GraphBuilder, side: Side) -> Side:
    """The side without free axes of one element."""
    value = side.value
    ones = [axis for axis in side.free if value.shape[axis] == 1]
    if not ones:
        return side
    kept = [axis for axis in range(len(value.shape)) if axis not in ones]
    place = {axis: number for number, axis in enumerate(kept)}
    return Side(
        b.reshape(value, tuple(value.shape[axis] for axis in kept)),
        tuple(place[axis] for axis in side.batch),
        tuple(place[axis] for axis in side.contracted),
    )


# -- convolution --------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Window:
    """How a kernel slides: per spatial axis."""

    strides: Shape
    padding: tuple[tuple[int, int], ...]
    dilation: Shape
    spread: Shape


@rules.register("stablehlo.convolution")
def _convolution(translation: Translation, operation: Any, values: Values) -> Values:
    b = translation.builder
    axes = stablehlo().ConvDimensionNumbers(operation.attributes["dimension_numbers"])
    result = tensor_type(operation.results[0].type, operation.name)
    rank = len(axes.input_spatial_dimensions)
    ones = (1,) * rank
    window = _Window(
        integers(operation, "window_strides", ones),
        pairs(operation, "padding", rank),
        integers(operation, "rhs_dilation", ones),
        integers(operation, "lhs_dilation", ones),
    )
    wide = result.dtype if result.dtype.startswith(("float", "bfloat")) else "float64"
    x = b.transpose(
        b.cast(values[0], wide),
        (
            axes.input_batch_dimension,
            axes.input_feature_dimension,
            *axes.input_spatial_dimensions,
        ),
    )
    weight = b.transpose(
        b.cast(values[1], wide),
        (
            axes.kernel_output_feature_dimension,
            axes.kernel_input_feature_dimension,
            *axes.kernel_spatial_dimensions,
        ),
    )
    turned = flags(operation, "window_reversal", rank)
    weight = reverse(b, weight, tuple(i + 2 for i in range(rank) if turned[i]))
    groups = integer(operation, "feature_group_count", 1)
    batches = integer(operation, "batch_group_count", 1)
    if batches > 1:
        x, groups = _batches_as_groups(b, x, batches), batches
    convolved = _convolve(b, x, weight, window, groups)
    order = [0] * (rank + 2)
    order[axes.output_batch_dimension], order[axes.output_feature_dimension] = 0, 1
    for number, axis in enumerate(axes.output_spatial_dimensions):
        order[axis] = number + 2
    return [b.cast(b.transpose(convolved, order), result.dtype)]


def _batches_as_groups(b: GraphBuilder, x: TensorValue, batches: int) -> TensorValue:
    """Parts of the batch side by side as channels: [n g, c, ...] as [n, g c, ...]."""
    batch, channels, *rest = x.shape
    split = b.reshape(b.full(x), (batches, batch // batches, channels, *rest))
    moved = b.transpose(split, (1, 0, *range(2, len(split.shape))))
    return b.reshape(moved, (batch // batches, batches * channels, *rest))


def _convolve(
    b: GraphBuilder, x: TensorValue, weight: TensorValue, window: _Window, groups: int
) -> TensorValue:
    """Conv of [n, c, ...] by [oc, c / groups, ...]; ConvTranspose where the input is spread."""
    if not window.strides:  # no axis to slide along
        one = _Window((1,), ((0, 0),), (1,), (1,))
        x, weight = (b.reshape(v, (*v.shape, 1)) for v in (x, weight))
        convolved = _convolve(b, x, weight, one, groups)
        return b.reshape(convolved, convolved.shape[:2])
    if any(step > 1 for step in window.spread):
        transposed = _transposed(b, x, weight, window, groups)
        if transposed is not None:
            return transposed
        inner = (0, 0, *(step - 1 for step in window.spread))
        x = spread_out(b, x, b.like(0, x), inner)
    low, high = zip(*window.padding, strict=True)
    if min(*low, *high) < 0:
        x = pad(b, x, b.like(0, x), (0, 0, *low), (0, 0, *high))
        low = high = (0,) * len(low)
    kernel = weight.shape[2:]
    spatial = tuple(
        (extent + lo + hi - (size - 1) * dilation - 1) // stride + 1
        for extent, lo, hi, size, dilation, stride in zip(
            x.shape[2:], low, high, kernel, window.dilation, window.strides, strict=True
        )
    )
    shape = (x.shape[0], weight.shape[0], *(max(0, extent) for extent in spatial))
    if 0 in (*shape, *x.shape, *weight.shape):
        return replace(b.like(0, x), shape=shape)
    return b.add(
        "Conv", [b.full(x).name, b.full(weight).name], x.dtype, shape,
        kernel_shape=kernel, strides=window.strides, pads=(*low, *high),
        dilations=window.dilation, group=groups,
    )  # fmt: skip


def _transposed(
    b: GraphBuilder, x: TensorValue, weight: TensorValue, window: _Window, groups: int
) -> TensorValue | None:
    """The transposed convolution that spreads its input by itself, where there is one."""
    if any(step > 1 for step in window.strides) or 0 in (*x.shape, *weight.shape):
        return None
    kernel = weight.shape[2:]
    reach = [(size - 1) * d for size, d in zip(kernel, window.dilation, strict=True)]
    before = [r - low for r, (low, _) in zip(reach, window.padding, strict=True)]
    behind = [r - high for r, (_, high) in zip(reach, window.padding, strict=True)]
    more = [max(0, -end) for end in behind]
    behind = [max(0, end) for end in behind]
    if min(before) < 0 or any(m >= s for m, s in zip(more, window.spread, strict=True)):
        return None
    outputs, inputs = weight.shape[:2]
    grouped = b.reshape(b.full(weight), (groups, outputs // groups, inputs, *kernel))
    swapped = b.transpose(grouped, (0, 2, 1, *range(3, len(grouped.shape))))
    flipped = b.reshape(swapped, (groups * inputs, outputs // groups, *kernel))
    flipped = reverse(b, flipped, tuple(range(2, len(flipped.shape))))
    spatial = tuple(
        step * (extent - 1) + r + 1 - lo - hi + m
        for step, extent, r, lo, hi, m in zip(
            window.spread, x.shape[2:], reach, before, behind, more, strict=True
        )
    )
    if min(spatial) < 1:
        return None
    return b.add(
        "ConvTranspose", [b.full(x).name, b.full(flipped).name], x.dtype,
        (x.shape[0], outputs, *spatial), kernel_shape=kernel, strides=window.spread,
        pads=(*before, *behind), dilations=window.dilation, group=groups,
        output_padding=tuple(more),
    )  # fmt: skip
