"""Choices among a few, as accelerators make them: by comparing all with all.

What routes tokens to experts takes the largest of a few scores, picks by their numbers, and marks
those chosen. Engines have no search and no addresses for that; they have comparisons and sums, and
rows of some dozen elements are short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph import Graph, Node, kernel
from tilesmith.compiler.graph_pass import Pass
from tilesmith.compiler.rewrite import Rewriter
from tilesmith.search_space.flattening import product
from tilesmith.search_space.workload import ParameterValue, Workload, shape_text

LONGEST = 64
"""Elements that are chosen among at most: rows of all pairs of them have to fit SBUF."""

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
    """

    name = "choose-by-rank"

    runs: Callable[[Workload], bool]

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        made = _Kernels(rewriter)
        outside: dict[str, str] = {}
        for node in graph.nodes:
            if (work := node.workload) is None or work.operator != "top_k" or not _short(work):
                continue
            names = _seen_as(graph, node.outputs[0])
            readers = {n: None for name in names for n in graph.consumers.get(name, ())}
            among = work.shape("shape")[-1]
            if not all(_follows(graph, reader, names, among) for reader in readers):
                continue
            new = {node: made.places(node, work)}
            new |= {r: made.reader(r) for r in readers if r.workload is not None}
            kernels = [k.workload for parts in new.values() for k in parts]
            if not all(found is not None and self.runs(found) for found in kernels):
                continue
            for name in names:
                outside[name] = rewriter.info(name).dtype
                rewriter.tensors[name] = replace(rewriter.info(name), dtype="float32")
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
    return last and shape[-1] <= LONGEST and workload.dtype == "float32"


def _seen_as(graph: Graph, name: str) -> dict[str, None]:
    """A tensor and all views of it, of views too."""
    found = {name: None}
    for node in graph.consumers.get(name, ()):
        if node.kind == "view":
            found |= _seen_as(graph, node.writes[0])
    return found


def _follows(graph: Graph, node: Node, indices: Mapping[str, None], among: int) -> bool:
    """Whether a reader of indices takes them as floating numbers, or sees them converted.

    Those below `among` have to be within its axis: floating indices are not looked at in a run.
    """
    work = node.workload
    if work is None:
        same = all(graph.info(name).dtype == "int64" for name in node.writes)
        captured = not indices.keys().isdisjoint(node.captures)
        return same if node.kind == "view" else node.kind == "host" and not captured
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
    """What comes in the place of kernels; new tensors and constants are the rewriter's."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self._known: dict[tuple[str, tuple[int, ...]], str] = {}

    def places(self, node: Node, work: Workload) -> list[Node]:
        """The indices of the first k by rank."""
        (*lead, n), k = work.shape("shape"), work.integer("k")
        rows, (x,), (result,) = product(lead), node.inputs, node.outputs
        stands = self._constant("stands", np.tri(n, k=-1, dtype=np.float32))
        before, one = self._elementwise(
            f"{result}.before", (rows, n, n), _RANKS[work.text("kind")],
            {x: (rows, 1, n), f"{x} ": (rows, n, 1), stands: (n, n)},
        )  # fmt: skip
        rank, two = self._reduce(f"{result}.rank", before, (rows, n, n), "sum")
        rounds = self._constant("rounds", np.arange(k, dtype=np.float32).reshape(k, 1))
        found, three = self._elementwise(
            f"{result}.found", (rows, k, n), "where(equal(x0,x1),x2,0)",
            {rank: (rows, 1, n), rounds: (k, 1), self._iota(n): (n,)},
        )  # fmt: skip
        _, four = self._reduce("", found, (rows, k, n), "sum", result)
        return [one, two, three, four]

    def reader(self, node: Node) -> list[Node]:
        """A kernel that reads indices, reading floating ones."""
        work = node.workload
        assert work is not None
        if work.operator == "gather":
            changed = {**dict(work.parameters), "index": "float32"}
            parameters = tuple((name, changed[name]) for name, _ in work.parameters)
            return [replace(node, workload=replace(work, parameters=parameters))]
        return (
            self._picked(node, work)
            if work.operator == "gather_elements"
            else self._marked(node, work)
        )

    def _picked(self, node: Node, work: Workload) -> list[Node]:
        (*lead, n), k = work.shape("shape"), work.shape("indices")[-1]
        rows, (x, indices), (result,) = product(lead), node.inputs, node.outputs
        found, one = self._elementwise(
            f"{result}.found", (rows, k, n), "where(equal(x0,x1),x2,0)",
            {indices: (rows, k, 1), self._iota(n): (n,), x: (rows, 1, n)},
        )  # fmt: skip
        return [one, self._reduce("", found, (rows, k, n), "sum", result)[1]]

    def _marked(self, node: Node, work: Workload) -> list[Node]:
        (*lead, n), k = work.shape("shape"), work.shape("indices")[-1]
        rows, (x, indices, updates), (result,) = product(lead), node.inputs, node.outputs
        places = self._constant("places", np.arange(n, dtype=np.float32).reshape(n, 1))
        mark = self._constant("mark", self.rewriter.constants[updates].reshape(-1)[:1])
        hits, one = self._elementwise(
            f"{result}.hits", (rows, n, k), "where(equal(x0,x1),1,0)",
            {indices: (rows, 1, k), places: (n, 1)},
        )  # fmt: skip
        hit, two = self._reduce(f"{result}.hit", hits, (rows, n, k), "max")
        _, three = self._elementwise(
            "", (rows, n), "where(equal(x0,0),x1,x2)",
            {hit: (rows, n), x: (rows, n), mark: (1,)}, result,
        )  # fmt: skip
        return [one, two, three]

    def _iota(self, n: int) -> str:
        return self._constant("iota", np.arange(n, dtype=np.float32))

    def _constant(self, what: str, value: NDArray[np.float32]) -> str:
        key = f"{what}:{value.tobytes().hex()}", value.shape
        if key not in self._known:
            self._known[key] = self.rewriter.add_constant(what, value.copy(), "float32")
        return self._known[key]

    def _elementwise(
        self,
        base: str,
        shape: tuple[int, ...],
        expression: str,
        operands: Mapping[str, tuple[int, ...]],
        result: str = "",
    ) -> tuple[str, Node]:
        """A tensor, and the kernel that makes it; operands by name (blanks after it are none)."""
        parameters: dict[str, ParameterValue] = {
            "shape": shape_text(shape), "expression": expression,
        }  # fmt: skip
        for number, given in enumerate(operands.values()):
            if given != shape:
                parameters[f"x{number}"] = shape_text(given)
        result = result or self.rewriter.add_tensor(base, "float32", shape)
        inputs = tuple(name.rstrip() for name in operands)
        return result, kernel(Workload.of("elementwise", parameters), inputs, result, result)

    def _reduce(
        self, base: str, source: str, shape: tuple[int, ...], kind: str, result: str = ""
    ) -> tuple[str, Node]:
        """A tensor, and the kernel that makes it of another by reducing the last axis."""
        parameters: dict[str, ParameterValue] = {
            "shape": shape_text(shape), "kind": kind, "axes": len(shape) - 1, "keepdims": 0,
        }  # fmt: skip
        result = result or self.rewriter.add_tensor(base, "float32", shape[:-1])
        return result, kernel(Workload.of("reduce", parameters), (source,), result, result)
