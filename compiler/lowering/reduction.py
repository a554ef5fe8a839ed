"""ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd -> `reduce`.

Those of whole numbers and of float64 are kernels, too; means of whole numbers were taken apart. A
mean or maximum over the two spatial axes of an image, axes kept, is global pooling, which knows
blocked layouts.
"""

from collections.abc import Sequence

from tilesmith.compiler.graph.access import axes
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.compiler.rewriting.lower import Parameters, is_computable, make_kernel, typed_rules
from tilesmith.compiler.rewriting.rewrite import Rewriter

_KINDS = {n: n.removeprefix("Reduce").lower().replace("prod", "product") for n in having("folds")}

_NUMBERS = ("int32", "int64", "uint32", "uint64", "float64")

_DTYPES = {
    "sum": _NUMBERS,
    "product": _NUMBERS,
    "mean": ("float64",),
    "max": (*_NUMBERS, "int8", "uint8"),
    "min": (*_NUMBERS, "int8", "uint8"),
}
"""Element types beside float32, as far as ONNX has them; but for means of whole numbers."""

_POOLS = {"mean": "average", "max": "max"}


def _lower(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    info = rewriter.info(node.inputs[0])
    kind = _KINDS[node.operator]
    other = info.known and info.dtype in _DTYPES[kind] and info.elements > 0
    if not (is_computable(info) or other) or not info.dims:
        return None
    rank = len(info.dims)
    over = axes(node, rank, rewriter.constant)
    if over is None or (not over and node.attribute("noop_with_empty_axes", 0)):
        return None
    over = over or tuple(range(rank))
    keep = int(node.attribute("keepdims", 1))
    if not other and rank == 4 and over == (2, 3) and keep and kind in _POOLS:
        whole: Parameters = dict(zip("nchw", info.dims, strict=True))
        whole |= {"kind": _POOLS[kind], "global": 1}
        return [make_kernel(rewriter, node, "pool2d", (info.name,), **whole)]
    listed = "" if len(over) == rank else over
    stated: Parameters = {"shape": info.dims, "kind": kind, "axes": listed, "keepdims": keep}
    return [make_kernel(rewriter, node, "reduce", (info.name,), **stated)]


for _operator in _KINDS:
    typed_rules.register(_operator)(_lower)
