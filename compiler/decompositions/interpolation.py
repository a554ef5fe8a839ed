"""Resize and Upsample: a few weighted pixels for each output, axis by axis.

    y[o] = sum_t w[t, o] x[i[t, o]]         t < 1 (nearest), 2 (linear), 4 (cubic), more (antialias)

Indices and weights are constants. Along the innermost axis the kernel `sample` adds the taps; along
others, few taps are gathers of whole rows and an elementwise sum, and many are samples of the
transposed tensor. A pixel of weight 0 has no part in a result, whatever its value, so what is not a
number spreads as far as the taps reach. Where products are cheap and nothing samples
(`WeightPixels`), an axis is a product with the matrix of its weights, along which it spreads.
Nearest neighbours by the very ratios of the extents are a template of their own
(`lowering/movement.py`). What lies outside of a region of interest is a number
(tf_crop_and_resize). Sizes, scales and regions known only when the model runs stay on the host.
Semantics of Resize 19: a filter against aliasing takes pixels of the border for those behind it, or
leaves them out (`exclude_outside`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.decompositions.parts.taps import Taps, sampled
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Composer, decompositions, weighting
from tilesmith.search_space.operators.resize import COORDINATES

_MOST_GATHERS = 4
"""Taps up to which rows are gathered."""

_LONGEST_PRODUCT = 1024
"""Extent of an axis up to which products are faster where they are cheap: each result is a sum over
the axis, where gathers and the sum of two taps move each seven times."""

_Weighted = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Indices and weights, both of shape (taps, outputs)."""


@dataclass(frozen=True)
class _Axis:
    """How one axis is resized; `ends` are those of the region of interest."""

    extent: int
    size: int
    scale: float
    ends: tuple[float, float]


@weighting.register("Upsample")
@weighting.register("Resize")
def weighted(composer: Composer, node: Node) -> str | None:
    """Resizing whose pixels are weighted; neighbours are picked as everywhere."""
    if node.attribute("mode", "nearest") == "nearest":
        return None
    return _resized(composer, node, *_spelling(composer, node), products=True)


@decompositions.register("Upsample")
@decompositions.register("Resize")
def resize(composer: Composer, node: Node) -> str | None:
    return _resized(composer, node, *_spelling(composer, node))


def _spelling(composer: Composer, node: Node) -> tuple[int, str]:
    """Which input holds the scales, and where pixels lie."""
    if composer.opset < 11 or node.operator == "Upsample":
        return 1, "asymmetric"
    return 2, str(node.attribute("coordinate_transformation_mode", "half_pixel"))


def _resized(
    composer: Composer, node: Node, position: int, coordinates: str, products: bool = False
) -> str | None:
    """`products`: whether taps are products rather than samples."""
    mode = node.attribute("mode", "nearest")
    axes = _axes(composer, node, position, coordinates)
    if axes is None or mode not in ("nearest", "linear", "cubic"):
        return None
    if mode == "nearest" and (composer.opset < 11 or _of_template(node, axes, coordinates)):
        return None
    resized, inside = node.inputs[0], np.ones((), bool)
    for number, axis in enumerate(axes):
        same = axis.extent == axis.size and axis.scale == 1.0
        if same and (coordinates != "tf_crop_and_resize" or axis.ends == (0.0, 1.0)):
            inside = inside[..., None] & np.ones(axis.size, bool)
            continue
        places = _places(coordinates, axis)
        if places is None:
            return None
        within = (places >= 0) & (places <= axis.extent - 1)
        inside = inside[..., None] & (within | (coordinates != "tf_crop_and_resize"))
        resized = _along(composer, resized, number, _taps(node, places, axis), products)
    if not inside.all():
        value = composer.number(float(node.attribute("extrapolation_value", 0.0)))
        return composer.pointwise("Where", composer.constant(inside), resized, value)
    return (
        resized
        if resized != node.inputs[0]
        else composer.view(resized, composer.dims(node.writes[0]))
    )


def _of_template(node: Node, axes: list[_Axis], coordinates: str) -> bool:
    """Whether `lowering/movement.py` has the neighbours of it; those of other places are gathered.

    It reads scales of every axis, in order.
    """
    stretched = all(axis.size == axis.extent * axis.scale for axis in axes)
    stretched &= node.attribute("keep_aspect_ratio_policy", "stretch") == "stretch"
    every = list(range(len(axes)))
    ordered = not node.input(2) or list(node.attribute("axes") or every) == every
    return stretched and ordered and coordinates in COORDINATES


def _taps(node: Node, places: NDArray[np.float64], axis: _Axis) -> _Weighted:
    """Pixels within the axis, and their weights."""
    mode = node.attribute("mode", "nearest")
    if mode == "nearest":
        rounding = str(node.attribute("nearest_mode", "round_prefer_floor"))
        indices = _ROUNDED[rounding](places).astype(np.int64)[None]
        weights = np.ones(indices.shape)
    else:
        scale = min(1.0, axis.scale) if node.attribute("antialias", 0) else 1.0
        reach = (1 if mode == "linear" else 2) / scale
        first = np.floor(places).astype(np.int64)
        indices = first + np.arange(math.floor(-reach) + 1, math.ceil(reach) + 1)[:, None]
        away = np.abs(indices - places) * scale
        weights = _linear(away) if mode == "linear" else _cubic(away, node)
    if node.attribute("exclude_outside", 0):
        weights = np.where((indices >= 0) & (indices < axis.extent), weights, 0.0)
    if mode != "nearest":
        weights = weights / weights.sum(axis=0)
    used = weights.any(axis=1)
    return np.clip(indices, 0, axis.extent - 1)[used], weights[used]


def _axes(composer: Composer, node: Node, position: int, coordinates: str) -> list[_Axis] | None:
    """Every axis; None if something of it is computed at run time."""
    source, result = composer.dims(node.inputs[0]), composer.dims(node.writes[0])
    scales = _scales(composer, node, position, source, result)
    regions = [(0.0, 1.0)] * len(source)
    if coordinates == "tf_crop_and_resize":
        given = composer.value(node.input(1)) if node.input(1) else None
        if given is None:
            return None
        named = [int(a) % len(source) for a in node.attribute("axes") or range(len(source))]
        starts, ends = given.reshape(2, -1).tolist()
        for axis, start, end in zip(named, starts, ends, strict=True):
            regions[axis] = (start, end)
    if scales is None:
        return None
    return [_Axis(*parts) for parts in zip(source, result, scales, regions, strict=True)]


def _scales(
    composer: Composer, node: Node, position: int, source: tuple[int, ...], result: tuple[int, ...]
) -> list[float] | None:
    """The factor of every axis; None if it is computed at run time."""
    given: Any = node.attribute("scales")
    if given is None and node.input(position):
        given = composer.value(node.input(position))
        if given is None:
            return None
    ratios = [after / before for before, after in zip(source, result, strict=True)]
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch" and (given is None or not len(given)):
        return _common_scale(composer, node, source)
    if given is None or not len(given):
        return ratios
    rank = len(source)
    factors = [1.0] * rank
    for axis, factor in zip(node.attribute("axes") or range(rank), given, strict=True):
        factors[axis % rank] = float(factor)
    return factors


def _common_scale(composer: Composer, node: Node, source: tuple[int, ...]) -> list[float] | None:
    """The factor of all axes of which a size is given, so that the image fits in or covers it."""
    sizes = composer.value(node.input(3)) if node.input(3) else None
    if sizes is None:
        return None
    named = [int(axis) % len(source) for axis in node.attribute("axes") or range(len(source))]
    ratios = [float(n) / source[axis] for n, axis in zip(sizes, named, strict=True)]
    larger = node.attribute("keep_aspect_ratio_policy") == "not_smaller"
    scale = max(ratios) if larger else min(ratios)
    return [scale if axis in named else 1.0 for axis in range(len(source))]


def _places(mode: str, axis: _Axis) -> NDArray[np.float64] | None:
    """Where each output lies between the inputs, by ONNX's formulas."""
    extent, size, scale = axis.extent, axis.size, axis.scale
    o = np.arange(size, dtype=np.float64)
    match mode:
        case "asymmetric":
            return o / scale
        case "half_pixel":
            return (o + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (o + 0.5) / scale - 0.5 if size > 1 else 0 * o
        case "half_pixel_symmetric":
            offset = extent / 2 * (1 - size / (scale * extent))
            return offset + (o + 0.5) / scale - 0.5
        case "align_corners":
            whole = scale * extent  # the standard does not round it down here
            return o * (extent - 1) / (whole - 1) if whole != 1 else 0 * o
        case "tf_crop_and_resize":
            start, end = axis.ends
            share = o / (size - 1) if size > 1 else o + 0.5
            return (start + share * (end - start)) * (extent - 1)
    return None


_ROUNDED: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _linear(away: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(1 - away, 0.0, 1.0)


def _cubic(away: NDArray[np.float64], node: Node) -> NDArray[np.float64]:
    """Keys, "Cubic convolution interpolation for digital image processing" (1981), equation 4."""
    a = float(node.attribute("cubic_coeff_a", -0.75))
    near = ((a + 2) * away - (a + 3)) * away**2 + 1
    far = a * (((away - 5) * away + 8) * away - 4)
    return np.where(away <= 1, near, np.where(away < 2, far, 0.0))


def _along(composer: Composer, source: str, axis: int, taps: _Weighted, products: bool) -> str:
    """One axis resized; `products` as of `_resized`."""
    shape, (indices, weights) = composer.dims(source), taps
    count, size = indices.shape
    last = len(shape) - 1
    if count == 1 and np.all(weights == 1):
        return composer.gather(source, indices[0], axis)
    if products and (count > _MOST_GATHERS or shape[axis] <= _LONGEST_PRODUCT):
        return _product(composer, source, axis, taps)
    if axis == last and not products:
        return _sampled(composer, source, taps)
    if count > _MOST_GATHERS:
        turned = (*range(axis), *range(axis + 1, len(shape)), axis)
        resized = _sampled(composer, composer.transpose(source, turned), taps)
        return composer.transpose(resized, (*range(axis), last, *range(axis, last)))
    column = (size,) + (1,) * (last - axis)
    total = ""
    for index, weight in zip(indices, weights.reshape(count, *column), strict=True):
        part = composer.pointwise(
            "Mul", composer.gather(source, index, axis), composer.constant(weight)
        )
        if not weight.all():
            zero = composer.number(0.0)
            part = composer.pointwise("Where", composer.constant(weight != 0), part, zero)
        total = composer.pointwise("Add", total, part) if total else part
    return total


def _product(composer: Composer, source: str, axis: int, taps: _Weighted) -> str:
    """One axis resized by a product with the matrix that holds the weights."""
    shape, (indices, weights) = composer.dims(source), taps
    size = indices.shape[1]
    matrix = np.zeros((shape[axis], size))
    for index, weight in zip(indices, weights, strict=True):
        np.add.at(matrix, (index, np.arange(size)), weight)
    if axis == len(shape) - 1:
        return composer.matmul(source, composer.constant(matrix))
    rows = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    turned = composer.constant(np.ascontiguousarray(matrix.T))
    resized = composer.matmul(turned, composer.view(source, rows))
    return composer.view(resized, (*shape[:axis], size, *shape[axis + 1 :]))


def _sampled(composer: Composer, source: str, taps: _Weighted) -> str:
    """The innermost axis resized: rows are the channels of an image that is one pixel high."""
    *outer, extent = composer.dims(source)
    index, weight = (
        composer.constant(array[None]) for array in (taps[0].astype(np.int32), taps[1])
    )
    image = composer.view(source, (1, math.prod(outer), 1, extent))
    resized = sampled(composer, image, Taps(index, weight), (1, taps[0].shape[1]))
    return composer.view(resized, (*outer, taps[0].shape[1]))
