"""Concat, Split, Slice, Pad, nearest Resize that need a copy -> the templates of that name.

What needs none was turned into joins and views before (`passes.joins`). Axes before and after the
one that is cut or joined merge.
"""

import math
from collections.abc import Sequence

import numpy as np

from tilesmith.compiler.graph.access import integers, scalar
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.lower import (
    Parameters,
    is_computable,
    is_movable,
    make_kernel,
    rules,
    typed_rules,
)
from tilesmith.compiler.rewriting.rewrite import Rewriter

Dims = tuple[int, ...]


_MOST_PARTS = 32
"""Tensors that one kernel joins: its code grows with each, and compiling it by more than that."""


@typed_rules.register("Concat")
def lower_concat(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    """Many tensors are joined in groups first: groups of equal shapes are one workload."""
    if not all(is_movable(rewriter.info(name)) for name in node.inputs):
        return None
    axis = int(node.attribute("axis", 0)) % len(rewriter.info(node.writes[0]).dims)
    names, new = list(node.inputs), list[Node]()
    while len(names) > _MOST_PARTS:
        groups = [names[i : i + _MOST_PARTS] for i in range(0, len(names), _MOST_PARTS)]
        names = [_whole(rewriter, group, axis) for group in groups]
        pairs = [(group, name) for group, name in zip(groups, names, strict=True) if len(group) > 1]
        new += [_joined(rewriter, node, group, axis, name) for group, name in pairs]
    return [*new, _joined(rewriter, node, names, axis, node.writes[0])]


def _whole(rewriter: Rewriter, parts: Sequence[str], axis: int) -> str:
    """A tensor that holds all parts; the very part if there is only one."""
    infos = [rewriter.info(name) for name in parts]
    extent = sum(info.dims[axis] for info in infos)
    dims = (*infos[0].dims[:axis], extent, *infos[0].dims[axis + 1 :])
    single = len(parts) == 1
    return parts[0] if single else rewriter.add_tensor(parts[0], infos[0].dtype, dims)


def _joined(rewriter: Rewriter, node: Node, parts: Sequence[str], axis: int, output: str) -> Node:
    dims = rewriter.info(output).dims
    before, after = math.prod(dims[:axis]), math.prod(dims[axis + 1 :])
    sizes = tuple(rewriter.info(name).dims[axis] * after for name in parts)
    shape = (before, dims[axis] * after)
    return make_kernel(
        rewriter, node, "concat", parts, output=output, shape=shape, axis=1, parts=sizes
    )


@typed_rules.register("Split")
def lower_split(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    source = rewriter.info(node.inputs[0])
    if not is_movable(source) or len(node.writes) != len(node.outputs):
        return None
    axis = int(node.attribute("axis", 0)) % len(source.dims)
    before, after = math.prod(source.dims[:axis]), math.prod(source.dims[axis + 1 :])
    shape = (before, source.dims[axis] * after)
    new, start = [], 0
    for name in node.outputs:
        size = rewriter.info(name).dims[axis] * after
        box = ((0, start), (before, size), (1, 1))
        new.append(_slice(rewriter, node, shape, box, name))
        start += size
    return new


def _slice(
    rewriter: Rewriter, node: Node, shape: Dims, box: tuple[Dims, Dims, Dims], output: str
) -> Node:
    starts, sizes, steps = box
    stated: Parameters = {"shape": shape, "starts": starts, "sizes": sizes}
    if any(step != 1 for step in steps):
        stated["steps"] = steps
    return make_kernel(rewriter, node, "slice", (node.inputs[0],), output=output, **stated)


@typed_rules.register("Slice")
def lower_slice(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    source, result = rewriter.info(node.inputs[0]), rewriter.info(node.writes[0])
    if not is_movable(source):
        return None
    starts = integers(node, "starts", 1, rewriter.constant)
    axes = integers(node, "axes", 3, rewriter.constant)
    steps = integers(node, "", 4, rewriter.constant)
    if starts is None or axes is None or steps is None:
        return None
    rank = len(source.dims)
    first, step = [0] * rank, [1] * rank
    for position, axis in enumerate(axes or range(len(starts))):
        extent, distance = source.dims[axis], steps[position] if steps else 1
        start = starts[position] + (extent if starts[position] < 0 else 0)
        step[axis] = distance
        first[axis] = int(np.clip(start, 0, extent - 1 if distance < 0 else extent))
    box = (tuple(first), result.dims, tuple(step))
    return [_slice(rewriter, node, source.dims, box, result.name)]


@typed_rules.register("Pad")
def lower_pad(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    source = rewriter.info(node.inputs[0])
    mode = node.attribute("mode", "constant")
    sides = integers(node, "pads", 1, rewriter.constant)
    value = _filling(rewriter, node)
    axes = integers(node, "", 3, rewriter.constant)
    if not is_movable(source) or sides is None or value is None or axes is None:
        return None
    if mode not in ("constant", "edge", "reflect"):
        return None
    rank = len(source.dims)
    before, after = [0] * rank, [0] * rank
    count = len(sides) // 2
    for position, axis in enumerate(axes or range(rank)):
        before[axis], after[axis] = sides[position], sides[count + position]
    sides_of = zip(source.dims, before, after, strict=True)
    kept = tuple(extent + min(0, b) + min(0, a) for extent, b, a in sides_of)
    if min(kept, default=1) < 1:
        return None
    cut = _cut(rewriter, node, kept, before) if kept != source.dims else node
    padded = make_kernel(
        rewriter, node, "pad", (source.name,) if cut is node else cut.outputs,
        shape=kept, before=tuple(max(0, b) for b in before), after=tuple(max(0, a) for a in after),
        mode=mode, value=f"{value:.9g}" if mode == "constant" else "0",
    )  # fmt: skip
    return [padded] if cut is node else [cut, padded]


def _filling(rewriter: Rewriter, node: Node) -> float | None:
    """What a Pad puts around its input; None if no workload can say it."""
    filling = scalar(node, "value", 2, rewriter.constant, 0.0)
    known = rewriter.constant(node.input(2)) if node.input(2) else None
    exact = known is None or known.dtype == np.float32 or float(known.reshape(-1)[0]) == filling
    return filling if exact else None


def _cut(rewriter: Rewriter, node: Node, kept: Dims, before: Sequence[int]) -> Node:
    """What negative pads leave of a Pad's input, before anything is put around it."""
    source = rewriter.info(node.inputs[0])
    data = rewriter.add_tensor(source.name, source.dtype, kept)
    box = (tuple(max(0, -b) for b in before), kept, (1,) * len(kept))
    return _slice(rewriter, node, source.dims, box, data)


@rules.register("Upsample")
def lower_upsample(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    return _nearest(rewriter, node, 1, "asymmetric", "floor")


@rules.register("Resize")
def lower_resize(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    if rewriter.graph.opset < 11:  # to the next place, where there are fewer than before
        before, after = (rewriter.info(n).dims for n in (node.inputs[0], node.writes[0]))
        fewer = {a < b for b, a in zip(before, after, strict=True) if a != b}
        rounding = "ceil" if True in fewer else "floor"
        return _nearest(rewriter, node, 1, "asymmetric", rounding) if len(fewer) < 2 else None
    coordinates = node.attribute("coordinate_transformation_mode", "half_pixel")
    rounding = node.attribute("nearest_mode", "round_prefer_floor")
    if node.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    return _nearest(rewriter, node, 2, coordinates, rounding)


def _nearest(
    rewriter: Rewriter, node: Node, position: int, coordinates: str, rounding: str
) -> Sequence[Node] | None:
    """`resize`, where the scales are exactly the ratios of the extents."""
    source, result = rewriter.info(node.inputs[0]), rewriter.info(node.writes[0])
    if not is_computable(source) or node.attribute("mode", "nearest") != "nearest":
        return None
    if node.input(position) or node.attribute("scales") is not None:
        scales = node.attribute("scales")
        if scales is None:
            scales = rewriter.constant(node.input(position))
        if scales is None or len(scales) not in (0, len(source.dims)):
            return None
        pairs = zip(source.dims, result.dims, scales, strict=len(scales) > 0)
        if any(size != extent * float(scale) for extent, size, scale in pairs):
            return None
    resized = make_kernel(
        rewriter, node, "resize", (source.name,), shape=source.dims, sizes=result.dims,
        coordinates=coordinates, rounding=rounding,
    )  # fmt: skip
    return [resized]
