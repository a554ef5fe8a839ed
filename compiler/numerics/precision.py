"""Lower precision: kernels of an fp32 model in bf16 or fp16, where the user asks for it."""

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo
from tilesmith.compiler.recipe.placement import device_tensors
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rounds import Rounds
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.support.suggestions import unknown
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Names of precisions and their element types."""

WIDE = PRECISIONS["fp32"]
"""The element type that precisions are for."""


@dataclass(frozen=True)
class LowerPrecision(Pass):
    """Kernels of an fp32 model work in another precision, which the caller does not see.

        y: float32 = Kernel(matmul ...)(x: float32, w)                               before
        y: bfloat16 = Kernel(matmul ... dtype=bfloat16)(x: bfloat16, w as bfloat16)  after

    Sums stay in fp32. The caller and host nodes see fp32 as before: values are converted on their
    way to and from the device.

    Contract: a lowered graph in; out, every float32 tensor that a kernel, view or join touches is
    of the precision's element type, weights included, and among the graph's `converted`; but for
    those that kernels have in float32 always (what sums of whole numbers are scaled by).

    Raises:
        ModelError: no such precision.
    """

    name = "lower-precision"

    precision: str

    def __post_init__(self) -> None:
        check_precision(self.precision)

    def run(self, graph: Graph) -> Graph:
        dtype = PRECISIONS[self.precision]
        return graph if dtype == "float32" else _narrowed(graph, dtype, self.wide(graph))

    def wide(self, graph: Graph) -> set[str]:
        """Tensors of float32 that stay so, with all that shares a node with them."""
        return set()


def check_precision(precision: str) -> None:
    """Raise `ModelError` for what is no precision."""
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS, ModelError)


def precision_dtype(precision: str) -> str:
    """The element type of kernels in a precision."""
    return PRECISIONS[precision]


def held_as(dtype: str, precision: str) -> str:
    """The element type in which kernels of a precision hold a tensor of an fp32 model."""
    return PRECISIONS[precision] if dtype == WIDE else dtype


def _narrowed(graph: Graph, dtype: str, wide: set[str]) -> Graph:
    kept = _kept(graph, dtype, wide)
    weights = {
        name for node in graph.nodes if node.kind != "host" for name in node.reads
    } & graph.constants.keys()
    changed = frozenset(
        name
        for name in (device_tensors(graph) | weights) - kept
        if graph.info(name).dtype == "float32"
    )
    tensors = dict(graph.tensors)
    for name in changed:
        tensors[name] = TensorInfo(name, dtype, graph.info(name).shape)
    constants = {
        name: _saturated(value, dtype) if name in changed else value
        for name, value in graph.constants.items()
    }
    converted = {**dict.fromkeys(changed, "float32"), **graph.converted}
    nodes = tuple(
        node if _stays(graph, node, kept) else _converted(node, dtype) for node in graph.nodes
    )
    return graph.with_(nodes=nodes, tensors=tensors, constants=constants, converted=converted)


def _saturated(value: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Constants in another element type. What is finite stays so: masks are often the least number
    of float32, which times zero is zero, and minus infinity is not."""
    kind = to_numpy(dtype)
    most = float(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]
    return np.where(np.isfinite(value), np.clip(value, -most, most), value).astype(kind)


def _kept(graph: Graph, dtype: str, wide: set[str]) -> set[str]:
    """Tensors that kernels take or make in float32 whatever they compute in: what sums of whole
    numbers are scaled by, and what becomes of them."""
    kept = set(wide)
    for node in graph.nodes:
        if node.workload is None:
            continue
        workload = in_precision(node.workload, dtype, WIDE)
        template = template_of(workload.operator)
        operands = (*template.operands(workload), template.output(workload))
        names = (*node.inputs, *node.outputs)
        kept |= {n for n, o in zip(names, operands, strict=False) if o.dtype == "float32"}
    rounds = Rounds(f"the precision of '{graph.title}'", len(graph.tensors) + 1)
    while True:  # kernels, views and joins keep what they share with others that do
        rounds.another()
        more = {n for node in graph.nodes if _stays(graph, node, kept) for n in _names(node)}
        more = {n for n in more if graph.info(n).dtype == "float32"} - kept
        if not more:
            return kept
        kept |= more


def _names(node: Node) -> tuple[str, ...]:
    """What a node reads and writes."""
    return (*node.inputs, *node.outputs)


def _stays(graph: Graph, node: Node, kept: set[str]) -> bool:
    """Whether a node works on what is kept: its weights are its own."""
    names = [name for name in _names(node) if name not in graph.constants]
    return node.kind in ("kernel", "view", "join") and not kept.isdisjoint(names)


def _converted(node: Node, dtype: str) -> Node:
    if node.workload is None:
        return node
    workload = in_precision(node.workload, dtype, WIDE)
    return node if workload == node.workload else replace(node, workload=workload)


def precision_of(graph: Graph) -> str:
    """The name of the precision that most of a graph's kernels work in."""
    inside = [graph.info(name).dtype for name in graph.converted if name in graph.tensors]
    inside = inside or [node.workload.dtype for node in graph.nodes if node.workload is not None]
    return max(PRECISIONS, key=lambda name: inside.count(PRECISIONS[name]))


def in_precision(workload: Workload, dtype: str, only: str = "") -> Workload:
    """The same operator, its floating tensors in another element type, sums in fp32.

    Args:
        only: the element type that changes; "": any that a precision has.
    """
    known = (only,) if only else tuple(PRECISIONS.values())
    parameters = tuple(
        (name, _types(str(value), known, dtype) if name in ("types", "index") else value)
        for name, value in workload.parameters
    )
    own = _types(workload.dtype, known, dtype)
    return replace(workload, dtype=own, parameters=parameters)


def _types(names: str, known: tuple[str, ...], dtype: str) -> str:
    """Element types, the known ones replaced."""
    return ",".join(dtype if name in known else name for name in names.split(","))
