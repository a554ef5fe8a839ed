"""Weights quantised by blocks stay packed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.block_quantised import OPERATOR, kept_scales, packed
from tilesmith.compiler.graph import INTERNAL_DOMAIN, Graph, Node, attributes_of
from tilesmith.compiler.graph_pass import Pass
from tilesmith.compiler.rewrite import Rewriter

_SHIFTS = {"int4": 8, "uint4": 0, "int8": 128, "uint8": 0}
"""What makes a code of each type a number without a sign."""


@dataclass(frozen=True)
class KeepQuantisedWeights(Pass):
    """Products with constants that are quantised by blocks along k take these as they are.

        w = DequantizeLinear(q, scale, zero, axis=0, block_size=32); c = MatMul(a, w)    before
        c = BlockQuantisedMatMul(a, q', scale', zero')                                   after

    `w` may be turned by a Transpose, or by a Gemm. Activations are multiplied as float32.

    Contract: an imported graph in; same values up to roundings; out, a DequantizeLinear with a
    block size of 16 or a multiple, of constants of 4 or 8 bits, feeds no float32 product by
    matrices of two axes.
    """

    name = "keep-quantised-weights"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in graph.nodes:
            if node.is_onnx("MatMul", "Gemm"):
                _keep(rewriter, node)
        return rewriter.finish()


@dataclass(frozen=True)
class _Weights:
    """Rows of columns n: codes [n, k], scale and zero [n, blocks]."""

    codes: NDArray[np.uint8]
    scale: NDArray[np.float32]
    zero: NDArray[np.uint8]
    bits: int
    block: int


def _keep(rewriter: Rewriter, node: Node) -> None:
    turned = node.operator == "Gemm" and bool(node.attribute("transB", 0))
    plain = all(node.attribute(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    a, result = rewriter.info(node.inputs[0]), rewriter.info(node.writes[0])
    if node.attribute("transA", 0) or not plain or a.shape is None or result.dtype != "float32":
        return
    found = _weights(rewriter, node.inputs[1], turned)
    if found is None or a.shape[-1:] != (found.codes.shape[1],):
        return
    n, k = found.codes.shape
    padded = np.pad(found.codes, ((0, 0), (0, -k % found.block)))
    q = packed(padded.reshape(n, -1, found.block), found.bits)
    scale = kept_scales(found.scale)
    operands = [
        rewriter.add_constant(f"{node.inputs[1]}.{name}", array, str(array.dtype))
        for name, array in (("q", q), ("scale", scale))
    ]
    if not np.all(found.zero == 1 << found.bits - 1):
        operands.append(rewriter.add_constant(f"{node.inputs[1]}.zero", found.zero, "uint8"))
    stated = attributes_of(n=n, k=k, bits=found.bits, block=found.block, activations="float32")
    output, after = node.writes[0], []
    if node.input(2):
        before = rewriter.add_tensor(output, "float32", (*a.shape[:-1], n))
        after = [Node("Add", (before, node.inputs[2]), (output,), node.name)]
        output = before
    inputs = (node.inputs[0], *operands)
    rewriter.replace(
        node, Node(OPERATOR, inputs, (output,), node.name, INTERNAL_DOMAIN, stated), *after
    )


def _weights(rewriter: Rewriter, name: str, turned: bool) -> _Weights | None:
    """A matrix of weights that a DequantizeLinear gives; None where they do not fit.

    Args:
        turned: whether it is [n, k], not [k, n].
    """
    node = rewriter.producer(name)
    if node is not None and node.is_onnx("Transpose"):
        if tuple(node.attribute("perm") or (1, 0)) != (1, 0):
            return None
        turned, node = not turned, rewriter.producer(node.inputs[0])
    if node is None or not node.is_onnx("DequantizeLinear"):
        return None
    values = [rewriter.constant(source) if source else None for source in node.inputs]
    codes, scale = values[:2]
    zero = values[2] if node.input(2) else None
    block, dtype = int(node.attribute("block_size", 0)), rewriter.info(node.inputs[0]).dtype
    if codes is None or scale is None or (node.input(2) and zero is None) or codes.ndim != 2:
        return None
    along = int(node.attribute("axis", 1)) % 2
    if dtype not in _SHIFTS or block <= 0 or block % 16 or along != int(turned):
        return None
    if rewriter.info(node.writes[0]).dtype != "float32":
        return None
    zeros = np.zeros(scale.shape, np.int32) if zero is None else zero.astype(np.int32)
    shift = _SHIFTS[dtype]
    parts: list[NDArray[Any]] = [
        codes.astype(np.int16) + shift,
        scale.astype(np.float32),
        zeros + shift,
    ]
    own = [np.ascontiguousarray(part if turned else part.T) for part in parts]
    bits = 4 if dtype.endswith("int4") else 8
    return _Weights(own[0].astype(np.uint8), own[1], own[2].astype(np.uint8), bits, block)
