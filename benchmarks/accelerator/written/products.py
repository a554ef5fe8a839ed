"""Matrix products joined with what stands before or behind them."""

from __future__ import annotations

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Space
from tilesmith.families.trainium.codegen.isa.memory import HbmView, Tile
from tilesmith.families.trainium.codegen.kernel.builder import Kernel, pipelined
from written.common import BANK, P, Transposer, blocks, pieces, row_in_all, weights
from written.rows import normalise, soften

Tiles = list[Tile]

BLOCK = 1024
"""Columns of a weight that stay in SBUF while all rows pass by, unless said otherwise."""


class Products:
    """Products of transposed rows with weights in SBUF, one PSUM bank at a time."""

    def __init__(self, kernel: Kernel, dtype: str) -> None:
        self.kernel = kernel
        self.turn = Transposer(kernel, dtype)
        self.sums = kernel.buffers(4, (P, BANK), name="sum", space=Space.PSUM)

    def bank(self, strip: Tile, tiles: list[Tile], part: slice) -> Tile:
        """`strip.T @ weights[:, part]` in PSUM."""
        total = self.sums.next()[:, : part.stop - part.start]
        for i, tile in enumerate(tiles):
            self.kernel.matmul(total, strip[:, i], tile[:, part], accumulate=i > 0)
        return total

    def into(self, out: Tile, strip: Tile, tiles: list[Tile]) -> None:
        """`out = strip.T @ weights`, copied out of PSUM on scalar."""
        for part in pieces(out.shape[1], BANK):
            self.kernel.copy(out[:, part], self.bank(strip, tiles, part), engine="scalar")


def add_rms_norm_matmul(
    core: Core, rows: int, features: int, columns: int, dtype: str = "float32"
) -> InstructionStream:
    """out = rms_norm(x + residual, gamma) @ weight; rows normalised again for each column block."""
    kernel = Kernel("add_rms_norm_matmul", core)
    x, residual = (kernel.input(n, (rows, features), dtype) for n in ("x", "residual"))
    weight = kernel.input("weight", (features, columns), dtype)
    gamma = row_in_all(kernel, kernel.input("gamma", (features,), dtype), "gamma")
    out = kernel.output("out", (rows, columns), dtype)
    products = Products(kernel, dtype)
    loaded, added = (kernel.buffers(3, (P, features), dtype, name=n) for n in ("x", "residual"))
    strips = kernel.buffers(2, (P, features // P, P), dtype, name="strip")
    results = kernel.buffers(2, (P, min(BLOCK, columns)), dtype, name="result")
    sums = kernel.buffers(2, (P, 1), name="sum")

    def prepare(block: tuple[HbmView, ...]) -> tuple[HbmView, Tile]:
        tile, second = loaded.next(), added.next()
        kernel.load(tile, block[0])
        kernel.load(second, block[1])
        kernel.tensor_tensor(tile, tile, "add", second)
        normalise(kernel, tile, tile, second, sums.next(), 1e-6)
        kernel.tensor_tensor(tile, tile, "multiply", gamma)
        return block[2], tile

    def turn(ready: tuple[HbmView, Tile]) -> tuple[HbmView, Tile]:
        strip = strips.next()
        products.turn.strip(strip, ready[1])
        return ready[0], strip

    for part in pieces(columns, BLOCK):
        tiles = weights(kernel, weight[:, part], "weight")

        def use(ready: tuple[HbmView, Tile], part: slice = part, tiles: Tiles = tiles) -> None:
            result = results.next()[:, : part.stop - part.start]
            products.into(result, ready[1], tiles)
            kernel.store(ready[0][:, part], result)

        pipelined(blocks(x, residual, out), prepare, turn, use)
        kernel.free(*tiles)
    return kernel.finish()


def matmul_add_rms_norm(
    core: Core, rows: int, depth: int, features: int, dtype: str = "float32"
) -> InstructionStream:
    """out = rms_norm(x @ weight + residual, gamma): whole rows of the product stay on chip."""
    kernel = Kernel("matmul_add_rms_norm", core)
    x = kernel.input("x", (rows, depth), dtype)
    weight = kernel.input("weight", (depth, features), dtype)
    residual = kernel.input("residual", (rows, features), dtype)
    gamma = row_in_all(kernel, kernel.input("gamma", (features,), dtype), "gamma")
    out = kernel.output("out", (rows, features), dtype)
    products, tiles = Products(kernel, dtype), weights(kernel, weight, "weight")
    loaded = kernel.buffers(2, (P, depth), dtype, name="x")
    strips = kernel.buffers(2, (P, depth // P, P), dtype, name="strip")
    added, results = (
        kernel.buffers(2, (P, features), dtype, name=n) for n in ("residual", "result")
    )
    sums = kernel.buffers(2, (P, 1), name="sum")

    def prepare(block: tuple[HbmView, ...]) -> tuple[tuple[HbmView, ...], Tile]:
        tile, strip = loaded.next(), strips.next()
        kernel.load(tile, block[0])
        products.turn.strip(strip, tile)
        return block, strip

    def use(ready: tuple[tuple[HbmView, ...], Tile]) -> None:
        (_, other, target), strip = ready
        second, result = added.next(), results.next()
        kernel.load(second, other)
        for part in pieces(features, BANK):
            total = products.bank(strip, tiles, part)
            kernel.tensor_tensor(result[:, part], total, "add", second[:, part])
        normalise(kernel, result, result, second, sums.next(), 1e-6)
        kernel.tensor_tensor(result, result, "multiply", gamma)
        kernel.store(target, result)

    pipelined(blocks(x, residual, out), prepare, use)
    return kernel.finish()


def lora(
    core: Core, rows: int, depth: int, columns: int, rank: int, scale: float = 1.0,
    dtype: str = "float32", block: int = BLOCK,
) -> InstructionStream:  # fmt: skip
    """out = x @ weight + scale * (x @ down) @ up; both products end in the same PSUM bank."""
    kernel = Kernel("lora", core)
    x, out = kernel.input("x", (rows, depth), dtype), kernel.output("out", (rows, columns), dtype)
    weight = kernel.input("weight", (depth, columns), dtype)
    down = kernel.input("down", (depth, rank), dtype)
    up = kernel.input("up", (rank, columns), dtype)
    products, narrow = Products(kernel, dtype), weights(kernel, down, "down")
    loaded = kernel.buffers(2, (P, depth), dtype, name="x")
    strips = kernel.buffers(2, (P, depth // P, P), dtype, name="strip")
    low_sums = kernel.buffers(1, (rank, P), name="low_sum", space=Space.PSUM)
    lows = kernel.buffers(2, (rank, P), dtype, name="low")
    results = kernel.buffers(2, (P, min(block, columns)), dtype, name="result")

    def prepare(views: tuple[HbmView, ...]) -> tuple[HbmView, Tile, Tile]:
        tile, strip, low_sum, low = (b.next() for b in (loaded, strips, low_sums, lows))
        kernel.load(tile, views[0])
        products.turn.strip(strip, tile)
        for i, part in enumerate(narrow):
            kernel.matmul(low_sum, part, strip[:, i], accumulate=i > 0)
        kernel.activation(low, "copy", low_sum, scale=scale)
        return views[1], strip, low

    for kept in pieces(columns, block):
        tiles = weights(kernel, weight[:, kept], "weight")
        wide = kernel.sbuf((rank, kept.stop - kept.start), dtype, name="up")
        kernel.load(wide, up[:, kept])

        def use(
            ready: tuple[HbmView, Tile, Tile], kept: slice = kept, tiles: Tiles = tiles,
            wide: Tile = wide,
        ) -> None:  # fmt: skip
            target, strip, low = ready
            result = results.next()[:, : kept.stop - kept.start]
            for part in pieces(result.shape[1], BANK):
                total = products.bank(strip, tiles, part)
                kernel.matmul(total, low, wide[:, part], accumulate=True)
                kernel.copy(result[:, part], total, engine="vector")
            kernel.store(target[:, kept], result)

        pipelined(blocks(x, out), prepare, use)
        kernel.free(*tiles, wide)
    return kernel.finish()


def bmm_softmax(
    core: Core, batch: int, rows: int, depth: int, columns: int, dtype: str = "float32"
) -> InstructionStream:
    """out[b] = softmax(lhs[b] @ rhs[b]) over each row; depth up to 128."""
    kernel = Kernel("bmm_softmax", core)
    lhs = kernel.input("lhs", (batch, rows, depth), dtype)
    rhs = kernel.input("rhs", (batch, depth, columns), dtype)
    out = kernel.output("out", (batch, rows, columns), dtype)
    products = Products(kernel, dtype)
    right = kernel.buffers(2, (depth, columns), dtype, name="rhs")
    loaded = kernel.buffers(4, (P, depth), dtype, name="lhs")
    turned = kernel.buffers(3, (depth, 1, P), dtype, name="turned")
    results = kernel.buffers(2, (P, columns), name="result")
    stored = results if dtype == "float32" else kernel.buffers(2, (P, columns), dtype, name="out")
    column = kernel.buffers(2, (P, 2), name="column")

    def prepare(views: tuple[Tile, HbmView, HbmView]) -> tuple[Tile, Tile, HbmView]:
        tile, source, target = views
        left, strip = loaded.next(), turned.next()
        kernel.load(left, source)
        products.turn(strip[:, 0], left)
        return tile, strip, target

    def multiply(ready: tuple[Tile, Tile, HbmView]) -> tuple[Tile, HbmView]:
        tile, strip, target = ready
        result = results.next()
        products.into(result, strip, [tile])
        return result, target

    def finish(ready: tuple[Tile, HbmView]) -> None:
        result, target = ready
        final = result if stored is results else stored.next()
        soften(kernel, final, result, column.next())
        kernel.store(target, final)

    for b in range(batch):
        tile = right.next()
        kernel.load(tile, rhs[b])
        items = [(tile, *views) for views in blocks(lhs[b], out[b])]
        pipelined(items, prepare, multiply, finish)
    return kernel.finish()
