"""ArgMax, ArgMin, CumSum, OneHot, TopK, Trilu -> kernels that know where elements stand.

Axes before and after the one that counts merge. TopK's kernel gives indices; its values are
gathered by them.
"""

import math
from collections.abc import Sequence

from tilesmith.compiler.graph.access import integers, within
from tilesmith.compiler.graph.graph import Node, view
from tilesmith.compiler.rewriting.lower import Parameters, is_movable, make_kernel, typed_rules
from tilesmith.compiler.rewriting.rewrite import Rewriter

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
    kind, last = node.operator[-3:].lower(), int(node.attribute("select_last_index", 0))
    stated: Parameters = {"shape": shape, "kind": kind, "axis": axis, "last": last}
    return [make_kernel(rewriter, node, "arg_extreme", node.inputs, **stated)]


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
    stated: Parameters = {name: int(node.attribute(name, 0)) for name in ("exclusive", "reverse")}
    operands = node.inputs[:1]
    return [
        make_kernel(rewriter, node, "cumulative_sum", operands, shape=shape, axis=axis, **stated)
    ]


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
    around = (math.prod(indices.dims[:axis]), math.prod(indices.dims[axis:]))
    stated: Parameters = {"indices": around, "depth": depth[0], "axis": 1, "index": indices.dtype}
    return [make_kernel(rewriter, node, "one_hot", (node.inputs[2], node.inputs[0]), **stated)]


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
    kind = "max" if node.attribute("largest", 1) else "min"
    if not indices:
        indices = rewriter.add_tensor(values, "int64", dims)
    own = make_kernel(
        rewriter, node, "top_k", node.inputs[:1], output=indices,
        shape=shape, k=count[0], axis=place, kind=kind,
    )  # fmt: skip
    if not values:
        return [own]
    gathered = make_kernel(
        rewriter, node, "gather_elements", (info.name, indices), output=values,
        shape=shape, indices=picked, axis=place,
    )  # fmt: skip
    return [own, gathered]


@typed_rules.register("Trilu")
def lower_trilu(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    info = rewriter.info(node.inputs[0])
    if not is_movable(info) or len(info.dims) < 2:
        return None
    rows, columns = info.dims[-2:]
    stated: Parameters = {"upper": int(node.attribute("upper", 1))}
    stated["shape"] = (math.prod(info.dims[:-2]), rows, columns)
    diagonal = integers(node, "", 1, rewriter.constant)
    if diagonal is None:
        stated["dynamic"] = 1
        number = node.inputs[1]
        before = []
        if rewriter.info(number).dims:
            number = rewriter.add_tensor(number, "int64", ())
            before = [view(node.inputs[1], number)]
        return [*before, make_kernel(rewriter, node, "trilu", (info.name, number), **stated)]
    if diagonal:
        stated["k"] = max(-rows, min(columns, diagonal[0]))
    return [make_kernel(rewriter, node, "trilu", node.inputs[:1], **stated)]
