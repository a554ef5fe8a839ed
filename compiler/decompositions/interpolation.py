"""Resize and Upsample between pixels (linear, cubic): a few weighted rows for each output row.

    y[o] = sum_t w[t, o] x[i[t, o]]         t < 2 (linear) or 4 (cubic)

Axis by axis; indices and weights are constants. The innermost axis is a product with the matrix
that holds the weights, which vectors do faster than picking single elements, as long as it is
short; the others are gathers of whole rows and an elementwise sum. Nearest neighbours are a
template of their own (`lowering/movement.py`). Antialiasing, regions of interest and sizes known
only when the model runs stay on the host.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.decomposition import Composer, decompositions
from tilesmith.compiler.graph import Node

_LONGEST_PRODUCT = 160
"""Extent of the innermost axis up to which a product is faster than gathers (measured)."""

Taps = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Indices and weights, both of shape (taps, outputs)."""


@decompositions.register("Upsample")
def upsample(composer: Composer, node: Node) -> str | None:
    return _resized(composer, node, 1, "asymmetric")


@decompositions.register("Resize")
def resize(composer: Composer, node: Node) -> str | None:
    if composer.opset < 11:
        return _resized(composer, node, 1, "asymmetric")
    if node.attribute("antialias", 0) or node.attribute("keep_aspect_ratio_policy", "stretch") != (
        "stretch"
    ):
        return None
    return _resized(
        composer, node, 2, node.attribute("coordinate_transformation_mode", "half_pixel")
    )


def _resized(composer: Composer, node: Node, position: int, coordinates: str) -> str | None:
    mode = node.attribute("mode", "nearest")
    source, result = composer.dims(node.inputs[0]), composer.dims(node.writes[0])
    scales = _scales(composer, node, position, source, result)
    if mode not in ("linear", "cubic") or scales is None:
        return None
    found = node.inputs[0]
    for axis, (extent, size) in enumerate(zip(source, result, strict=True)):
        if extent == size and scales[axis] == 1.0:
            continue
        places = _places(coordinates, extent, size, scales[axis])
        if places is None:
            return None
        taps = _linear(places) if mode == "linear" else _cubic(places, node, extent)
        found = _along(composer, found, axis, (np.clip(taps[0], 0, extent - 1), taps[1]))
    return found if found != node.inputs[0] else composer.view(found, result)


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
    if given is None or not len(given):
        return ratios
    rank = len(source)
    factors = [1.0] * rank
    for axis, factor in zip(node.attribute("axes") or range(rank), given, strict=True):
        factors[axis % rank] = float(factor)
    return factors


def _places(mode: str, extent: int, size: int, scale: float) -> NDArray[np.float64] | None:
    """Where each output lies between the inputs, by ONNX's formulas."""
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
    return None


def _linear(places: NDArray[np.float64]) -> Taps:
    first = np.floor(places).astype(np.int64)
    share = places - first
    return np.stack((first, first + 1)), np.stack((1 - share, share))


def _cubic(places: NDArray[np.float64], node: Node, extent: int) -> Taps:
    """Keys, "Cubic convolution interpolation for digital image processing" (1981), equation 4."""
    a = float(node.attribute("cubic_coeff_a", -0.75))
    first = np.floor(places).astype(np.int64)
    indices = np.stack([first + t for t in (-1, 0, 1, 2)])
    away = np.abs(places - indices)
    near = ((a + 2) * away - (a + 3)) * away**2 + 1
    far = a * (((away - 5) * away + 8) * away - 4)
    weights = np.where(away <= 1, near, far)
    if node.attribute("exclude_outside", 0):
        weights = np.where((indices >= 0) & (indices < extent), weights, 0.0)
        weights = weights / weights.sum(axis=0)
    return indices, weights


def _along(composer: Composer, source: str, axis: int, taps: Taps) -> str:
    """One axis resized."""
    shape, (indices, weights) = composer.dims(source), taps
    size = indices.shape[1]
    if axis == len(shape) - 1 and shape[axis] <= _LONGEST_PRODUCT:
        matrix = np.zeros((shape[axis], size))
        for index, weight in zip(indices, weights, strict=True):
            np.add.at(matrix, (index, np.arange(size)), weight)
        return composer.apply(
            "MatMul", source, composer.constant(matrix), shape=(*shape[:-1], size)
        )
    whole = (*shape[:axis], size, *shape[axis + 1 :])
    column = (size,) + (1,) * (len(shape) - axis - 1)
    found = ""
    for index, weight in zip(indices, weights, strict=True):
        rows = composer.apply("Gather", source, composer.constant(index), shape=whole, axis=axis)
        part = composer.pointwise("Mul", rows, composer.constant(weight.reshape(column)))
        found = composer.pointwise("Add", found, part) if found else part
    assert math.prod(composer.dims(found)) == math.prod(whole)
    return found
