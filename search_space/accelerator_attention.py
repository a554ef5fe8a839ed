"""Fused attention on Trainium-like cores: scores go from PSUM to powers on the chip.

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

from __future__ import annotations

import numpy as np

from search_space.accelerator import partitioned
from search_space.compute import Axis, ComputeDefinition, Stage, Tensor, axis
from search_space.config import Config
from search_space.dtypes import size_of
from search_space.expression import Expr, const, minimum, var
from search_space.knobs import Constraint, choice, count
from search_space.layout import Layout, LayoutDimension
from search_space.scalar import Const, Load, Scalar, Select, call
from search_space.schedule import Schedule
from search_space.space import SearchSpace, Subspace
from search_space.target import Target
from search_space.workload import Workload

TURNED = 4
"""Turned tiles that share a PSUM bank and one copy out of it."""

MASKS = {"row": "bn", "full": "bmn", "shared": "mn", "heads": "hmn", "each": "bhmn"}
"""Axes of a mask by its kind: sequences, heads, queries, keys."""

COPIERS = ("scalar|vector", "scalar", "vector")
"""Engines that may copy turned tiles out of PSUM (gpsimd does not reach it)."""

REDUCERS = ("vector", "gpsimd", "vector|gpsimd")
"""Engines that may find the greatest of scores in SBUF."""

EIGHTH = 8.0
"""Greatest scores are rounded to 11 bits (fp16) where they are subtracted by the tensor engine. A
power is exp(score - rounded), so it is wrong by the same factor in every key, which the division
takes out; it overflows, or all of a query's vanish, only if rounding moves a score by 80: from
327,000 on. In bf16, which reaches further than fp16, scores stand in PSUM as eighths."""

COPIES = (1, 2, 3, 4, 6, 8)
"""Of each tile in SBUF: groups of heads, or blocks of queries, that are under way at once."""

PLACES = (1, 2, 3, 4)
"""Of tiles in PSUM: of scores and results (`places`), of what becomes powers (`turning`), and of
turned queries and keys (`strips`)."""

GROUPS = (1, 2, 3, 4, 6, 8)
"""Heads whose scores are reduced at once."""


class AttentionSpace:
    """Space and schedule of one attention.

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
        self.wide = target.integer("tensor.moving_free")
        self.size = size_of(workload.dtype)
        self.capacity = target.integer("sbuf.mib") * 2**20 // target.integer("sbuf.partitions")
        self.psum = target.integer("psum.mib") * 2**20 // target.integer("psum.partitions")
        self.bank = self.psum // target.integer("psum.banks")

    # -- space --------------------------------------------------------------------------------
    def ways(self) -> tuple[tuple[str, str], ...]:
        """What is turned, and where scores stand, the best first.

        A row of a mask is added by the tensor engine (ones times the row), a whole mask where
        scores are copied to SBUF: the identity would multiply its infinities by 0.

        Where scores are turned, blocks of queries must be whole: each is a row of the diagonal. In
        fp32 products are dear, so that powers are turned instead. Where vector and scalar engine
        share PSUM, many scores are copied to SBUF by one to be reduced beside the other.
        """
        powers = (("powers", "psum"), ("powers", "sbuf"))
        if self.mask != "none":
            return powers if self.mask == "row" else powers[1:]
        whole = self.m <= self.cols or self.m % self.cols == 0
        shared = bool(self.target.fact("exclusive.vector_scalar_psum").value)
        first, other = ("sbuf", "psum") if shared and self.n > 2 * self.cols else ("psum", "sbuf")
        again = (("scores", first), ("scores", other)) if whole else ()
        return (*again, *powers) if self.size == 2 else (*powers, *again)

    def space(self) -> SearchSpace:
        """What is turned, where scores stand, heads together, places of tiles, engines."""
        spaces = [
            self._subspace(turn, scores, group, pair)
            for turn, scores in self.ways()
            for group in self.groups(turn, scores)
            for pair in self.pairs(group)
        ]
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
        if 2 * self.k > self.rows or self.heads == 1:
            return (1,)
        return (1, 2) if group == 1 or group % 2 == 0 else (1,)

    def _subspace(self, turn: str, scores: str, group: int, pair: int) -> Subspace:
        what = "bytes of {} a partition that the tiles take"
        limits = (
            Constraint(self._sbuf(turn, scores, group, pair), self.capacity, what.format("SBUF")),
            Constraint(self._psum(turn, scores, group), self.psum, what.format("PSUM"),
                       "choose fewer places"),
        )  # fmt: skip
        fixed = (
            ("algorithm", "fused"), ("group", group), ("pair", pair), ("scores", scores),
            ("turn", turn),
        )  # fmt: skip
        knobs = (
            count("copies", COPIES), count("places", PLACES), count("turning", PLACES),
            count("strips", PLACES),
            choice("keys", COPIERS), choice("queries", COPIERS[1:] + COPIERS[:1]),
            *((choice("powers", COPIERS),) if turn == "powers" else ()),
            *((choice("passing", COPIERS), choice("top", REDUCERS)) if scores == "sbuf" else ()),
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

    def _aligned(self, elements: int) -> int:
        """Elements of a row of values whose bytes no other row's transfer touches."""
        step = max(1, 64 // self.size)
        return -(-elements // step) * step

    def _psum(self, turn: str, scores: str, group: int) -> Expr:
        """Bytes a partition."""
        tiles = [min(TURNED, -(-extent // self.cols)) for extent in (self.n, self.m)]
        strips = [tile * self.cols * self.size for tile in tiles]
        size = self.size if turn == "powers" else 4
        turned = [group * self._together(group) * self.cols * size]
        wide = self.n if (turn, scores) == ("powers", "psum") else min(self.n, self.wide)
        kept = [group * wide * 4, group * (self.width + 1) * 4]
        total = const(0)
        for name, sizes in (("strips", strips), ("turning", turned), ("places", kept)):
            total = total + var(name) * sum(map(self._place, sizes))
        return total

    def _together(self, group: int) -> int:
        """Tiles of a head's powers that are turned before they are copied."""
        return min(max(1, TURNED // group), -(-self.n // self.cols))

    def _place(self, size: int) -> int:
        """Bytes of PSUM so that no tile straddles banks: a power of two, or whole banks."""
        if size > self.bank:
            return -(-size // self.bank) * self.bank
        return max(64, 1 << (size - 1).bit_length())

    def default(self) -> Config:
        """Many chains under way, two heads at once, copies by whichever engine is free."""
        space = self.space()
        found = [config for subspace in space.subspaces for config in self._candidates(subspace)]
        if not found:
            space.validate(space.subspaces[0].config(space.subspaces[0].rows(0, 1)[0]))

        def rank(config: Config) -> tuple[int, ...]:
            number = config.integer
            away = self.ways().index((config.text("turn"), config.text("scores")))
            places, turning, strips = map(number, ("places", "turning", "strips"))
            least = min(places, turning)
            most = -min(least, 3), -number("pair"), abs(number("group") - 2)
            rest = -places - turning - strips, -strips, -number("copies")
            return (-min(least, number("copies"), 2), away, *most, *rest)

        return min(found, key=rank)

    def _candidates(self, subspace: Subspace) -> list[Config]:
        """Legal configurations with the first value of every knob that is not a number."""
        free = [len(knob.values) if knob.ordered else 1 for knob in subspace.knobs]
        rows = np.array(list(np.ndindex(*free)), dtype=np.int64)
        return [subspace.config(row) for row in rows[subspace.legal(rows)]]

    # -- computation --------------------------------------------------------------------------
    def compute(self, structure: Config) -> ComputeDefinition:
        """The stages, each over sequence b and head h first."""
        stages = _Stages(self.batch, self.heads, self.workload.dtype)
        m, n, k, e = (
            axis(name, extent)
            for name, extent in (("m", self.m), ("n", self.n), ("k", self.k), ("e", self.width))
        )
        one, pair = axis("e1", self.width + 1), structure.integer("pair")
        again = structure.text("turn") == "scores"
        g, f = axis("g", -(-self.heads // pair)), axis("f", pair * self.k)
        b, h, at = stages.b, stages.h, stages.at
        for name, along in (("k", n), ("q", m)):
            axes = (g, along, f)
            stages.map(f"{name}.strip", axes, self._head(name, b, g, along, f, pair))
            stages.map(f"{name}.turned", axes, at(f"{name}.strip", *axes))
            value: Scalar = at(f"{name}.turned", *axes)
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
            self._scores_turned(stages, structure.text("scores"), again_turned, m, n, k)
        else:
            self._powers_turned(stages, structure.text("scores"), m, n)
        mixed = call("multiply", at("pt", h, m, n), at("v.ones", h, n, one))
        stages.total("o", (m, one), mixed, n, "sum")
        sums = Load("o", (b.var, h.var, m.var, const(self.width)))
        stages.map("row", (h, m, e), call("divide", at("o", h, m, e), sums))
        stages.map("y", (h, m, e), at("row", h, m, e))
        return ComputeDefinition("attention", self._tensors(), tuple(stages.found))

    @property
    def eighth(self) -> float:
        """What scores are divided by in PSUM (see `EIGHTH`)."""
        return EIGHTH if self.workload.dtype == "bfloat16" else 1.0

    def _scores_turned(
        self, stages: _Stages, where: str, product: Scalar, m: Axis, n: Axis, k: Axis
    ) -> None:
        """Powers of scores made again with keys on partitions, less each query's greatest."""
        b, h, at = stages.b, stages.h, stages.at
        kind = "float32" if self.size == 4 else "float16"
        size = min(self.m, self.cols)
        row, cols = axis("i", size), axis("j", size)
        diagonal = (row.var - cols.var, cols.var - row.var)
        unit = Select(diagonal, Const(-1.0), Const(0.0))
        stages.found.append(Stage("unit", (row, cols), unit, dtype=kind))
        scores = at("s", h, m, n)
        if where == "sbuf":
            stages.map("t", (h, m, n), scores, kind)
            scores = at("t", h, m, n)
        stages.total("top", (m,), scores, n, "max", kind)
        stages.total("product", (m, n), product, k, "sum")
        first, place = (m.var // size * size, m.var % size) if self.m > size else (const(0), m.var)
        top = Load("top", (b.var, h.var, first + row.var))
        less = call("multiply", top, Load("unit", (row.var, place)))
        stages.total("st", (m, n), less, row, "sum", onto="product")
        shifted: Scalar = at("st", h, m, n)
        if self.eighth != 1.0:
            shifted = call("multiply", shifted, self.eighth)
        stages.map("pt", (h, m, n), call("exp", shifted))

    def _powers_turned(self, stages: _Stages, where: str, m: Axis, n: Axis) -> None:
        """Powers of the scores there are, turned; scores are negated, so the least is greatest."""
        b, h, at = stages.b, stages.h, stages.at
        scores = at("s", h, m, n)
        if self.mask == "row":
            z = axis("z", 1)
            stages.map("mask.strip", (z, n), Load("mask", (b.var, n.var)))
            stages.found.append(Stage("ones", (z, m), Const(-1.0), dtype=self.workload.dtype))
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
        stages.total("top", (m,), scores, n, "min")
        stages.map("p", (h, m, n), call("exp", call("subtract", at("top", h, m), scores)))
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

    # -- schedule -----------------------------------------------------------------------------
    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration."""
        group, pair = structure.integer("group"), structure.integer("pair")
        schedule = Schedule(self.compute(structure))
        schedule = schedule.split("y", "h", max(group, pair), "hp", "hl")
        schedule = schedule.split("y", "hl", group, "hi", "hj")
        schedule = schedule.split("y", "m", self.cols, "mo", "mi")
        schedule = schedule.reorder("y", ("b", "hp", "hi", "mo", "hj", "mi", "e"))
        schedule = self._features(schedule, structure, "k", "n", "keys")
        schedule = self._features(schedule, structure, "q", "m", "queries")
        schedule = schedule.compute_at("v.ones", "y", "hi", "sbuf").unroll("v.ones", "h")
        schedule = schedule.set_layout("v.ones", partitioned(4, 2, self.rows, 0, 1, 3))
        schedule = schedule.split("v.ones", "n", self.rows, "v.nt", "v.ni")
        if structure.text("turn") == "scores":
            schedule = self._scores(schedule, structure)
        else:
            schedule = self._softmax(schedule, structure)
            schedule = self._powers(schedule, structure)
        schedule = self._results(schedule, structure).interleave("y", "b")
        for loop in ("hp", "hi", "mo"):
            schedule = schedule.pipeline("y", loop, structure.integer("copies"))
        return schedule

    def _features(
        self, schedule: Schedule, structure: Config, name: str, along: str, engines: str
    ) -> Schedule:
        """Queries or keys of a pair of heads, features on partitions."""
        strip, result = f"{name}.strip", f"{name}t"
        schedule = schedule.compute_at(strip, "y", "hp", "sbuf")
        schedule = schedule.set_layout(strip, partitioned(4, 2, self.rows, 0, 1, 3))
        schedule = schedule.split(strip, along, self.rows, f"{strip}.t", f"{strip}.i")
        schedule = schedule.compute_at(result, "y", "hp", "sbuf")
        schedule = schedule.set_layout(result, partitioned(4, 3, self.rows, 0, 1, 2))
        schedule = schedule.assign_engine(result, structure.text(engines))
        return self._turned(schedule, structure, result, f"{name}.turned", along)

    def _turned(
        self, schedule: Schedule, structure: Config, result: str, turned: str, along: str
    ) -> Schedule:
        """`turned` in PSUM for `TURNED` tiles of `result` at a time."""
        group, inner = f"{result}.g", f"{result}.{along}i"
        schedule = schedule.split(result, "f", self.rows, f"{result}.ft", f"{result}.fi")
        schedule = schedule.split(result, along, self.cols * TURNED, group, inner)
        order = ("b", "g", f"{result}.ft", group, f"{result}.fi", inner)
        schedule = schedule.reorder(result, order)
        schedule = schedule.compute_at(turned, result, group, "psum")
        schedule = schedule.set_layout(turned, _lead(3))
        schedule = schedule.split(turned, along, self.rows, f"{turned}.t", f"{turned}.i")
        schedule = schedule.assign_engine(turned, "tensor")
        return schedule.pipeline(result, group, structure.integer("strips"))

    def _product(
        self, schedule: Schedule, structure: Config, name: str, moving: str, width: int
    ) -> Schedule:
        """A product of queries and keys, one head and up to `width` of `moving` at a time."""
        pair, other = structure.integer("pair"), "n" if moving == "m" else "m"
        heads, blocks, inner = ["h"], f"{name}.t", f"{name}.i"
        if structure.integer("group") > 1:
            heads = [f"{name}.hq", f"{name}.hr"]
            schedule = schedule.split(name, "h", pair, *heads)
        schedule = schedule.split(name, "k", self.rows, f"{name}.kt", f"{name}.kk")
        schedule = schedule.split(name, "n", width, blocks, inner)
        order = [*heads, blocks, f"{name}.kt", f"{name}.kk", "b"]
        free = ["m", inner] if other == "m" else [inner, "m"]
        schedule = schedule.reorder(name, (*order, *free))
        return schedule.unroll(name, *heads, blocks).assign_engine(name, "tensor")

    def _scores(self, schedule: Schedule, structure: Config) -> Schedule:
        places = structure.integer("places")
        schedule = schedule.set_scope("unit", "sbuf")
        schedule = schedule.compute_at("top", "y", "mo", "sbuf")
        schedule = schedule.set_layout("top", Layout.permuted((2, 0, 1)))
        schedule = schedule.split("top", "n", self.wide, "top.t", "top.i")
        schedule = schedule.reorder("top", ("top.t", "top.i", "b", "h", "m"))
        if structure.text("scores") == "sbuf":
            schedule = schedule.compute_at("t", "top", "top.t", "sbuf").set_layout("t", _lead(2))
            schedule = schedule.rotate("t", structure.integer("copies"))
            schedule = schedule.assign_engine("t", structure.text("passing"))
            schedule = schedule.assign_engine("top", structure.text("top"))
            schedule = schedule.compute_at("s", "t", "b", "psum")
        else:
            schedule = schedule.compute_at("s", "top", "top.t", "psum")
        schedule = schedule.set_layout("s", _lead(2)).rotate("s", places)
        schedule = self._product(schedule, structure, "s", "n", self.wide)
        schedule = schedule.compute_at("pt", "y", "mo", "sbuf")
        schedule = schedule.set_layout("pt", partitioned(4, 3, self.rows, 0, 1, 2))
        schedule = self._blocks(schedule, structure, "pt")
        for name in ("product", "st"):
            schedule = schedule.compute_at(name, "pt", "pt.g", "psum")
            schedule = schedule.set_layout(name, partitioned(4, 3, self.rows, 0, 1, 2))
        schedule = self._product(schedule, structure, "product", "m", self.rows)
        schedule = schedule.split("st", "n", self.rows, "st.t", "st.i")
        schedule = schedule.reorder("st", ("h", "st.t", "i", "b", "st.i", "m"))
        return schedule.unroll("st", "h", "st.t").assign_engine("st", "tensor")

    def _softmax(self, schedule: Schedule, structure: Config) -> Schedule:
        if structure.text("scores") == "sbuf":
            schedule = schedule.compute_at("t", "y", "mo", "sbuf").set_layout("t", _lead(2))
            schedule = schedule.split("t", "n", self.wide, "t.nt", "t.ni")
            schedule = schedule.reorder("t", ("b", "t.nt", "h", "m", "t.ni"))
            passing = structure.text("passing") if self.mask in ("none", "row") else "vector"
            schedule = schedule.assign_engine("t", passing)
            schedule = schedule.assign_engine("top", structure.text("top"))
            schedule = schedule.compute_at("s", "t", "t.nt", "psum")
        else:
            schedule = schedule.compute_at("s", "y", "mo", "psum")
        schedule = schedule.set_layout("s", _lead(2)).rotate("s", structure.integer("places"))
        schedule = self._product(schedule, structure, "s", "n", self.wide)
        if self.mask == "row":
            schedule = self._row_mask(schedule, structure)
        schedule = schedule.compute_at("top", "y", "mo", "sbuf")
        schedule = schedule.set_layout("top", Layout.permuted((2, 0, 1)))
        schedule = schedule.reorder("top", ("n", "b", "h", "m"))
        schedule = schedule.compute_at("p", "y", "mo", "sbuf").set_layout("p", _lead(2))
        return schedule.unroll("p", "h")

    def _row_mask(self, schedule: Schedule, structure: Config) -> Schedule:
        """The mask's row on one partition, times ones on to the scores."""
        schedule = schedule.set_scope("ones", "sbuf").compute_at("mask.strip", "y", "b", "sbuf")
        schedule = schedule.set_layout("mask.strip", Layout.permuted((1, 0, 2)))
        host = ("t", "t.nt") if structure.text("scores") == "sbuf" else ("y", "mo")
        schedule = schedule.compute_at("s.masked", *host, "psum").set_layout("s.masked", _lead(2))
        schedule = schedule.split("s.masked", "n", self.wide, "s.mt", "s.mi")
        schedule = schedule.reorder("s.masked", ("h", "s.mt", "z", "b", "m", "s.mi"))
        return schedule.unroll("s.masked", "h", "s.mt").assign_engine("s.masked", "tensor")

    def _powers(self, schedule: Schedule, structure: Config) -> Schedule:
        schedule = schedule.compute_at("pt", "y", "mo", "sbuf")
        schedule = schedule.set_layout("pt", partitioned(4, 3, self.rows, 0, 1, 2))
        schedule = schedule.assign_engine("pt", structure.text("powers"))
        schedule = self._blocks(schedule, structure, "pt")
        schedule = schedule.compute_at("p.turned", "pt", "pt.g", "psum")
        schedule = schedule.set_layout("p.turned", partitioned(4, 3, self.rows, 0, 1, 2))
        schedule = schedule.split("p.turned", "n", self.rows, "p.nt", "p.ni")
        return schedule.assign_engine("p.turned", "tensor")

    def _blocks(self, schedule: Schedule, structure: Config, name: str) -> Schedule:
        """Powers with keys on partitions, as many tiles at a time as share a PSUM bank."""
        tiles, group, inner = f"{name}.nt", f"{name}.g", f"{name}.ni"
        schedule = schedule.split(name, "n", self.rows, tiles, inner)
        together = self._together(structure.integer("group"))
        schedule = schedule.split(name, tiles, together, group, f"{name}.nj")
        order = (group, "b", "h", f"{name}.nj", inner, "m")
        schedule = schedule.reorder(name, order)
        return schedule.pipeline(name, group, structure.integer("turning"))

    def _results(self, schedule: Schedule, structure: Config) -> Schedule:
        schedule = schedule.compute_at("o", "y", "mo", "psum").set_layout("o", _lead(2))
        schedule = schedule.rotate("o", structure.integer("places"))
        schedule = schedule.split("o", "n", self.rows, "o.nt", "o.ni")
        schedule = schedule.reorder("o", ("h", "o.nt", "o.ni", "b", "m", "e1")).unroll("o", "h")
        schedule = schedule.assign_engine("o", "tensor")
        schedule = schedule.compute_at("row", "y", "mo", "sbuf").set_layout("row", _lead(2))
        return schedule.unroll("row", "h").assign_engine("row", "vector")


class _Stages:
    """Stages of one attention as they are written down, each over sequences (and heads) first."""

    def __init__(self, batch: int, heads: int, dtype: str) -> None:
        self.b, self.h, self.dtype = axis("b", batch), axis("h", heads), dtype
        self.found: list[Stage] = []

    def at(self, name: str, *axes: Axis) -> Load:
        return Load(name, (self.b.var, *(a.var for a in axes)))

    def map(self, name: str, axes: tuple[Axis, ...], value: Scalar, dtype: str = "") -> None:
        self.found.append(Stage(name, (self.b, *axes), value, dtype=dtype or self.dtype))

    def total(
        self, name: str, axes: tuple[Axis, ...], value: Scalar, over: Axis, how: str,
        dtype: str = "float32", onto: str = "",
    ) -> None:  # fmt: skip
        spatial = (self.b, self.h, *axes)
        self.found.append(Stage(name, spatial, value, (over,), how, dtype=dtype, onto=onto))


def _lead(position: int) -> Layout:
    """Axis `position` of four on partitions, the others in order beside it."""
    order = (position, *(i for i in range(4) if i != position))
    return Layout(tuple(LayoutDimension(i) for i in order))
