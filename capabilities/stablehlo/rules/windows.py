"""Reductions over sliding windows: pooling, running sums, and by any associative function."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilesmith.capabilities.stablehlo.attributes import integers, pairs
from tilesmith.capabilities.stablehlo.builder import OPSET, GraphBuilder, Shape, TensorValue
from tilesmith.capabilities.stablehlo.pairs import Complex, flat, packed
from tilesmith.capabilities.stablehlo.rules.reductions import Joins, ReductionBody, identity
from tilesmith.capabilities.stablehlo.rules.shapes import pad, part, spread_out
from tilesmith.capabilities.stablehlo.translator import Translation, Values, rules

_RUNNING = {"sum": ("CumSum", 11), "product": ("CumProd", 26)}
"""Operators of running reductions, and the opset that has them."""

_POOLED = {"max": 3, "sum": 2}
"""Axes that one pooling slides along."""


@dataclass(frozen=True)
class _Windows:
    """A window's extents and how it slides, per axis."""

    sizes: Shape
    strides: Shape
    dilations: Shape
    padding: tuple[tuple[int, int], ...]

    def moving(self) -> list[int]:
        """Axes along which anything happens."""
        return [
            axis
            for axis, (size, stride, sides) in enumerate(
                zip(self.sizes, self.strides, self.padding, strict=True)
            )
            if size > 1 or stride > 1 or any(sides)
        ]


@rules.register("stablehlo.reduce_window")
def _reduce_window(translation: Translation, operation: Any, values: Values) -> Values:
    b = translation.builder
    count = len(values) // 2
    operands, initial = list(values[:count]), list(values[count:])
    rank = len(operands[0].shape)
    ones = (1,) * rank
    windows = _Windows(
        integers(operation, "window_dimensions"),
        integers(operation, "window_strides", ones),
        integers(operation, "window_dilations", ones),
        pairs(operation, "padding", rank),
    )
    spread = tuple(step - 1 for step in integers(operation, "base_dilations", ones))
    body = ReductionBody(translation, operation)
    real = not isinstance(operands[0], Complex)
    kind = body.kind(operands[0].dtype) if count == 1 and real else None
    if kind is not None and _is_identity(b, kind, initial[0]):
        value = spread_out(b, operands[0], initial[0], spread)
        reduced = _running(b, kind, value, windows) or _pooled(b, kind, value, windows)
        if reduced is not None:
            return [reduced]
    spaced = [
        spread_out(b, value, start, spread)
        for value, start in zip(flat(operands), flat(initial), strict=True)
    ]
    combined = _doubled(b, body.of_parts(operands), spaced, flat(initial), windows)
    return packed(combined, operands)


def _is_identity(b: GraphBuilder, kind: str, initial: TensorValue) -> bool:
    known = b.single(initial)
    return known is not None and known == np.asarray(identity(kind, initial.dtype)).astype(
        known.dtype
    )


def _running(
    b: GraphBuilder, kind: str, value: TensorValue, windows: _Windows
) -> TensorValue | None:
    """A sum of everything before each element, or behind it."""
    moving = windows.moving()
    if len(moving) != 1 or kind not in _RUNNING or _RUNNING[kind][1] > OPSET:
        return None
    (axis,) = moving
    extent = value.shape[axis]
    sides = windows.padding[axis]
    if windows.sizes[axis] != extent or windows.strides[axis] != 1 or windows.dilations[axis] != 1:
        return None
    if sides not in ((extent - 1, 0), (0, extent - 1)) or value.dtype not in (
        "float32", "float64", "int32", "int64",
    ):  # fmt: skip
        return None
    place = b.constant(np.array(axis, np.int64))
    names = [b.full(value).name, place.name]
    backwards = int(sides[0] == 0)
    return b.add(_RUNNING[kind][0], names, value.dtype, value.shape, exclusive=0, reverse=backwards)


def _pooled(
    b: GraphBuilder, kind: str, value: TensorValue, windows: _Windows
) -> TensorValue | None:
    """MaxPool; smallest as largest of the negated; sums as convolutions of each channel with ones,
    and as means beside them, which are read where sums are divided (`GraphBuilder.means`)."""
    moving = windows.moving()
    if not moving or value.dtype != "float32" or 0 in value.shape:
        return None
    if kind == "min":
        pooled = _pooled(b, "max", b.elementwise("Neg", value), windows)
        return None if pooled is None else b.elementwise("Neg", pooled)
    sides = [windows.padding[axis] for axis in moving]
    sizes = [windows.sizes[axis] for axis in moving]
    if len(moving) > _POOLED.get(kind, 0) or any(
        low < 0 or high < 0 or max(low, high) >= (size - 1) * windows.dilations[axis] + 1
        for axis, (low, high), size in zip(moving, sides, sizes, strict=True)
    ):
        return None
    still = [axis for axis in range(len(value.shape)) if axis not in moving]
    moved = b.full(b.transpose(value, (*still, *moving)))
    lead = tuple(value.shape[axis] for axis in still)
    flat = lead if len(lead) == 2 else (1, math.prod(lead))
    extents = tuple(value.shape[axis] for axis in moving)
    image = b.reshape(moved, (*flat, *extents))
    strides, dilations = (
        tuple(each[axis] for axis in moving) for each in (windows.strides, windows.dilations)
    )
    spatial = tuple(
        (extent + low + high - (size - 1) * dilation - 1) // stride + 1
        for extent, (low, high), size, dilation, stride in zip(
            extents, sides, sizes, dilations, strides, strict=True
        )
    )
    if min(spatial) < 1:
        return None
    attributes: dict[str, Any] = {
        "kernel_shape": tuple(sizes), "strides": strides, "dilations": dilations,
        "pads": (*(low for low, _ in sides), *(high for _, high in sides)),
    }  # fmt: skip
    order = [*still, *moving]

    def back(operator: str, *operands: TensorValue, **more: Any) -> TensorValue:
        names, shape = [image.name, *(o.name for o in operands)], (*flat, *spatial)
        result = b.add(operator, names, value.dtype, shape, **attributes, **more)
        whole = b.reshape(result, (*lead, *spatial))
        return b.transpose(whole, [order.index(axis) for axis in range(len(order))])

    if kind == "max":
        return back("MaxPool")
    ones = b.constant(np.ones((flat[1], 1, *sizes), np.float32))
    total = back("Conv", ones, group=flat[1])
    b.means[total.name] = back("AveragePool", count_include_pad=1), math.prod(sizes)
    return total


def _doubled(
    b: GraphBuilder,
    body: Joins,
    operands: list[TensorValue],
    initial: list[TensorValue],
    windows: _Windows,
) -> Values:
    """Windows of one, two, four ... elements joined along one axis after the other."""
    values = [
        pad(b, value, start, *zip(*windows.padding, strict=True))
        for value, start in zip(operands, initial, strict=True)
    ]
    for axis, size in enumerate(windows.sizes):
        step = windows.dilations[axis]
        extent = values[0].shape[axis] - (size - 1) * step
        values = _along(b, body, values, axis, size, step)
        stride = windows.strides[axis]
        if stride > 1 or values[0].shape[axis] != extent:
            values = [part(b, value, axis, 0, max(0, extent), stride) for value in values]
    shape = values[0].shape
    joined = body(initial, values)
    return [replace(value, shape=shape) for value in joined]


def _along(
    b: GraphBuilder, body: Joins, values: list[TensorValue], axis: int, size: int, step: int
) -> list[TensorValue]:
    """Element i becomes the join of `size` elements from i on, each `step` behind the last."""
    if values[0].shape[axis] < (size - 1) * step + 1:
        return [part(b, value, axis, 0, 0) for value in values]
    done: list[TensorValue] = []
    covered, length = 0, 1
    while True:
        if size & length:
            start = covered * step
            if done:
                rest = [part(b, v, axis, start, v.shape[axis]) for v in values]
                done = _joined(b, body, done, rest, axis)
            else:
                done = values
            covered += length
        if 2 * length > size:
            return done
        ahead = [part(b, v, axis, length * step, v.shape[axis]) for v in values]
        values, length = _joined(b, body, values, ahead, axis), 2 * length


def _joined(
    b: GraphBuilder, body: Joins, first: list[TensorValue], second: list[TensorValue], axis: int
) -> list[TensorValue]:
    """Both as long as the shorter one."""
    extent = min(first[0].shape[axis], second[0].shape[axis])
    sides = [[part(b, value, axis, 0, extent) for value in side] for side in (first, second)]
    shape = sides[0][0].shape
    return [replace(value, shape=shape) for value in body(sides[0], sides[1])]
