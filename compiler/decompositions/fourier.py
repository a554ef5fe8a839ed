"""DFT and STFT: products with matrices of cosines and sines, for sizes that are known.

    y[k] = sum over t of x[t] exp(-2 pi i t k / length)

A complex number is two along the last axis; a matrix of both parts of the input in rows and both
parts of the result in columns makes it one product, which for the sizes of audio models (frames of
400 or 512) is as fast as it is exact. Larger matrices than `_LARGEST` stay with the host, where
they are factored. Semantics of DFT 17 and 20, STFT 17.
"""

import math

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.access import integers
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Composer, decompositions

_LARGEST = 1 << 22
"""Elements of a matrix."""


def _matrix(
    given: int, length: int, parts: int, count: int, inverse: bool
) -> NDArray[np.float32] | None:
    """(given * parts, count * 2): of `given` numbers, the first `count` of `length` frequencies."""
    if given * parts * count * 2 > _LARGEST:
        return None
    turns = np.outer(np.arange(given), np.arange(count)) % length
    angles = turns * (2 * np.pi / length) * (1 if inverse else -1)
    share = 1 / length if inverse else 1.0
    real, imaginary = np.cos(angles) * share, np.sin(angles) * share
    matrix = np.empty((given, parts, count, 2))
    matrix[:, 0, :, 0], matrix[:, 0, :, 1] = real, imaginary
    if parts == 2:
        matrix[:, 1, :, 0], matrix[:, 1, :, 1] = -imaginary, real
    return matrix.reshape(given * parts, count * 2).astype(np.float32)


@decompositions.register("DFT")
def dft(composer: Composer, node: Node) -> str | None:
    x, dims, result = node.inputs[0], composer.dims(node.inputs[0]), composer.dims(node.writes[0])
    stated = composer.opset < 20
    where = (node.attribute("axis", 1),) if stated else integers(node, "", 2, composer.value)
    lengths = integers(node, "", 1, composer.value)
    one_sided, inverse = (bool(node.attribute(n, 0)) for n in ("onesided", "inverse"))
    if where is None or lengths is None or dims[-1] not in (1, 2) or (one_sided and inverse):
        return None
    axis = (int(where[0]) if where else -2) % len(dims)
    length = lengths[0] if lengths else dims[axis]
    if axis == len(dims) - 1 or result[-1] != 2 or length < 1:
        return None
    matrix = _matrix(min(length, dims[axis]), length, dims[-1], result[axis], inverse)
    if matrix is None:
        return None
    if length < dims[axis]:
        x = composer.cut(x, axis, 0, length)
    last = len(dims) - 1
    order = (*(a for a in range(last) if a != axis), axis, last)
    rows = x if order == tuple(range(len(dims))) else composer.transpose(x, order)
    product = _product(composer, rows, matrix)
    shape = tuple(result[a] for a in order)
    back = tuple(order.index(a) for a in range(len(dims)))
    whole = composer.view(product, shape)
    return whole if back == order == tuple(range(len(dims))) else composer.transpose(whole, back)


def _product(composer: Composer, rows: str, matrix: NDArray[np.float32]) -> str:
    """(..., n, parts) times a matrix."""
    count = math.prod(composer.dims(rows)) // len(matrix)
    flat = composer.view(rows, (count, len(matrix)))
    return composer.matmul(flat, composer.constant(matrix))


@decompositions.register("STFT")
def stft(composer: Composer, node: Node) -> str | None:
    """The same of frames that overlap, each times a window."""
    signal, window = node.inputs[0], node.input(2)
    dims, result = composer.dims(signal), composer.dims(node.writes[0])
    steps, lengths = (integers(node, "", at, composer.value) for at in (1, 3))
    if not steps or lengths is None or len(dims) != 3 or not (lengths or window):
        return None
    length = lengths[0] if lengths else composer.dims(window)[0]
    batch, frames, count, _ = result
    matrix = _matrix(length, length, dims[2], count, inverse=False)
    if matrix is None or length < 1:
        return None
    places = np.arange(frames)[:, None] * steps[0] + np.arange(length)
    shape = (batch, frames, length, dims[2])
    rows = composer.newest("Gather", signal, composer.constant(places), shape=shape, axis=1)
    if window:
        rows = composer.pointwise("Mul", rows, composer.view(window, (length, 1)))
    return composer.view(_product(composer, rows, matrix), result)
