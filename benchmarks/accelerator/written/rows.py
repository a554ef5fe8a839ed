"""Rows on partitions, one result or one normalisation each."""

from __future__ import annotations

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import (
    BN_STATS_ELEMENTS,
    InstructionStream,
)
from tilesmith.families.trainium.codegen.isa.memory import Tile
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from written.common import P, blocks, pieces, row_in_all

SCAN = 2048
"""Columns of a scan's piece."""


def layer_norm(
    core: Core, rows: int, features: int, epsilon: float = 1e-5, dtype: str = "float32"
) -> InstructionStream:
    """y = (x - mean) / sqrt(variance + epsilon) * gamma + beta; statistics by `bn_stats`."""
    kernel = Kernel("layer_norm", core)
    x, y = kernel.input("x", (rows, features), dtype), kernel.output("y", (rows, features), dtype)
    gamma, beta = (
        row_in_all(kernel, kernel.input(n, (features,), dtype), n) for n in ("gamma", "beta")
    )
    loaded = kernel.buffers(3, (P, features), dtype, name="x")
    parts = -(-features // BN_STATS_ELEMENTS)
    statistics = kernel.buffers(2, (P, parts, 6), name="statistics")
    moments = kernel.buffers(2, (P, 2), name="moments")
    for source, out in blocks(x, y):
        tile, found, moment = loaded.next(), statistics.next(), moments.next()
        kernel.load(tile, source)
        for i, part in enumerate(pieces(features, BN_STATS_ELEMENTS)):
            kernel.bn_stats(found[:, i], tile[:, part])
        kernel.bn_aggr(moment, found)
        mean, variance = moment[:, :1], moment[:, 1:]
        kernel.tensor_scalar(variance, variance, "add", epsilon)
        kernel.activation(variance, "rsqrt", variance)
        kernel.tensor_scalar(tile, tile, "subtract", mean, "multiply", variance)
        kernel.tensor_tensor(tile, tile, "multiply", gamma)
        kernel.tensor_tensor(tile, tile, "add", beta)
        kernel.store(out, tile)
    return kernel.finish()


def normalise(kernel: Kernel, out: Tile, x: Tile, square: Tile, sums: Tile, epsilon: float) -> None:
    """`out = x / sqrt(mean(x^2) + epsilon)`, squares and their sums on scalar in one pass."""
    kernel.activation(square, "square", x, sums=sums)
    kernel.tensor_scalar(sums, sums, "multiply", 1.0 / x.shape[1], "add", epsilon)
    kernel.activation(sums, "rsqrt", sums)
    kernel.activation(out, "copy", x, scale=sums)


def rms_norm(
    core: Core, rows: int, features: int, epsilon: float = 1e-6, dtype: str = "float32"
) -> InstructionStream:
    """y = x / sqrt(mean(x^2) + epsilon) * gamma."""
    kernel = Kernel("rms_norm", core)
    x, y = kernel.input("x", (rows, features), dtype), kernel.output("y", (rows, features), dtype)
    gamma = row_in_all(kernel, kernel.input("gamma", (features,), dtype), "gamma")
    loaded, stored = (kernel.buffers(2, (P, features), dtype, name=n) for n in "xy")
    sums = kernel.buffers(2, (P, 1), name="sum")
    for source, out in blocks(x, y):
        tile, result = loaded.next(), stored.next()
        kernel.load(tile, source)
        normalise(kernel, result, tile, result, sums.next(), epsilon)
        kernel.tensor_tensor(result, result, "multiply", gamma)
        kernel.store(out, result)
    return kernel.finish()


def soften(kernel: Kernel, out: Tile, scores: Tile, column: Tile, scale: float = 1.0) -> None:
    """`out = softmax(scale * scores)`; `column[P, 2]` for the least score and the sum."""
    least, total = column[:, :1], column[:, 1:]
    kernel.reduce(least, scores, "max")
    kernel.tensor_scalar(least, least, "multiply", -scale)
    kernel.activation(out, "exp", scores, bias=least, scale=scale, sums=total)
    kernel.reciprocal(total, total)
    kernel.tensor_scalar(out, out, "multiply", total)


def softmax(core: Core, rows: int, features: int, dtype: str = "float32") -> InstructionStream:
    """y = softmax(x) over each row."""
    kernel = Kernel("softmax", core)
    x, y = kernel.input("x", (rows, features), dtype), kernel.output("y", (rows, features), dtype)
    places = kernel.buffers(3, (P, features), dtype)
    columns = kernel.buffers(2, (P, 2), name="column")
    for source, out in blocks(x, y):
        tile = places.next()
        kernel.load(tile, source)
        soften(kernel, tile, tile, columns.next())
        kernel.store(out, tile)
    return kernel.finish()


def cumulative_sum(core: Core, rows: int, columns: int) -> InstructionStream:
    """y[:, i] = x[:, 0] + ... + x[:, i]: scans, each starting from the last column before."""
    kernel = Kernel("cumulative_sum", core)
    x, y = kernel.input("x", (rows, columns)), kernel.output("y", (rows, columns))
    width = min(SCAN, columns)
    ones = kernel.sbuf((P, width), name="ones")
    kernel.memset(ones, 1.0)
    loaded, stored = (kernel.buffers(2, (P, width), name=n) for n in "xy")
    for source, out in blocks(x, y):
        before: float | Tile = 0.0
        for part in pieces(columns, width):
            size = part.stop - part.start
            tile, result = loaded.next()[:, :size], stored.next()[:, :size]
            kernel.load(tile, source[:, part])
            kernel.scan(result, ones[:, :size], "multiply", tile, "add", before)
            before = result[:, size - 1 :]
            kernel.store(out[:, part], result)
    return kernel.finish()


def largest(core: Core, rows: int, columns: int, count: int = 32) -> InstructionStream:
    """The `count` largest elements of each row, descending, and where they stand; eight a round."""
    kernel = Kernel("largest", core)
    x = kernel.input("x", (rows, columns))
    values, places = (
        kernel.output("values", (rows, count)),
        kernel.output("places", (rows, count), "int32"),
    )
    loaded, left = (kernel.buffers(2, (P, columns), name=n) for n in ("x", "rest"))
    found = kernel.buffers(2, (P, count), name="values")
    at = kernel.buffers(2, (P, count), "int32", name="places")
    for source, out, out_places in blocks(x, values, places):
        tile, rest, best, index = (b.next() for b in (loaded, left, found, at))
        kernel.load(tile, source)
        data = tile
        for part in pieces(count, 8):
            kernel.max8(best[:, part], data)
            kernel.find_index8(index[:, part], data, best[:, part])
            if part.stop < count:
                kernel.match_replace8(rest, data, best[:, part], -3.0e38)
            data = rest
        kernel.store(out, best)
        kernel.store(out_places, index)
    return kernel.finish()
