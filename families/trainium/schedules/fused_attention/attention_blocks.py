"""Fused attention on Trainium-like cores in blocks of keys: the space of its schedules.

Where a row of scores and its powers are long, few fit into SBUF, so that engines wait for each
other, or none. In blocks what stands there of scores is a block's, however many keys there are;
keys and values are a head's, or, where these are too many, a block's as well, which are then loaded
and turned again for each 128 queries.

Each block has a greatest score of its own, and leaves its sums and that in a row (`part`); at the
end the sums are faded and added up. A maximum that runs over blocks gives the same numbers, but
each block would wait for the one before; this way they overlap, at four bytes for each feature of
a value and block.
Source: Dao et al., FlashAttention, 2022; Dao et al., Flash-Decoding, 2023, for the parts.
"""

from tilesmith.families.trainium.schedules.fused_attention.attention_schedule import (
    TURNED,
    AttentionSchedule,
)
from tilesmith.search_space.expressions.expression import Expr, const, var
from tilesmith.search_space.spaces.knobs import Constraint, choice, count
from tilesmith.search_space.spaces.subspace import Subspace

COPIERS = ("scalar|vector", "scalar", "vector")
"""Engines that may copy turned tiles out of PSUM (gpsimd does not reach it)."""

REDUCERS = ("vector", "gpsimd", "vector|gpsimd")
"""Engines that may find the greatest of scores in SBUF."""

PLACES = (1, 2, 3, 4)
"""Of tiles in PSUM: of scores and results (`places`), of what becomes powers (`turning`), and of
turned queries and keys (`strips`)."""

BLOCKS = (512, 1024, 2048)
"""Keys of a block."""

HOLDS = ("head", "block")
"""Keys and values in SBUF: all of a head's, or those of a block, again for each block of queries.
"""


class AttentionBlocks(AttentionSchedule):
    """The part of an attention's space that has blocks of keys."""

    @property
    def shared(self) -> bool:
        """Whether vector and scalar engine cannot use PSUM at once."""
        return bool(self.target.fact("exclusive.vector_scalar_psum").value)

    @property
    def reducers(self) -> tuple[str, ...]:
        """`REDUCERS`, the best first: gpsimd helps where it does not keep vector from SBUF."""
        together = bool(self.target.fact("exclusive.vector_gpsimd_sbuf").value)
        return REDUCERS if together else REDUCERS[::-1]

    def blocks(self, turn: str, scores: str) -> list[Subspace]:
        """Schedules in blocks of keys: those that keep a head's keys and values in SBUF; where they
        do not fit, or there is one block of queries, those that keep a block's."""
        subspaces = []
        for block in BLOCKS:
            if block >= self.n:
                continue
            head, again = (self._subspace_of_blocks(turn, scores, block, hold) for hold in HOLDS)
            subspaces += [one for one in (head,) if one.size]
            if self.m <= self.cols or not head.size:
                subspaces.append(again)
        return subspaces

    def _subspace_of_blocks(self, turn: str, scores: str, block: int, hold: str) -> Subspace:
        what = "bytes of {} a partition that the tiles take"
        limits = (
            Constraint(self._blocks_sbuf(turn, scores, block, hold), self.capacity,
                       what.format("SBUF")),
            Constraint(self._blocks_psum(turn, scores, block), self.psum, what.format("PSUM"),
                       "choose fewer places"),
        )  # fmt: skip
        fixed = (
            ("algorithm", "blocks"), ("block", block), ("group", 1), ("hold", hold), ("pair", 1),
            ("scores", scores), ("turn", turn),
        )  # fmt: skip
        engines: dict[str, tuple[str, ...]]
        engines = {"keys": COPIERS, "queries": COPIERS[1:] + COPIERS[:1], "keeping": COPIERS}
        engines["merging"] = self.reducers
        if turn == "powers":
            engines["powers"] = COPIERS
        if scores == "sbuf":
            engines |= {"passing": COPIERS, "top": self.reducers}
        knobs = (
            count("heads", (1, 2), setting=True),
            *(count(name, (1, 2, 3, 4), setting=True) for name in ("copies", "ahead")),
            *(count(name, PLACES, setting=True) for name in ("places", "turning", "strips")),
            *(choice(name, values, setting=True) for name, values in engines.items()),
        )  # fmt: skip
        return Subspace(fixed, knobs, limits)

    def _blocks_sbuf(self, turn: str, scores: str, block: int, hold: str) -> Expr:
        """Bytes a partition, in blocks of keys."""
        deep, size = -(-self.k // self.rows), self.size
        held = self.n if hold == "head" else block
        held = deep * held * size + -(-held // self.rows) * self._aligned(self.width + 1) * size
        strips = (TURNED + 1) * self.k * size + 128
        queries = deep * self.cols * size + self.width * size
        queries += -(-self.n // block) * (self.width + 4) * 4 + (self.width + 1) * 4 + 6 * 64
        powers = (block * (turn == "powers") + -(-block // self.rows) * self.cols) * size + 3 * 64
        masked = self.mask != "none"
        wide = block * 4 if turn == "powers" else min(block, self.wide) * size
        powers += wide * (1 + masked) if scores == "sbuf" else 0
        spread = 8 * min(self.n, 2048) * (4 + size) if masked else 0
        each = (var("heads" if hold == "head" else "ahead"), held), (var("copies"), queries)
        total = const(spread + self.cols * 4)
        for places, taken in (*each, (var("ahead"), powers), (var("strips"), strips)):
            total = total + places * taken
        return total

    def _blocks_psum(self, turn: str, scores: str, block: int) -> Expr:
        """Bytes a partition, in blocks of keys."""
        strips = [TURNED * self.cols * self.size, self.cols * self.size]
        turned = [self.together(1) * self.cols * (self.size if turn == "powers" else 4)]
        wide = block if (turn, scores) == ("powers", "psum") else min(block, self.wide)
        total = const(0)
        for name, sizes in (
            ("strips", strips), ("turning", turned), ("places", [wide * 4, (self.width + 1) * 4])
        ):  # fmt: skip
            total = total + var(name) * sum(map(self._space_of, sizes))
        return total

    def _aligned(self, elements: int) -> int:
        """Elements of a row of values whose bytes no other row's transfer touches."""
        step = max(1, 64 // self.size)
        return -(-elements // step) * step

    def _space_of(self, size: int) -> int:
        """Bytes of PSUM so that no tile straddles banks: a power of two, or whole banks."""
        if size > self.bank:
            return -(-size // self.bank) * self.bank
        return max(64, 1 << (size - 1).bit_length())
