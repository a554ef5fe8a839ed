"""Fused attention on Trainium-like cores: the space of its schedules.

What is turned (`attention_stages`), where scores stand, how many heads are turned and
reduced at once, how many places tiles have in SBUF and PSUM, and which engines copy.
"""

from math import gcd

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.schedules.building_blocks.common import (
    PARTITIONS_APART,
    CoreScheduler,
)
from tilesmith.families.trainium.schedules.building_blocks.machine import FLOATS
from tilesmith.families.trainium.schedules.fused_attention.attention_blocks import (
    COPIERS,
    PLACES,
    AttentionBlocks,
)
from tilesmith.families.trainium.schedules.fused_attention.attention_schedule import TURNED
from tilesmith.search_space.expressions.expression import Expr, const, var
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operators.attention import Attention, selects
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, choice, count
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload

COPIES = (1, 2, 3, 4, 6, 8)
"""Of each tile in SBUF: groups of heads, or blocks of queries, that are under way at once."""

FOLDS = (2, 4, 8, 16)
"""Queries, or keys, that come to a partition in one piece."""

LONG_RUN = 2048
"""Bytes of a run that needs no others beside it: the least the DMA bandwidth guide asks for."""

GROUPS = (1, 2, 3, 4, 6, 8)
"""Heads whose scores are reduced at once."""


class AttentionSpace(AttentionBlocks):
    """Space of one attention."""

    def ways(self) -> tuple[tuple[str, str], ...]:
        """What is turned, and where scores stand, the best first.

        A row of a mask is added by the tensor engine (ones times the row), a whole mask where
        scores are copied to SBUF: the identity would multiply its infinities by 0.

        Where scores are turned, blocks of queries must be whole: each is a row of the diagonal. In
        fp32 products are dear, so that powers are turned instead, and so they are of many keys
        unless vector and scalar engine share PSUM: copies are divided between them while the tensor
        engine is busiest. Where they share it, many scores are copied to SBUF by one engine, to be
        reduced beside it by the other.
        """
        powers = (("powers", "psum"), ("powers", "sbuf"))
        if self.mask not in ("none", "row"):
            return powers[1:]
        many = self.n > 2 * self.cols
        if many and (self.size == 2 or not self.shared):
            powers = powers[::-1]
        if self.mask == "row" or self.workload.integer("guard"):
            return powers  # the diagonal would spread what is not a number
        whole = self.m <= self.cols or self.m % self.cols == 0
        first, other = ("sbuf", "psum") if self.shared and many else ("psum", "sbuf")
        again = (("scores", first), ("scores", other)) if whole else ()
        if many and not self.shared:
            return (*powers, *again)
        cheap = self.size == 2 and self.k <= self.rows
        return (*again, *powers) if cheap else (*powers, *again)

    def space(self) -> SearchSpace:
        """What is turned, where scores stand, heads together, places of tiles, engines."""
        spaces = [
            self._subspace(turn, scores, group, pair, fold)
            for turn, scores in self.ways()
            for group in self.groups(turn, scores)
            for pair in self.pairs(group)
            for fold in self.folds(pair)
        ]
        for turn, scores in self.ways():
            spaces += self.blocks(turn, scores)
        kept = tuple(s for s in spaces if s.size)
        return SearchSpace(kept or (spaces[-1],))

    def groups(self, turn: str, scores: str) -> tuple[int, ...]:
        """How many heads' scores may be reduced at once: all groups are alike, and no head's scores
        or results leave a PSUM bank where they begin inside one."""
        row = self.n if (turn, scores) == ("powers", "psum") else min(self.n, self.wide)

        def whole(group: int) -> bool:
            banks = row % self.wide == 0 or self.wide % row == 0 or group * row <= self.wide
            return group == 1 or (banks and group * (self.width + 1) <= self.wide)

        return tuple(group for group in GROUPS if self.heads % group == 0 and whole(group))

    def pairs(self, group: int) -> tuple[int, ...]:
        """How many heads may be turned together, where a group has `group`."""
        if 2 * self.k > self.rows or self.k % PARTITIONS_APART or self.heads == 1:
            return (1,)
        return (1, 2) if group == 1 or group % 2 == 0 else (1,)

    def folds(self, pair: int) -> tuple[int, ...]:
        """How many queries and keys may come to a partition in one piece: 1, and what makes runs no
        longer than `LONG_RUN`; heads turned together have no runs of several."""
        tiles = self.cols * TURNED
        whole = all(x <= tiles or x % tiles == 0 for x in (self.m, self.n))
        if pair != 1 or not whole:
            return (1,)
        shared = gcd(self.m, self.n)
        fits = (f for f in FOLDS if shared % f == 0 and f * self.k * self.size <= LONG_RUN)
        return (1, *(f for f in fits if all(self._even(x, f) for x in (self.m, self.n))))

    def _even(self, extent: int, fold: int) -> bool:
        """Whether what is turned together begins at the first partition, each time."""
        group = min(extent, self.cols * TURNED) // fold
        return extent // fold <= self.rows or group % self.rows == 0

    def _busy(self, fold: int, pair: int) -> int:
        """ns, roughly, that DMA or the tensor engine is busy, and a tenth of the other: rows cost
        more than their bytes, and short tiles take as much to turn as long ones."""
        number = self.target.number
        over = number("dma.row_overhead_bytes")

        def moved(rows: float, width: int) -> float:
            return rows * (width * self.size + over)

        rows = self.m + self.n
        bytes_ = moved(rows / fold, fold * self.k) + moved(rows, self.width)
        factor, extra = (1.0, 0.0) if self.size == 2 else (
            number("tensor.fp32_factor"), number("tensor.fp32_pass_overhead"))  # fmt: skip
        least = number("tensor.min_ii")

        def passes(count: float, columns: float) -> float:
            return count * (max(least, columns) + extra) * factor

        cycles = 3 * passes(-(-self.m // self.cols), self.n)
        for extent in (self.m, self.n):
            tile = min(self.cols, extent / fold)
            cycles += passes(extent / tile, tile) / pair
        heads = self.batch * self.heads
        dma = heads * bytes_ / (number("dma.gbps_practical") * number("dma.engines"))
        tensor = heads * cycles / number("tensor.ghz")
        return int(max(dma, tensor) + min(dma, tensor) / 10)

    def _subspace(self, turn: str, scores: str, group: int, pair: int, fold: int) -> Subspace:
        what = "bytes of {} a partition that the tiles take"
        limits = (
            Constraint(self._sbuf(turn, scores, group, pair), self.capacity, what.format("SBUF")),
            Constraint(self._psum(turn, scores, group), self.psum, what.format("PSUM"),
                       "choose fewer places"),
        )  # fmt: skip
        fixed = (
            ("algorithm", "fused"), ("fold", fold), ("group", group), ("pair", pair),
            ("scores", scores), ("turn", turn),
        )  # fmt: skip
        engines: dict[str, tuple[str, ...]]
        engines = {"keys": COPIERS, "queries": COPIERS[1:] + COPIERS[:1]}
        if turn == "powers":
            engines["powers"] = COPIERS
        if scores == "sbuf":
            engines |= {"passing": COPIERS, "top": self.reducers}
        knobs = (
            count("copies", COPIES, setting=True),
            *(count(name, PLACES, setting=True) for name in ("places", "turning", "strips")),
            *(choice(name, values, setting=True) for name, values in engines.items()),
        )  # fmt: skip
        return Subspace(fixed, knobs, limits)

    def _sbuf(self, turn: str, scores: str, group: int, pair: int) -> Expr:
        """Bytes a partition."""
        keys, queries = -(-self.n // self.rows), -(-self.m // self.rows)
        heads = max(group, pair)
        strips = (keys + queries) * heads * self.k * self.size
        turned = heads // pair * -(-pair * self.k // self.rows) * (self.n + self.m) * self.size
        values = group * keys * self._aligned(self.width + 1) * self.size
        flat = self.n if turn == "powers" else 0
        powers = group * (flat + keys * self.cols + self.width) * self.size
        masked = self.mask != "none"
        width = self.n * 4 if turn == "powers" else min(self.n, self.wide) * self.size
        kept = width * group * (1 + masked) if scores == "sbuf" else 0
        spread = 8 * min(self.n, 2048) * (4 + self.size) if masked else 0
        each = strips + turned + values + powers + kept + 4 * 64
        return var("copies") * each + spread + self.cols * 4

    def _psum(self, turn: str, scores: str, group: int) -> Expr:
        """Bytes a partition."""
        tiles = [min(TURNED, -(-extent // self.cols)) for extent in (self.n, self.m)]
        strips = [tile * self.cols * self.size for tile in tiles]
        size = self.size if turn == "powers" else 4
        turned = [group * self.together(group) * self.cols * size]
        wide = self.n if (turn, scores) == ("powers", "psum") else min(self.n, self.wide)
        kept = [group * wide * 4, group * (self.width + 1) * 4]
        total = const(0)
        for name, sizes in (("strips", strips), ("turning", turned), ("places", kept)):
            total = total + var(name) * sum(map(self._space_of, sizes))
        return total

    def inside(self) -> Config:
        """The default between kernels that keep queries and keys on chip, a row a partition."""
        return self._best(folded=False)

    def default(self) -> Config:
        """Many chains under way, two heads at once, copies by whichever engine is free."""
        return self._best(folded=True)

    def _best(self, folded: bool) -> Config:
        space = self.space()
        kept = [s for s in space.subspaces if folded or dict(s.fixed).get("fold", 1) == 1]
        candidates = [best for subspace in kept if (best := self._usual(subspace))]
        if not candidates:
            space.validate(space.subspaces[0].config(space.subspaces[0].rows(0, 1)[0]))
        return min(candidates, key=lambda one: one[0])[1]

    def _usual(self, subspace: Subspace) -> tuple[tuple[int, ...], Config] | None:
        """The best legal configuration with the first value of every knob that is not a number, and
        its rank (lower is better)."""
        free = [len(knob.values) if knob.ordered else 1 for knob in subspace.knobs]
        rows = np.array(list(np.ndindex(*free)), dtype=np.int64)
        rows = rows[subspace.legal(rows)]
        if not len(rows):
            return None
        first = subspace.config(rows[0])
        at = {knob.name: place for place, knob in enumerate(subspace.knobs) if knob.ordered}

        def number(name: str) -> NDArray[np.int64]:
            if name not in at:
                return np.full(len(rows), first.integer(name))
            return np.array(subspace.knobs[at[name]].values)[rows[:, at[name]]].astype(np.int64)

        places, turning, strips, copies = map(number, ("places", "turning", "strips", "copies"))
        away = 2 * self.ways().index((first.text("turn"), first.text("scores")))
        least, block = np.minimum(places, turning), self.block(first)
        if block:
            away, copies = away + 1, np.minimum(copies, number("ahead"))
        busy = 0 if block else self._busy(first.integer("fold"), first.integer("pair"))
        ranks = np.stack(
            [
                -np.minimum(np.minimum(least, copies), 2), np.full(len(rows), away),
                -np.minimum(least, 3), np.full(len(rows), busy), -number("pair"),
                abs(number("group") - 2), np.full(len(rows), -block),
                -places - turning - strips, -strips, -copies,
            ]
        )  # fmt: skip
        best = int(np.lexsort(ranks[::-1])[0])
        return tuple(ranks[:, best].tolist()), subspace.config(rows[best])


@schedules("attention", on="trainium")
class AttentionOnCore(CoreScheduler):
    """See the module's docstring."""

    dtypes = FLOATS

    def refusal(self, workload: Workload, target: Target) -> str | None:
        if selects(workload):
            return f"masks of attention are added, they do not select, on target '{target.name}'"
        return super().refusal(workload, target)

    def prepare(self, workload: Workload, target: Target) -> AttentionSpace:
        return AttentionSpace(
            workload, target, Attention.width(workload), Attention.scale(workload)
        )

    def inside(self, workload: Workload, target: Target) -> Config:
        return self.prepare(workload, target).inside()
