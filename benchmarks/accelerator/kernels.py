"""The kernels AWS hardware was measured with, written by hand in the schedules that were measured.

Each function returns the finished instruction stream of one kernel; sizes are parameters, so that
the tests can run small ones functionally. Tiles that are loaded are double-buffered where SBUF has
room; temporaries stand in one place each, worked on in place, as the published kernels do.
"""

from __future__ import annotations

from tilesmith.codegen.trainium.isa.core import Core
from tilesmith.codegen.trainium.isa.instructions import InstructionStream, Space
from tilesmith.codegen.trainium.isa.memory import HbmView, Tile
from tilesmith.codegen.trainium.kernel.builder import Kernel

P = 128
BANK = 512


def silu(core: Core, rows: int = 4096, columns: int = 7168, block: int = 1024) -> InstructionStream:
    """y = x * sigmoid(x), the sigmoid from exp, add, reciprocal."""
    kernel = Kernel("silu", core)
    x, y = kernel.input("x", (rows, columns)), kernel.output("y", (rows, columns))
    x, y = x.split(0, P, rows // P), y.split(0, P, rows // P)
    loaded = kernel.buffers(2, (P, block), name="x")
    stored = kernel.buffers(2, (P, block), name="y")
    temporary = kernel.buffers(1, (P, BANK), name="sigmoid")
    for row in range(rows // P):
        for start in range(0, columns, block):
            tile, out = loaded.next(), stored.next()
            kernel.load(tile, x[:, row, start : start + block])
            for half in range(0, block, BANK):
                part = tile[:, half : half + BANK]
                sigmoid = temporary.next()
                kernel.activation(sigmoid, "exp", part, scale=-1.0)
                kernel.tensor_scalar(sigmoid, sigmoid, "add", 1.0)
                kernel.reciprocal(sigmoid, sigmoid)
                kernel.tensor_tensor(out[:, half : half + BANK], part, "multiply", sigmoid)
            kernel.store(y[:, row, start : start + block], out)
    return kernel.finish()


def transpose_matmul(
    core: Core, k: int = 2048, m: int = 4096, n: int = 10944, block: int = 1024
) -> InstructionStream:
    """out[M, N] = lhs[K, M].T @ rhs[K, N]: both operands come with K on partitions."""
    kernel = Kernel("transpose_matmul", core)
    lhs, rhs = kernel.input("lhs", (k, m)), kernel.input("rhs", (k, n))
    out = kernel.output("out", (m, n))
    depth = k // P
    left = [kernel.buffers(1, (P, min(block, m)), name=f"lhs{i}") for i in range(depth)]
    right = [kernel.buffers(1, (P, min(block, n)), name=f"rhs{i}") for i in range(depth)]
    results = kernel.buffers(2, (P, min(block, n)), name="result")
    sums = kernel.buffers(4, (P, BANK), name="sum", space=Space.PSUM)
    for m0 in range(0, m, block):
        lhs_tiles = [buffers.next() for buffers in left]
        for i, tile in enumerate(lhs_tiles):
            kernel.load(tile, lhs[i * P : (i + 1) * P, m0 : m0 + min(block, m)])
        for n0 in range(0, n, block):
            width = min(block, n - n0)
            rhs_tiles = [buffers.next()[:, :width] for buffers in right]
            for i, tile in enumerate(rhs_tiles):
                kernel.load(tile, rhs[i * P : (i + 1) * P, n0 : n0 + width])
            for row in range(0, min(block, m), P):
                result = results.next()[:, :width]
                for half in range(0, width, BANK):
                    part = slice(half, min(half + BANK, width))
                    total = sums.next()[:, : part.stop - half]
                    for i in range(depth):
                        left_tile = lhs_tiles[i][:, row : row + P]
                        kernel.matmul(total, left_tile, rhs_tiles[i][:, part], accumulate=i > 0)
                    kernel.copy(result[:, part], total, engine="scalar")
                kernel.store(out[m0 + row : m0 + row + P, n0 : n0 + width], result)
    return kernel.finish()


class Transposer:
    """Transposes 128 x (up to) 128 tiles on the tensor engine; copies alternate between engines."""

    def __init__(self, kernel: Kernel, engines: tuple[str, ...] = ("vector", "scalar")) -> None:
        self.kernel, self.engines, self.turn = kernel, engines, 0
        self.places = kernel.buffers(2, (P, BANK), name="transposed", space=Space.PSUM)

    def __call__(self, out: Tile, data: Tile) -> None:
        """out[F, P] = data[P, F].T, in SBUF."""
        rows, columns = data.shape
        place = self.places.next()[:columns, :rows]
        self.kernel.transpose(place, data)
        self.kernel.copy(out, place, engine=self.engines[self.turn % len(self.engines)])
        self.turn += 1


def matmul(
    core: Core, m: int = 4096, k: int = 5120, n: int = 12288, block: int = 1024
) -> InstructionStream:
    """out[M, N] = a[M, K] @ b[K, N], A row-major and transposed on the tensor engine."""
    kernel = Kernel("matmul", core)
    a, b = kernel.input("a", (m, k)), kernel.input("b", (k, n))
    out = kernel.output("out", (m, n))
    depth, chunk, width = k // P, min(block, k), min(block, n)
    loaded = kernel.buffers(2, (P, k), name="a")
    turned = kernel.buffers(2, (P, depth, P), name="a_transposed")
    right = kernel.buffers(4, (P, width), name="b")
    results = kernel.buffers(2, (P, width), name="result")
    sums = kernel.buffers(4, (P, BANK), name="sum", space=Space.PSUM)
    transpose = Transposer(kernel)
    for n0 in range(0, n, block):
        for m0 in range(0, m, P):
            rows, columns = loaded.next(), turned.next()
            for k0 in range(0, k, chunk):
                kernel.load(rows[:, k0 : k0 + chunk], a[m0 : m0 + P, k0 : k0 + chunk])
            for i in range(depth):
                transpose(columns[:, i], rows[:, i * P : (i + 1) * P])
            result = results.next()
            totals = [sums.next() for _ in range(width // BANK)]
            for i in range(depth):
                tile = right.next()
                kernel.load(tile, b[i * P : (i + 1) * P, n0 : n0 + width])
                for half, total in enumerate(totals):
                    part = tile[:, half * BANK : (half + 1) * BANK]
                    kernel.matmul(total, columns[:, i], part, accumulate=i > 0)
            for half, total in enumerate(totals):
                kernel.copy(result[:, half * BANK : (half + 1) * BANK], total, engine="scalar")
            kernel.store(out[m0 : m0 + P, n0 : n0 + width], result)
    return kernel.finish()


def bmm(
    core: Core, batch: int = 16, m: int = 4096, k: int = 64, n: int = 4096, block: int = 1024
) -> InstructionStream:
    """out[b] = lhs[b, M, K] @ rhs[b, K, N] with K = 64: half of the array's rows."""
    kernel = Kernel("bmm", core)
    lhs, rhs = kernel.input("lhs", (batch, m, k)), kernel.input("rhs", (batch, k, n))
    out = kernel.output("out", (batch, m, n))
    height, width = min(block, m), min(block, n)
    right = kernel.buffers(2, (k, width), name="rhs")
    loaded = kernel.buffers(16, (P, k), name="lhs")
    turned = kernel.buffers(2, (k, height), name="lhs_transposed")
    results = kernel.buffers(2, (P, width), name="result")
    sums = kernel.buffers(4, (P, BANK), name="sum", space=Space.PSUM)
    transpose = Transposer(kernel, ("vector",))
    for index in range(batch):
        for n0 in range(0, n, width):
            rhs_tile = right.next()
            kernel.load(rhs_tile, rhs[index, :, n0 : n0 + width])
            for m0 in range(0, m, height):
                columns = turned.next()
                for row in range(0, height, P):
                    tile = loaded.next()
                    kernel.load(tile, lhs[index, m0 + row : m0 + row + P])
                    transpose(columns[:, row : row + P], tile)
                for row in range(0, height, P):
                    result = results.next()
                    for half in range(0, width, BANK):
                        part = slice(half, half + BANK)
                        total = sums.next()
                        kernel.matmul(total, columns[:, row : row + P], rhs_tile[:, part])
                        kernel.copy(result[:, part], total, engine="scalar")
                    kernel.store(out[index, m0 + row : m0 + row + P, n0 : n0 + width], result)
    return kernel.finish()


def swiglu(
    core: Core, rows: int = 4096, model: int = 1024, hidden: int = 3072, block: int = 1024
) -> InstructionStream:
    """out = (silu(x @ gate) * (x @ up)) @ down, the hidden activations spilled to HBM.

    x is transposed with the first block of the hidden size and its transpose spilled for the
    others: the one way to arrive at the traffic that was measured.
    """
    kernel = Kernel("swiglu", core)
    x = kernel.input("x", (rows, model))
    gate, up = kernel.input("gate", (model, hidden)), kernel.input("up", (model, hidden))
    down, out = kernel.input("down", (hidden, model)), kernel.output("out", (rows, model))
    spill = kernel.temporary("hidden", (rows, hidden))
    turned = kernel.temporary("x_transposed", (rows, model))
    kit = _Swiglu(kernel, model, hidden, min(block, hidden))
    for h0 in range(0, hidden, block):
        kit.gated(x, turned, gate, up, spill, h0)
    kit.down(spill, down, out)
    return kernel.finish()


class _Swiglu:
    """The two phases of `swiglu`, sharing what transposes and accumulates."""

    def __init__(self, kernel: Kernel, model: int, hidden: int, block: int) -> None:
        self.kernel, self.model, self.hidden, self.block = kernel, model, hidden, block
        self.transpose = Transposer(kernel)
        self.sums = kernel.buffers(4, (P, BANK), name="sum", space=Space.PSUM)

    def product(self, strip: Tile, weights: list[Tile], start: int) -> Tile:
        """One bank of strip.T @ weights, columns `start` on."""
        total = self.sums.next()
        for i, tile in enumerate(weights):
            part = tile[:, start : start + BANK]
            self.kernel.matmul(total, strip[:, i], part, accumulate=i > 0)
        return total

    def transposed(self, rows: Tile, strip: Tile, source: HbmView) -> None:
        """Load 128 rows and transpose them: strip[:, i] = rows[:, i block].T."""
        self.kernel.load(rows, source)
        for i in range(strip.shape[1]):
            self.transpose(strip[:, i], rows[:, i * P : (i + 1) * P])

    def weights(self, source: HbmView, name: str) -> list[Tile]:
        """Every 128 rows of a weight in a tile of its own."""
        tiles = []
        for i in range(source.shape[0] // P):
            tile = self.kernel.sbuf((P, source.shape[1]), name=f"{name}{i}")
            self.kernel.load(tile, source[i * P : (i + 1) * P])
            tiles.append(tile)
        return tiles

    def gated(
        self, x: HbmView, turned: HbmView, gate: HbmView, up: HbmView, spill: HbmView, h0: int
    ) -> None:
        """silu(x @ gate) * (x @ up) for one block of the hidden size."""
        kernel, columns = self.kernel, slice(h0, h0 + self.block)
        gates, ups = self.weights(gate[:, columns], "gate"), self.weights(up[:, columns], "up")
        rows = kernel.buffers(2, (P, self.model), name="x")
        strips = kernel.buffers(2, (P, self.model // P, P), name="x_transposed")
        results = kernel.buffers(2, (P, self.block), name="hidden")
        sigmoids = kernel.buffers(1, (P, BANK), name="sigmoid")
        for r in range(0, x.shape[0], P):
            strip, result = strips.next(), results.next()
            if h0 == 0:
                self.transposed(rows.next(), strip, x[r : r + P])
                kernel.store(turned[r : r + P], strip)
            else:
                kernel.load(strip, turned[r : r + P])
            for half in range(0, self.block, BANK):
                part = result[:, half : half + BANK]
                self.silu(part, self.product(strip, gates, half), sigmoids.next())
                kernel.tensor_tensor(part, part, "multiply", self.product(strip, ups, half))
            kernel.store(spill[r : r + P, columns], result)
        kernel.free(*gates, *ups, *rows.places, *strips.places, *results.places, *sigmoids.places)

    def silu(self, out: Tile, total: Tile, sigmoid: Tile) -> None:
        kernel = self.kernel
        kernel.copy(out, total, engine="scalar")
        kernel.activation(sigmoid, "exp", out, scale=-1.0)
        kernel.tensor_scalar(sigmoid, sigmoid, "add", 1.0)
        kernel.reciprocal(sigmoid, sigmoid)
        kernel.tensor_tensor(out, out, "multiply", sigmoid)

    def down(self, spill: HbmView, down: HbmView, out: HbmView) -> None:
        """hidden @ down over the reloaded hidden activations."""
        kernel, weights = self.kernel, self.weights(down, "down")
        rows = kernel.buffers(2, (P, self.hidden), name="h")
        strips = kernel.buffers(2, (P, self.hidden // P, P), name="h_transposed")
        results = kernel.buffers(2, (P, self.model), name="result")
        for r in range(0, spill.shape[0], P):
            strip, result = strips.next(), results.next()
            self.transposed(rows.next(), strip, spill[r : r + P])
            for half in range(0, self.model, BANK):
                total = self.product(strip, weights, half)
                kernel.copy(result[:, half : half + BANK], total, engine="scalar")
            kernel.store(out[r : r + P], result)
