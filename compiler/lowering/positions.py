"""ArgMax, ArgMin, CumSum, OneHot, TopK, Trilu -> kernels that know where elements stand.

Axes before and after the one that counts merge. TopK's kernel gives indices; its values are
gathered by them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilesmith.compiler.graph.access import integers, within
from tilesmith.compiler.graph.graph import Node, view
from tilesmith.compiler.rewriting.lower import is_movable, make_kernel, typed_rules
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.workloads.workload import ParameterValue, shape_text

_NUMBERS = (
    "float32", "float64", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
)  # fmt: skip


def _around(dims: tuple[int, ...], axis: int) -> tuple[tuple[int, ...], int]:
    """A shape of at most three axes, and which of them is `axis`."""
    before, after = math.prod(dims[:axis]), math.prod(dims[axis + 1 :])
    lead = (before,) if before > 1 else ()
    return (*lead, dims[axis], *((after,) if after > 1 else ())), len(lead)


def _arg_extreme(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    info = rewriter.info(node.inputs[0])
    axis = within(int(node.attribute("axis", 0)), len(info.dims))
    if not is_movable(info) or info.dtype not in _NUMBERS or axis is None:
        return None
    shape, axis = _around(info.dims, axis)
    parameters: dict[str, ParameterValue] = {
        "shape": shape_text(shape),
        "kind": "max" if node.operator == "ArgMax" else "min",
        "axis": axis,
        "last": int(node.attribute("select_last_index", 0)),
    }
    return [make_kernel(rewriter, "arg_extreme", parameters, node.inputs, node)]


for _operator in ("ArgMax", "ArgMin"):
    typed_rules.register(_operator)(_arg_extreme)


@typed_rules.register("CumSum")
def lower_cumulative_sum(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    info = rewriter.info(node.inputs[0])
    axes = integers(node, "", 1, rewriter.constant)
    axis = within(axes[0], len(info.dims)) if axes is not None and len(axes) == 1 else None
    if not is_movable(info) or info.dtype not in _NUMBERS or axis is None:
        return None
    shape, axis = _around(info.dims, axis)
    parameters: dict[str, ParameterValue] = {
        "shape": shape_text(shape),
        "axis": axis,
        "exclusive": int(node.attribute("exclusive", 0)),
        "reverse": int(node.attribute("reverse", 0)),
    }
    return [make_kernel(rewriter, "cumulative_sum", parameters, node.inputs[:1], node)]


@typed_rules.register("OneHot")
def lower_one_hot(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    indices, values = rewriter.info(node.inputs[0]), rewriter.info(node.inputs[2])
    result = rewriter.info(node.writes[0])
    depth = integers(node, "", 1, rewriter.constant)
    if not is_movable(indices) or indices.dtype not in ("int64", "int32") or depth is None:
        return None
    axis = within(int(node.attribute("axis", -1)), len(result.dims))
    if values.dims != (2,) or not is_movable(values) or axis is None:
        return None
    if result.dims != (*indices.dims[:axis], *depth, *indices.dims[axis:]):
        return None
    before = math.prod(indices.dims[:axis])
    parameters: dict[str, ParameterValue] = {
        "indices": shape_text((before, math.prod(indices.dims[axis:]))),
        "depth": depth[0],
        "axis": 1,
        "index": indices.dtype,
    }
    operands = (node.inputs[2], node.inputs[0])
    return [make_kernel(rewriter, "one_hot", parameters, operands, node)]


@typed_rules.register("TopK")
def lower_top_k(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    info = rewriter.info(node.inputs[0])
    count = integers(node, "k", 1, rewriter.constant)
    axis = within(int(node.attribute("axis", -1)), len(info.dims))
    if not is_movable(info) or count is None or len(count) != 1 or axis is None:
        return None
    values, indices = (*node.outputs, "")[:2]
    dims = (*info.dims[:axis], *count, *info.dims[axis + 1 :])
    if any(rewriter.info(name).dims != dims for name in node.writes):
        return None
    shape, place = _around(info.dims, axis)
    picked = (*shape[:place], count[0], *shape[place + 1 :])
    parameters: dict[str, ParameterValue] = {
        "shape": shape_text(shape),
        "k": count[0],
        "axis": place,
        "kind": "max" if node.attribute("largest", 1) else "min",
    }
    if not indices:
        indices = rewriter.add_tensor(values, "int64", dims)
    own = make_kernel(rewriter, "top_k", parameters, node.inputs[:1], node, output=indices)
    if not values:
        return [own]
    gather: dict[str, ParameterValue] = {
        "shape": shape_text(shape), "indices": shape_text(picked), "axis": place,
    }  # fmt: skip
    operands = (info.name, indices)
    return [own, make_kernel(rewriter, "gather_elements", gather, operands, node, output=values)]


@typed_rules.register("Trilu")
def lower_trilu(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    info = rewriter.info(node.inputs[0])
    if not is_movable(info) or len(info.dims) < 2:
        return None
    rows, columns = info.dims[-2:]
    parameters: dict[str, ParameterValue] = {
        "shape": shape_text((math.prod(info.dims[:-2]), rows, columns)),
        "upper": int(node.attribute("upper", 1)),
    }
    diagonal = integers(node, "", 1, rewriter.constant)
    if diagonal is None:
        parameters["dynamic"] = 1
        number = node.inputs[1]
        before = []
        if rewriter.info(number).dims:
            number = rewriter.add_tensor(number, "int64", ())
            before = [view(node.inputs[1], number)]
        return [*before, make_kernel(rewriter, "trilu", parameters, (info.name, number), node)]
    if diagonal:
        parameters["k"] = max(-rows, min(columns, diagonal[0]))
    return [make_kernel(rewriter, "trilu", parameters, node.inputs[:1], node)]
