"""Quantised weights stay as they are where activations are floats.

A product that reads few rows of activations waits for its weights: dequantised, they are four to
eight times as many bytes. So the kernel reads the codes, and dequantises in registers.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Graph, Node, TensorInfo, attributes_of
from tilesmith.compiler.numerics.block_quantised import OPERATOR, kept_scales, packed
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter

_FEW = 256
"""Rows of activations up to which products with codes take no longer than with what they stand for
(0.4 times with one row, 1.05 with so many, 1.14 with 512)."""

_SHIFTS = {"int4": 8, "uint4": 0, "int8": 128, "uint8": 0}
"""What makes a code of each type a number without a sign."""


@dataclass(frozen=True)
class KeepQuantisedWeights(Pass):
    """Products of floats with quantised constants take these as they are.

        w = DequantizeLinear(q, scale, zero, axis=0, block_size=32); c = MatMul(a, w)    before
        c = BlockQuantisedMatMul(a, q', scale', zero')                                   after

    They are quantised by blocks along k or, where `whole` says so, by columns or as a whole, which
    are blocks of all of k; `w` may be turned by a Transpose, or by a Gemm. Activations are
    multiplied as float32. Products of what is quantised, too, are left to `integer_products`. What
    else reads `w`, an embedding, reads codes without a sign, so that the table is one
    (`settling.tables`).

    Contract: an imported graph in; same values up to roundings; out, a DequantizeLinear of
    constants of 4 or 8 bits, with a block size of 16 or a multiple, or large and of whole columns,
    feeds no float32 product by matrices of two axes, but for those of quantised activations.

    Attributes:
        whole: weights without blocks that are kept: of at least so many; None: none.
    """

    name = "keep-quantised-weights"

    whole: int | None = None

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in graph.nodes:
            if node.is_onnx("MatMul", "Gemm"):
                _keep(rewriter, node, self.whole)
        for node in graph.nodes:
            if node.is_onnx("Gather") and self.whole is not None:
                _pick_codes(rewriter, node, self.whole)
        return rewriter.finish()


@dataclass(frozen=True)
class _Weights:
    """Rows of columns n: codes [n, k], scale and zero [n, blocks]."""

    codes: NDArray[np.uint8]
    scale: NDArray[np.float32]
    zero: NDArray[np.uint8]
    bits: int
    block: int

    @property
    def even(self) -> bool:
        """Whether all zero points are in the middle, as products of whole numbers have them."""
        return bool(np.all(self.zero == 1 << self.bits - 1))


def _keep(rewriter: Rewriter, node: Node, whole: int | None) -> None:
    turned = node.operator == "Gemm" and bool(node.attribute("transB", 0))
    plain = all(node.attribute(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    a, result = rewriter.info(node.inputs[0]), rewriter.info(node.writes[0])
    if node.attribute("transA", 0) or not plain or a.shape is None or result.dtype != "float32":
        return
    weights = _weights(rewriter, node.inputs[1], turned, whole)
    if weights is None or (weights.even and _is_quantised(rewriter, node.inputs[0])):
        return
    if whole is not None and not _pays(rewriter, a, node.inputs[1]):
        return
    if a.shape[-1:] != (weights.codes.shape[1],):
        return
    n, k = weights.codes.shape
    padded = np.pad(weights.codes, ((0, 0), (0, -k % weights.block)))
    q = packed(padded.reshape(n, -1, weights.block), weights.bits)
    scale = kept_scales(weights.scale)
    operands = [
        rewriter.add_constant(f"{node.inputs[1]}.{name}", array, str(array.dtype))
        for name, array in (("q", q), ("scale", scale))
    ]
    if not weights.even:
        operands.append(rewriter.add_constant(f"{node.inputs[1]}.zero", weights.zero, "uint8"))
    stated = attributes_of(n=n, k=k, bits=weights.bits, block=weights.block, activations="float32")
    output, after = node.writes[0], []
    if node.input(2):
        before = rewriter.add_tensor(output, "float32", (*a.shape[:-1], n))
        after = [Node("Add", (before, node.inputs[2]), (output,), node.name)]
        output = before
    inputs = (node.inputs[0], *operands)
    rewriter.replace(
        node, Node(OPERATOR, inputs, (output,), node.name, INTERNAL_DOMAIN, stated), *after
    )
    _unsign(rewriter, node.inputs[1])


def _pick_codes(rewriter: Rewriter, node: Node, least: int) -> None:
    """Dequantise what is picked of a large table with one scale, not the table."""
    source = rewriter.producer(node.inputs[0], "DequantizeLinear")
    if source is None:
        return
    codes, scale = (rewriter.constant(name) for name in source.inputs[:2])
    picked, result = rewriter.info(source.inputs[0]), rewriter.info(node.writes[0])
    if codes is None or scale is None or scale.size != 1 or codes.size < least:
        return
    if scale.ndim or result.shape is None or picked.dtype not in ("int8", "uint8"):
        return
    name = rewriter.add_tensor(node.writes[0], picked.dtype, result.shape)
    rewriter.replace(
        node,
        replace(node, inputs=(source.inputs[0], *node.inputs[1:]), outputs=(name,)),
        replace(source, inputs=(name, *source.inputs[1:]), outputs=node.writes),
    )


def _is_quantised(rewriter: Rewriter, name: str) -> bool:
    """Whether a tensor is what bytes stand for, moved or not."""
    node = rewriter.producer(name)
    while node is not None and node.is_onnx("Reshape", "Transpose", "Flatten", "Squeeze"):
        node = rewriter.producer(node.inputs[0])
    return node is not None and node.is_onnx("DequantizeLinear")


def _unsign(rewriter: Rewriter, name: str) -> None:
    """Give embeddings that read the constant of weights its codes as the product has them."""
    name = _root(rewriter, name)
    codes = rewriter.constant(name)
    if codes is None or rewriter.info(name).dtype != "int8":
        return
    array = (codes.astype(np.int16) + 128).astype(np.uint8)
    constant = rewriter.add_constant(f"{name}.codes", array, "uint8")
    for reader in rewriter.consumers(name):
        if reader.is_onnx("DequantizeLinear"):
            if all(r.is_onnx("Gather") for r in _living(rewriter, reader.writes[0])):
                rewriter.replace(reader, _above(rewriter, reader, constant))
        elif reader.is_onnx("Gather") and not rewriter.is_output(reader.writes[0]):
            after = _living(rewriter, reader.writes[0])
            if all(r.is_onnx("DequantizeLinear") for r in after):
                result = rewriter.info(reader.writes[0])
                picked = rewriter.add_tensor(result.name, "uint8", result.dims)
                inputs = (constant, *reader.inputs[1:])
                moved = [_above(rewriter, r, picked) for r in after]
                gather = replace(reader, inputs=inputs, outputs=(picked,))
                rewriter.replace((reader, *after), gather, *moved)


def _root(rewriter: Rewriter, name: str) -> str:
    """The constant that weights are made of."""
    node = rewriter.producer(name)
    while node is not None and node.is_onnx(*_PATH):
        name = node.inputs[0]
        node = rewriter.producer(name)
    return name


def _pays(rewriter: Rewriter, a: TensorInfo, name: str) -> bool:
    """Whether reading codes costs no time: of few rows, or of a table that is there once then."""
    assert a.shape is not None
    rows = [extent for extent in a.shape[:-1] if isinstance(extent, int)]
    return math.prod(rows) <= _FEW or len(rewriter.consumers(_root(rewriter, name))) > 1


_PATH = ("DequantizeLinear", "QuantizeLinear", "Transpose")


def _living(rewriter: Rewriter, name: str) -> list[Node]:
    """Readers of a tensor, those left out from which nothing follows any more."""
    return [
        reader
        for reader in rewriter.consumers(name)
        if not (reader.is_onnx(*_PATH) and _nobody(rewriter, reader.writes[0]))
    ]


def _nobody(rewriter: Rewriter, name: str) -> bool:
    """Whether nothing reads a tensor but what nobody reads in turn."""
    return not rewriter.is_output(name) and all(
        r.is_onnx(*_PATH) and _nobody(rewriter, r.writes[0]) for r in rewriter.consumers(name)
    )


def _above(rewriter: Rewriter, node: Node, codes: str) -> Node:
    """A DequantizeLinear of codes that are 128 more."""
    scale, zero = (rewriter.constant(name) if name else None for name in (*node.inputs, "")[1:3])
    offset = np.zeros(() if scale is None else scale.shape) if zero is None else zero
    array = (offset.astype(np.int16) + 128).astype(np.uint8)
    name = rewriter.add_constant(f"{codes}.zero", array, "uint8")
    return replace(node, inputs=(codes, node.inputs[1], name))


def _weights(rewriter: Rewriter, name: str, turned: bool, whole: int | None) -> _Weights | None:
    """A matrix of weights that a DequantizeLinear gives; None where they do not fit.

    Args:
        turned: whether it is [n, k], not [k, n].
        whole: as `KeepQuantisedWeights` has it.
    """
    node, transposed = _source(rewriter, name)
    if node is None:
        return None
    turned ^= transposed
    values = [_value(rewriter, source) for source in node.inputs]
    codes, scale = values[:2]
    zero = values[2] if node.input(2) else None
    block, dtype = int(node.attribute("block_size", 0)), rewriter.info(node.inputs[0]).dtype
    if codes is None or scale is None or (node.input(2) and zero is None) or codes.ndim != 2:
        return None
    if dtype not in _SHIFTS or rewriter.info(node.writes[0]).dtype != "float32":
        return None
    along = int(node.attribute("axis", 1)) % 2
    zeros = np.zeros(scale.shape, np.int32) if zero is None else zero.astype(np.int32)
    columns, k = codes.shape if turned else codes.shape[::-1]
    if block <= 0 and whole is not None and codes.size >= whole:
        if scale.size > 1 and (scale.ndim != 1 or along == int(turned)):
            return None
        shape = (columns, 1) if turned else (1, columns)
        scale, zeros = (
            np.broadcast_to(part if part.size == 1 else part.reshape(shape), shape)
            for part in (scale.reshape(-1), zeros.reshape(-1))
        )
        block = -(-k // 16) * 16
    elif block <= 0 or block % 16 or along != int(turned):
        return None
    shift = _SHIFTS[dtype]
    parts: list[NDArray[Any]] = [
        codes.astype(np.int16) + shift,
        scale.astype(np.float32),
        zeros + shift,
    ]
    own = [np.ascontiguousarray(part if turned else part.T) for part in parts]
    bits = 4 if dtype.endswith("int4") else 8
    return _Weights(own[0].astype(np.uint8), own[1], own[2].astype(np.uint8), bits, block)


def _value(rewriter: Rewriter, name: str) -> NDArray[Any] | None:
    """A constant, or what nobody has folded yet: one that is transposed, also as the numbers that
    it stands for, quantised to the same again."""
    node = rewriter.producer(name)
    if node is not None and node.is_onnx("QuantizeLinear"):
        source, turned = _source(rewriter, node.inputs[0])
        if source is None or source.inputs[1:] != node.inputs[1:]:
            return None
        codes = _value(rewriter, source.inputs[0])
        return codes.T if codes is not None and turned else codes
    if node is not None and node.is_onnx("Transpose"):
        whole = _value(rewriter, node.inputs[0])
        return None if whole is None else np.transpose(whole, node.attribute("perm"))
    return rewriter.constant(name) if name else None


def _source(rewriter: Rewriter, name: str) -> tuple[Node | None, bool]:
    """The DequantizeLinear that gives weights, and whether these are its result transposed."""
    node, turned = rewriter.producer(name), False
    if node is not None and node.is_onnx("Transpose"):
        if tuple(node.attribute("perm") or (1, 0)) != (1, 0):
            return None, False
        turned, node = True, rewriter.producer(node.inputs[0])
    return (node, turned) if node and node.is_onnx("DequantizeLinear") else (None, False)
