"""Fused attention on Trainium-like cores: scores go from PSUM to probabilities on the chip.

128 queries at a time stand on partitions, all keys along the free axis, so that the softmax is a
reduction and an activation; probabilities are then turned, since a product needs what it sums over
on partitions. Queries are scaled by -scale as they leave PSUM: then the least score is subtracted
and the activation negates, which needs no instruction of its own. The sum divides the result only.

    for sequences: for pairs of heads:  load q, k;  kt = k turned;  qt = -scale * q turned
      for heads of the pair:  load v
        for 128 queries:      s[128, n] = qt.T @ kt       least = min s       p = exp(least - s)
                              z = 1 / sum p     pt[n, 128] = p turned     y = (pt.T @ v) * z

Two heads of up to 64 features are turned at once: together they fill the tensor engine's rows.
Iterations are interleaved: each engine works on whichever head is ready for it, as far as the
copies of tiles allow.
"""

from __future__ import annotations

from search_space.accelerator import partitioned
from search_space.compute import Axis, ComputeDefinition, Stage, Tensor, axis
from search_space.config import Config
from search_space.dtypes import size_of
from search_space.expression import const, minimum
from search_space.knobs import Constraint, choice
from search_space.layout import Layout, LayoutDimension
from search_space.scalar import Load, Scalar, call
from search_space.schedule import Schedule
from search_space.space import SearchSpace, Subspace
from search_space.target import Target
from search_space.workload import Workload

GROUP = 4
"""Turned tiles that share a PSUM bank and one copy out of it."""

ENGINES = (
    "gpsimd,scalar,scalar,scalar",
    "scalar,scalar,vector,scalar",
    "gpsimd,scalar,scalar,vector",
    "scalar,scalar,scalar,gpsimd",
    "vector,scalar,scalar,scalar",
    "vector,gpsimd,scalar,vector",
)
"""Which engines copy turned keys, queries and probabilities, and results, out of PSUM. The softmax
itself keeps vector (reductions) and scalar (exponentials) busy; these share the rest."""

COPIES = (1, 2, 4, 8)
"""Of each tile: heads, or blocks of queries, that are under way at once."""


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
        self.rows, self.cols = target.integer("tensor.rows"), target.integer("tensor.cols")
        self.wide = target.integer("tensor.moving_free")
        self.size = size_of(workload.dtype)
        self.capacity = target.integer("sbuf.mib") * 2**20 // target.integer("sbuf.partitions")
        self.psum = target.integer("psum.mib") * 2**20 // target.integer("psum.partitions")
        self.bank = self.psum // target.integer("psum.banks")

    # -- space --------------------------------------------------------------------------------
    def scores(self) -> tuple[str, ...]:
        """Where scores may stand: read straight from PSUM if a bank holds a row without a mask."""
        one_bank = self.n <= self.wide and self.workload.text("mask") == "none"
        return ("psum", "sbuf") if one_bank else ("sbuf",)

    def space(self) -> SearchSpace:
        """Where scores stand, heads turned together, copies of tiles, engines for the rest."""
        spaces = [
            self._subspace(scores, copies, pair)
            for scores in self.scores()
            for copies in COPIES
            for pair in self.pairs()
        ]
        kept = tuple(s for s in spaces if s.size)
        return SearchSpace(kept or (spaces[0],))

    def pairs(self) -> tuple[int, ...]:
        """How many heads may be turned together."""
        return (1, 2) if 2 * self.k <= self.rows and self.heads > 1 else (1,)

    def _subspace(self, scores: str, copies: int, pair: int) -> Subspace:
        what = "bytes of {} a partition that the tiles take"
        limits = (
            Constraint(const(self._sbuf(copies, pair)), self.capacity, what.format("SBUF")),
            Constraint(
                const(self._psum(copies, scores)),
                self.psum,
                what.format("PSUM"),
                "choose fewer copies",
            ),
        )
        return Subspace(
            (("algorithm", "fused"), ("copies", copies), ("pair", pair), ("scores", scores)),
            (choice("engines", ENGINES),),
            limits,
        )

    def _sbuf(self, copies: int, pair: int) -> int:
        """Bytes a partition."""
        keys, queries = -(-self.n // self.rows), -(-self.m // self.rows)
        features = pair * self.k
        depth = -(-features // self.rows)
        strips = (keys + queries) * features + depth * (self.n + self.m) + keys * self.width
        powers = self.n + keys * self.cols + self.width
        masked = self.workload.text("mask") != "none"
        scores = self.n * 4 * (2 if masked else 1)
        each = (strips + powers) * self.size + scores + 4 * 64
        spread = 8 * min(self.n, 2048) * self.size if masked else 0
        return copies * each + spread + 8 * min(self.n, 2048) * 4

    def _psum(self, copies: int, scores: str) -> int:
        """Bytes a partition: two places for turned tiles, `copies` for scores and results."""
        tiles = [min(GROUP, -(-extent // self.cols)) for extent in (self.n, self.m, self.n)]
        turned = [count * self.cols * self.size for count in tiles]
        wide = min(self.n, self.wide) * 4
        kept = [wide, self.width * 4] if scores == "psum" else [self.width * 4]
        passing = turned if scores == "psum" else [*turned, wide]
        return 2 * sum(map(self._place, passing)) + copies * sum(map(self._place, kept))

    def _place(self, size: int) -> int:
        """Bytes that a tile takes of PSUM so that none straddles banks: a power of two."""
        return max(64, 1 << (size - 1).bit_length())

    def default(self) -> Config:
        """As many chains under way as fit, copies out of PSUM spread over engines."""
        found = list(self.space())
        if not found:
            space = self.space()
            space.validate(space.subspaces[0].config(space.subspaces[0].rows(0, 1)[0]))
        scores = self.scores()[0]

        def rank(config: Config) -> tuple[int, ...]:
            other = config.text("scores") != scores
            engines = ENGINES.index(config.text("engines"))
            return (other, -config.integer("pair"), -config.integer("copies"), engines)

        return min(found, key=rank)

    # -- computation --------------------------------------------------------------------------
    def compute(self, structure: Config) -> ComputeDefinition:
        """The stages, each over sequence b and head h first."""
        dtype = self.workload.dtype
        b, h = axis("b", self.batch), axis("h", self.heads)
        m, n, k, e = (
            axis(name, extent)
            for name, extent in (("m", self.m), ("n", self.n), ("k", self.k), ("e", self.width))
        )
        pair = structure.integer("pair")
        g, f = axis("g", -(-self.heads // pair)), axis("f", pair * self.k)
        stages: list[Stage] = []

        def stage(name: str, axes: tuple[Axis, ...], value: Scalar, kind: str = dtype) -> None:
            stages.append(Stage(name, (b, *axes), value, dtype=kind))

        def total(name: str, axes: tuple[Axis, ...], value: Scalar, over: Axis, how: str) -> None:
            stages.append(Stage(name, (b, h, *axes), value, (over,), how))

        def at(name: str, *axes: Axis) -> Load:
            return Load(name, (b.var, *(a.var for a in axes)))

        def paired(name: str, along: Axis) -> Load:
            """Head h's part of a pair's features."""
            return Load(name, (b.var, h.var // pair, along.var, h.var % pair * self.k + k.var))

        for name, along in (("k", n), ("q", m)):
            axes = (g, along, f)
            stage(f"{name}.strip", axes, self._head(name, b, g, along, f, pair))
            stage(f"{name}.turned", axes, at(f"{name}.strip", *axes))
            value: Scalar = at(f"{name}.turned", *axes)
            if name == "q":
                value = call("multiply", value, -self.scale)
            stage(f"{name}t", axes, value)
        stage("v.block", (h, n, e), at("v", h, n, e))
        total("s", (m, n), call("multiply", paired("qt", m), paired("kt", n)), k, "sum")
        scores = at("s", h, m, n)
        if structure.text("scores") == "sbuf":
            stage("t", (h, m, n), self._masked(scores, b, m, n), "float32")
            scores = at("t", h, m, n)
        total("least", (m,), scores, n, "min")
        stage("p", (h, m, n), call("exp", call("subtract", at("least", h, m), scores)))
        total("z", (m,), at("p", h, m, n), n, "sum")
        stage("r", (h, m), call("reciprocal", at("z", h, m)), "float32")
        stage("p.turned", (h, m, n), at("p", h, m, n))
        stage("pt", (h, m, n), at("p.turned", h, m, n))
        mixed = call("multiply", at("pt", h, m, n), at("v.block", h, n, e))
        total("o", (m, e), mixed, n, "sum")
        stage("row", (h, m, e), call("multiply", at("o", h, m, e), at("r", h, m)))
        stage("y", (h, m, e), at("row", h, m, e))
        return ComputeDefinition("attention", self._tensors(), tuple(stages))

    def _head(self, name: str, b: Axis, g: Axis, along: Axis, f: Axis, pair: int) -> Load:
        """Feature f of pair g; an odd last head stands beside itself."""
        if pair == 1:
            return Load(name, (b.var, g.var, along.var, f.var))
        head = g.var * pair + f.var // self.k
        if self.heads % pair:
            head = minimum(head, self.heads - 1)
        return Load(name, (b.var, head, along.var, f.var % self.k))

    def _masked(self, scores: Load, b: Axis, m: Axis, n: Axis) -> Scalar:
        """Negated scores with the mask taken off."""
        kind = self.workload.text("mask")
        if kind == "none":
            return scores
        row = (b.var, n.var) if kind == "row" else (b.var, m.var, n.var)
        return call("subtract", scores, Load("mask", row))

    def _tensors(self) -> tuple[Tensor, ...]:
        lead = (self.batch, self.heads)
        shapes: dict[str, tuple[int, ...]] = {
            "q": (*lead, self.m, self.k),
            "k": (*lead, self.n, self.k),
            "v": (*lead, self.n, self.width),
        }
        if self.workload.text("mask") != "none":
            full = self.workload.text("mask") == "full"
            shapes["mask"] = (self.batch, self.m, self.n) if full else (self.batch, self.n)
        return tuple(Tensor(name, shape, self.workload.dtype) for name, shape in shapes.items())

    # -- schedule -----------------------------------------------------------------------------
    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration."""
        copies = structure.integer("copies")
        schedule = Schedule(self.compute(structure))
        schedule = schedule.split("y", "h", structure.integer("pair"), "hp", "hi")
        schedule = schedule.split("y", "m", self.cols, "mo", "mi")
        schedule = schedule.reorder("y", ("b", "hp", "hi", "mo", "mi", "e"))
        keys, queries, powers, results = structure.text("engines").split(",")
        schedule = self._features(schedule, "k", "n", keys)
        schedule = self._features(schedule, "q", "m", queries)
        schedule = schedule.compute_at("v.block", "y", "hi", "sbuf")
        schedule = schedule.set_layout("v.block", partitioned(4, 2, self.rows, 0, 1, 3))
        schedule = schedule.split("v.block", "n", self.rows, "v.nt", "v.ni")
        schedule = self._softmax(schedule, structure)
        schedule = self._values(schedule, powers, results).interleave("y", "b")
        for loop in ("hp", "hi", "mo"):
            schedule = schedule.pipeline("y", loop, copies)
        return schedule

    def _features(self, schedule: Schedule, name: str, along: str, engine: str) -> Schedule:
        """Queries or keys of a pair of heads, features on partitions."""
        strip, result = f"{name}.strip", f"{name}t"
        schedule = schedule.compute_at(strip, "y", "hp", "sbuf")
        schedule = schedule.set_layout(strip, partitioned(4, 2, self.rows, 0, 1, 3))
        schedule = schedule.split(strip, along, self.rows, f"{strip}.t", f"{strip}.i")
        schedule = schedule.compute_at(result, "y", "hp", "sbuf")
        schedule = schedule.set_layout(result, partitioned(4, 3, self.rows, 0, 1, 2))
        schedule = schedule.assign_engine(result, engine)
        return self._turned(schedule, result, f"{name}.turned", along)

    def _turned(self, schedule: Schedule, result: str, turned: str, along: str) -> Schedule:
        """`turned` in PSUM for `GROUP` tiles of `result` at a time."""
        group, inner = f"{result}.g", f"{result}.{along}i"
        schedule = schedule.split(result, "f", self.rows, f"{result}.ft", f"{result}.fi")
        schedule = schedule.split(result, along, self.cols * GROUP, group, inner)
        order = ("b", "g", f"{result}.ft", group, f"{result}.fi", inner)
        schedule = schedule.reorder(result, order)
        schedule = schedule.compute_at(turned, result, group, "psum")
        schedule = schedule.set_layout(turned, _lead(3))
        schedule = schedule.split(turned, along, self.rows, f"{turned}.t", f"{turned}.i")
        schedule = schedule.assign_engine(turned, "tensor")
        return schedule.pipeline(result, group, 2)

    def _softmax(self, schedule: Schedule, structure: Config) -> Schedule:
        if structure.text("scores") == "sbuf":
            schedule = schedule.compute_at("t", "y", "mo", "sbuf").set_layout("t", _lead(2))
            schedule = schedule.split("t", "n", self.wide, "t.nt", "t.ni")
            schedule = schedule.reorder("t", ("b", "h", "t.nt", "m", "t.ni"))
            schedule = schedule.compute_at("s", "t", "t.nt", "psum").pipeline("t", "t.nt", 2)
        else:
            schedule = schedule.compute_at("s", "y", "mo", "psum")
        schedule = schedule.set_layout("s", _lead(2))
        schedule = schedule.split("s", "k", self.rows, "s.kt", "s.kk")
        schedule = schedule.reorder("s", ("s.kt", "s.kk", "b", "h", "m", "n"))
        schedule = schedule.assign_engine("s", "tensor")
        for name in ("least", "z", "r"):
            schedule = schedule.compute_at(name, "y", "mo", "sbuf")
            schedule = schedule.set_layout(name, Layout.permuted((2, 0, 1)))
        for name in ("least", "z"):
            schedule = schedule.reorder(name, ("n", "b", "h", "m"))
        return schedule.compute_at("p", "y", "mo", "sbuf").set_layout("p", _lead(2))

    def _values(self, schedule: Schedule, powers: str, results: str) -> Schedule:
        schedule = schedule.compute_at("pt", "y", "mo", "sbuf")
        schedule = schedule.set_layout("pt", partitioned(4, 3, self.rows, 0, 1, 2))
        schedule = schedule.assign_engine("pt", powers)
        schedule = schedule.split("pt", "n", self.rows, "pt.nt", "pt.ni")
        schedule = schedule.split("pt", "pt.nt", GROUP, "pt.g", "pt.nj")
        schedule = schedule.reorder("pt", ("b", "h", "pt.g", "pt.nj", "pt.ni", "m"))
        schedule = schedule.compute_at("p.turned", "pt", "pt.g", "psum")
        schedule = schedule.set_layout("p.turned", partitioned(4, 3, self.rows, 0, 1, 2))
        schedule = schedule.split("p.turned", "n", self.rows, "p.nt", "p.ni")
        schedule = schedule.assign_engine("p.turned", "tensor").pipeline("pt", "pt.g", 2)
        schedule = schedule.compute_at("o", "y", "mo", "psum").set_layout("o", _lead(2))
        schedule = schedule.split("o", "n", self.rows, "o.nt", "o.ni")
        schedule = schedule.reorder("o", ("o.nt", "o.ni", "b", "h", "m", "e"))
        schedule = schedule.assign_engine("o", "tensor")
        schedule = schedule.compute_at("row", "y", "mo", "sbuf").set_layout("row", _lead(2))
        return schedule.assign_engine("row", results)


def _lead(position: int) -> Layout:
    """Axis `position` of four on partitions, the others in order beside it."""
    order = (position, *(i for i in range(4) if i != position))
    return Layout(tuple(LayoutDimension(i) for i in order))
