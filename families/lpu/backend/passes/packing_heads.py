"""Attention without the transposes around it, where heads lie beside each other outside.

    q = transpose(x, [m, heads, k] -> [heads, m, k]) .. ; y = transpose(attention(q, k, v))   before
    y = packed_attention(x, ..)                                                               after

Rows of a tensor are its last axis across the lanes: heads that become rows of their own are moved
lane by lane, and products need not have them so.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from tilesmith.compiler.graph.graph import Node, kernel, view
from tilesmith.compiler.passes.attention.attention import drop_unread
from tilesmith.compiler.passes.elementwise import elementwise_workload, formula_in, is_elementwise
from tilesmith.compiler.passes.views import is_view
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule
from tilesmith.search_space.expressions.scalar import call
from tilesmith.search_space.operator_parts.formula import operand
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import ParameterValue, Workload

APART = ((1, 0, 2), (0, 2, 1, 3))
"""Permutations that part heads, and pack them again: without and with sequences."""


@dataclass(frozen=True)
class QuantiseBehind(RulePass):
    """Products of tensors made at run time are not quantised on their way out, but behind: then
    they may be a part of attention.

        y = Kernel(matmul float16 epilogue=quantise_uint8)(p, v, s)              before
        t = Kernel(matmul float16)(p, v); y = Kernel(elementwise to_uint8(..))(t)   after

    Contract: a lowered graph in, the same values out, but for a rounding to float16.
    """

    name = "quantise-behind"

    revisits = False

    @rule("kernel.matmul")
    def _quantise(self, rewriter: Rewriter, node: Node) -> None:
        work, numbers = node.work, rewriter.constant(node.inputs[-1])
        if work.dtype != "float16" or work.is_constant("b") or len(work.epilogue) != 1:
            return
        (last,) = work.epilogue
        if last.name in QUANTISE and numbers is not None and numbers.size == 2:
            each, zero = map(float, numbers.reshape(-1))
            _quantise_behind(rewriter, node, (last.name, each, zero))


QUANTISE = {"quantise_uint8": "uint8", "quantise_int8": "int8"}


def _quantise_behind(rewriter: Rewriter, node: Node, how: tuple[str, float, float]) -> None:
    """`how`: the step, steps a unit, and the zero point."""
    name, each, zero = how
    workload, info = node.workload, rewriter.info(node.outputs[0])
    assert workload is not None, "the caller looked"
    constants = tuple(c for c in workload.constants if not c.startswith(name))
    product = replace(workload, epilogue=(), constants=constants)
    half = rewriter.add_tensor(info.name, workload.dtype, info.dims)
    scaled = call("round", call("multiply", operand(0), each))
    formula = call(f"to_{QUANTISE[name]}", call("add", scaled, zero))
    dtypes = (QUANTISE[name], workload.dtype)
    after = elementwise_workload(formula, [info.dims], info.dims, dtypes, rows=True)
    rewriter.replace(
        node, kernel(product, node.inputs[:-1], half, node.name),
        kernel(after, (half,), info.name, info.name),
    )  # fmt: skip


@dataclass(frozen=True)
class PackHeads(RulePass):
    """See the module's docstring.

    Contract: a lowered graph in, the same values out; attention changes whose operands and result
    are all transposed so, where `accepts` takes it.

    Attributes:
        accepts: whether a target runs the workload.
    """

    name = "pack-heads"

    accepts: Callable[[Workload], bool]

    revisits = False

    @rule("kernel.attention")
    def _attend(self, rewriter: Rewriter, node: Node) -> None:
        _pack(rewriter, node, node.work, self.accepts)


def _pack(
    rewriter: Rewriter, node: Node, workload: Workload, accepts: Callable[[Workload], bool]
) -> None:
    heads, batch = workload.integer("heads"), workload.integer("batch")
    sources, shapes = [], set[tuple[int, int]]()
    for name in node.inputs[:3]:
        packed_operand = _packed_source(rewriter, name)
        if packed_operand is None:
            return
        source, shape = packed_operand
        sources.append(source)
        shapes.add((prod(shape[:-3]), shape[-2]))
    if len(shapes) > 1:
        return
    ((sequences, each),) = shapes
    if (sequences, each) != (batch, heads):
        free = workload.text("mask") in ("none", "shared")
        if not free or batch != 1 or sequences * each != heads:
            return
    last = _packed_result(rewriter, node.outputs[0], (sequences, each))
    if last is None:
        return
    parameters: dict[str, ParameterValue] = dict(workload.parameters)
    parameters |= {"heads": each, "batch": sequences}
    packed = Workload.of("packed_attention", parameters, dtype=workload.dtype)
    if not accepts(packed):
        return
    result, between = last
    inputs = (*sources, *node.inputs[3:])
    quantising = next((n for n in between if is_elementwise(n)), None)
    if quantising is None or quantising.workload is None:
        rewriter.replace((node, *between), kernel(packed, inputs, result, node.name))
    else:
        dims = template_of("packed_attention").output(packed).shape
        half = rewriter.add_tensor(result, workload.dtype, dims)
        dtypes = (quantising.workload.dtype, workload.dtype)
        narrow = rewriter.add_tensor(result, dtypes[0], dims)
        formula = formula_in(quantising.workload)
        after = elementwise_workload(formula, [dims], dims, dtypes, rows=True)
        rewriter.replace(
            (node, *between), kernel(packed, inputs, half, node.name),
            kernel(after, (half,), narrow, quantising.name), view(narrow, result),
        )  # fmt: skip
    for unread in node.inputs[:3]:
        drop_unread(rewriter, unread)


def _packed_source(rewriter: Rewriter, name: str) -> tuple[str, tuple[int, ...]] | None:
    """What heads were parted of, and its shape with heads as an axis."""
    node = rewriter.producer(name)
    while is_view(node):
        assert node is not None
        if node.attribute("offset", 0):
            return None
        node = rewriter.producer(node.inputs[0])
    if node is None or node.workload is None or node.workload.operator != "transpose":
        return None
    if node.workload.shape("perm") not in APART:
        return None
    return node.inputs[0], node.workload.shape("shape")


def _packed_result(
    rewriter: Rewriter, name: str, heads: tuple[int, int]
) -> tuple[str, list[Node]] | None:
    """The tensor in which a result's heads are packed, and the nodes between: one may be a function
    of each number."""
    between: list[Node] = []
    while (node := rewriter.only_consumer(name)) is not None:
        between.append(node)
        if is_elementwise(node) and len(node.inputs) == 1:
            name = node.outputs[0]
            continue
        if not is_view(node):
            break
        if node.attribute("offset", 0):
            return None
        name = node.outputs[0]
    if node is None or node.workload is None or node.workload.operator != "transpose":
        return None
    if sum(map(is_elementwise, between)) > 1:
        return None
    shape, perm = node.workload.shape("shape"), node.workload.shape("perm")
    if perm not in APART or (prod(shape[:-3]), shape[-3]) != heads:
        return None
    return node.outputs[0], between
