"""Attention as one kernel.

Exporters write it as two products with a softmax between them. Run one by one, they write a score
for each pair of query and key to memory, and read it back, twice. One kernel keeps a few rows of
scores in the caches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from tilesmith.compiler.graph.graph import Node, kernel
from tilesmith.compiler.lowering.transposition import merged_axes
from tilesmith.compiler.passes.attention.attention_groups import grouped_queries
from tilesmith.compiler.passes.attention.attention_masks import (
    Axis,
    Mask,
    added,
    dense,
    grouped,
    mask_of,
    selected,
    spread,
)
from tilesmith.compiler.passes.elementwise import is_elementwise
from tilesmith.compiler.passes.views import behind_views, is_view
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule
from tilesmith.search_space.expressions.scalar import call
from tilesmith.search_space.operator_parts.formula import formula_text, number, operand
from tilesmith.search_space.operators.attention import LOWEST
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.workload import ParameterValue, Workload, shape_text


@dataclass(frozen=True)
class FuseAttention(RulePass):
    """Attention becomes one kernel, where a target has a schedule for it.

        s = matmul(q, k') * c + mask; p = softmax(s); y = matmul(p, v)      before
        y = attention(q, k, v, mask)                                        after

    So does attention whose weights are guarded for queries that every key is masked from: by
    `where(is_nan(p), 0, p)`, as exporters write it, or by `where(s + mask < lowest, 0, p)`, which
    keeps what is not a number (`_guard`). A mask may select instead of being added
    (`selections.AddSelections`). Keys that were transposed for the product are taken
    as they were before; a transposition that is still needed is merged with the one there was; a
    mask may be spread over sequences, heads and queries (`attention_masks`); keys and values that
    several heads share are not repeated (`attention_groups`).

    Contract: a lowered graph in; the parts are fused where nothing else reads what lies between
    and `accepts` takes the workload; same values up to roundings.

    Attributes:
        accepts: whether an attention is to be one kernel.
    """

    name = "fuse-attention"

    accepts: Callable[[Workload], bool]

    revisits = False

    @rule("kernel.matmul")
    def _product(self, rewriter: Rewriter, node: Node) -> None:
        if _is_product(node):
            _fuse(rewriter, node, self.accepts)


def _is_product(node: Node) -> bool:
    workload = node.workload
    return workload is not None and workload.operator == "matmul" and not workload.constants


def _fuse(rewriter: Rewriter, node: Node, accepts: Callable[[Workload], bool]) -> None:
    mix = node.work
    if mix.epilogue or mix.integer("ta") or mix.integer("tb"):
        return
    between: list[Node] = []
    weights = _sole_producer(rewriter, node.inputs[0], between)
    guard, guarding = 0, None
    if weights is not None and (guard := _guard(weights)):
        guarding = weights
        between.append(guarding)
        weights = _sole_producer(rewriter, guarding.inputs[-1], between)
    if weights is None or weights.workload is None or weights.workload.operator != "softmax":
        return
    beside = guarding if guard == 2 else None
    if beside and len({behind_views(rewriter, n.inputs[0]) for n in (beside, weights)}) > 1:
        return
    scores, mask, selects = _masked_scores(rewriter, weights.inputs[0], between, beside)
    if scores is None or scores.workload is None or not _are_scores(scores, weights, mix):
        return
    workload = _workload(scores.workload, mix, mask, guard + 4 * selects)
    if workload is None or not accepts(workload):
        return
    keys, values, helpers = scores.inputs[1], node.inputs[1], list[Node]()
    if not scores.workload.integer("tb"):
        keys, helpers = _untransposed(rewriter, scores)
    name = mask.name if mask else ""
    groups = None if helpers else grouped_queries(rewriter, workload, keys, values, name)
    if groups is not None and accepts(groups.workload):
        workload, keys, values, name = groups.workload, groups.keys, groups.values, groups.mask
        helpers = list(groups.helpers)
    operands = tuple(operand for operand in (scores.inputs[0], keys, values, name) if operand)
    fused = kernel(workload, operands, node.outputs[0], node.name)
    rewriter.replace((scores, weights, *between, node), *helpers, fused)
    inside = (name for step in between for name in step.reads)
    for unread in (scores.inputs[1], node.inputs[1], *inside):
        drop_unread(rewriter, unread)


def _guard(node: Node) -> int:
    """Whether a kernel makes weights 0 that are no numbers (1), or those of scores that are minus
    infinity (2: where other keys are left, these are 0 already)."""
    workload = node.workload
    if workload is None or not is_elementwise(node) or workload.text("types"):
        return 0
    return _GUARDS.get(workload.text("expression"), 0)


_GUARDS = {
    formula_text(call("where", call("is_nan", operand(0)), 0.0, operand(0))): 1,
    formula_text(call("where", call("less", operand(0), number(LOWEST)), 0.0, operand(1))): 2,
}


def _masked_scores(
    rewriter: Rewriter, name: str, between: list[Node], beside: Node | None
) -> tuple[Node | None, Mask | None, bool]:
    """The product behind scores, what is added to it, by a kernel or as it is written, and whether
    that selects.

    Args:
        beside: what may read the scores, too.
    """
    passed: list[Node] = []
    node = _sole_producer(rewriter, name, passed, beside)
    if node is None:
        return None, None, False
    if _is_product(node):
        between.extend(passed)
        mask = _written_with(node)
        return (node if (mask is None) == (not _adds(node)) else None), mask, False
    selection = selected(rewriter, node)
    for summand, other, axes in selection or added(node):
        inside: list[Node] = []
        scores = _sole_producer(rewriter, summand, inside)
        if scores is None or not _is_product(scores) or _adds(scores):
            continue
        mask = mask_of(other, axes, scores.work)
        if mask is not None:
            between.extend((*passed, node, *inside))
            return scores, mask, bool(selection)
    return None, None, False


def _adds(scores: Node) -> bool:
    """Whether a product's epilogue adds a tensor."""
    workload = scores.work
    return any(step.name in ("residual", "bias") for step in workload.epilogue)


def _written_with(scores: Node) -> Mask | None:
    """The mask that is the last step of a product's epilogue."""
    workload = scores.work
    if not _adds(scores):
        return None
    whole = tuple(workload.integer(axis) for axis in ("batch", "m", "n"))
    own = whole if workload.epilogue[-1].name == "residual" else whole[-1:]
    return mask_of(scores.inputs[-1], spread(own, whole), workload)


def _sole_producer(
    rewriter: Rewriter, name: str, between: list[Node], beside: Node | None = None
) -> Node | None:
    """The kernel behind a tensor and views of it, if nothing else (but `beside`) reads what it
    makes."""
    while True:
        producer = rewriter.producer(name)
        readers = [node for node in rewriter.consumers(name) if node is not beside]
        if producer is None or len(readers) != 1 or rewriter.is_output(name):
            return None
        if not is_view(producer):
            return producer
        if producer.attribute("offset", 0):
            return None
        between.append(producer)
        name = producer.inputs[0]


def _are_scores(scores: Node, weights: Node, mix: Workload) -> bool:
    product, normal = scores.work, weights.work
    if (
        product.operator != "matmul"
        or product.constants
        or product.integer("ta")
        or normal.epilogue
    ):
        return False
    batch, rows, keys = (product.integer(name) for name in ("batch", "m", "n"))
    steps = [step.name for step in product.epilogue]
    scaled = steps[:1] == ["multiply_constant"]
    return (
        steps[scaled:] in ([], ["residual"], ["bias"])
        and normal.shape("shape")[-1] == keys
        and prod(normal.shape("shape")) == batch * rows * keys
        and (mix.integer("batch"), mix.integer("m"), mix.integer("k")) == (batch, rows, keys)
    )


def _workload(scores: Workload, mix: Workload, mask: Mask | None, guard: int) -> Workload | None:
    parameters: dict[str, ParameterValue] = {name: scores.integer(name) for name in "mnk"}
    parameters["heads"] = scores.integer("batch")
    parameters["guard"] = guard
    if mask is not None:
        parameters |= {"mask": mask.kind, "batch": mask.batch, "heads": mask.heads}
    if mix.integer("n") != scores.integer("k"):
        parameters["v"] = mix.integer("n")
    scales = [step for step in scores.epilogue if step.name == "multiply_constant"]
    parameters["scale"] = f"{scales[0].arguments[0] if scales else 1.0:.9g}"
    try:
        return Workload.of("attention", parameters, dtype=scores.dtype)
    except WorkloadError:
        return None


# -- keys ---------------------------------------------------------------------------------------
def _untransposed(rewriter: Rewriter, scores: Node) -> tuple[str, list[Node]]:
    """Keys as [heads, n, k] from those as [heads, k, n], and the transposition this needs."""
    name = scores.inputs[1]
    info = rewriter.info(name)
    wanted = tuple(scores.work.integer(axis) for axis in ("batch", "k", "n"))
    source, axes = _axes_behind(rewriter, name)
    groups = grouped(axes, wanted)
    if groups is None:
        source, groups = name, grouped(dense(wanted), wanted)
    assert groups is not None
    order = [*groups[0], *groups[2], *groups[1]]
    steps = sorted(range(len(order)), key=lambda axis: -order[axis][1])
    dims = tuple(order[axis][0] for axis in steps)
    shape, merged = merged_axes(dims, tuple(steps.index(axis) for axis in range(len(order))))
    heads, depth, keys = wanted
    if len(shape) == 1:  # they lie as they are wanted
        return source, []
    result = rewriter.add_tensor(name, info.dtype, (heads, keys, depth))
    parameters: dict[str, ParameterValue] = {
        "shape": shape_text(shape),
        "perm": shape_text(merged),
    }
    workload = Workload.of("transpose", parameters, dtype=scores.work.dtype)
    return result, [kernel(workload, (source,), result, result)]


def _axes_behind(rewriter: Rewriter, name: str) -> tuple[str, list[Axis]]:
    """A tensor as axes of the tensor that a transposition made it from; else of itself."""
    before = rewriter.producer(behind_views(rewriter, name))
    if before is None or before.workload is None or before.workload.operator != "transpose":
        return name, dense(rewriter.info(name).dims)
    source = dense(before.workload.shape("shape"))
    return before.inputs[0], [source[axis] for axis in before.workload.shape("perm")]


def drop_unread(rewriter: Rewriter, name: str) -> None:
    """Remove what made a tensor that nothing reads any more."""
    producer = rewriter.producer(name)
    if producer is None or producer.kind not in ("kernel", "view"):
        return
    if not any(rewriter.consumers(n) or rewriter.is_output(n) for n in producer.writes):
        rewriter.remove(producer)
        for read in producer.reads:
            drop_unread(rewriter, read)
