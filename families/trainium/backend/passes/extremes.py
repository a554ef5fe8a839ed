"""Where the largest or smallest stands, as accelerators find it: by comparing all with it."""

from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.families.kit.passes.choosing_by_rank import picking_by
from tilesmith.families.kit.passes.conversions import conversions_of, taking
from tilesmith.families.kit.passes.small_kernels import SmallKernels, seen_as
from tilesmith.families.trainium.backend.passes.few_rows import pays_to_cut, pieces_of
from tilesmith.families.trainium.schedules.building_blocks.machine import FLOATS
from tilesmith.search_space.expressions.dtypes import COMPUTED
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.spaces.knobs import divisors
from tilesmith.search_space.workloads.workload import Workload

EXACT = 1 << 24
"""Whole numbers that float32 holds."""


@dataclass(frozen=True)
class FindExtremes(Pass):
    """The place of an extreme is the least of those whose element equals it.

        i = arg_extreme max(x)                                              before
        m = max(x); i = min(where(x is m or not a number, 0.., n))          after

    Few long rows are looked through in pieces (`FillPartitions`); an axis that enough others follow
    to fill the partitions stays where it is, a shorter one is turned to be the last.

    What is not a number is the extreme wherever there is one, as in numpy and ONNX's reference.
    Indices are whole numbers in a float32 tensor; the caller and host nodes see int64.

    Contract: a lowered graph in its precision in, the same values out; only searches change whose
    results the caller, the host, gathers or maps of floating numbers read.
    """

    name = "find-extremes"

    target: Target

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        make = SmallKernels(rewriter)
        outside: dict[str, str] = {}
        for node in graph.nodes:
            work = node.workload
            if work is None or work.operator != "arg_extreme" or work.dtype not in FLOATS:
                continue
            names = seen_as(graph, node.outputs[0])
            readers = {n: None for name in names for n in graph.consumers.get(name, ())}
            if product(work.shape("shape")) >= EXACT or not all(
                _follows(reader, set(names)) for reader in readers
            ):
                continue
            for name in names:
                outside[name] = rewriter.info(name).dtype
                rewriter.tensors[name] = replace(rewriter.info(name), dtype=COMPUTED)
            _find(make, node, work, self.target)
            rewriter.replace(node, *make.taken())
            for reader in readers:
                if reader.workload is None:
                    continue
                if reader.workload.operator == "gather":
                    rewriter.replace(reader, picking_by(COMPUTED, reader, reader.workload))
                else:
                    rewriter.replace(reader, taking(reader, names, COMPUTED))
        if not outside:
            return graph
        changed = rewriter.finish()
        return changed.with_(converted={**changed.converted, **outside})


def _follows(node: Node, indices: set[str]) -> bool:
    """Whether a reader of indices takes them as floating numbers, or sees them converted."""
    if node.workload is None:
        captured = not indices.isdisjoint(node.captures)
        return node.kind == "view" or (node.kind == "host" and not captured)
    if conversions_of(node, indices) == {f"to_{COMPUTED}"}:
        return True
    read = [n for n, name in enumerate(node.inputs) if name in indices]
    return node.workload.operator == "gather" and read == [1]


def _find(make: SmallKernels, node: Node, work: Workload, target: Target) -> None:
    """The kernels of one search."""
    shape, axis = work.shape("shape"), work.integer("axis")
    before, among, behind = product(shape[:axis]), shape[axis], product(shape[axis + 1 :])
    (x,) = node.inputs
    if behind >= target.integer("sbuf.partitions"):
        _find_followed(make, node, work, (before, among, behind), target)
        return
    if behind > 1:
        x = make.transpose("", x, (before, among, behind), "0x2x1")
    rows, kind = before * behind, work.text("kind")
    cut = pays_to_cut(target, rows, among, passes=3, kernels=4)
    pieces = pieces_of(target, rows, among) if cut else 1
    width = among // pieces
    flat, parts = (rows * pieces, width), (rows, pieces)
    extreme = make.reduce("", x, flat, kind)
    if cut:
        whole = make.reduce("", extreme, parts, kind)
        spread = [(whole, (rows, 1))]
        extreme = make.elementwise("", make.dtype(x), parts, f"to_{COMPUTED}(x0)", spread)
    first, missed, test = _test(work, width)
    same = [(x, flat), (extreme, (flat[0], 1)), (make.iota(width), (width,))]
    marked = make.elementwise("", COMPUTED, flat, test, same)
    place = make.reduce("" if cut else node.outputs[0], marked, flat, first)
    if cut:
        starts = make.constant("starts", np.arange(0, among, width, dtype=np.float32))
        nowhere = -1 if work.integer("last") else among
        inside = f"where(equal(x0,{missed}),{nowhere},add(x0,x1))"
        places = make.elementwise(
            "", COMPUTED, parts, inside, [(place, parts), (starts, (pieces,))]
        )
        make.reduce(node.outputs[0], places, parts, first)


def _test(work: Workload, width: int) -> tuple[str, int, str]:
    """Which of the places counts, what stands where the extreme (x1) is not, and the map that says
    so of elements (x0) and their places (x2)."""
    first, missed = ("max", -1) if work.integer("last") else ("min", width)
    return first, missed, f"where(or(equal(x0,x1),is_nan(x0)),x2,{missed})"


def _find_followed(
    make: SmallKernels,
    node: Node,
    work: Workload,
    shape: tuple[int, int, int],
    target: Target,
) -> None:
    """The kernels of a search along an axis that others follow, which are on the partitions."""
    before, among, behind = shape
    (x,) = node.inputs
    rows = divisors(behind, target.integer("sbuf.partitions"))[-1]
    dealt = (before, among, rows, behind // rows)
    extreme = make.reduce("", x, shape, work.text("kind"), axis=1)
    first, _, test = _test(work, among)
    places = [(x, dealt), (extreme, (before, 1, *dealt[2:])), (make.iota(among), (among, 1, 1))]
    marked = make.elementwise("", COMPUTED, dealt, test, places)
    make.reduce(node.outputs[0], marked, shape, first, axis=1)
