"""Attention whose scores never leave the chip, in blocks of keys with a running maximum.

o[h] = softmax(q[h].T @ k[g] / sqrt(width)) @ v[g],  heads h of a group share keys and values g
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import sqrt

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Space
from tilesmith.families.trainium.codegen.isa.memory import HbmView, Tile
from tilesmith.families.trainium.codegen.kernel.builder import Kernel, pipelined
from written.common import BANK, P, Transposer, pieces

BLOCK = 1024
"""Keys of a block: two PSUM banks of scores."""

MASKED = -3.0e38


@dataclass
class Block:
    """128 queries and some keys, under way: `before` is the block of the same queries in front.

    Attributes (filled on the way):
        most, least, total, fade: columns [P, 1]: the largest score so far, that negated and scaled,
            the sum of exponentials so far, and how much the block before is to be faded.
        sums: the weighted values so far.
    """

    start: int
    part: slice
    last: bool
    before: Block | None
    scores: Tile | None = None
    columns: tuple[Tile, ...] = ()
    shares: Tile | None = None
    sums: Tile | None = None


class Attention:
    """Places and steps of one kernel."""

    def __init__(self, kernel: Kernel, keys: int, width: int, dtype: str) -> None:
        self.kernel, self.width, self.scale = kernel, width, 1 / sqrt(width)
        block = min(BLOCK, keys)
        self.keys = kernel.buffers(2, (width, keys), dtype, name="k")
        self.values = kernel.buffers(2, (P, keys // P, width), dtype, name="v")
        self.queries = kernel.buffers(2, (width, P), dtype, name="q")
        self.scores = kernel.buffers(2, (P, block), name="scores", space=Space.PSUM)
        self.masked = kernel.buffers(2, (P, block), name="masked")
        self.shares = kernel.buffers(3, (P, block), dtype, name="shares")
        self.turned = kernel.buffers(2, (P, block // P, P), dtype, name="shares_turned")
        self.turn = Transposer(kernel, dtype)
        self.products = kernel.buffers(2, (P, width), name="product", space=Space.PSUM)
        self.sums = kernel.buffers(2, (P, width), name="o")
        self.outputs = kernel.buffers(2, (P, width), dtype, name="out")
        self.columns = kernel.buffers(4, (P, 4), name="columns")
        self.query = self.queries.places[0]

    def score(self, q: HbmView, key: Tile, causal: bool, block: Block) -> Block:
        """Scores of the queries with the keys, masked behind query number `start` + p."""
        kernel, part, width = self.kernel, block.part, block.part.stop - block.part.start
        if part.start == 0:
            self.query = self.queries.next()
            kernel.load(self.query, q[:, block.start : block.start + P])
        block.scores = self.scores.next()[:, :width]
        for bank in pieces(width, BANK):
            keys = key[:, part.start + bank.start : part.start + bank.stop]
            kernel.matmul(block.scores[:, bank], self.query, keys)
        if causal and block.start < part.stop - 1:
            masked = self.masked.next()[:, :width]
            kernel.copy(masked, block.scores, engine="scalar")
            kernel.select(masked, masked, block.start - part.start, 1, -1, MASKED)
            block.scores = masked
        return block

    def share(self, block: Block) -> Block:
        """Exponentials against the largest score so far, and their sum."""
        kernel, scores, columns = self.kernel, block.scores, self.columns.next()
        assert scores is not None
        most, least, total, fade = block.columns = tuple(columns[:, i : i + 1] for i in range(4))
        kernel.reduce(most, scores, "max")
        if block.before:
            kernel.tensor_tensor(most, most, "max", block.before.columns[0])
        kernel.tensor_scalar(least, most, "multiply", -self.scale)
        block.shares = self.shares.next()[:, : scores.shape[1]]
        kernel.activation(block.shares, "exp", scores, bias=least, scale=self.scale, sums=total)
        if block.before:
            before = block.before.columns[0]
            kernel.activation(fade, "exp", before, bias=least, scale=self.scale)
        return block

    def weigh(self, value: Tile, out: HbmView, block: Block) -> Block:
        """The values weighted so far; the last block of keys divides and stores."""
        kernel, shares, (_, _, total, fade) = self.kernel, block.shares, block.columns
        assert shares is not None
        count, product = shares.shape[1] // P, self.products.next()
        turned = self.turned.next()[:, :count]
        self.turn.strip(turned, shares)
        for i in range(count):
            weights = value[:, block.part.start // P + i]
            kernel.matmul(product, turned[:, i], weights, accumulate=i > 0)
        block.sums = self.sums.next()
        if block.before is None:
            kernel.copy(block.sums, product)
        else:
            sums, before = block.before.sums, block.before.columns[2]
            assert sums is not None
            kernel.scalar_tensor_tensor(total, before, "multiply", fade, "add", total)
            kernel.scalar_tensor_tensor(block.sums, sums, "multiply", fade, "add", product)
        if block.last:
            result = self.outputs.next()
            kernel.reciprocal(total, total)
            kernel.tensor_scalar(result, block.sums, "multiply", total)
            kernel.store(out[block.start : block.start + P], result)
        return block

    def head(self, q: HbmView, out: HbmView, key: Tile, value: Tile, causal: bool) -> None:
        """All queries of one head, 128 at a time, blocks of keys in a pipeline."""
        count = key.shape[1]
        items: list[Block] = []
        for start in range(0, q.shape[1], P):
            before = None
            parts = list(pieces(min(start + P, count) if causal else count, BLOCK))
            for part in parts:
                before = Block(start, part, part == parts[-1], before)
                items.append(before)
        pipelined(
            items,
            partial(self.score, q, key, causal),
            self.share,
            partial(self.weigh, value, out),
            newest_first=True,
        )


def attention(
    core: Core, heads: int, queries: int, keys: int, width: int, groups: int | None = None,
    causal: bool = False, dtype: str = "float32",
) -> InstructionStream:  # fmt: skip
    """q [heads, width, queries], k [groups, width, keys], v [groups, keys, width], all of a
    group's keys in SBUF; `groups` (default: as many as heads) divide the heads.
    """
    kernel, groups = Kernel("attention", core), groups or heads
    q = kernel.input("q", (heads, width, queries), dtype)
    k = kernel.input("k", (groups, width, keys), dtype)
    v = kernel.input("v", (groups, keys, width), dtype)
    out = kernel.output("out", (heads, queries, width), dtype)
    steps = Attention(kernel, keys, width, dtype)
    for group in range(groups):
        key, value = steps.keys.next(), steps.values.next()
        kernel.load(key, k[group])
        kernel.load(value, v[group].split(0, keys // P, P).permute(1, 0, 2))
        for head in range(group * heads // groups, (group + 1) * heads // groups):
            steps.head(q[head], out[head], key, value, causal)
    return kernel.finish()
