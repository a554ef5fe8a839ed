"""Kernels of ucb-bar/autocomp's tutorial, written by hand in the schedules that were measured.

Its examples/trn-tutorial holds NKI kernels with latencies measured on one core of a trn1.2xlarge
(P99): a product in bf16 whose loads grow from rows of 256 bytes to rows of 2 KiB, and AWS's
attention that stages every step in HBM. They are what tells the cost of a short row apart from
that of a transfer; nothing of their code is here. Each function returns the finished instruction
stream of one kernel; tiles that are loaded have as many buffers as keep transfers in flight.
"""

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Space
from tilesmith.families.trainium.codegen.isa.memory import HbmView, Tile
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.codegen.kernel.kernel_memory import Buffers

P = 128
BANK = 512


def gemm(
    core: Core,
    tall: int = 1,
    wide: int = 1,
    left: int = 1,
    right: int = 1,
    *,
    k: int = 8192,
    m: int = 4096,
    n: int = 8192,
) -> InstructionStream:
    """out[M, N] = lhs[K, M].T @ rhs[K, N] in bf16, `tall` x `wide` tiles of 128 x 512 at a time.

    Args:
        left: tiles of 128 columns of the left operand that one load brings.
        right: tiles of 512 columns of the right operand that one load brings.
    """
    kernel = Kernel("gemm", core)
    lhs, rhs = kernel.input("lhs", (k, m), "bfloat16"), kernel.input("rhs", (k, n), "bfloat16")
    out = kernel.output("out", (m, n), "bfloat16")
    columns = kernel.buffers(8 * tall // left, (P, left * P), "bfloat16", name="lhs")
    rows = kernel.buffers(8 * wide // right, (P, right * BANK), "bfloat16", name="rhs")
    results = kernel.buffers(4, (P, BANK), "bfloat16", name="result")
    sums = kernel.buffers(8, (P, BANK), name="sum", space=Space.PSUM)
    for m0 in range(0, m, tall * P):
        for n0 in range(0, n, wide * BANK):
            totals = [[sums.next() for _ in range(wide)] for _ in range(tall)]
            for k0 in range(0, k, P):
                moving = _loaded(kernel, rows, rhs[k0 : k0 + P, n0 : n0 + wide * BANK], right, BANK)
                held = _loaded(kernel, columns, lhs[k0 : k0 + P, m0 : m0 + tall * P], left, P)
                for i, stationary in enumerate(held):
                    for j, part in enumerate(moving):
                        kernel.matmul(totals[i][j], stationary, part, accumulate=k0 > 0)
            for i in range(tall):
                for j in range(wide):
                    result = results.next()
                    kernel.copy(result, totals[i][j], engine="vector")
                    row, column = m0 + i * P, n0 + j * BANK
                    kernel.store(out[row : row + P, column : column + BANK], result)
    return kernel.finish()


def _loaded(kernel: Kernel, places: Buffers, source: HbmView, count: int, width: int) -> list[Tile]:
    """The tiles of `width` columns of a strip, `count` of them by each load."""
    tiles: list[Tile] = []
    for start in range(0, source.shape[1], count * width):
        tile = places.next()
        kernel.load(tile, source[:, start : start + count * width])
        tiles += [tile[:, i * width : (i + 1) * width] for i in range(count)]
    return tiles


def staged_attention(core: Core, length: int = 4096) -> InstructionStream:
    """softmax(q.T @ k) @ v.T of one head of 128, in bf16; every step goes through HBM in fp32."""
    kernel = Kernel("staged_attention", core)
    q, k, v = (kernel.input(name, (P, length), "bfloat16") for name in "qkv")
    out = kernel.output("out", (length, P), "bfloat16")
    kit = _Staged(kernel, length)
    tiles = [kernel.sbuf((P, length), "bfloat16") for _ in range(3)]
    for tile, source in zip(tiles, (q, k, v), strict=True):
        kernel.load(tile, source)
    kit.normalised(tiles[0], tiles[1])
    kit.exponentials()
    kit.scaled()
    kit.turned(tiles[2])
    kit.product(out)
    return kernel.finish()


class _Staged:
    """The steps of `staged_attention`, over tiles of 128 queries each."""

    def __init__(self, kernel: Kernel, length: int) -> None:
        self.kernel, self.length, self.count = kernel, length, length // P
        square = (self.count, P, length)
        self.norm, self.exp, self.scores = (
            kernel.temporary(name, square) for name in ("norm", "exp", "scores")
        )
        self.turned_scores = kernel.temporary("scores_t", (self.count, self.count, P, P))
        self.turned_v = kernel.temporary("v_t", (self.count, P, P))
        self.wide = kernel.buffers(6, (P, length), name="row")
        self.banks = kernel.buffers(8, (P, BANK), name="bank", space=Space.PSUM)
        self.loaded = kernel.buffers(16, (P, P), name="loaded")
        self.copied = kernel.buffers(8, (P, P), name="copied")
        self.sums = kernel.sbuf((P, self.count))

    def normalised(self, q: Tile, k: Tile) -> None:
        """q.T @ k less the largest of each row."""
        kernel, parts = self.kernel, self.length // BANK
        tops = kernel.buffers(2, (P, parts), name="tops")
        top = kernel.buffers(2, (P, 1), name="top")
        for i in range(self.count):
            maxima, most, row = tops.next(), top.next(), self.wide.next()
            banks = [self.banks.next() for _ in range(parts)]
            for j, bank in enumerate(banks):
                part = slice(j * BANK, (j + 1) * BANK)
                kernel.matmul(bank, q[:, i * P : (i + 1) * P], k[:, part])
                kernel.reduce(maxima[:, j : j + 1], bank, "max")
            kernel.reduce(most, maxima, "max")
            for j, bank in enumerate(banks):
                part = slice(j * BANK, (j + 1) * BANK)
                kernel.tensor_scalar(row[:, part], bank, "subtract", most)
            kernel.store(self.norm[i], row)

    def exponentials(self) -> None:
        """Their exponentials, and then the sum of each row."""
        for i in range(self.count):
            row, out = self.wide.next(), self.wide.next()
            self.kernel.load(row, self.norm[i])
            self.kernel.activation(out, "exp", row)
            self.kernel.store(self.exp[i], out)
        for i in range(self.count):
            row = self.wide.next()
            self.kernel.load(row, self.exp[i])
            self.kernel.reduce(self.sums[:, i : i + 1], row, "add")

    def scaled(self) -> None:
        """The same by the sum of their row."""
        self.kernel.reciprocal(self.sums, self.sums)
        for i in range(self.count):
            row, out = self.wide.next(), self.wide.next()
            self.kernel.load(row, self.exp[i])
            self.kernel.tensor_scalar(out, row, "multiply", self.sums[:, i : i + 1])
            self.kernel.store(self.scores[i], out)

    def turned(self, v: Tile) -> None:
        """v and the scores, turned tile by tile."""
        for j in range(self.count):
            self._turn(self.turned_v[j], v[:, j * P : (j + 1) * P])
        for i in range(self.count):
            for j in range(self.count):
                tile = self.loaded.next()
                self.kernel.load(tile, self.scores[i, :, j * P : (j + 1) * P])
                self._turn(self.turned_scores[j, i], tile)

    def _turn(self, out: HbmView, tile: Tile) -> None:
        place, copy = self.banks.next()[:, :P], self.copied.next()
        self.kernel.transpose(place, tile)
        self.kernel.copy(copy, place, engine="scalar")
        self.kernel.store(out, copy)

    def product(self, out: HbmView) -> None:
        """The scores by v."""
        rows = self.kernel.buffers(2, (P, P), "bfloat16", name="out")
        for i in range(self.count):
            total, row = self.banks.next()[:, :P], rows.next()
            for j in range(self.count):
                scores, values = self.loaded.next(), self.loaded.next()
                self.kernel.load(scores, self.turned_scores[j, i])
                self.kernel.load(values, self.turned_v[j])
                self.kernel.matmul(total, scores, values, accumulate=j > 0)
            self.kernel.copy(row, total)
            self.kernel.store(out[i * P : (i + 1) * P], row)


def late_attention(core: Core, length: int = 4096) -> InstructionStream:
    """What a search made of `staged_attention`: nothing leaves the chip, and every row is less the
    greatest score of the first 128 queries' rows, which was measured though it may overflow."""
    kernel = Kernel("late_attention", core)
    q, k, v = (kernel.input(name, (P, length), "bfloat16") for name in "qkv")
    out = kernel.output("out", (length, P), "bfloat16")
    queries, keys = (kernel.sbuf((P, length), "bfloat16") for _ in range(2))
    kernel.load(queries, q)
    kernel.load(keys, k)
    kit = _Late(kernel, length)
    kit.values(v)
    top = kit.greatest(queries, keys)
    for i in range(length // P):
        kit.attend(queries[:, i * P : (i + 1) * P], keys, top, out[i * P : (i + 1) * P])
    return kernel.finish()


class _Late:
    """The steps of `late_attention`; scores are worked on 128 keys at a time."""

    def __init__(self, kernel: Kernel, length: int) -> None:
        self.kernel, self.count = kernel, length // P
        self.turned_v = kernel.sbuf((P, self.count, P), "bfloat16")
        self.loaded = kernel.buffers(4, (P, P), "bfloat16", name="v")
        self.scores = kernel.buffers(3, (P, BANK), name="scores", space=Space.PSUM)
        self.turning = kernel.buffers(3, (P, P), "bfloat16", name="turning", space=Space.PSUM)
        self.totals = kernel.buffers(2, (P, P), name="total", space=Space.PSUM)
        self.powers = kernel.buffers(4, (P, P), "bfloat16", name="powers")
        self.turned = kernel.buffers(4, (P, P), "bfloat16", name="turned")
        self.sums = kernel.buffers(2, (P, self.count), name="sums")
        self.small = kernel.buffers(4, (P, 1), name="small")
        self.results = kernel.buffers(2, (P, P), "bfloat16", name="result")

    def values(self, v: HbmView) -> None:
        """v, turned tile by tile."""
        for j in range(self.count):
            tile, place = self.loaded.next(), self.turning.next()
            self.kernel.load(tile, v[:, j * P : (j + 1) * P])
            self.kernel.transpose(place, tile)
            self.kernel.copy(self.turned_v[:, j], place)

    def greatest(self, queries: Tile, keys: Tile) -> Tile:
        """Less the greatest score of each of the first 128 queries."""
        kernel, top = self.kernel, self.kernel.sbuf((P, 1))
        kernel.memset(top, -1e38)
        for j in range(0, self.count * P, BANK):
            scores, part = self.scores.next(), self.small.next()
            kernel.matmul(scores, queries[:, :P], keys[:, j : j + BANK])
            kernel.reduce(part, scores, "max")
            kernel.tensor_tensor(top, top, "max", part)
        kernel.tensor_scalar(top, top, "multiply", -1.0)
        return top

    def attend(self, queries: Tile, keys: Tile, top: Tile, out: HbmView) -> None:
        """128 rows of the result."""
        kernel, total, sums = self.kernel, self.totals.next(), self.sums.next()
        for j in range(self.count):
            if j * P % BANK == 0:
                scores = self.scores.next()
                kernel.matmul(scores, queries, keys[:, j * P : j * P + BANK])
            powers, place, turned = self.powers.next(), self.turning.next(), self.turned.next()
            start = j * P % BANK
            kernel.activation(powers, "exp", scores[:, start : start + P], bias=top)
            kernel.reduce(sums[:, j : j + 1], powers, "add")
            kernel.transpose(place, powers)
            kernel.copy(turned, place)
            kernel.matmul(total, turned, self.turned_v[:, j], accumulate=j > 0)
        whole, result = self.small.next(), self.results.next()
        kernel.reduce(whole, sums, "add")
        kernel.reciprocal(whole, whole)
        kernel.tensor_scalar(result, total, "multiply", whole)
        kernel.store(out, result)
