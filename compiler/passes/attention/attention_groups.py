"""Grouped queries: heads of queries that share a head of keys and values are more queries of it.

Exporters repeat keys and values until every head of queries has its own. The queries of a group lie
one behind the other, as the heads do, so that they are rows of one larger head:

    k' = repeat(k, 4); y = attention(q, k', v')       q: [8 heads, m], k': [8 heads, n], k: [2, n]
    y = attention(q, k, v)                            q: [2 heads, 4 m]
"""

from dataclasses import dataclass

from tilesmith.compiler.graph.graph import Node, kernel
from tilesmith.compiler.passes.attention.attention_masks import grouped, merged, spread
from tilesmith.compiler.passes.elementwise import formula_in, is_elementwise
from tilesmith.compiler.passes.views import behind_views
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.expressions.scalar import call
from tilesmith.search_space.operator_parts.formula import operand
from tilesmith.search_space.workloads.workload import ParameterValue, Workload, shape_text


@dataclass(frozen=True)
class _Groups:
    """An attention over keys and values that are not repeated.

    Attributes:
        workload: fewer heads, more queries.
        keys, values: as they were before they were repeated.
        mask: for the larger heads, "" without one.
        helpers: kernels that repeat the mask, where each query has a row of its own.
    """

    workload: Workload
    keys: str
    values: str
    mask: str
    helpers: tuple[Node, ...] = ()


def grouped_queries(
    rewriter: Rewriter, workload: Workload, keys: str, values: str, mask: str
) -> _Groups | None:
    """The attention over what keys and values were before both were repeated alike, else None."""
    rows, heads = workload.integer("n"), workload.integer("batch") * workload.integer("heads")
    width = workload.integer("v") or workload.integer("k")
    unrepeated = _repeated(rewriter, keys, heads, rows * workload.integer("k"))
    other = _repeated(rewriter, values, heads, rows * width)
    if unrepeated is None or other is None or unrepeated[1] != other[1]:
        return None
    times = unrepeated[1]
    if workload.integer("heads") % times:
        return None
    changes: dict[str, ParameterValue] = {
        "heads": workload.integer("heads") // times,
        "m": workload.integer("m") * times,
    }
    helpers: tuple[Node, ...] = ()
    kind = workload.text("mask")
    if kind in ("shared", "full"):
        if workload.integer("m") == 1:
            changes |= {"mask": "row"}
            if kind == "shared":
                changes |= {"batch": 1, "heads": heads // times}
        else:
            mask, helpers = _repeat(rewriter, workload, mask, times)
    larger = workload.with_parameters(**changes)
    return _Groups(larger, unrepeated[0], other[0], mask, helpers)


def _repeated(rewriter: Rewriter, name: str, heads: int, size: int) -> tuple[str, int] | None:
    """(source, times) of heads of `size` elements that repeat each head of a source; else None."""
    producer = rewriter.producer(behind_views(rewriter, name))
    if producer is None or producer.workload is None or not is_elementwise(producer):
        return None
    repetition = producer.workload
    if repetition.text("types") or formula_in(repetition) not in _SAME:
        return None
    shape = repetition.shape("shape")
    own = repetition.shape("x0") if repetition.text("x0") else shape
    groups = grouped(spread(own, shape), (heads, size))
    if groups is None:
        return None
    lead, rest = (merged(group) for group in groups)
    if rest != [(size, 1)] or len(lead) not in (1, 2) or lead[-1][1] != 0:
        return None
    if len(lead) == 2 and lead[0][1] != size:
        return None
    return producer.inputs[0], lead[-1][0]


_SAME = (operand(0), call("add", operand(0), 0.0), call("add", operand(0), 0))
"""Formulas that repeat a tensor when it is broadcast."""


def _repeat(
    rewriter: Rewriter, workload: Workload, mask: str, times: int
) -> tuple[str, tuple[Node, ...]]:
    """A mask with a row for each query, once for each head of a group."""
    rows = workload.integer("m") * workload.integer("n")
    batch = workload.integer("batch") if workload.text("mask") == "full" else 1
    result = rewriter.add_tensor(mask, workload.dtype, (batch, times, rows))
    parameters: dict[str, ParameterValue] = {
        "shape": shape_text((batch, times, rows)),
        "expression": "add(x0,0.0)",
        "x0": shape_text((batch, 1, rows)),
    }
    repeated = Workload.of("elementwise", parameters, dtype=workload.dtype)
    return result, (kernel(repeated, (mask,), result, result),)
