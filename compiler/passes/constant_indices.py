"""Indexing whose places are known becomes plain movement, which every family has kernels for.

Exporters write `x[:, 4:8] = y`, `x[..., mask]` and `table[indices]` with GatherND and ScatterND, be
the places constant or not; what addresses a run of neighbours is a slice, a view or a Concat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph import Graph, Node, attributes_of, view
from tilesmith.compiler.graph_pass import Pass
from tilesmith.compiler.rewrite import Rewriter


@dataclass(frozen=True)
class PlainIndexing(Pass):
    """GatherND and ScatterND that a Gather, a view or a Concat can say.

        y = GatherND(x, [[0], [1]]) z = ScatterND(a, [[4], [5]], u)     before
        y = Gather(x, [0, 1])       z = Concat(a[:4], u, a[6:])         after

    What gathers every element in order is a view; indices of one column need not be constant.

    Contract: any graph in; same values out. Indices out of range are left as they are, for the one
    who runs or lowers the node to refuse.
    """

    name = "plain-indexing"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in rewriter.nodes():
            if not node.is_onnx("GatherND", "ScatterND") or not rewriter.shapes_known(node):
                continue
            if rewriter.info(node.inputs[0]).dtype != rewriter.info(node.writes[0]).dtype:
                continue
            if (
                not rewriter.info(node.inputs[0]).known
                or not rewriter.info(node.writes[0]).elements
            ):
                continue
            if node.is_onnx("GatherND"):
                _gather(rewriter, node)
            elif node.attribute("reduction", "none") == "none":
                _scatter(rewriter, node)
        return rewriter.finish()


def _rows(rewriter: Rewriter, node: Node) -> NDArray[np.int64] | None:
    """Constant indices as numbers of rows, the indexed axes of the data taken as one; else None."""
    indices = rewriter.constant(node.inputs[1])
    if indices is None or indices.ndim == 0 or indices.size == 0:
        return None
    depth = indices.shape[-1]
    dims = rewriter.info(node.inputs[0]).dims[:depth]
    if depth > len(rewriter.info(node.inputs[0]).dims):
        return None
    columns = [indices[..., axis].astype(np.int64) for axis in range(depth)]
    if any(((c < -extent) | (c >= extent)).any() for c, extent in zip(columns, dims, strict=True)):
        return None
    inside = tuple(c % extent for c, extent in zip(columns, dims, strict=True))
    return np.asarray(np.ravel_multi_index(inside, dims), np.int64)


def _gather(rewriter: Rewriter, node: Node) -> None:
    """See the pass; `batch_dims` that pair up axes of both are left alone."""
    if node.attribute("batch_dims", 0):
        return
    data, indices = (rewriter.info(name) for name in node.inputs)
    if not indices.dims:
        return
    depth = indices.dims[-1]
    if not 1 <= depth <= len(data.dims):
        return
    count, rest = math.prod(data.dims[:depth]), data.dims[depth:]
    rows = _rows(rewriter, node)
    if rows is not None and np.array_equal(rows.reshape(-1), np.arange(count)):
        rewriter.replace(node, view(data.name, node.writes[0], node.name))
        return
    if rows is None and (depth != 1 or node.inputs[1] in rewriter.constants):
        return
    new = []
    flat = data.name
    if depth > 1:
        flat = rewriter.add_tensor(data.name, data.dtype, (count, *rest))
        new.append(view(data.name, flat, node.name))
    if rows is None:
        where = rewriter.add_tensor(indices.name, indices.dtype, indices.dims[:-1])
        new.append(view(indices.name, where, node.name))
    else:
        where = rewriter.add_constant(indices.name, rows, "int64")
    gather = Node(
        "Gather", (flat, where), node.outputs, node.name, attributes=attributes_of(axis=0)
    )
    rewriter.replace(node, *new, gather)


def _scatter(rewriter: Rewriter, node: Node) -> None:
    """Rows that follow each other are put between what stands before and behind them."""
    rows = _rows(rewriter, node)
    if rows is None:
        return
    first, count = int(rows.reshape(-1)[0]), rows.size
    if not np.array_equal(rows.reshape(-1), np.arange(first, first + count)):
        return
    data, updates = rewriter.info(node.inputs[0]), rewriter.info(node.inputs[2])
    depth = rewriter.info(node.inputs[1]).dims[-1]
    total, rest = math.prod(data.dims[:depth]), data.dims[depth:]
    parts: list[Node] = []

    def seen_as(name: str, shape: tuple[int, ...]) -> str:
        if rewriter.info(name).dims == shape:
            return name
        result = rewriter.add_tensor(name, data.dtype, shape)
        parts.append(view(name, result, node.name))
        return result

    middle = seen_as(updates.name, (count, *rest))
    around = [(0, first), (first + count, total)]
    before, behind = (
        _part(rewriter, data.name, (total, *rest), bounds, parts, node) for bounds in around
    )
    joined = (*before, middle, *behind)
    flat = data.dims == (total, *rest)
    result = node.writes[0] if flat else rewriter.add_tensor(data.name, data.dtype, (total, *rest))
    parts.append(Node("Concat", joined, (result,), node.name, attributes=attributes_of(axis=0)))
    if not flat:
        parts.append(view(result, node.writes[0], node.name))
    rewriter.replace(node, *parts)


def _part(
    rewriter: Rewriter,
    data: str,
    shape: tuple[int, ...],
    bounds: tuple[int, int],
    parts: list[Node],
    node: Node,
) -> tuple[str, ...]:
    """Rows from `bounds[0]` to `bounds[1]` of `data`, seen as `shape`: nothing, whole parts of the
    Concat that made it, or a slice, which is a view (they are outermost)."""
    first, stop = bounds
    if first == stop:
        return ()
    before = rewriter.producer(data)
    if before is not None and before.is_onnx("Concat") and before.attribute("axis") == 0:
        edges = np.cumsum([0, *(rewriter.info(name).dims[0] for name in before.inputs)])
        if rewriter.info(data).dims == shape and {first, stop} <= set(edges.tolist()):
            pairs = zip(before.inputs, edges, strict=False)
            return tuple(name for name, edge in pairs if first <= edge < stop)
    result = rewriter.add_tensor(data, rewriter.info(data).dtype, (stop - first, *shape[1:]))
    offset = first * math.prod(shape[1:])
    parts.append(view(data, result, node.name, offset))
    return (result,)
