"""Where the largest or smallest element stands, by a maximum and comparisons with it.

    i = arg_extreme kind=max (x)                                      before
    m = reduce max (x); f = where(x >= m, 0 1 2 .., n)                after
    i = reduce min (f)                                                int32; int64 outside

A kernel that has places of its own to remember has no instructions on machines of vectors; these
four have. Of equal elements the least place is the first; with last=1 the largest is the last. What
is not a number is passed over, but in the first place, as by the kernel.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.graph.graph import Graph, Node, kernel
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.families.kit.passes.choosing_by_rank import picking_by
from tilesmith.families.kit.passes.small_kernels import seen_as
from tilesmith.search_space.expressions.dtypes import is_floating
from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.workloads.workload import ParameterValue, Workload, shape_text

NARROW = "int32"


@dataclass(frozen=True)
class ExtremesByComparison(Pass):
    """See the module's docstring.

    Contract: a lowered graph in, the same values out. Places become int32, which the caller and
    host nodes see as int64 (`Graph.converted`); where a kernel but Gather reads them they stay.

    Attributes:
        runs: whether the target has a schedule for a workload.
    """

    name = "extremes-by-comparison"

    runs: Callable[[Workload], bool]

    def run(self, graph: Graph) -> Graph:
        rewriter, converted = Rewriter(graph), dict(graph.converted)
        for node in graph.nodes:
            if node.workload is None or node.workload.operator != "arg_extreme":
                continue
            names = seen_as(graph, node.writes[0])
            readers = dict.fromkeys(n for name in names for n in graph.consumers.get(name, ()))
            if not all(_follows(reader, names) for reader in readers):
                continue
            kernels = _kernels(rewriter, node)
            gathers = {n: picking_by(NARROW, n, n.workload) for n in readers if n.workload}
            workloads = [n.workload for n in (*kernels, *gathers.values())]
            if not all(workload is not None and self.runs(workload) for workload in workloads):
                continue
            for name in names:
                converted[name] = rewriter.info(name).dtype
                rewriter.tensors[name] = replace(rewriter.info(name), dtype=NARROW)
            rewriter.replace(node, *kernels)
            for reader, changed in gathers.items():
                rewriter.replace(reader, changed)
        whole = rewriter.finish()
        return whole if whole is graph else whole.with_(converted=converted)


def _follows(node: Node, places: Mapping[str, None]) -> bool:
    """Whether a reader takes places in int32, or sees them converted."""
    if node.workload is None:
        return node.kind in ("view", "host") and places.keys().isdisjoint(node.captures)
    numbers = [position for position, name in enumerate(node.inputs) if name in places]
    return node.workload.operator == "gather" and numbers == [1]


def _kernels(rewriter: Rewriter, node: Node) -> list[Node]:
    """What finds the places."""
    work = node.work
    shape, at = _as_it_is(rewriter.info(node.inputs[0]).dims, work)
    kind, last, (x,), (result,) = work.text("kind"), work.integer("last"), node.inputs, node.outputs
    count, one = shape[at], (*shape[:at], 1, *shape[at + 1 :])
    along = tuple(count if n == 0 else 1 for n in range(len(shape) - at))
    numbers = np.arange(count, dtype=np.int32).reshape(along)
    stands = rewriter.add_constant(f"{result}.stands", numbers, NARROW)
    nodes: list[Node] = []
    if is_floating(work.dtype):
        best = np.float32(np.inf if kind == "max" else -np.inf)
        instead = np.where(numbers == 0, best, -best)
        none = rewriter.add_constant(f"{result}.none", instead, work.dtype)
        clean = rewriter.add_tensor(f"{result}.numbers", work.dtype, shape)
        operands = {x: shape, none: along}
        nodes.append(
            _elementwise("where(is_nan(x0),x1,x0)", shape, operands, clean, (), work.dtype)
        )
        x = clean
    most = rewriter.add_tensor(f"{result}.{kind}", work.dtype, one)
    nodes.append(_reduce(x, shape, at, kind, most, work.dtype))
    reached = "greater_equal" if kind == "max" else "less_equal"
    value = f"where({reached}(x0,x1),x2,{-1 if last else count})"
    places = rewriter.add_tensor(f"{result}.places", NARROW, shape)
    operands = {x: shape, most: one, stands: along}
    types = (work.dtype, work.dtype, NARROW)
    nodes.append(_elementwise(value, shape, operands, places, types, NARROW))
    nodes.append(_reduce(places, shape, at, "max" if last else "min", result, NARROW))
    return nodes


def _as_it_is(dims: tuple[int, ...], work: Workload) -> tuple[tuple[int, ...], int]:
    """The shape of what is looked through, axes not merged, and the axis looked along."""
    shape, at = work.shape("shape"), work.integer("axis")
    before = product(shape[:at])
    for axis, extent in enumerate(dims):
        if extent == shape[at] and product(dims[:axis]) == before:
            return dims, axis
    return shape, at


def _elementwise(
    value: str, shape: tuple[int, ...], operands: Mapping[str, tuple[int, ...]], result: str,
    types: tuple[str, ...], dtype: str,
) -> Node:  # fmt: skip
    """A kernel over operands of some shapes and types."""
    parameters: dict[str, ParameterValue] = {
        "shape": shape_text(shape), "expression": value, "types": ",".join(types),
    }  # fmt: skip
    for number, given in enumerate(operands.values()):
        if given != shape:
            parameters[f"x{number}"] = shape_text(given)
    return kernel(Workload.of("elementwise", parameters, dtype=dtype), operands, result, result)


def _reduce(
    source: str, shape: tuple[int, ...], axis: int, kind: str, result: str, dtype: str
) -> Node:
    parameters: dict[str, ParameterValue] = {
        "shape": shape_text(shape), "kind": kind, "axes": axis, "keepdims": 1,
    }  # fmt: skip
    return kernel(Workload.of("reduce", parameters, dtype=dtype), (source,), result, result)
