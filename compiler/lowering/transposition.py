"""Transpose -> `transpose`, axes of one element left out and axes that stay neighbours merged."""

from collections.abc import Sequence

from tilesmith.compiler.graph.access import permutation
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.lower import is_movable, make_kernel, typed_rules
from tilesmith.compiler.rewriting.rewrite import Rewriter


@typed_rules.register("Transpose")
def lower_transpose(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    info = rewriter.info(node.inputs[0])
    if not is_movable(info):
        return None
    rank = len(info.dims)
    order = permutation(node, rank)
    shape, merged = merged_axes(info.dims, order)
    return [make_kernel(rewriter, node, "transpose", (info.name,), shape=shape, perm=merged)]


def merged_axes(
    dims: tuple[int, ...], order: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and permutation with the fewest axes that move the same elements.

    >>> merged_axes((1, 128, 12, 32), (0, 2, 1, 3))
    ((128, 12, 32), (1, 0, 2))
    """
    kept = [axis for axis in order if dims[axis] > 1]
    position = {axis: i for i, axis in enumerate(sorted(kept))}
    runs: list[list[int]] = []
    for axis in kept:
        if runs and position[axis] == position[runs[-1][-1]] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    by_input = sorted(range(len(runs)), key=lambda run: runs[run][0])
    extents = []
    for run in by_input:
        extent = 1
        for axis in runs[run]:
            extent *= dims[axis]
        extents.append(extent)
    return tuple(extents) or (1,), tuple(by_input.index(run) for run in range(len(runs))) or (0,)
