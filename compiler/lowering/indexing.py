"""Gather, GatherElements, GatherND, ScatterElements, ScatterND -> the templates of these names.

Data of any element type, indices of int64 or int32; constant indices out of range are refused here,
others when the model runs. Axes that indices leave alone merge with their neighbours, so that equal
work has one key whatever its shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilesmith.compiler.graph.access import within
from tilesmith.compiler.graph.graph import Node, TensorInfo
from tilesmith.compiler.graph.indices import index_fault
from tilesmith.compiler.rewriting.lower import is_movable, make_kernel, typed_rules
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.workloads.workload import ParameterValue, shape_text

Dims = tuple[int, ...]


def _usable(rewriter: Rewriter, node: Node) -> tuple[TensorInfo, TensorInfo] | None:
    """Data and indices, if kernels take them."""
    source, indices = (rewriter.info(name) for name in node.inputs[:2])
    if not all(is_movable(rewriter.info(name)) for name in node.reads):
        return None
    return (source, indices) if indices.dtype in ("int64", "int32") else None


def _check(rewriter: Rewriter, node: Node, extents: Sequence[int]) -> None:
    """Raise `ModelError` for constant indices out of range; a run checks its own."""
    indices = rewriter.constant(node.inputs[1])
    if indices is not None and (fault := index_fault(indices, extents)):
        raise ModelError(f"{node.describe()} {fault}")


@typed_rules.register("Gather")
def lower_gather(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    operands = _usable(rewriter, node)
    axis = within(int(node.attribute("axis", 0)), len(operands[0].dims)) if operands else None
    if operands is None or axis is None:
        return None
    source, indices = operands
    _check(rewriter, node, (source.dims[axis],))
    before, after = math.prod(source.dims[:axis]), math.prod(source.dims[axis + 1 :])
    lead = (before,) if before > 1 else ()
    parameters: dict[str, ParameterValue] = {
        "shape": shape_text((*lead, source.dims[axis], *((after,) if after > 1 else ()))),
        "indices": shape_text((indices.elements,)),
        "axis": len(lead),
        "index": indices.dtype,
    }
    return [make_kernel(rewriter, "gather", parameters, node.inputs, node)]


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


def _elements(
    rewriter: Rewriter, node: Node, extra: dict[str, ParameterValue]
) -> Sequence[Node] | None:
    """A kernel that takes indices element by element along `axis`."""
    operands = _usable(rewriter, node)
    axis = within(int(node.attribute("axis", 0)), len(operands[0].dims)) if operands else None
    if operands is None or axis is None:
        return None
    source, indices = operands
    fits = len(source.dims) == len(indices.dims) and all(
        n <= m or a == axis for a, (n, m) in enumerate(zip(indices.dims, source.dims, strict=True))
    )
    if not fits:
        return None
    _check(rewriter, node, (source.dims[axis],))
    dims, counts, place = _merged(source.dims, indices.dims, axis)
    parameters: dict[str, ParameterValue] = {
        "shape": shape_text(dims),
        "indices": shape_text(counts),
        "axis": place,
        "index": indices.dtype,
        **extra,
    }
    operator = "scatter_elements" if "reduction" in extra else "gather_elements"
    return [make_kernel(rewriter, operator, parameters, node.inputs, node)]


@typed_rules.register("GatherElements")
def lower_gather_elements(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    return _elements(rewriter, node, {})


@typed_rules.register("Scatter")
@typed_rules.register("ScatterElements")
def lower_scatter_elements(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    if rewriter.info(node.inputs[2]).shape != rewriter.info(node.inputs[1]).shape:
        return None
    return _elements(rewriter, node, {"reduction": str(node.attribute("reduction", "none"))})


@typed_rules.register("GatherND")
def lower_gather_nd(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    operands = _usable(rewriter, node)
    if operands is None or not operands[1].dims:
        return None
    source, indices = operands
    batch = int(node.attribute("batch_dims", 0))
    depth = indices.dims[-1]
    if source.dims[:batch] != indices.dims[:batch] or depth > len(source.dims) - batch:
        return None
    extents = source.dims[batch : batch + depth]
    _check(rewriter, node, extents)
    before, after = math.prod(source.dims[:batch]), math.prod(source.dims[batch + depth :])
    lead = (before,) if before > 1 else ()
    parameters: dict[str, ParameterValue] = {
        "shape": shape_text((*lead, *extents, *((after,) if after > 1 else ()))),
        "indices": shape_text((*lead, math.prod(indices.dims[batch:-1]), depth)),
        "batch": len(lead),
        "index": indices.dtype,
    }
    return [make_kernel(rewriter, "gather_nd", parameters, node.inputs, node)]


@typed_rules.register("ScatterND")
def lower_scatter_nd(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    operands = _usable(rewriter, node)
    if operands is None or not operands[1].dims:
        return None
    source, indices = operands
    depth = indices.dims[-1]
    extents, after = source.dims[:depth], math.prod(source.dims[depth:])
    rows = math.prod(indices.dims[:-1])
    if depth > len(source.dims) or rewriter.info(node.inputs[2]).elements != rows * after:
        return None
    _check(rewriter, node, extents)
    parameters: dict[str, ParameterValue] = {
        "shape": shape_text((*extents, *((after,) if after > 1 else ()))),
        "indices": shape_text((rows, depth)),
        "reduction": str(node.attribute("reduction", "none")),
        "index": indices.dtype,
    }
    return [make_kernel(rewriter, "scatter_nd", parameters, node.inputs, node)]
