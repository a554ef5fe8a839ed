"""Channels on partitions, neighbours along free axes: convolutions over time, pooling, resizing."""

from __future__ import annotations

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Space
from tilesmith.families.trainium.codegen.isa.memory import Tile
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from written.common import BANK, P, pieces


def depthwise_conv1d(
    core: Core, batch: int, channels: int, length: int, taps: int
) -> InstructionStream:
    """y[b, c, t] = sum over i of x[b, c, t + i] * w[c, i]: a multiply-add on vector a tap."""
    kernel = Kernel("depthwise_conv1d", core)
    x, w = kernel.input("x", (batch, channels, length)), kernel.input("w", (channels, taps))
    kept = length - taps + 1
    y = kernel.output("y", (batch, channels, kept))
    loaded, stored = (
        kernel.buffers(2, (P, length), name="x"),
        kernel.buffers(2, (P, kept), name="y"),
    )
    columns = kernel.buffers(2, (P, taps), name="w")
    for rows in pieces(channels, P):
        column = columns.next()
        kernel.load(column, w[rows])
        for b in range(batch):
            tile, total = loaded.next(), stored.next()
            kernel.load(tile, x[b, rows])
            kernel.tensor_scalar(total, tile[:, :kept], "multiply", column[:, :1])
            for i in range(1, taps):
                window, weight = tile[:, i : i + kept], column[:, i : i + 1]
                kernel.scalar_tensor_tensor(total, window, "multiply", weight, "add", total)
            kernel.store(y[b, rows], total)
    return kernel.finish()


def conv1d(
    core: Core, batch: int, channels: int, length: int, outputs: int, taps: int,
    dtype: str = "float32",
) -> InstructionStream:  # fmt: skip
    """y[b, o, t] = sum over c, i of w[i, c, o] * x[b, c, t + i]: products of shifted windows."""
    kernel = Kernel("conv1d", core)
    x = kernel.input("x", (batch, channels, length), dtype)
    w = kernel.input("w", (taps, channels, outputs), dtype)
    kept, depth = length - taps + 1, channels // P
    y = kernel.output("y", (batch, outputs, kept), dtype)
    weight = kernel.sbuf((P, taps, depth, outputs), dtype, name="w")
    for i in range(taps):
        kernel.load(weight[:, i], w[i].split(0, depth, P).permute(1, 0, 2))
    loaded = kernel.buffers(2, (P, depth, length), dtype, name="x")
    stored = kernel.buffers(2, (P, kept), dtype, name="y")
    sums = kernel.buffers(4, (P, BANK), name="sum", space=Space.PSUM)
    for b in range(batch):
        tile = loaded.next()
        kernel.load(tile, x[b].split(0, depth, P).permute(1, 0, 2))
        for rows in pieces(outputs, P):
            result = stored.next()
            for part in pieces(kept, BANK):
                total = sums.next()[:, : part.stop - part.start]
                for step in range(taps * depth):
                    i, c = divmod(step, depth)
                    window = tile[:, c, part.start + i : part.stop + i]
                    kernel.matmul(total, weight[:, i, c, rows], window, accumulate=step > 0)
                kernel.copy(result[:, part], total, engine="scalar")
            kernel.store(y[b, rows], result)
    return kernel.finish()


def pool2d(
    core: Core, channels: int, height: int, width: int, window: int, kind: str = "max"
) -> InstructionStream:
    """y[c] = the largest element ("max") or the mean ("average") of each window x window square."""
    kernel = Kernel(f"{kind}_pool2d", core)
    rows, columns = height // window, width // window
    x = kernel.input("x", (channels, height, width))
    y = kernel.output("y", (channels, rows, columns))
    loaded = kernel.buffers(2, (P, height, width), name="x")
    stored = kernel.buffers(2, (P, rows, columns), name="y")
    for part in pieces(channels, P):
        tile, result = loaded.next(), stored.next()
        kernel.load(tile, x[part])
        windows = tile.split(1, rows, window).split(3, columns, window).permute(1, 3, 2, 4)
        kernel.reduce(result, windows, "max" if kind == "max" else "add")
        if kind == "average":
            kernel.tensor_scalar(result, result, "multiply", 1 / window**2)
        kernel.store(y[part], result)
    return kernel.finish()


def _doubled(kernel: Kernel, out: Tile, x: Tile, quarter: Tile, axis: int) -> None:
    """`out` is `x` at twice as many points along free axis `axis`: 3/4 of the nearer, 1/4 of the
    other neighbour, the border repeated.
    """
    count = x.shape[axis]
    kernel.tensor_scalar(quarter, x, "multiply", 0.25)
    pairs = out.split(axis, count, 2)
    rest = (slice(None),) * axis
    for odd in range(2):
        points = pairs[(*rest, slice(None), odd)]
        inner, border = (slice(0, count - 1), count - 1) if odd else (slice(1, count), 0)
        other = slice(1, count) if odd else slice(0, count - 1)
        kernel.scalar_tensor_tensor(
            points[(*rest, inner)], x[(*rest, inner)], "multiply", 0.75, "add",
            quarter[(*rest, other)],
        )  # fmt: skip
        edge = (*rest, slice(border, border + 1))
        kernel.copy(points[edge], x[edge], engine="scalar")


def upsample_bilinear(core: Core, channels: int, height: int, width: int) -> InstructionStream:
    """y [channels, 2 height, 2 width]: bilinear interpolation at half-pixel centres."""
    kernel = Kernel("upsample_bilinear", core)
    x = kernel.input("x", (channels, height, width))
    y = kernel.output("y", (channels, 2 * height, 2 * width))
    loaded = kernel.buffers(2, (P, height, width), name="x")
    wide = kernel.buffers(1, (P, height, 2 * width), name="wide")
    quarters = kernel.buffers(1, (P, height, 2 * width), name="quarter")
    stored = kernel.buffers(1, (P, 2 * height, 2 * width), name="y")
    for part in pieces(channels, P):
        tile, middle, quarter, result = (b.next() for b in (loaded, wide, quarters, stored))
        kernel.load(tile, x[part])
        _doubled(kernel, middle, tile, quarter[:, :, :width], 2)
        _doubled(kernel, result, middle, quarter, 1)
        kernel.store(y[part], result)
    return kernel.finish()
