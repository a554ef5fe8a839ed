"""Conversions at the ends: what kernels do not compute in is converted on its way in and out."""

from dataclasses import dataclass, replace

from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo
from tilesmith.compiler.passes.wide_floats import NARROW
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.families.kit.passes.conversions import conversions_of, of_types, taking, without
from tilesmith.families.kit.passes.small_kernels import seen_as
from tilesmith.search_space.expressions.dtypes import COMPUTED
from tilesmith.search_space.expressions.scalar import functions
from tilesmith.search_space.operator_parts.formula import parse_formula
from tilesmith.search_space.workloads.template import template_of


@dataclass(frozen=True)
class ConvertAtEntrance(Pass):
    """Inputs that kernels only convert are converted as they are handed over, and so are results.

        y = Kernel(elementwise expression=multiply(to_float32(x0),2))(x: int64)       before
        y = Kernel(elementwise expression=multiply(x0,2))(x: float32, int64 outside)  after

    Engines compute in fp32 and have no integers of 64 bits; the host copies a model's inputs to the
    device, and results back, anyhow. A kernel that did nothing else is gone. The ends of a model of
    16-bit floats, which is computed in float32 (`WidenFloats`), are float32 on the device.

    Contract: a lowered graph in, the same values out; only inputs that nobody reads otherwise, and
    results that nobody reads, change, and are among the graph's `converted`.
    """

    name = "convert-at-entrance"

    def run(self, graph: Graph) -> Graph:
        kinds = {
            info.name: kind for info in graph.inputs if (kind := _wanted(graph, info)) is not None
        }
        results = _rounded_results(graph)
        if not kinds and not results:
            return graph
        rewriter = Rewriter(graph)
        for name in results:
            _widen(rewriter, name)
        for name, kind in kinds.items():
            for seen in seen_as(graph, name):
                _accept(rewriter, seen, kind)
        changed = rewriter.finish()
        ends = [*kinds, *results]
        before = {name: graph.info(name).dtype for name in ends}
        return changed.with_(converted={**changed.converted, **before})


def _wanted(graph: Graph, info: TensorInfo) -> str | None:
    """What every reader of an input converts it to; a float tells zero from others."""
    if info.dtype in (COMPUTED, "bool") or not info.known:
        return None
    names = seen_as(graph, info.name)
    kinds: set[str] = set()
    for node in (node for name in names for node in graph.consumers.get(name, ())):
        if node.kind == "view":
            continue
        kinds |= conversions_of(node, names)
    if names.keys() & graph.output_names:
        return None
    if kinds == {"to_bool"}:
        return "bool"
    return COMPUTED if kinds and kinds <= {"to_bool", f"to_{COMPUTED}"} else None


def _rounded_results(graph: Graph) -> list[str]:
    """What maps of numbers of float32 give, of fewer bits, and only the caller reads."""
    names = []
    for name in sorted(graph.output_names):
        node = graph.producers.get(name)
        if node is None or node.workload is None or node.workload.operator != "elementwise":
            continue
        narrow = graph.info(name).dtype in NARROW and not graph.consumers.get(name)
        text = node.workload.text("expression")
        if narrow and f"to_{COMPUTED}" in functions(parse_formula(text)):
            names.append(name)
    return names


def _widen(rewriter: Rewriter, name: str) -> None:
    """Let a result be float32 on the device; drop its kernel where it did nothing else."""
    node = rewriter.producer(name)  # as it is now: another result may have been dropped before it
    assert node is not None
    types = [operand.dtype for operand in template_of("elementwise").inputs(node.work)]
    formula = parse_formula(node.work.text("expression"))
    for place, dtype in enumerate(types):
        if dtype == COMPUTED:
            formula = without(formula, f"x{place}", f"to_{COMPUTED}")
    rewriter.tensors[name] = replace(rewriter.info(name), dtype=COMPUTED)
    changed = of_types(replace(node.work, dtype=COMPUTED), formula, types)
    (node,) = rewriter.replace(node, replace(node, workload=changed))
    if types == [COMPUTED]:
        _drop(rewriter, node)


def _accept(rewriter: Rewriter, name: str, kind: str) -> None:
    """Let the kernels that read an input take it converted; drop those that did nothing else."""
    rewriter.tensors[name] = replace(rewriter.info(name), dtype=kind)
    readers = [node for node in rewriter.consumers(name) if node.workload is not None]
    changed = [rewriter.replace(node, taking(node, {name}, kind))[0] for node in readers]
    for node in changed:  # what reads both the input and what is dropped is another node by then
        if rewriter.alive(node) and node.workload is not None and node.workload.dtype == kind:
            _drop(rewriter, node)


def _drop(rewriter: Rewriter, node: Node) -> None:
    """Drop a kernel that hands on what it reads, where that can be."""
    source, result = rewriter.info(node.inputs[0]), rewriter.info(node.writes[0])
    same = node.work.text("expression") == "x0" and not node.work.epilogue
    if same and source.shape == result.shape:
        rewriter.bypass(node, source.name)
