"""Quantised tensors as passes see them: bytes, and the numbers that they stand for.

    number = (byte - zero) * scale

`QUANTISE` and `DEQUANTISE` are internal operators between the two, with one constant scale and one
constant zero point each: what ONNX's QuantizeLinear and DequantizeLinear are wherever kernels can
read or write the bytes themselves. Operands are those of ONNX's: tensor, scale, zero point.

Invariants: scales are float32 and positive; a zero point has the element type of the bytes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.access import permutation
from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Node
from tilesmith.compiler.rewriting.rewrite import Rewriter

QUANTISE = "Quantise"
DEQUANTISE = "Dequantise"

BYTES = ("uint8", "int8")
"""Element types of quantised tensors that kernels compute with."""

RANGES = {"uint8": (0, 255), "int8": (-128, 127)}


@dataclass(frozen=True)
class Coding:
    """What the bytes of a tensor stand for."""

    scale: float
    zero: int
    dtype: str

    def byte(self, number: float) -> int:
        """The byte of a number, saturated."""
        low, high = RANGES[self.dtype]
        if not np.isfinite(number):
            return low if number < 0 else high
        return int(np.clip(np.rint(number / self.scale) + self.zero, low, high))


def is_quantise(node: Node | None) -> bool:
    return node is not None and node.domain == INTERNAL_DOMAIN and node.operator == QUANTISE


def is_dequantise(node: Node | None) -> bool:
    return node is not None and node.domain == INTERNAL_DOMAIN and node.operator == DEQUANTISE


def coding_of(rewriter: Rewriter, node: Node) -> Coding:
    """The coding that a `QUANTISE` or `DEQUANTISE` node states."""
    scale, zero = (rewriter.constants[name] for name in node.inputs[1:3])
    return Coding(float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0]), zero.dtype.name)


def stated_coding(rewriter: Rewriter, scale: str, zero: str, dtype: str) -> Coding | None:
    """The coding that ONNX operands state; None where it is not one constant scale and zero."""
    if dtype not in BYTES:
        return None
    value = rewriter.constant(scale)
    shift = rewriter.constant(zero) if zero else np.zeros((), dtype)
    if value is None or shift is None or value.size == 0 or shift.size == 0:
        return None
    if value.dtype != np.float32 or shift.dtype.name != dtype:
        return None
    first, start = value.reshape(-1)[0], shift.reshape(-1)[0]
    if not np.all(value == first) or not np.all(shift == start):
        return None
    return Coding(float(first), int(start), dtype) if 0 < first < np.inf else None


def coding_operands(rewriter: Rewriter, base: str, coding: Coding) -> tuple[str, str]:
    """Constants for the second and third operand of `QUANTISE` and `DEQUANTISE`."""
    scale = rewriter.add_constant(base, np.array(coding.scale, np.float32), "float32")
    zero = rewriter.add_constant(base, np.array(coding.zero, coding.dtype), coding.dtype)
    return scale, zero


def quantise(rewriter: Rewriter, source: str, result: str, coding: Coding, name: str) -> Node:
    """A node that turns numbers into bytes."""
    operands = (source, *coding_operands(rewriter, result, coding))
    return Node(QUANTISE, operands, (result,), name, INTERNAL_DOMAIN)


def dequantise(rewriter: Rewriter, source: str, result: str, coding: Coding, name: str) -> Node:
    """A node that turns bytes into numbers."""
    operands = (source, *coding_operands(rewriter, result, coding))
    return Node(DEQUANTISE, operands, (result,), name, INTERNAL_DOMAIN)


@dataclass(frozen=True, eq=False)
class Weights:
    """Constant weights as bytes of zero point 0.

    Attributes:
        values: int8.
        scales: float32, one number or one for each place of `axis`.
        axis: of `values`, from the front.
    """

    values: NDArray[np.int8]
    scales: NDArray[np.float32]
    axis: int = 0

    def scales_along(self, axis: int) -> NDArray[np.float32] | None:
        """One scale for each place of an axis; None if they vary along another."""
        if self.scales.size == 1:
            return np.full(self.values.shape[axis], self.scales.reshape(-1)[0], np.float32)
        return self.scales if self.axis == axis else None

    def transposed(self, order: tuple[int, ...]) -> "Weights":
        values = np.ascontiguousarray(self.values.transpose(order))
        return Weights(values, self.scales, order.index(self.axis))


def without_zero(values: NDArray[Any], zero: NDArray[Any]) -> NDArray[np.int8] | None:
    """values - zero as int8; None where differences do not fit.

    Args:
        zero: broadcasts to `values`.
    """
    wide = values.astype(np.int32) - zero.astype(np.int32)
    fits = wide.size > 0 and wide.min() >= -128 and wide.max() <= 127
    return np.ascontiguousarray(wide.astype(np.int8)) if fits else None


def weights_of(rewriter: Rewriter, name: str) -> Weights | str:
    """The dequantised constant that a tensor is, transposes of it included; else why it is none."""
    node = rewriter.producer(name)
    if node is None:
        return "weights are float32" if name in rewriter.constants else "both operands vary"
    if node.is_onnx("Transpose"):
        inner = weights_of(rewriter, node.inputs[0])
        if isinstance(inner, str):
            return inner
        return inner.transposed(permutation(node, inner.values.ndim))
    return _dequantised(rewriter, node) if is_dequantised(node) else "both operands vary"


def is_dequantised(node: Node) -> bool:
    """Whether it is a DequantizeLinear, of the model's opset or the newest."""
    return node.operator == "DequantizeLinear" and node.domain in ("", INTERNAL_DOMAIN)


def _dequantised(rewriter: Rewriter, node: Node) -> Weights | str:
    values, scale = (rewriter.constant(name) for name in node.inputs[:2])
    if values is None:
        return "both operands vary"
    if values.dtype.name not in BYTES:
        return f"weights are {values.dtype.name}"
    zero_name = node.input(2)
    zero = rewriter.constant(zero_name) if zero_name else np.zeros((), values.dtype)
    if scale is None or zero is None:
        return "scales of weights vary"
    if node.attribute("block_size", 0) and scale.ndim == values.ndim:
        return "weights have scales for blocks"
    return coded_weights(values, scale, zero, int(node.attribute("axis", 1)))


def coded_weights(
    values: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any], axis: int
) -> Weights | str:
    """Weights of ONNX's operands, or why they cannot be int8 of zero point 0.

    Args:
        scale, zero: one number, or one for each place of `axis`.
    """
    axis %= max(values.ndim, 1)
    if scale.dtype != np.float32 or scale.size not in (1, values.shape[axis]):
        return "scales of weights are of another form"
    if zero.size not in (1, values.shape[axis]):
        return "zero points of weights are of another form"
    along = [1] * values.ndim
    along[axis] = -1
    plain = without_zero(values, zero.reshape(along) if zero.size > 1 else zero.reshape(()))
    if plain is None:
        return "zero points of weights are not in the middle"
    return Weights(plain, scale.reshape(-1), axis)


def bias_in_steps(
    rewriter: Rewriter, name: str, steps: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    """A constant bias in units of the sums' steps; None if it is not one constant a channel.

    Numbers that were quantised with these very steps come out whole.

    Args:
        steps: what one of each channel's sum stands for.
    """
    node, value = rewriter.producer(name), rewriter.constant(name)
    if value is not None:
        whole = value.astype(np.float64).reshape(-1)
        return whole / steps if _by_channel(value, steps.size) else None
    if node is None or not is_dequantised(node):
        return None
    codes, scale = (rewriter.constant(n) for n in node.inputs[:2])
    zero = rewriter.constant(node.input(2)) if node.input(2) else np.zeros(1)
    if codes is None or scale is None or zero is None or not _by_channel(codes, steps.size):
        return None
    if not all(part.size in (1, codes.size) for part in (scale, zero)):
        return None
    ratio = scale.astype(np.float64).reshape(-1) / steps
    ratio = np.where(np.abs(ratio - 1) < 1e-5, 1.0, ratio)
    return (codes.astype(np.float64) - zero.astype(np.float64)).reshape(-1) * ratio


def _by_channel(bias: NDArray[Any], channels: int) -> bool:
    """Whether a bias is one number, or one for each place of the last axis and no other."""
    return bias.size == 1 or (bias.size == channels and bias.shape[-1] == channels)
