"""Transposes move down to where others undo them.

Frameworks that keep channels last write each convolution between two transposes, as ONNX's has
channels second; between two convolutions there are maps, sums and pools, which do not mind. An
assignment to columns is written as: transpose, assign rows, transpose back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.formulas.pointwise_formulas import is_map
from tilesmith.compiler.graph.access import axes, permutation
from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Node, attributes_of, view
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule

Order = tuple[int, ...]

_REDUCTIONS = having("folds")


@dataclass(frozen=True)
class SinkTransposes(RulePass):
    """Transposes pass through what does not mind the order of axes, until two cancel.

        y = Transpose(Relu(Add(Transpose(x, [0, 2, 3, 1]), b)), [0, 3, 1, 2])     before
        y = Relu(Add(x, b'))                      b' is b, one number a channel    after

    Through maps of one or several operands (all transposed alike, or constant, or a vector),
    reductions, softmaxes of the last axis that stays last, and concatenations.

    Contract: any graph in; same values out. A transpose with a reader that it cannot pass stays.
    """

    name = "sink-transposes"

    def visit(self, rewriter: Rewriter, node: Node) -> None:
        if node.kind == "host" and len(node.writes) == 1 and rewriter.shapes_known(node):
            super().visit(rewriter, node)
            if is_map(node):
                _through_map(rewriter, node)

    @rule("Transpose")
    def _compose(self, rewriter: Rewriter, node: Node) -> None:
        if (first := _order(rewriter, node.inputs[0])) is None:
            return
        order = tuple(first[axis] for axis in permutation(node, len(first)))
        source = _source(rewriter, node.inputs[0])
        if order == tuple(range(len(order))) and rewriter.bypass(node, source):
            return
        stated = attributes_of(perm=order)
        rewriter.replace(node, replace(node, inputs=(source,), attributes=stated))

    @rule(*_REDUCTIONS)
    def _through_reduction(self, rewriter: Rewriter, node: Node) -> None:
        order = _order(rewriter, node.inputs[0])
        if order is None:
            return
        over = axes(node, len(order), rewriter.constant)
        if not over or not node.attribute("keepdims", 1):
            return
        listed = np.array(sorted(order[axis] for axis in over), np.int64)
        source, kept = _source(rewriter, node.inputs[0]), dict(node.attributes)
        if "axes" in kept:
            kept["axes"] = tuple(int(axis) for axis in listed)
            node = _with_attributes(rewriter, node, kept)
            _moved(rewriter, node, (source,), order)
        else:
            places = rewriter.add_constant(f"{node.writes[0]}.axes", listed, "int64")
            _moved(rewriter, node, (source, places), order)

    @rule("Softmax", "tilesmith.Softmax")
    def _through_softmax(self, rewriter: Rewriter, node: Node) -> None:
        order = _order(rewriter, node.inputs[0])
        last = -1 if order is None else len(order) - 1
        if order and order[last] == last and node.attribute("axis", -1) in (-1, last):
            _moved(rewriter, node, (_source(rewriter, node.inputs[0]),), order)

    @rule("Concat")
    def _through_concat(self, rewriter: Rewriter, node: Node) -> None:
        orders = {_order(rewriter, name) for name in node.inputs}
        order = orders.pop()
        if orders or order is None:
            return
        axis = order[int(node.attribute("axis", 0)) % len(order)]
        node = _with_attributes(rewriter, node, {"axis": axis})
        _moved(rewriter, node, [_source(rewriter, name) for name in node.inputs], order)


def _order(rewriter: Rewriter, name: str) -> Order | None:
    """The permutation by which `name` is made, where its readers do not need it made."""
    node = rewriter.producer(name, "Transpose")
    if node is None or not rewriter.shapes_known(node):
        return None
    if rewriter.is_output(name) or rewriter.captured(name):
        return None
    if not all(_lets_through(reader) for reader in rewriter.consumers(name)):
        return None
    return permutation(node, len(rewriter.info(name).dims))


def _lets_through(node: Node) -> bool:
    softmax = node.operator == "Softmax" and node.domain in ("", INTERNAL_DOMAIN)
    return is_map(node) or softmax or node.is_onnx("Transpose", "Concat", *_REDUCTIONS)


def _source(rewriter: Rewriter, name: str) -> str:
    node = rewriter.producer(name)
    assert node is not None
    return node.inputs[0]


def _inverse(order: Order) -> Order:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _moved(
    rewriter: Rewriter, node: Node, inputs: Sequence[str], order: Order, *before: Node
) -> None:
    """Compute the node on `inputs`, and transpose what it gives."""
    result = rewriter.info(node.writes[0])
    dims = tuple(result.dims[axis] for axis in _inverse(order))
    middle = rewriter.add_tensor(result.name, result.dtype, dims)
    rewriter.replace(
        node,
        *before,
        replace(node, inputs=tuple(inputs), outputs=(middle,)),
        Node(
            "Transpose", (middle,), node.outputs, f"{node.name}.transposed",
            attributes=attributes_of(perm=order),
        ),
    )  # fmt: skip


def _through_map(rewriter: Rewriter, node: Node) -> None:
    shape = rewriter.info(node.writes[0]).dims
    whole = [name for name in node.reads if rewriter.info(name).dims == shape]
    orders = [order for name in whole if (order := _order(rewriter, name))]
    if not orders or len(set(orders)) > 1:
        return
    order = orders[0]
    inputs: list[str] = []
    before: list[Node] = []
    for name in node.inputs:
        if name in whole and _order(rewriter, name) == order:
            inputs.append(_source(rewriter, name))
            continue
        other = _untransposed(rewriter, name, order, before) if name else ""
        if other is None:
            return
        inputs.append(other)
    _moved(rewriter, node, inputs, order, *before)


def _untransposed(rewriter: Rewriter, name: str, order: Order, before: list[Node]) -> str | None:
    """A smaller operand as the transpose's source would broadcast it; None where elements of it
    would move."""
    info, value = rewriter.info(name), rewriter.constant(name)
    if info.elements == 1:
        return name
    dims = (1,) * (len(order) - len(info.dims)) + info.dims
    if value is not None:
        moved = value.reshape(dims).transpose(_inverse(order))
        return rewriter.add_constant(name, np.ascontiguousarray(moved), info.dtype)
    if sum(extent > 1 for extent in dims) > 1:
        return None
    result = rewriter.add_tensor(name, info.dtype, tuple(dims[axis] for axis in _inverse(order)))
    before.append(view(name, result))
    return result


def _with_attributes(rewriter: Rewriter, node: Node, attributes: dict[str, object]) -> Node:
    changed = replace(node, attributes=attributes_of(**attributes))
    (changed,) = rewriter.replace(node, changed)
    return changed


@dataclass(frozen=True)
class TransposeInside(RulePass):
    """A transposed Concat of transposed parts is a Concat of the parts.

        y = Transpose(Concat(Transpose(a, p), Transpose(b, p), axis=0), q)     before
        y = Concat(a, b, axis=p[0])                       where q undoes p     after

    Contract: any graph in; same values out. Only where the permutations cancel and nobody else
    reads the Concat: work is never added.
    """

    name = "transpose-inside"

    @rule("Transpose")
    def _cancel(self, rewriter: Rewriter, node: Node) -> None:
        join, order = rewriter.producer(node.inputs[0], "Concat"), node.attribute("perm")
        if join is None or order is None or rewriter.only_consumer(join.writes[0]) is None:
            return
        inverse = _inverse(order)
        parts = [_before_transpose(rewriter, name, inverse) for name in join.inputs]
        sources = tuple(part for part in parts if part is not None)
        if len(sources) < len(parts):
            return
        axis = inverse[int(join.attribute("axis", 0)) % len(order)]
        attributes = attributes_of(axis=axis)
        rewriter.replace(
            [join, node], Node("Concat", sources, node.outputs, join.name, attributes=attributes)
        )


def _before_transpose(rewriter: Rewriter, name: str, order: tuple[int, ...]) -> str | None:
    """What `Transpose(x, order)` of gives `name`; None if it is no such transpose."""
    value = rewriter.constant(name)
    if value is not None:
        dtype = rewriter.info(name).dtype
        return rewriter.add_constant(name, value.transpose(_inverse(order)).copy(), dtype)
    before = rewriter.producer(name, "Transpose")
    stated = tuple(before.attribute("perm") or ()) if before is not None else None
    return before.inputs[0] if before is not None and stated == order else None
