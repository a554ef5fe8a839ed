"""Fused attention on Trainium-like cores, what is computed: scores become powers on the chip.

128 queries at a time stand on partitions, all keys along the free axis, so that the greatest score
of each query is one reduction. A product needs what it sums over on partitions, so the powers of a
block of queries are wanted with keys there. `turn` says how they get there:

    scores   the product of keys and queries again, the other way round, less the greatest scores:
             another product, with a diagonal of ones, into the same sums; its powers are in place
    powers   powers of the scores there are, turned on the tensor engine and copied

Powers need more copies out of PSUM, which vector and scalar engine share on Trainium; scores round
the greatest to a dtype of products (see `EIGHTH`). Either way the greatest power of a query is 1,
or near it: none overflows, and sums are not 0. Values have a column of ones beside them, so the
product that mixes them also sums the powers; results are divided by it on their way out of PSUM.

    for sequences: for groups of heads:  load q, k;  kt = k turned;  qt = scale * q turned
      for groups:  load v, 1
        for 128 queries:   s[128, n] = qt.T @ kt      top = max s
                           st[n, 128] = kt.T @ qt - top     pt = exp(st)
                           o = pt.T @ [v, 1]          y = o[:-1] / o[-1]

Two heads of up to 64 features are turned at once: together they fill the tensor engine's rows. The
scores of a group of heads are reduced, and their powers made, by one instruction each. Iterations
are interleaved: each engine works on whichever group is ready for it, as far as the places of tiles
allow, and copies go to whichever of the engines named is free.
"""

from functools import lru_cache
from math import gcd

from tilesmith.families.trainium.schedules.building_blocks.machine import memories
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import Expr, const, minimum
from tilesmith.search_space.expressions.scalar import Const, Load, Scalar, Select, call, rewrite
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.attention_masks import MASKS
from tilesmith.search_space.operators.attention import LOWEST, guarded
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

EIGHTH = 8.0
"""Greatest scores are rounded to 11 bits (fp16) where they are subtracted by the tensor engine. A
power is exp(score - rounded), so it is wrong by the same factor in every key, which the division
takes out; it overflows, or all of a query's vanish, only if rounding moves a score by 80: from
327,000 on. In bf16, which reaches further than fp16, scores stand in PSUM as eighths."""


MOST = -LOWEST
"""Of negated scores the greatest that counts: keys left out are infinitely far from it, so a block
that a mask leaves out whole has powers of 0, not of infinity less infinity. Masks of the least
finite number are not beyond it: keys that are all left out by it are weighed alike."""


class AttentionStages:
    """The stages of one attention.

    Args:
        width: features of a value; scale: factor of the scores.
    """

    def __init__(self, workload: Workload, target: Target, width: int, scale: float) -> None:
        self.workload, self.target = workload, target
        self.m, self.n, self.k = (workload.integer(name) for name in "mnk")
        self.batch, self.heads = workload.integer("batch"), workload.integer("heads")
        self.width, self.scale = width, scale
        self.mask = workload.text("mask")
        self.rows, self.cols = target.integer("tensor.rows"), target.integer("tensor.cols")
        self.wide = min(target.integer("tensor.moving_free"), memories(target)["psum"].bank // 4)
        self.size = size_of(workload.dtype)
        self.capacity = memories(target)["sbuf"].bytes
        self.psum, self.bank = memories(target)["psum"].bytes, memories(target)["psum"].bank

    def __hash__(self) -> int:
        return hash((self.workload, self.width, self.scale))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttentionStages) and (
            (self.workload, self.target, self.width, self.scale)
            == (other.workload, other.target, other.width, other.scale)
        )

    def compute(self, structure: Config) -> ComputeDefinition:
        """The stages, each over sequence b and head h first; the same object for all structures
        that compute the same."""
        text, block = structure.text, self.block(structure)
        pair, fold = structure.integer("pair"), self.fold(structure)
        return _computed(self, pair, text("turn"), text("scores"), block, fold)

    @staticmethod
    def block(structure: Config) -> int:
        """Keys of a block; 0: all of them are one."""
        return structure.integer("block") if structure.text("algorithm") == "blocks" else 0

    @staticmethod
    def fold(structure: Config) -> int:
        """Queries, or keys, that come to a partition in one piece, where that divides them."""
        return structure.integer("fold") if structure.text("algorithm") == "fused" else 1

    def computed(
        self, pair: int, turn: str, scores: str, block: int, fold: int
    ) -> ComputeDefinition:
        """As `compute`, for `pair` heads at a time, `turn` turned, `scores` standing there, blocks
        of `block` keys (0: all of them), and `fold` of queries and keys to a partition."""
        stages = _Stages(self.batch, self.heads, self.workload.dtype, self.n, block)
        m, n, k, e = (
            axis(name, extent)
            for name, extent in (("m", self.m), ("n", self.n), ("k", self.k), ("e", self.width))
        )
        one = axis("e1", self.width + 1)
        again = turn == "scores"
        g, f = axis("g", -(-self.heads // pair)), axis("f", pair * self.k)
        b, h, at = stages.b, stages.h, stages.at
        for name, along in (("k", n), ("q", m)):
            axes = (g, along, f)
            self._strip(stages, name, axes, pair, gcd(fold, along.extent.constant or 1))
            shares = gcd(fold, along.extent.constant or 1)
            value: Scalar = at(f"{name}.turned", *axes)
            if shares > 1:
                index = b.var, g.var, along.var // shares, along.var % shares, f.var
                value = Load(f"{name}.turned", index)
            if name == "q":
                factor = self.scale / self.eighth if again else -self.scale
                value = call("multiply", value, factor)
            stages.map(f"{name}t", axes, value)
        inside = (const(self.width - 1) - one.var,)
        stages.map("v.ones", (h, n, one), Select(inside, at("v", h, n, one), Const(1.0)))
        queries, keys = (
            Load(name, (b.var, h.var // pair, along.var, h.var % pair * self.k + k.var))
            for name, along in (("qt", m), ("kt", n))
        )
        stages.total("s", (m, n), call("multiply", queries, keys), k, "sum")
        if again:
            again_turned = call("multiply", keys, queries)
            self._scores_turned(stages, scores, again_turned, m, n, k)
        else:
            self._powers_turned(stages, scores, m, n)
        powers = Load("pt", (b.var, h.var, m.var, stages.key))
        mixed = call("multiply", powers, Load("v.ones", (b.var, h.var, stages.key, one.var)))
        stages.total("o", (*stages.lead, m, one), mixed, stages.keys, "sum")
        if block:
            self._merged(stages, m, one, again)
        total = "whole" if block else "o"
        sums = Load(total, (b.var, h.var, m.var, const(self.width)))
        result: Scalar = call("divide", at(total, h, m, e), sums)
        guard = self.workload.integer("guard")
        if guard == 2:
            result = call("where", call("equal", sums, 0.0), 0.0, result)
        elif block and guard:
            result = call("where", call("greater", sums, 0.0), result, 0.0)
        else:
            result = guarded(self.workload, sums, result)
        stages.map("row", (h, m, e), result)
        stages.map("y", (h, m, e), at("row", h, m, e))
        return ComputeDefinition("attention", self._tensors(), tuple(stages.written))

    def _strip(
        self, stages: "_Stages", name: str, axes: tuple[Axis, Axis, Axis], pair: int, fold: int
    ) -> None:
        """Queries or keys as they come, and turned; `fold` of them stand on a partition."""
        g, along, f = axes
        if fold == 1:
            stages.map(f"{name}.strip", axes, self._head(name, stages.b, g, along, f, pair))
            stages.map(f"{name}.turned", axes, stages.at(f"{name}.strip", *axes))
            return
        place = axis(f"{along.name}p", (along.extent.constant or 1) // fold)
        beside = axis(f"{along.name}j", fold)
        index = stages.b.var, g.var, place.var * fold + beside.var, f.var
        stages.map(f"{name}.strip", (g, place, beside, f), Load(name, index))
        split = g, place, beside, f
        stages.map(f"{name}.turned", split, stages.at(f"{name}.strip", *split))

    def bounded(self, block: int) -> bool:
        """Whether keys of a block, or all, may be left out whole by a mask: see `MOST`."""
        guard = self.workload.integer("guard")
        return guard == 2 or (bool(block) and (self.mask != "none" or bool(guard)))

    @property
    def eighth(self) -> float:
        """What scores are divided by in PSUM (see `EIGHTH`)."""
        return EIGHTH if self.workload.dtype == "bfloat16" else 1.0

    def _merged(self, stages: "_Stages", m: Axis, one: Axis, again: bool) -> None:
        """Blocks of keys become one: each is faded by how far its greatest score is below that of
        all. `part` is what a block leaves: sums of values, of powers, and its greatest score."""
        b, h, g = stages.b, stages.h, stages.lead[0]
        state = axis("e2", self.width + 2)
        inside = (const(self.width) - state.var,)
        most: Scalar = stages.at("bound" if self.bounded(stages.block) else "top", h, g, m)
        part = Select(inside, stages.at("o", h, g, m, state), most)
        stages.map("part", (h, g, m, state), part, "float32")
        last = const(self.width + 1)
        most = Load("part", (b.var, h.var, g.var, m.var, last))
        stages.total("most", (m,), most, g, "max" if again else "min")
        less = call("subtract", most, stages.at("most", h, m))
        if not again:
            less = call("subtract", stages.at("most", h, m), most)
        elif self.eighth != 1.0:
            less = call("multiply", less, self.eighth)
        stages.map("fade", (h, g, m), call("exp", less), "float32")
        faded = call("multiply", stages.at("fade", h, g, m), stages.at("part", h, g, m, one))
        stages.total("whole", (m, one), faded, g, "sum")

    def _scores_turned(
        self, stages: "_Stages", where: str, product: Scalar, m: Axis, n: Axis, k: Axis
    ) -> None:
        """Powers of scores made again with keys on partitions, less each query's greatest."""
        b, h, at = stages.b, stages.h, stages.at
        kind = "float32" if self.size == 4 else "float16"
        size = min(self.m, self.cols)
        row, cols = axis("i", size), axis("j", size)
        diagonal = (row.var - cols.var, cols.var - row.var)
        unit = Select(diagonal, Const(-1.0), Const(0.0))
        stages.written.append(Stage("unit", (row, cols), unit, dtype=kind))
        scores = at("s", h, m, n)
        if where == "sbuf":
            stages.map("t", (h, m, n), scores, kind)
            scores = at("t", h, m, n)
        stages.total("top", (*stages.lead, m), stages.in_block(scores), stages.keys, "max", kind)
        stages.total("product", (m, n), product, k, "sum")
        first, place = const(0), m.var
        if self.m > size or stages.block:
            first, place = m.var // size * size, m.var % size
        top = Load("top", (b.var, h.var, *stages.block_of(n), first + row.var))
        less = call("multiply", top, Load("unit", (row.var, place)))
        stages.total("st", (m, n), less, row, "sum", onto="product")
        shifted: Scalar = at("st", h, m, n)
        if self.eighth != 1.0:
            shifted = call("multiply", shifted, self.eighth)
        stages.map("pt", (h, m, n), call("exp", shifted))

    def _powers_turned(self, stages: "_Stages", where: str, m: Axis, n: Axis) -> None:
        """Powers of the scores there are, turned; scores are negated, so the least is greatest."""
        b, h, at = stages.b, stages.h, stages.at
        scores = at("s", h, m, n)
        if self.mask == "row":
            z = axis("z", 1)
            stages.map("mask.strip", (z, n), Load("mask", (b.var, n.var)))
            stages.written.append(Stage("ones", (z, m), Const(-1.0), dtype=self.workload.dtype))
            less = call("multiply", Load("ones", (z.var, m.var)), at("mask.strip", z, n))
            stages.total("s.masked", (m, n), less, z, "sum", onto="s")
            scores = at("s.masked", h, m, n)
        if where == "sbuf":
            value: Scalar = scores
            if self.mask not in ("none", "row"):
                where_in = {"b": b.var, "h": h.var, "m": m.var, "n": n.var}
                index = tuple(where_in[name] for name in MASKS[self.mask])
                value = call("subtract", scores, Load("mask", index))
            stages.map("t", (h, m, n), value, "float32")
            scores = at("t", h, m, n)
        stages.total("top", (*stages.lead, m), stages.in_block(scores), stages.keys, "min")
        if self.bounded(stages.block):
            lead = (h, *stages.lead, m)
            least = call("minimum", at("top", *lead), MOST)
            stages.map("bound", lead, least, "float32")
        name = "bound" if self.bounded(stages.block) else "top"
        top = Load(name, (b.var, h.var, *stages.block_of(n), m.var))
        stages.map("p", (h, m, n), call("exp", call("subtract", top, scores)))
        stages.map("p.turned", (h, m, n), at("p", h, m, n))
        stages.map("pt", (h, m, n), at("p.turned", h, m, n))

    def _head(self, name: str, b: Axis, g: Axis, along: Axis, f: Axis, pair: int) -> Load:
        """Feature f of pair g; an odd last head stands beside itself."""
        if pair == 1:
            return Load(name, (b.var, g.var, along.var, f.var))
        head = g.var * pair + f.var // self.k
        if self.heads % pair:
            head = minimum(head, self.heads - 1)
        return Load(name, (b.var, head, along.var, f.var % self.k))

    def _tensors(self) -> tuple[Tensor, ...]:
        lead = (self.batch, self.heads)
        shapes: dict[str, tuple[int, ...]] = {
            "q": (*lead, self.m, self.k),
            "k": (*lead, self.n, self.k),
            "v": (*lead, self.n, self.width),
        }
        if self.mask != "none":
            sizes = {"b": self.batch, "h": self.heads, "m": self.m, "n": self.n}
            shapes["mask"] = tuple(sizes[name] for name in MASKS[self.mask])
        return tuple(Tensor(name, shape, self.workload.dtype) for name, shape in shapes.items())


class _Stages:
    """Stages of one attention as they are written down, each over sequences (and heads) first.

    Attributes:
        lead: the axis of blocks of keys, if there are any; keys: that of the keys of one.
        key: number of the key that these say.
    """

    def __init__(self, batch: int, heads: int, dtype: str, keys: int, block: int) -> None:
        self.b, self.h, self.dtype = axis("b", batch), axis("h", heads), dtype
        self.written: list[Stage] = []
        self.block = block
        self.lead: tuple[Axis, ...] = ()
        self.keys = axis("n", keys)
        self.key = self.keys.var
        if block:
            g = axis("gn", -(-keys // block))
            self.lead = (g,)
            self.keys = axis("n", minimum(block, keys - g.var * block))
            self.key = g.var * block + self.keys.var

    def in_block(self, value: Scalar) -> Scalar:
        """What is said of all keys, said of one block's."""
        return rewrite(value, lambda e: e.substitute({"n": self.key})) if self.block else value

    def block_of(self, n: Axis) -> tuple[Expr, ...]:
        """The block in which a key of all is."""
        return (n.var // self.block,) if self.block else ()

    def at(self, name: str, *axes: Axis) -> Load:
        return Load(name, (self.b.var, *(a.var for a in axes)))

    def map(self, name: str, axes: tuple[Axis, ...], value: Scalar, dtype: str = "") -> None:
        self.written.append(Stage(name, (self.b, *axes), value, dtype=dtype or self.dtype))

    def total(
        self, name: str, axes: tuple[Axis, ...], value: Scalar, over: Axis, how: str,
        dtype: str = "float32", onto: str = "",
    ) -> None:  # fmt: skip
        spatial = (self.b, self.h, *axes)
        self.written.append(Stage(name, spatial, value, (over,), how, dtype=dtype, onto=onto))


@lru_cache(maxsize=64)
def _computed(
    stages: AttentionStages, pair: int, turn: str, scores: str, block: int, fold: int
) -> ComputeDefinition:
    return stages.computed(pair, turn, scores, block, fold)
