"""Parts that a model takes out of a split tensor, read as slices of it.

    s = SplitToSequence(x, 64); y = SequenceAt(s, 1)          before
    y = Slice(x, 64, 128, axis)                               after

PyTorch's exporter writes every `split` and `chunk` so, through a sequence, which only the host has.
Taken are splits of a known extent at known places, at known positions; anything else stays a
sequence. Source: SplitToSequence-11 and -24, SequenceAt-11.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Node, TensorInfo
from tilesmith.compiler.rewriting.expansion import Expandable, Expansion


@dataclass(frozen=True)
class SplitTensor:
    """A tensor cut along an axis.

    Attributes:
        source: what is cut.
        axis: along which.
        bounds: where each part begins, and the end.
        keeps: whether a part keeps the axis; else it is one entry of it.
    """

    source: str
    axis: int
    bounds: tuple[int, ...]
    keeps: bool


def split_of(
    node: Node, tensors: Mapping[str, TensorInfo], values: Mapping[str, NDArray[Any]]
) -> SplitTensor | None:
    """How a SplitToSequence cuts; None where only running the model tells, or for other nodes."""
    if not node.is_onnx("SplitToSequence"):
        return None
    shape, sizes = tensors[node.inputs[0]].shape, values.get(node.input(1))
    axis = int(node.attribute("axis", 0))
    if shape is None or not -len(shape) <= axis < len(shape) or (node.input(1) and sizes is None):
        return None
    axis %= len(shape)
    extent = shape[axis]
    keeps = bool(node.input(1)) or bool(node.attribute("keepdims", 1))
    each = np.asarray(1 if sizes is None else sizes)
    if each.ndim > 1 or each.dtype.kind not in "iu":
        return None
    if each.ndim == 0:
        if each < 1:
            return None
        bounds = (*range(0, extent, int(each)), extent)
    else:
        bounds = (0, *accumulate(int(size) for size in each))
    if bounds[-1] != extent or any(stop < start for start, stop in pairwise(bounds)):
        return None
    return SplitTensor(node.inputs[0], axis, bounds, keeps)


def part_of(
    node: Node, splits: Mapping[str, SplitTensor], values: Mapping[str, NDArray[Any]]
) -> Expandable | None:
    """How a SequenceAt of a split is written; None for other nodes."""
    if not node.is_onnx("SequenceAt") or node.inputs[0] not in splits:
        return None
    split, position = splits[node.inputs[0]], values.get(node.inputs[1])
    count = len(split.bounds) - 1
    if position is None or position.size != 1 or not -count <= (at := int(position.item())) < count:
        return None
    start, stop = split.bounds[at % count], split.bounds[at % count + 1]

    def write(e: Expansion) -> str:
        if split.keeps:
            return e.slice(split.source, split.axis, start, stop)
        return e.apply("Gather", split.source, e.constant(np.int64(start)), axis=split.axis)

    return Expandable(write, (2, 2))
