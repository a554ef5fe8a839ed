"""Weights in 4 or 8 bits with a scale for each block of rows: for products bound by memory.

    w[k, n] = (q[n, k] - zero[n, k // block]) * scale[n, k // block]

Activations stay as they are. The node is ONNX Runtime's MatMulNBits (docs/ContribOperators.md):
codes packed [N, blocks, bytes], the lowest bits first, scales and zero points likewise; a symmetric
block has the zero point 2^(bits - 1) and none is written. Codes are rounded to the nearest; with
`search` a block's range is the one of several shrunken ones with the least squared error, and a
symmetric block's scale then the best for its codes (least squares).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tilesmith.capabilities.quantisation.numbers.ranges import SMALLEST
from tilesmith.capabilities.quantisation.preparation.plan import WeightedLayer
from tilesmith.search_space.support.errors import InputError

BITS = {"int4": 4, "int8": 8}
"""Names of weights in blocks."""

DOMAIN = "com.microsoft"
ACCURACY_LEVEL = 4
"""Products may take activations in blocks of int8."""

_SHRUNKEN = np.linspace(1.0, 0.6, 17, dtype=np.float32)
"""Shares of a block's range that the search tries."""

_COLUMNS = 512
"""Output channels quantised at a time, so that the search takes little memory."""


@dataclass(frozen=True)
class Blocks:
    """How weights are cut and coded.

    Attributes:
        bits: 4 or 8.
        size: rows of a block: a power of two from 16 on.
        symmetric: zero points in the middle.
        search: for the range with the least squared error.
    """

    bits: int
    size: int = 32
    symmetric: bool = False
    search: bool = False

    def __post_init__(self) -> None:
        if self.size < 16 or self.size & (self.size - 1):
            raise InputError(
                f"block = {self.size} is out of range; a power of two from 16 on is expected, such "
                "as 32, 64 or 128"
            )

    @property
    def middle(self) -> int:
        """The zero point of symmetric blocks."""
        return 1 << (self.bits - 1)

    @property
    def most(self) -> int:
        """The greatest code."""
        return (1 << self.bits) - 1


@dataclass(frozen=True)
class BlockWeights:
    """A layer's weights in blocks.

    Attributes:
        rows: how many weights a column has; the last block may hold fewer than its size.
        codes: uint8 [N, blocks, size].
        scales: float32 [N, blocks].
        zeros: uint8 [N, blocks].
        transposed: whether the layer has its weights as [N, K].
    """

    blocks: Blocks
    rows: int
    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8]
    transposed: bool

    def floats(self) -> NDArray[np.float32]:
        """The weights that the codes mean, as the layer has them."""
        wide = self.codes.astype(np.float32) - self.zeros[..., None]
        flat = (wide * self.scales[..., None]).reshape(len(self.codes), -1)[:, : self.rows]
        return np.asarray(flat if self.transposed else flat.T, np.float32)

    def float_bias(self) -> None:
        """Biases stay in float32."""

    def packed(self) -> NDArray[np.uint8]:
        """Codes as MatMulNBits has them."""
        return _packed(self.codes, self.blocks.bits)

    def packed_zeros(self) -> NDArray[np.uint8]:
        """Zero points as MatMulNBits has them: those of a column fill whole bytes."""
        zeros = self.zeros
        if self.blocks.bits == 4 and zeros.shape[1] % 2:
            zeros = np.pad(zeros, ((0, 0), (0, 1)))
        return _packed(zeros, self.blocks.bits)


def _packed(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    return codes if bits == 8 else np.asarray(codes[..., ::2] | codes[..., 1::2] << 4, np.uint8)


def block_weights(layer: WeightedLayer, weights: NDArray[Any], blocks: Blocks) -> BlockWeights:
    """A product's weights in blocks."""
    transposed = layer.axis == 0
    columns = weights if transposed else weights.T
    parts = [
        _coded(np.ascontiguousarray(columns[start : start + _COLUMNS], np.float32), blocks)
        for start in range(0, len(columns), _COLUMNS)
    ]
    codes, scales, zeros = (np.concatenate(part) for part in zip(*parts, strict=True))
    return BlockWeights(blocks, columns.shape[1], codes, scales, zeros, transposed)


def _coded(
    columns: NDArray[np.float32], blocks: Blocks
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]:
    """Codes [n, blocks, size], scales and zero points [n, blocks] of columns [n, K]."""
    count, rows = columns.shape
    padded = np.pad(columns, ((0, 0), (0, -rows % blocks.size)))
    values = padded.reshape(count, -1, blocks.size)
    best = _at(values, np.float32(1.0), blocks)
    if not blocks.search:
        return best
    error = _error(values, best)
    for share in _SHRUNKEN:
        tried = _at(values, share, blocks)
        if blocks.symmetric:
            tried = _refitted(values, tried)
        errors = _error(values, tried)
        better = errors < error
        error = np.where(better, errors, error)
        best = (
            np.where(better[..., None], tried[0], best[0]),
            np.where(better, tried[1], best[1]),
            np.where(better, tried[2], best[2]),
        )
    return best


def _at(
    values: NDArray[np.float32], share: np.float32, blocks: Blocks
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]:
    """Rounded to the nearest within a share of each block's range."""
    if blocks.symmetric:  # the extreme becomes the code 0, of which there is no opposite
        places = np.abs(values).argmax(axis=-1)[..., None]
        extreme = np.take_along_axis(values, places, axis=-1)[..., 0]
        scales = _divisible(-extreme * share / blocks.middle)
        zeros = np.full(scales.shape, blocks.middle, np.uint8)
    else:
        low, high = (np.float32(end) for end in (0, 0))
        low = np.minimum(values.min(axis=-1), low) * share
        high = np.maximum(values.max(axis=-1), high) * share
        scales = _divisible((high - low) / blocks.most)
        zeros = np.clip(np.rint(-low / scales), 0, blocks.most).astype(np.uint8)
    steps = np.rint(values / scales[..., None]) + zeros[..., None]
    return np.clip(steps, 0, blocks.most).astype(np.uint8), scales, zeros


def _divisible(scales: NDArray[Any]) -> NDArray[np.float32]:
    """Scales that one can divide by; 1 where a block is of zeros."""
    return np.where(np.abs(scales) > SMALLEST, scales, 1.0).astype(np.float32)


def _refitted(
    values: NDArray[np.float32],
    coded: tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]],
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]:
    """The same codes with the scale that is best for them: sum w q / sum q^2."""
    codes, scales, zeros = coded
    steps = codes.astype(np.float32) - zeros[..., None]
    squares = (steps * steps).sum(axis=-1)
    fitted = (values * steps).sum(axis=-1) / np.maximum(squares, 1)
    return codes, np.where(np.abs(fitted) > SMALLEST, fitted, scales).astype(np.float32), zeros


def _error(
    values: NDArray[np.float32],
    coded: tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]],
) -> NDArray[np.float32]:
    codes, scales, zeros = coded
    wide = (codes.astype(np.float32) - zeros[..., None]) * scales[..., None]
    return np.asarray(((wide - values) ** 2).sum(axis=-1), np.float32)


def node_of(
    node: onnx.NodeProto, weights: BlockWeights, names: tuple[str, str, str], bias: str
) -> onnx.NodeProto:
    """The product with weights in blocks that stands for a layer.

    Args:
        names: of codes, scales and zero points; "" for those of symmetric blocks.
        bias: "" if there is none.
    """
    inputs = [node.input[0], *names]
    inputs += ["", bias] if bias else []
    while not inputs[-1]:
        inputs.pop()
    return helper.make_node(
        "MatMulNBits", inputs, [node.output[0]], node.name, domain=DOMAIN,
        K=weights.rows, N=len(weights.codes), bits=weights.blocks.bits,
        block_size=weights.blocks.size, accuracy_level=ACCURACY_LEVEL,
    )  # fmt: skip
