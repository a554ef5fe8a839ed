"""RoiAlign with a fixed number of samples a bin -> the kernel `sample`.

    place[r, bin, i] = start[r] + (bin + (i + 0.5) / samples) * size[r] / bins         along an axis

A bin is the mean of its samples, or the largest product of a pixel and its weight, as onnxruntime
and `onnx.reference` have it. A sample more than a pixel outside of the image has no weight; others
are brought in. How many samples a bin has is known where `sampling_ratio` says it; else it depends
on the regions, which stay on the host. Semantics of RoiAlign 22; before 16 regions were not shifted
by half a pixel.
"""

import numpy as np

from tilesmith.compiler.decompositions.parts.taps import (
    LARGEST,
    PixelAxis,
    Taps,
    is_float32,
    sampled,
    together,
)
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Composer, decompositions


@decompositions.register("RoiAlign")
def roi_align(composer: Composer, node: Node) -> str | None:
    _, _, *extents = composer.dims(node.inputs[0])
    regions, _, *bins = composer.dims(node.writes[0])
    count, mode = int(node.attribute("sampling_ratio", 0)), str(node.attribute("mode", "avg"))
    reads = regions * bins[0] * bins[1] * (2 * count) ** 2
    if count < 1 or mode not in ("avg", "max") or reads >= LARGEST:
        return None
    if not is_float32(composer, node.inputs[:2]) or composer.dtype(node.inputs[2]) != "int64":
        return None
    shapes = [composer.dims(name) for name in node.inputs[1:3]]
    if shapes != [(regions, 4), (regions,)]:
        return None
    corners = composer.parts_of(composer.transpose(node.inputs[1], (1, 0)), 0)
    left, top, right, bottom = (composer.view(name, (regions, 1, 1, 1)) for name in corners)
    both = []
    for axis, (first, last) in enumerate(((top, bottom), (left, right))):
        reached = _taps(
            PixelAxis(composer, extents[axis], "linear"), node, (first, last), bins[axis]
        )
        here, there = (bins[axis], 1)[:: 1 - 2 * axis], 2 * count
        both.append(Taps(*(
            composer.view(name, (regions, there, *here)) for name in (reached.index, reached.weight)
        )))  # fmt: skip
    whole = together(composer, both, extents)
    if mode == "avg":
        share = composer.number(1 / count**2)
        whole = Taps(whole.index, composer.pointwise("Mul", whole.weight, share))
    return sampled(
        composer, node.inputs[0], whole, (bins[0], bins[1]), chosen=node.inputs[2],
        kind="max" if mode == "max" else "sum",
    )  # fmt: skip


def _taps(axis: PixelAxis, node: Node, ends: tuple[str, str], bins: int) -> Taps:
    """Taps along an axis: (regions, samples, 2, bins)."""
    composer, count = axis.composer, int(node.attribute("sampling_ratio", 0))
    coordinates = "half_pixel" if composer.opset >= 16 else "output_half_pixel"
    half = node.attribute("coordinate_transformation_mode", coordinates) == "half_pixel"
    scale = float(node.attribute("spatial_scale", 1.0))
    first, last = (axis.of("Sub", axis.of("Mul", e, scale), 0.5 if half else 0.0) for e in ends)
    length = composer.pointwise("Sub", last, first)
    if not half:
        length = axis.of("Max", length, 1.0)
    share = (np.arange(bins) + (np.arange(count)[:, None] + 0.5) / count) / bins
    along = composer.constant(share.reshape(count, 1, bins))
    place = composer.pointwise("Add", first, composer.pointwise("Mul", length, along))
    inside = axis.inside(place, -1.0, float(axis.extent))
    place = axis.clipped(place)
    start = composer.pointwise("Floor", place)
    tap = composer.constant(np.array([0.0, 1.0]).reshape(2, 1))
    away = composer.pointwise("Abs", composer.pointwise(
        "Sub", composer.pointwise("Sub", place, start), tap
    ))  # fmt: skip
    weight = composer.pointwise("Sub", composer.number(1.0), away)
    weight = composer.pointwise("Where", inside, weight, composer.number(0.0))
    index = axis.clipped(composer.pointwise("Add", start, tap))
    return Taps(composer.cast(index, "int32"), weight)
