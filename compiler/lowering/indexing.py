"""Gather, GatherElements, GatherND, ScatterElements, ScatterND -> the templates of these names.

Data of any element type, indices of int64 or int32; constant indices out of range are refused here,
others when the model runs. Axes that indices leave alone merge with their neighbours, so that equal
work has one key whatever its shape.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilesmith.compiler.graph.access import within
from tilesmith.compiler.graph.graph import Node, TensorInfo
from tilesmith.compiler.graph.indices import index_fault
from tilesmith.compiler.rewriting.lower import Parameters, is_movable, make_kernel, typed_rules
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.support.errors import ModelError

Dims = tuple[int, ...]


Rule = Callable[[Rewriter, Node, TensorInfo, TensorInfo], "Sequence[Node] | None"]


def _indexed(*operators: str) -> Callable[[Rule], Rule]:
    """Register a rule that is given data and indices, too, where kernels take them."""

    def add(rule: Rule) -> Rule:
        def lower(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
            infos = [rewriter.info(name) for name in node.reads]
            taken = all(map(is_movable, infos)) and infos[1].dtype in ("int64", "int32")
            return rule(rewriter, node, *infos[:2]) if taken else None

        for operator in operators:
            typed_rules.register(operator)(lower)
        return rule

    return add


def _kernel(
    rewriter: Rewriter, node: Node, operator: str, extents: Sequence[int], **stated: Any
) -> Sequence[Node]:
    """The kernel, which indices into these extents.

    Raises:
        ModelError: constant indices are out of range; a run checks its own.
    """
    indices = rewriter.constant(node.inputs[1])
    if indices is not None and (fault := index_fault(indices, extents)):
        raise ModelError(f"{node.describe()} {fault}")
    index = rewriter.info(node.inputs[1]).dtype
    return [make_kernel(rewriter, node, operator, node.inputs, index=index, **stated)]


def _some(extent: int) -> Dims:
    """An axis, unless it is of one element."""
    return (extent,) if extent > 1 else ()


@_indexed("Gather")
def lower_gather(
    rewriter: Rewriter, node: Node, source: TensorInfo, indices: TensorInfo
) -> Sequence[Node] | None:
    axis = within(int(node.attribute("axis", 0)), len(source.dims))
    if axis is None:
        return None
    extent, lead = source.dims[axis], _some(math.prod(source.dims[:axis]))
    shape = (*lead, extent, *_some(math.prod(source.dims[axis + 1 :])))
    stated: Parameters = {"shape": shape, "indices": (indices.elements,), "axis": len(lead)}
    return _kernel(rewriter, node, "gather", (extent,), **stated)


def _merged(dims: Dims, indices: Dims, axis: int) -> tuple[Dims, Dims, int]:
    """Data's and indices' shapes and the axis, neighbours merged that both run through whole."""
    pairs: list[tuple[int, int]] = []
    place = 0
    for position, (extent, count) in enumerate(zip(dims, indices, strict=True)):
        if position == axis:
            place = len(pairs)
            pairs.append((extent, count))
        elif (extent, count) == (1, 1):
            continue
        elif extent == count and pairs and (len(pairs) - 1 != place or position < axis):
            whole = pairs[-1]
            pairs[-1] = (whole[0] * extent, whole[1] * count)
        else:
            pairs.append((extent, count))
    return tuple(a for a, _ in pairs), tuple(b for _, b in pairs), place


@_indexed("GatherElements", "Scatter", "ScatterElements")
def lower_elements(
    rewriter: Rewriter, node: Node, source: TensorInfo, indices: TensorInfo
) -> Sequence[Node] | None:
    """A kernel that takes indices element by element along `axis`."""
    axis = within(int(node.attribute("axis", 0)), len(source.dims))
    if axis is None or len(source.dims) != len(indices.dims):
        return None
    pairs = enumerate(zip(indices.dims, source.dims, strict=True))
    if not all(count <= extent or at == axis for at, (count, extent) in pairs):
        return None
    stated: Parameters = {}
    if scatters := node.operator != "GatherElements":
        if rewriter.info(node.inputs[2]).shape != indices.shape:
            return None
        stated["reduction"] = str(node.attribute("reduction", "none"))
    stated |= zip(
        ("shape", "indices", "axis"), _merged(source.dims, indices.dims, axis), strict=True
    )
    operator = "scatter_elements" if scatters else "gather_elements"
    return _kernel(rewriter, node, operator, (source.dims[axis],), **stated)


@_indexed("GatherND")
def lower_gather_nd(
    rewriter: Rewriter, node: Node, source: TensorInfo, indices: TensorInfo
) -> Sequence[Node] | None:
    if not indices.dims:
        return None
    batch = int(node.attribute("batch_dims", 0))
    depth = indices.dims[-1]
    if source.dims[:batch] != indices.dims[:batch] or depth > len(source.dims) - batch:
        return None
    extents, lead = source.dims[batch : batch + depth], _some(math.prod(source.dims[:batch]))
    shape = (*lead, *extents, *_some(math.prod(source.dims[batch + depth :])))
    places = (*lead, math.prod(indices.dims[batch:-1]), depth)
    stated: Parameters = {"shape": shape, "indices": places, "batch": len(lead)}
    return _kernel(rewriter, node, "gather_nd", extents, **stated)


@_indexed("ScatterND")
def lower_scatter_nd(
    rewriter: Rewriter, node: Node, source: TensorInfo, indices: TensorInfo
) -> Sequence[Node] | None:
    if not indices.dims:
        return None
    depth = indices.dims[-1]
    extents, after = source.dims[:depth], math.prod(source.dims[depth:])
    rows = math.prod(indices.dims[:-1])
    if depth > len(source.dims) or rewriter.info(node.inputs[2]).elements != rows * after:
        return None
    reduction, shape = str(node.attribute("reduction", "none")), (*extents, *_some(after))
    stated: Parameters = {"shape": shape, "indices": (rows, depth), "reduction": reduction}
    return _kernel(rewriter, node, "scatter_nd", extents, **stated)
