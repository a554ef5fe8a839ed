"""What depends on where an element stands, as maps over numbers of places.

    y = Kernel(trilu shape=12x64x64)(x)             y = where(kept, x, 0), kept: 64x64 of 1 and 0
    y = Kernel(one_hot indices=9 depth=40)(v, i)    y = where(i is 0.., v[1], v[0])

Engines compare and select; places are a constant beside what they read. Indices are read as
floating numbers, which are exact as far as places go and equal to none from there on.
"""

from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.families.kit.passes.conversions import conversions_of, taking
from tilesmith.families.kit.passes.small_kernels import SmallKernels, seen_as
from tilesmith.search_space.expressions.dtypes import COMPUTED, is_floating
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.workloads.workload import Workload

DEEPEST = {"fp32": 1 << 23, "bf16": 1 << 7}
"""Places that an index is compared with at most: an index twice as large is exact, so that what is
rounded is below zero or above all places, counted from either end."""


@dataclass(frozen=True)
class PlacesAsNumbers(Pass):
    """Triangles and rows that are on at one index are maps over numbers of places.

        y = Kernel(trilu shape=2x64x64)(x)                                          before
        y = Kernel(elementwise shape=2x64x64 expression=where(..) x1=64x64)(x, m)   after

    Whole numbers that are on at one index are floating ones where kernels alone read them and
    convert them to such.

    Contract: a lowered graph in, the same values out; diagonals have to be known, and so have what
    stands on and off; there are `deepest` places at most.
    """

    name = "places-as-numbers"

    deepest: int

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        make = SmallKernels(rewriter)
        for node in graph.nodes:
            if (work := node.workload) is None or work.epilogue:
                continue
            if work.operator == "trilu" and is_floating(work.dtype) and not work.integer("dynamic"):
                _triangle(make, node, work)
            elif work.operator == "one_hot" and _is_a_map(graph, node, work, self.deepest):
                _one_hot(make, graph, node, work)
            if taken := make.taken():
                rewriter.replace(node, *taken)
        return rewriter.finish()


def _triangle(make: SmallKernels, node: Node, work: Workload) -> None:
    *outer, rows, columns = work.shape("shape")
    k = work.integer("k")
    kept = np.tri(rows, columns, k - 1 if work.integer("upper") else k, np.float32)
    kept = 1 - kept if work.integer("upper") else kept
    shape = (product(outer), rows, columns)
    operands = [(node.inputs[0], shape), (make.constant("kept", kept), (rows, columns))]
    make.elementwise(node.outputs[0], work.dtype, shape, "where(equal(x1,0),0,x0)", operands)


def _is_a_map(graph: Graph, node: Node, work: Workload, deepest: int) -> bool:
    """Whether a one-hot's places are few, its values known, and its readers want numbers."""
    if work.integer("depth") > deepest or graph.constants.get(node.inputs[0]) is None:
        return False
    if is_floating(work.dtype):
        return True
    names = seen_as(graph, node.outputs[0])
    if names.keys() & graph.output_names or work.dtype == "bool":
        return False
    readers = (n for name in names for n in graph.consumers.get(name, ()) if n.kind != "view")
    return all(conversions_of(reader, names) == {f"to_{COMPUTED}"} for reader in readers)


def _one_hot(make: SmallKernels, graph: Graph, node: Node, work: Workload) -> None:
    (values, indices), (result,), depth = node.inputs, node.outputs, work.integer("depth")
    at, given = work.integer("axis"), work.shape("indices")
    before, behind = product(given[:at]), product(given[at:])
    kind = work.dtype
    if not is_floating(kind):
        kind = COMPUTED
        names = seen_as(graph, result)
        for name in names:
            make.rewriter.tensors[name] = replace(make.rewriter.info(name), dtype=kind)
            for reader in graph.consumers.get(name, ()):
                if reader.kind != "view":
                    make.rewriter.replace(reader, taking(reader, names, kind))
    off, on = make.rewriter.constants[values].astype(np.float64)
    places = make.constant("places", np.arange(depth, dtype=np.float32).reshape(depth, 1))
    wanted = f"where(less(x0,0),add(x0,{depth}),x0)"
    shape: tuple[int, ...] = (before, depth, behind)
    operands = [(indices, (before, 1, behind)), (places, (depth, 1))]
    if behind == 1:
        shape, operands = (before, depth), [(indices, (before, 1)), (places, (depth,))]
    value = f"where(equal({wanted},x1),{on:.9g},{off:.9g})"
    make.elementwise(result, kind, shape, value, operands)
