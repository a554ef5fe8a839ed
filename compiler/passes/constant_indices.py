"""Indexing whose places are known becomes plain movement, which every family has kernels for.

Exporters write `x[:, 4:8] = y`, `x[..., mask]` and `table[indices]` with GatherND and ScatterND, be
the places constant or not, and `select_scatter` (a recurrence that fills its output step by step)
with ScatterElements; what addresses a run of neighbours is a slice, a view or a Concat.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Node, attributes_of, view
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule


@dataclass(frozen=True)
class PlainIndexing(RulePass):
    """Gathers and scatters that a Gather, a view or a Concat can say.

        y = GatherND(x, [[0], [1]]) z = ScatterND(a, [[4], [5]], u)     before
        y = Gather(x, [0, 1])       z = Concat(a[:4], u, a[6:])         after

    What gathers every element in order is a view; indices of one column need not be constant.
    GatherElements and ScatterElements are the same along their axis, where indices differ along it
    alone, as where Expand repeats them. Of scatters one after another the Concats become one.

    Contract: any graph in; same values out. Indices out of range are left as they are, for the one
    who runs or lowers the node to refuse.
    """

    name = "plain-indexing"

    def applies(self, rewriter: Rewriter, node: Node) -> bool:
        source, result = rewriter.info(node.inputs[0]), rewriter.info(node.writes[0])
        same = source.dtype == result.dtype and rewriter.shapes_known(node)
        return same and source.known and result.elements > 0

    @rule("GatherND")
    def _gather(self, rewriter: Rewriter, node: Node) -> None:
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

    @rule("ScatterND")
    def _scatter(self, rewriter: Rewriter, node: Node) -> None:
        """Rows that follow each other are put between what stands before and behind them."""
        rows = _rows(rewriter, node)
        if rows is None or node.attribute("reduction", "none") != "none":
            return
        data = rewriter.info(node.inputs[0])
        depth = rewriter.info(node.inputs[1]).dims[-1]
        total, rest = math.prod(data.dims[:depth]), data.dims[depth:]
        _put_between(rewriter, node, rows.reshape(-1), (total, *rest), 0)

    @rule("GatherElements")
    def _gather_elements(self, rewriter: Rewriter, node: Node) -> None:
        """See the pass."""
        if axis_indices := _along(rewriter, node):
            axis, places = axis_indices
            where, parts = rewriter.add_constant(node.inputs[1], places, "int64"), list[Node]()
        else:
            rank = len(rewriter.info(node.inputs[0]).dims)
            axis = int(node.attribute("axis", 0)) % max(rank, 1)
            if (source := _repeated(rewriter, node, axis)) is None:
                return
            indices = rewriter.info(node.inputs[1])
            where = rewriter.add_tensor(source, indices.dtype, (indices.dims[axis],))
            parts = [view(source, where, node.name)]
        own = attributes_of(axis=axis)
        gather = Node("Gather", (node.inputs[0], where), node.outputs, node.name, attributes=own)
        rewriter.replace(node, *parts, gather)

    @rule("ScatterElements")
    def _scatter_elements(self, rewriter: Rewriter, node: Node) -> None:
        """See the pass."""
        axis_indices = _along(rewriter, node)
        if axis_indices is not None and node.attribute("reduction", "none") == "none":
            axis, places = axis_indices
            _put_between(rewriter, node, places, rewriter.info(node.inputs[0]).dims, axis)


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


def _along(rewriter: Rewriter, node: Node) -> tuple[int, NDArray[np.int64]] | None:
    """An axis and constant places along it, where indices differ along it alone; else None."""
    data, given = rewriter.info(node.inputs[0]), rewriter.constant(node.inputs[1])
    rank, axis = len(data.dims), int(node.attribute("axis", 0))
    if given is None or not given.size or given.ndim != rank or not -rank <= axis < rank:
        return None
    axis %= rank
    others = [at for at in range(rank) if at != axis]
    if any(given.shape[at] != data.dims[at] for at in others):
        return None
    places = given[tuple(slice(None) if at == axis else 0 for at in range(rank))].astype(np.int64)
    extent = data.dims[axis]
    if ((places < -extent) | (places >= extent)).any():
        return None
    shaped = places.reshape([-1 if at == axis else 1 for at in range(rank)])
    return (axis, places % extent) if (given == shaped).all() else None


def _repeated(rewriter: Rewriter, node: Node, axis: int) -> str | None:
    """The tensor that indices known at run time repeat along all axes but one; None where they are
    no repetition of it, or do not cover the data's other axes."""
    data, indices = (rewriter.info(name) for name in node.inputs)
    producer = rewriter.producer(indices.name)
    if (
        producer is None
        or not producer.is_onnx("Expand", "Tile")
        or not rewriter.shapes_known(producer)
    ):
        return None
    alone = tuple(e if at == axis else 1 for at, e in enumerate(indices.dims))
    given = rewriter.info(producer.inputs[0]).dims
    same = _with(indices.dims, axis, 1) == _with(data.dims, axis, 1)
    return (
        producer.inputs[0] if same and (1,) * (len(alone) - len(given)) + given == alone else None
    )


def _put_between(
    rewriter: Rewriter, node: Node, rows: NDArray[np.int64], shape: tuple[int, ...], axis: int
) -> None:
    """A scatter into data seen as `shape` as a Concat along an axis, where its places follow each
    other."""
    first, count = int(rows[0]), rows.size
    if not np.array_equal(rows, np.arange(first, first + count)):
        return
    data, updates = rewriter.info(node.inputs[0]), rewriter.info(node.inputs[2])
    parts: list[Node] = []
    middle, wanted = updates.name, _with(shape, axis, count)
    if updates.dims != wanted:
        middle = rewriter.add_tensor(updates.name, data.dtype, wanted)
        parts.append(view(updates.name, middle, node.name))
    around = [(0, first), (first + count, shape[axis])]
    before, behind = (_part(rewriter, node, shape, axis, bounds, parts) for bounds in around)
    flat = data.dims == shape
    result = node.writes[0] if flat else rewriter.add_tensor(data.name, data.dtype, shape)
    joined, own = (*before, middle, *behind), attributes_of(axis=axis)
    parts.append(Node("Concat", joined, (result,), node.name, attributes=own))
    if not flat:
        parts.append(view(result, node.writes[0], node.name))
    rewriter.replace(node, *parts)


def _with(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _part(
    rewriter: Rewriter,
    node: Node,
    shape: tuple[int, ...],
    axis: int,
    bounds: tuple[int, int],
    parts: list[Node],
) -> tuple[str, ...]:
    """What stands in a node's data, seen as `shape`, from `bounds[0]` to `bounds[1]` along an axis:
    nothing, whole parts of the Concat that made it, or a slice, which is a view where that axis is
    outermost."""
    first, stop = bounds
    if first == stop:
        return ()
    data = rewriter.info(node.inputs[0])
    producer = rewriter.producer(data.name) if data.dims == shape else None
    if (
        producer is not None
        and producer.is_onnx("Concat")
        and producer.attribute("axis") % len(shape) == axis
    ):
        edges = np.cumsum([0, *(rewriter.info(name).dims[axis] for name in producer.inputs)])
        if {first, stop} <= set(edges.tolist()):
            pairs = zip(producer.inputs, edges, strict=False)
            return tuple(name for name, edge in pairs if first <= edge < stop)
    result = rewriter.add_tensor(data.name, data.dtype, _with(shape, axis, stop - first))
    if math.prod(shape[:axis]) == 1:
        offset = first * math.prod(shape[axis + 1 :])
        parts.append(view(data.name, result, node.name, offset))
    else:
        limits = [
            rewriter.add_constant(data.name, np.array([number]), "int64")
            for number in (first, stop, axis)
        ]
        parts.append(Node("Slice", (data.name, *limits), (result,), node.name))
    return (result,)
