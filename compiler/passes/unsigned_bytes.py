"""Bytes with a sign lose it: products of bytes have instructions for unsigned activations."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from tilesmith.compiler.graph.graph import Graph, Node, attributes_of
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.compiler.numerics import quantised
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter

_MIDDLE = 128
"""What is added to an int8 and its zero point."""

_MOVES = having("moves", "picks", "joins", "samples")
"""Operators that give what they are given, in the same order whatever is added to all of it."""

_PRODUCTS = (*having("products"), "Add", "Sum")
"""Operators on numbers that kernels of unsigned bytes take in: an Add is a residual of theirs."""

_INTEGER_PRODUCTS = ("MatMulInteger", "ConvInteger")


@dataclass(frozen=True)
class UnsignBytes(Pass):
    """Activations of int8 that products read become uint8, their zero points 128 more.

        y = MatMul(Dequantise(Quantise(x, s, int8 3), s, int8 3), w)             before
        y = MatMul(Dequantise(Quantise(x, s, uint8 131), s, uint8 131), w)       after

    Whatever moves or quantises such bytes changes with them; where other operators, or the caller,
    read or write them, 128 is added or taken away.

    Contract: a graph of one spelling (`spell-quantised`); values equal.
    """

    name = "unsign-bytes"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for members in _groups(rewriter):
            if any(_feeds_product(rewriter, name) for name in members):
                _unsign(rewriter, members)
        return rewriter.finish()


def _groups(rewriter: Rewriter) -> list[list[str]]:
    """Tensors of int8, those together that operators move into each other."""
    owner = {
        name: [name]
        for name, info in rewriter.tensors.items()
        if info.dtype == "int8" and info.known and name not in rewriter.constants
    }
    for node in rewriter.nodes():
        tied = [name for name in (*node.reads, *node.writes) if name in owner]
        if not _moves(node):
            continue
        for name in tied[1:]:
            first, other = owner[tied[0]], owner[name]
            if first is not other:
                first.extend(other)
                owner.update(dict.fromkeys(other, first))
    return list({id(members): members for members in owner.values()}.values())


def _moves(node: Node) -> bool:
    if node.domain or node.captures or node.workload is not None:
        return False
    if node.operator == "Pad":  # one that says what it writes
        return bool(node.input(2)) or node.attribute("mode", "constant") != "constant"
    return node.operator in _MOVES and not (node.operator == "MaxPool" and len(node.writes) > 1)


def _feeds_product(rewriter: Rewriter, name: str) -> bool:
    for reader in rewriter.consumers(name):
        if _is_integer_product(rewriter, reader):
            return True
        numbers = reader.writes[0] if quantised.is_dequantise(reader) else ""
        if any(product.is_onnx(*_PRODUCTS) for product in rewriter.consumers(numbers)):
            return True
    return False


def _is_integer_product(rewriter: Rewriter, node: Node) -> bool:
    """One by constants, whose first operand may change."""
    if not node.is_onnx(*_INTEGER_PRODUCTS) or node.inputs[1] not in rewriter.constants:
        return False
    return not node.input(2) or node.input(2) in rewriter.constants


def _unsign(rewriter: Rewriter, members: list[str]) -> None:
    plain = {name: rewriter.add_tensor(name, "uint8", rewriter.info(name).dims) for name in members}
    strangers: list[tuple[str, str, int]] = []
    neighbours: dict[Node, None] = {}
    for name in members:
        readers, producer = rewriter.consumers(name), rewriter.producer(name)
        neighbours.update(dict.fromkeys(readers))
        if producer is not None and _changes(rewriter, producer):
            neighbours[producer] = None
            if rewriter.is_output(name) or not all(_changes(rewriter, n) for n in readers):
                strangers.append((plain[name], name, -_MIDDLE))
        else:
            strangers.append((name, plain[name], _MIDDLE))
    last = next(iter(neighbours))
    for node in neighbours:
        if _changes(rewriter, node):
            (last,) = rewriter.replace(node, _changed(rewriter, node, plain))
    for source, result, shift in strangers:
        *_, last = rewriter.replace(last, *_shift(rewriter, source, result, shift), last)


def _changes(rewriter: Rewriter, node: Node) -> bool:
    if quantised.is_quantise(node) or quantised.is_dequantise(node) or _moves(node):
        return True
    return _is_integer_product(rewriter, node)


def _changed(rewriter: Rewriter, node: Node, plain: dict[str, str]) -> Node:
    """The node on bytes without a sign."""
    inputs = [plain.get(name, name) for name in node.inputs]
    outputs = tuple(plain.get(name, name) for name in node.outputs)
    if quantised.is_quantise(node) or quantised.is_dequantise(node):
        own = quantised.coding_of(rewriter, node)
        coding = quantised.Coding(own.scale, own.zero + _MIDDLE, "uint8")
        make = quantised.quantise if quantised.is_quantise(node) else quantised.dequantise
        return make(rewriter, inputs[0], outputs[0], coding, node.name)
    if _is_integer_product(rewriter, node):
        given = rewriter.constants[node.inputs[2]] if node.input(2) else np.zeros((), np.int8)
        zero = _shifted(rewriter, node.inputs[0], given)
        return replace(node, inputs=(inputs[0], node.inputs[1], zero, *node.inputs[3:]))
    for place, name in enumerate(inputs):
        value = rewriter.constant(name)
        if value is not None and value.dtype == np.int8:
            inputs[place] = _shifted(rewriter, name, value)
    return replace(node, inputs=tuple(inputs), outputs=outputs)


def _shifted(rewriter: Rewriter, base: str, value: NDArray[Any]) -> str:
    return rewriter.add_constant(base, (value.astype(np.int16) + _MIDDLE).astype(np.uint8), "uint8")


def _shift(rewriter: Rewriter, source: str, result: str, shift: int) -> list[Node]:
    """Nodes that add a number to bytes of one sign and give bytes of the other."""
    dims, dtype = rewriter.info(source).dims, rewriter.info(result).dtype
    wide, moved = (rewriter.add_tensor(source, "int32", dims) for _ in range(2))
    number = rewriter.add_constant(source, np.array(shift, np.int32), "int32")
    last = TensorProto.UINT8 if dtype == "uint8" else TensorProto.INT8
    return [
        Node("Cast", (source,), (wide,), wide, attributes=attributes_of(to=TensorProto.INT32)),
        Node("Add", (wide, number), (moved,), moved),
        Node("Cast", (moved,), (result,), result, attributes=attributes_of(to=int(last))),
    ]
