"""Concatenation and splitting without copies: parts are computed where they lie in the whole."""

import math
from dataclasses import dataclass

import numpy as np

from tilesmith.compiler.graph.access import integers
from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, JOIN, Graph, Node, TensorInfo, view
from tilesmith.compiler.numerics.quantised import BYTES
from tilesmith.compiler.recipe.memory import Groups
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.lower import is_computable
from tilesmith.compiler.rewriting.rewrite import Rewriter


@dataclass(frozen=True)
class MakeJoins(Pass):
    """Concatenations and splits along the outermost axis longer than one need no copies.

        y = Concat(a, b, axis=1)      before: batch 1
        y = Join(a, b)                after: a and b are computed where their part of y lies
        a, b = Split(y, axis=1)       before; likewise Slice in steps of one, Gather of one index
        a = View(y); b = View(y)      after

    A tensor can be part of one join only, at one place: what is joined twice, is a constant, or is
    tied to another place by a view (a piece of a larger tensor) keeps its Concat, and is copied.

    Contract: a simplified graph in; same values.
    """

    name = "make-joins"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in rewriter.nodes():
            if node.is_onnx("Split", "Slice", "Gather"):
                _split(rewriter, node)
        groups = _tied(rewriter)
        for node in rewriter.nodes():
            if (
                node.is_onnx("Concat")
                and _joinable(rewriter, node)
                and _tie(rewriter, groups, node)
            ):
                rewriter.replace(
                    node, Node(JOIN, node.inputs, node.outputs, node.name, INTERNAL_DOMAIN)
                )
        return rewriter.finish()


def _tied(rewriter: Rewriter) -> Groups:
    """Distances, in elements, that views and joins already fix."""
    groups = Groups()
    for name, info in rewriter.tensors.items():
        if info.known:
            groups.add(name, info.elements)
    for node in rewriter.nodes():
        if node.kind == "view":
            groups.tie(node.writes[0], node.inputs[0], int(node.attribute("offset", 0)))
        elif node.kind == "join":
            _tie(rewriter, groups, node)
    return groups


def is_outermost(dims: tuple[int, ...], axis: int) -> bool:
    """Whether parts along `axis` lie one after the other in memory."""
    return math.prod(dims[:axis]) == 1


def _has_parts(info: TensorInfo) -> bool:
    """Whether kernels compute parts of a tensor where they lie in it."""
    quantised = info.known and info.dtype in BYTES and info.elements > 0
    return quantised or is_computable(info)


def _joinable(rewriter: Rewriter, node: Node) -> bool:
    result = rewriter.info(node.writes[0])
    infos = [rewriter.info(name) for name in node.inputs]
    if not all(_has_parts(info) for info in (result, *infos)):
        return False
    axis = int(node.attribute("axis", 0)) % len(result.dims)
    variable = all(name not in rewriter.constants for name in node.inputs)
    return variable and len(infos) > 1 and is_outermost(result.dims, axis)


def _tie(rewriter: Rewriter, groups: Groups, node: Node) -> bool:
    """Fix the parts of a join; False, tying nothing, where one lies elsewhere already.

    A part that is itself a piece of a larger tensor would bring all of that along, over its
    neighbours in the join.
    """
    offset, wanted = 0, []
    for name in node.inputs:
        elements = rewriter.info(name).elements
        if groups.span(name) != (0, elements):
            return False
        wanted.append((name, offset))
        offset += elements
    result = node.writes[0]
    roots = [groups.find(name)[0] for name in (*node.inputs, result)]
    if len(set(roots)) < len(roots):
        return False
    for name, distance in wanted:
        groups.tie(name, result, distance)
    return True


def _split(rewriter: Rewriter, node: Node) -> None:
    source = rewriter.info(node.inputs[0])
    results = [rewriter.info(name) for name in node.writes]
    if not all(_has_parts(info) for info in (source, *results)):
        return
    if len(node.writes) != len(node.outputs):
        return
    finders = {"Split": _split_offsets, "Slice": _slice_offset, "Gather": _gather_offset}
    offsets = finders[node.operator](rewriter, node)
    if offsets is not None:
        views = [view(source.name, r.name, offset=o) for r, o in zip(results, offsets, strict=True)]
        rewriter.replace(node, *views)


def _split_offsets(rewriter: Rewriter, node: Node) -> list[int] | None:
    """Elements before each part, where the parts lie one after the other."""
    source = rewriter.info(node.inputs[0])
    axis = int(node.attribute("axis", 0)) % len(source.dims)
    if not is_outermost(source.dims, axis):
        return None
    sizes = [rewriter.info(name).elements for name in node.writes]
    return [int(total) for total in np.cumsum([0, *sizes[:-1]])]


def _gather_offset(rewriter: Rewriter, node: Node) -> list[int] | None:
    """Elements before the one slice that a constant index picks."""
    source, indices = rewriter.info(node.inputs[0]), rewriter.constant(node.inputs[1])
    axis = int(node.attribute("axis", 0)) % len(source.dims)
    if indices is None or indices.size != 1 or not is_outermost(source.dims, axis):
        return None
    index = int(indices.reshape(-1)[0])
    index += source.dims[axis] if index < 0 else 0
    inside = 0 <= index < source.dims[axis]
    return [index * math.prod(source.dims[axis + 1 :])] if inside else None


def _slice_offset(rewriter: Rewriter, node: Node) -> list[int] | None:
    """Elements before a slice that takes one run along one outermost axis."""
    source, result = rewriter.info(node.inputs[0]), rewriter.info(node.writes[0])
    starts = integers(node, "starts", 1, rewriter.constant)
    axes = integers(node, "axes", 3, rewriter.constant)
    steps = integers(node, "", 4, rewriter.constant)
    cut = [i for i, (a, b) in enumerate(zip(source.dims, result.dims, strict=True)) if a != b]
    if starts is None or axes is None or steps is None or len(cut) != 1:
        return None
    axis = cut[0]
    order = [a % len(source.dims) for a in axes] or list(range(len(starts)))
    if axis not in order or any(step != 1 for step in steps) or not is_outermost(source.dims, axis):
        return None
    start = starts[order.index(axis)]
    start = max(0, start + source.dims[axis]) if start < 0 else start
    return [start * math.prod(source.dims[axis + 1 :])]
