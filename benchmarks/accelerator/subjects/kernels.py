"""The kernels AWS hardware was measured with, written by hand in the schedules that were measured.

Each function returns the finished instruction stream of one kernel; sizes are parameters, so that
the tests can run small ones functionally. Tiles that are loaded are double-buffered where SBUF has
room; temporaries stand in one place each, worked on in place, as the published kernels do.
"""

from __future__ import annotations

from math import sqrt

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Space
from tilesmith.families.trainium.codegen.isa.memory import HbmView, Tile
from tilesmith.families.trainium.codegen.kernel.builder import Kernel

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
    spill = kernel.temporary("lhs_transposed", (batch, k, m))
    right = kernel.buffers(2, (k, width), name="rhs")
    results = kernel.buffers(2, (P, width), name="result")
    sums = kernel.buffers(4, (P, BANK), name="sum", space=Space.PSUM)
    strips = _Strips(kernel, k, height)
    places = [(n0, m0) for n0 in range(0, n, width) for m0 in range(0, m, height)]
    for index in range(batch):
        strips.begin(lhs[index], spill[index], [m0 for _, m0 in places])
        for n0, m0 in places:
            if m0 == 0:
                rhs_tile = right.next()
                kernel.load(rhs_tile, rhs[index, :, n0 : n0 + width])
            columns = strips.next()
            for row in range(0, height, P):
                result = results.next()
                for half in range(0, width, BANK):
                    part = slice(half, half + BANK)
                    total = sums.next()
                    kernel.matmul(total, columns[:, row : row + P], rhs_tile[:, part])
                    kernel.copy(result[:, part], total, engine="scalar")
                kernel.store(out[index, m0 + row : m0 + row + P, n0 : n0 + width], result)
    return kernel.finish()


class _Strips:
    """Transposed strips of `bmm`'s left operand, each turned once.

    Two stay in SBUF. Of the others the one needed last is spilled when its place is given up, and
    reloaded for other columns: these are the 8 reloads a product that explain what was read.
    """

    def __init__(self, kernel: Kernel, k: int, height: int) -> None:
        self.kernel, self.height = kernel, height
        self.loaded = kernel.buffers(16, (P, k), name="lhs")
        self.places = [kernel.buffers(1, (k, height), name=f"strip{i}") for i in range(2)]
        self.transpose = Transposer(kernel, ("vector",))

    def begin(self, source: HbmView, spill: HbmView, order: list[int]) -> None:
        """Another product, whose strips are needed in an order (of their first rows)."""
        self.source, self.spill, self.later = source, spill, list(order)
        self.held: dict[int, tuple[int, Tile]] = {}
        self.spilled: set[int] = set()

    def next(self) -> Tile:
        """The strip that is needed next."""
        first = self.later.pop(0)
        if first not in self.held:
            full = len(self.held) == len(self.places)
            place = self._give_up() if full else len(self.held)
            tile = self.places[place].next()
            self.held[first] = place, tile
            if first in self.spilled:
                self.kernel.load(tile, self.spill[:, first : first + self.height])
            else:
                self._turn(tile, first)
        return self.held[first][1]

    def _give_up(self) -> int:
        """A place, of the strip that is needed last."""
        last = max(self.held, key=lambda strip: [*self.later, strip].index(strip))
        place, tile = self.held.pop(last)
        if last in self.later and last not in self.spilled:
            self.kernel.store(self.spill[:, last : last + self.height], tile)
            self.spilled.add(last)
        return place

    def _turn(self, strip: Tile, first: int) -> None:
        for row in range(0, self.height, P):
            tile = self.loaded.next()
            self.kernel.load(tile, self.source[first + row : first + row + P])
            self.transpose(strip[:, row : row + P], tile)


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


def adamw(
    core: Core, rows: int = 10944, columns: int = 2048, block: int = 1024
) -> InstructionStream:
    """A step of AdamW of which the parameters are written (rate and decay 1e-2, betas 0.9 and
    0.999, epsilon 1e-8, the 10th step).
    """
    kernel = Kernel("adamw", core)
    names = ("parameter", "gradient", "m", "v")
    inputs = [kernel.input(name, (rows, columns)) for name in names]
    output = kernel.output("new_parameter", (rows, columns))
    loaded = [kernel.buffers(2, (P, block), name=name) for name in names]
    stored = kernel.buffers(2, (P, block), name="new_parameter")
    parts = [kernel.buffers(1, (P, BANK), name=n) for n in ("m", "g", "v", "square", "decayed")]
    parts.append(kernel.buffers(1, (P, BANK), name="root", space=Space.PSUM))
    for row in range(0, rows, P):
        high = min(P, rows - row)
        for start in range(0, columns, block):
            tiles = [places.next()[:high] for places in loaded]
            place = slice(row, row + high), slice(start, start + block)
            for tile, view in zip(tiles, inputs, strict=True):
                kernel.load(tile, view[place])
            out = stored.next()[:high]
            for half in range(0, block, BANK):
                operands = [tile[:, half : half + BANK] for tile in (out, *tiles)]
                _adamw(kernel, operands, [places.next()[:high] for places in parts])
            kernel.store(output[place], out)
    return kernel.finish()


def _adamw(kernel: Kernel, operands: list[Tile], parts: list[Tile], step: int = 10) -> None:
    """The formula as it reads: products with a number, squares and roots on the scalar engine, the
    rest on the vector engine.

    The root of the second moment, its sum with epsilon and its reciprocal stand in PSUM: 3 x 512
    columns are written there, as in the profile.
    """
    rate, beta1, beta2, epsilon, decay = 1e-2, 0.9, 0.999, 1e-8, 1e-2
    out, parameter, gradient, old_m, old_v = operands
    m, g, v, square, decayed, root = parts
    kernel.activation(m, "copy", old_m, scale=beta1)
    kernel.activation(g, "copy", gradient, scale=1 - beta1)
    kernel.tensor_tensor(m, m, "add", g)
    kernel.activation(v, "copy", old_v, scale=beta2)
    kernel.activation(square, "square", gradient, scale=sqrt(1 - beta2))
    kernel.tensor_tensor(v, v, "add", square)
    kernel.activation(root, "sqrt", v, scale=1 / (1 - beta2**step))
    kernel.tensor_scalar(root, root, "add", epsilon)
    kernel.reciprocal(root, root)
    kernel.activation(m, "copy", m, scale=rate / (1 - beta1**step))
    kernel.tensor_tensor(m, m, "multiply", root)
    kernel.activation(decayed, "copy", parameter, scale=rate * decay)
    kernel.tensor_tensor(decayed, parameter, "subtract", decayed)
    kernel.tensor_tensor(out, decayed, "subtract", m)


def rope_single_freq(
    core: Core, heads: int = 64, tokens: int = 4096, width: int = 128
) -> InstructionStream:
    """Rotary position embedding, a head at a time with its features on partitions, as AWS's kernel
    for Neuron has it (nki-samples, contributed/neuron-team-kernels/RoPE.py): cosines stand on the
    partitions of the first half, sines on those of the second.

    What an instruction reads begins at one partition, so four operands are copied to the other
    half. Every tile has one place, and y takes that of x: the next head is loaded when this one is
    stored. That is why the vector engine idles.
    """
    kernel = Kernel("rope_single_freq", core)
    half = width // 2
    x, y = kernel.input("x", (heads, width, tokens)), kernel.output("y", (heads, width, tokens))
    cosines, sines = (kernel.input(name, (half, tokens)) for name in ("cos", "sin"))
    names = ("x", "coefficient", "swapped", "first", "second")
    places = [kernel.buffers(1, (width, tokens), name=name) for name in names]
    low, high = slice(0, half), slice(half, width)
    for head in range(heads):
        tile, coefficient, swapped, first, second = (p.next() for p in places)
        kernel.load(tile, x[head])
        kernel.load(coefficient[low], cosines)
        kernel.load(coefficient[high], sines)
        kernel.copy(swapped[low], coefficient[high], engine="scalar")
        kernel.copy(swapped[high], coefficient[low], engine="scalar")
        kernel.tensor_tensor(first[low], tile[low], "multiply", coefficient[low])
        kernel.tensor_tensor(second[high], tile[high], "multiply", coefficient[high])
        kernel.tensor_tensor(first[high], tile[low], "multiply", swapped[low])
        kernel.tensor_tensor(second[low], tile[high], "multiply", swapped[high])
        kernel.copy(tile[low], second[high], engine="scalar")
        kernel.copy(tile[high], second[low], engine="vector")
        kernel.tensor_tensor(tile[low], first[low], "subtract", tile[low])
        kernel.tensor_tensor(tile[high], first[high], "add", tile[high])
        kernel.store(y[head], tile)
    return kernel.finish()
