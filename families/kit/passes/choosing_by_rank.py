"""Choices among a few, as accelerators make them: by comparing all with all.

What routes tokens to experts takes the largest of a few scores, picks by their numbers, and marks
those chosen. Engines have no search and no addresses for that; they have comparisons and sums, and
rows of some dozen elements are short.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.graph.graph import Graph, Node, kernel
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.families.kit.passes.conversions import conversions_of, taking
from tilesmith.families.kit.passes.small_kernels import Operands, SmallKernels, seen_as
from tilesmith.search_space.expressions.dtypes import COMPUTED
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.workloads.workload import ParameterValue, Workload, shape_text

LONGEST = 64
"""Elements that are chosen among at most: rows of all pairs of them have to fit SBUF."""

LONGEST_ALONE = 256
"""The same of a single row, whose pairs are rows of their own. Beyond, bf16 does not hold the
numbers of all, and comparing all with all takes longer than the host with its transfers."""

_RANKS = {
    "max": "where(equal(x1,x1),add(not(less_equal(x0,x1)),multiply(equal(x0,x1),x2)),"
    "multiply(is_nan(x0),x2))",
    "min": "where(equal(x0,x0),add(not(greater_equal(x0,x1)),multiply(equal(x0,x1),x2)),"
    "multiply(is_nan(x1),x2))",
}
"""1 where element x0 comes before element x1, else 0; x2 is 1 where it stands before it. What is
not a number is larger than all numbers."""


@dataclass(frozen=True)
class ChooseByRank(Pass):
    """The largest of a few are found, picked and marked by comparisons and sums.

        i = top_k(x); y = gather_elements(x, i)                            before
        r = sum(x[j] comes before x[i]); i = sum(where(r == round, 0..))   after,
        y = sum(where(i == 0.., x, 0))                                     on the device

    Indices are whole numbers in floating tensors, exact in bf16 too; the caller and host nodes see
    int64.

    Contract: a lowered graph in, the same values out; only kernels that choose along a last axis of
    at most `LONGEST` elements, and those that read their indices, change.

    Attributes:
        runs: whether the target has a schedule for a workload.
        rows_by: element type of the numbers that the target picks rows by; "": floating ones.
        stated: as of `SmallKernels`.
    """

    name = "choose-by-rank"

    runs: Callable[[Workload], bool]
    rows_by: str = ""
    stated: bool = False

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        ranking = _Kernels(SmallKernels(rewriter, self.stated), self.rows_by)
        outside: dict[str, str] = {}
        for node in graph.nodes:
            if (work := node.workload) is None or work.operator != "top_k" or not _short(work):
                continue
            names = seen_as(graph, node.outputs[0])
            readers = {n: None for name in names for n in graph.consumers.get(name, ())}
            among = work.shape("shape")[-1]
            if not all(_follows(graph, reader, names, among) for reader in readers):
                continue
            ranking.make.held.update(dict.fromkeys(names, COMPUTED))
            new = {node: ranking.places(node, work)}
            new |= {r: ranking.reader(r) for r in readers if r.workload is not None}
            kernels = [n.workload for parts in new.values() for n in parts if n.kind != "view"]
            if not all(workload is not None and self.runs(workload) for workload in kernels):
                continue
            for name in names:
                outside[name] = rewriter.info(name).dtype
                rewriter.tensors[name] = replace(rewriter.info(name), dtype=COMPUTED)
            for old, parts in new.items():
                rewriter.replace(old, *parts)
        if not outside:
            return graph
        changed = rewriter.finish()
        return changed.with_(converted={**changed.converted, **outside})


def _short(workload: Workload) -> bool:
    """Whether it works along a last axis of few elements, in the type that engines compute in."""
    shape = workload.shape("shape")
    last = workload.integer("axis") == len(shape) - 1
    most = LONGEST_ALONE if product(shape[:-1]) == 1 else LONGEST
    return last and shape[-1] <= most and workload.dtype == COMPUTED


def _follows(graph: Graph, node: Node, indices: Mapping[str, None], among: int) -> bool:
    """Whether a reader of indices takes them as floating numbers, or sees them converted.

    Those below `among` have to be within its axis: floating indices are not looked at in a run.
    """
    work = node.workload
    if work is None:
        same = all(graph.info(name).dtype == "int64" for name in node.writes)
        captured = not indices.keys().isdisjoint(node.captures)
        return same if node.kind == "view" else node.kind == "host" and not captured
    if conversions_of(node, indices) == {f"to_{COMPUTED}"}:
        return True
    if [n for n, name in enumerate(node.inputs) if name in indices] != [1]:
        return False
    if work.operator == "gather":
        return work.shape("shape")[work.integer("axis")] >= among
    if work.operator not in ("gather_elements", "scatter_elements") or not _short(work):
        return False
    (*lead, extent) = work.shape("shape")
    if tuple(lead) != work.shape("indices")[:-1] or extent < among:
        return False
    if work.operator == "gather_elements":
        return True
    updates = graph.constants.get(node.inputs[2])
    if updates is None or work.text("reduction") != "none":
        return False
    return bool(np.isfinite(updates).all() and (updates == updates.flat[0]).all())


class _Kernels:
    """What comes in the place of kernels."""

    def __init__(self, make: SmallKernels, rows_by: str) -> None:
        self.make, self.rows_by = make, rows_by

    def places(self, node: Node, work: Workload) -> list[Node]:
        """The indices of the first k by rank."""
        (*lead, n), k = work.shape("shape"), work.integer("k")
        rows, (x,), (result,), make = product(lead), node.inputs, node.outputs, self.make
        stands = make.constant("stands", np.tri(n, k=-1, dtype=np.float32))
        pairs = [(x, (rows, 1, n)), (x, (rows, n, 1)), (stands, (n, n))]
        before = self._map((rows, n, n), _RANKS[work.text("kind")], pairs)
        rank = make.reduce("", before, (rows, n, n)[rows == 1 :], "sum")
        rounds = make.constant("rounds", np.arange(k, dtype=np.float32).reshape(k, 1))
        tested = [(rank, (rows, 1, n)), (rounds, (k, 1)), (make.iota(n), (n,))]
        picks = self._map((rows, k, n), "where(equal(x0,x1),x2,0)", tested)
        make.reduce(result, picks, (rows, k, n)[rows == 1 :], "sum")
        return make.taken()

    def reader(self, node: Node) -> list[Node]:
        """A kernel that reads indices, reading floating ones."""
        work = node.work
        if work.operator == "gather":
            return self._gathered(node, work)
        if work.operator == "elementwise":
            return [taking(node, self.make.held, COMPUTED)]
        return (
            self._picked(node, work)
            if work.operator == "gather_elements"
            else self._marked(node, work)
        )

    def _gathered(self, node: Node, work: Workload) -> list[Node]:
        table, places = node.inputs
        if not self.rows_by:
            return [picking_by(self.make.dtype(places), node, work)]
        dims = self.make.rewriter.info(places).dims
        words: dict[str, ParameterValue] = {
            "shape": shape_text(dims), "expression": f"to_{self.rows_by}(x0)",
            "types": self.make.dtype(places),
        }  # fmt: skip
        converted = Workload.of("elementwise", words, dtype=self.rows_by)
        rows = self.make.rewriter.add_tensor(places, self.rows_by, dims)
        gather = replace(picking_by(self.rows_by, node, work), inputs=(table, rows))
        return [kernel(converted, (places,), rows, rows), gather]

    def _picked(self, node: Node, work: Workload) -> list[Node]:
        (*lead, n), k = work.shape("shape"), work.shape("indices")[-1]
        rows, (x, indices), (result,), make = product(lead), node.inputs, node.outputs, self.make
        tested = [(indices, (rows, k, 1)), (make.iota(n), (n,)), (x, (rows, 1, n))]
        picks = self._map((rows, k, n), "where(equal(x0,x1),x2,0)", tested)
        make.reduce(result, picks, (rows, k, n)[rows == 1 :], "sum")
        return make.taken()

    def _marked(self, node: Node, work: Workload) -> list[Node]:
        (*lead, n), k = work.shape("shape"), work.shape("indices")[-1]
        rows, (x, indices, updates), (result,) = product(lead), node.inputs, node.outputs
        make = self.make
        places = make.constant("places", np.arange(n, dtype=np.float32).reshape(n, 1))
        mark = make.constant("mark", self.make.rewriter.constants[updates].reshape(-1)[:1])
        tested = [(indices, (rows, 1, k)), (places, (n, 1))]
        hits = self._map((rows, n, k), "where(equal(x0,x1),1,0)", tested)
        hit = make.reduce("", hits, (rows, n, k)[rows == 1 :], "max")
        chosen = [(hit, (rows, n)), (x, (rows, n)), (mark, (1,))]
        self._map((rows, n), "where(equal(x0,0),x1,x2)", chosen, result)
        return make.taken()

    def _map(
        self, shape: tuple[int, ...], expression: str, operands: Operands, result: str = ""
    ) -> str:
        if shape[0] == 1:  # of a single row, what is compared with all is a row
            operands = [(name, dims[-2:]) for name, dims in operands]
            shape = shape[-2:]
        return self.make.elementwise(result, COMPUTED, shape, expression, operands)


def picking_by(dtype: str, node: Node, work: Workload) -> Node:
    """A gather whose row numbers are of an element type."""
    return replace(node, workload=work.with_parameters(index=dtype))
