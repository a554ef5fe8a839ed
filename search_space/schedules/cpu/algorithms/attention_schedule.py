"""Fused attention on CPUs: schedules of its stages, one block of queries after another.

Scores of a block against all keys go to a buffer of the thread's own that stays in its caches;
there they become powers, and powers times values are divided by their sums on the way out of
registers.

    for sequences, heads:            [kt = scale * k turned]
      for blocks of queries:         [qt = scale * q turned]
        s = product of queries and keys        tiles of s_rows x s_vectors in registers
        p = exp(s + mask - greatest of them)
        t = 1 / sum p
        y = (product of p and v) * t           tiles of o_rows x o_vectors in registers

A product reads one operand by vectors, the other element by element. `turn` says what stands along
the vectors of the scores, and is copied with features outside for it:

    keys      s[query, key]: a row of scores is reduced along its vectors (`row_reduction`); keys
              are turned once a head, inside its loop or all heads before, or anew for each tile of
              scores (`pack`): once, too, where one tile has all queries
    queries   s[key, query]: vectors hold neighbouring queries, nothing is reduced across lanes;
              only the queries of the block are turned, and keys are read as they are

    pairs     as keys, with dot products of narrow operands (`pairs`)

    none      s[query, key]: vectors hold neighbouring features of a query and a key, and are added
              up for each score: where few queries read keys once, at the speed of memory

`scale` is multiplied into what is turned. No sum is 0: the greatest power of a query is 1.

`pairs`, whose products add up neighbours in one instruction, has the order of turned keys, but that
keys and values are copied in groups of P neighbours (`dot_products`), and powers are stored narrow:

    kt[j/panel, k/P, j%panel, k%P]    keys; their scale multiplies scores instead
    p[i, j]                           of the operands' type, read in groups
    vt[e/panel, j/P, e%panel, j%P]    values
"""

from dataclasses import replace

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.scalar import Load, Scalar, call, rewrite
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operators.attention import Attention
from tilesmith.search_space.schedules.cpu.vectorisation.dot_products import group_of, grouped
from tilesmith.search_space.schedules.cpu.vectorisation.row_reduction import reduce_row
from tilesmith.search_space.schedules.cpu.vectorisation.stages import stored
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

BLOCK = ("o", "io")
"""The loop over blocks of queries, which everything of a block is made in."""

ROWS = 2
"""Rows of scores that become powers together: while one is reduced across its lanes, the other
keeps the ports busy."""

VECTORS = 2
"""Vectors of each row in work at once. With two rows they hide an addition's latency; more are
computed in vain where rows are no multiple of so many."""


class CpuAttentionSchedule:
    """Schedules of one attention."""

    def __init__(self, workload: Workload, target: Target) -> None:
        self.workload, self.target = workload, target
        self.width = Attention.width(workload)
        self.lanes = vector_width(target)

    def schedule(self, structure: Config) -> Schedule:
        """See the module's docstring."""
        turn = structure.text("turn")
        if turn == "pairs":
            return self._pairs(structure)
        compute = stored(Attention().compute(self.workload, turn), self.workload)
        s = Schedule(compute).inline("z")
        s = self._results(s, structure.text("o_order"))
        if turn == "none":
            return self._rows(self._features(s)).parallel("o", "b", "h", "io")
        s = self._scores(s, turn, structure.text("s_order"))
        s = self._rows(s) if turn == "keys" else self._columns(s)
        pack = structure.text("pack") if turn == "keys" else ""
        s = self._turned(s, turn, pack)
        return s.parallel("o", "b", "h", *(() if pack == "head" else ("io",)))

    @property
    def products(self) -> int:
        """Neighbours that an instruction multiplies and adds up; 1 where there is none."""
        return group_of(self.target, self.workload.dtype, self.workload.dtype)

    def _pairs(self, structure: Config) -> Schedule:
        count, every = self.products, structure.text("pack") == "all"
        s = Schedule(in_pairs(self.workload)).inline("z").cache_read("v", "o", "vt")
        s = products(products(s, "o", "j", count), "s", "k", count)
        s = self._results(s, structure.text("o_order"), ("jp",))
        s = self._rows(self._scores(s, "keys", structure.text("s_order"), ("kp",)))
        s = packed(s, "kt", "s", "s_vectors", self.lanes, count, every)
        s = packed(s, "vt", "o", "o_vectors", self.lanes, count, every)
        return s.parallel("o", "b", "h", *(("io",) if every else ()))

    def _results(self, s: Schedule, order: str, group: tuple[str, ...] = ()) -> Schedule:
        """Powers times values; a block is `m_block` tiles of `o_rows` queries."""
        s = s.split("o", "i", var("o_rows"), "it", "ii")
        s = s.split("o", "it", var("m_block"), "io", "im")
        s = s.split("o", "e", self.lanes, "ev", "lane")
        s = s.split("o", "ev", var("o_vectors"), "et", "ei")
        s = s.split("o", "j", var("o_unroll"), "jo", "ji")
        tiles = ["im", "et"] if order == "mn" else ["et", "im"]
        s = s.reorder("o", ("b", "h", "io", *tiles, "jo", "ji", "ii", "ei", *group, "lane"))
        s = s.unroll("o", "ji", "ii", "ei", *group).vectorize("o", "lane")
        for loop in group:
            s = s.tensorize("o", loop, "dot_product")
        s = s.cache_write("o", "register", tiles[-1])
        return s.reverse_compute_at("y", "o", tiles[-1])

    def _scores(self, s: Schedule, turn: str, order: str, group: tuple[str, ...] = ()) -> Schedule:
        """Queries times keys, those that were turned along the vectors."""
        rows, along = ("i", "j") if turn == "keys" else ("j", "i")
        s = s.compute_at("s", *BLOCK)
        s = s.split("s", rows, var("s_rows"), "ro", "ri")
        s = s.split("s", along, self.lanes, "cv", "lane")
        s = s.split("s", "cv", var("s_vectors"), "ct", "ci")
        s = s.split("s", "k", var("s_unroll"), "ko", "ki")
        tiles = ["ro", "ct"] if order == "mn" else ["ct", "ro"]
        s = s.reorder("s", ("b", "h", *tiles, "ko", "ki", "ri", "ci", *group, "lane"))
        s = s.unroll("s", "ki", "ri", "ci", *group).vectorize("s", "lane")
        for loop in group:
            s = s.tensorize("s", loop, "dot_product")
        return s.cache_write("s", "register", tiles[-1])

    def _features(self, s: Schedule) -> Schedule:
        """Queries times keys, `s_unroll` of these at a time, features along the vectors."""
        s = s.compute_at("s", *BLOCK).rfactor("s", "k", self.lanes, "s.wide")
        s = s.split("s", "j", var("s_unroll"), "jo", "ji")
        s = s.split("s", "i", var("o_rows"), "ro", "ri")
        s = s.reorder("s", ("b", "h", "ro", "jo", "ji", "ri", "k.lane"))
        s = s.unroll("s", "ji", "ri").vectorize("s", "k.lane")
        s = s.compute_at("s.wide", "s", "jo", scope="register")
        s = s.reorder("s.wide", ("b", "h", "j", "k.step", "i", "k.lane"))
        s = s.unroll("s.wide", "k.step", "j", "i").vectorize("s.wide", "k.lane")
        return s.compute_at("qt", *BLOCK)

    def _turned(self, s: Schedule, turn: str, pack: str) -> Schedule:
        """kt or qt in panels as wide as the tile of scores, features outside."""
        every, tile = pack == "all", pack == "tile"
        name, along = ("kt", "j") if turn == "keys" else ("qt", "i")
        panel = var("s_vectors") * self.lanes
        s = s.set_layout(name, Layout.blocked(4, 2, panel, (0, 1, 2, 3)))
        if tile:
            s = s.compute_at(name, "s", "ct")
        elif not every:
            s = s.compute_at(name, *(("o", "h") if turn == "keys" else BLOCK))
        s = s.split(name, along, self.lanes, "pv", "pl")
        s = s.split(name, "pv", var("s_vectors"), "pt", "pi")
        s = s.split(name, "k", self.lanes, "kv", "kl")
        s = s.reorder(name, ("b", "h", "pt", "kv", "pi", "kl", "pl"))
        s = s.unroll(name, "kl").vectorize(name, "pl").tensorize(name, "kl", "transpose")
        return s.parallel(name, "b", "h", "pt") if every else s

    def _rows(self, s: Schedule) -> Schedule:
        """Powers and their sums in one pass, of `ROWS` queries at a time."""
        keys = self.workload.extent("n")
        vectors = 1 if isinstance(keys, int) and keys <= self.lanes else VECTORS
        s = s.compute_at("t", *BLOCK).split("t", "i", ROWS, "it", "ii").unroll("t", "ii")
        for name in ("top", "total"):
            s = reduce_row(s, name, "j", vectors, self.lanes, ("t", "it"), ("i",))
            s = s.compute_at(name, "t", "it", scope="register").unroll(name, "i")
        s = s.compute_at("p", "total.wide", "j.step", kept=BLOCK)
        s = s.split("p", "j", self.lanes, "jv", "lane").unroll("p", "i", "jv")
        return s.vectorize("p", "lane")

    def _columns(self, s: Schedule) -> Schedule:
        """Powers and sums of `p_vectors` vectors of queries at a time."""
        for name in ("top", "p", "total", "t"):
            s = s.compute_at(name, *BLOCK).split(name, "i", self.lanes, "iv", "lane")
            s = s.vectorize(name, "lane")
            if name == "t":
                continue
            s = s.split(name, "iv", var("p_vectors"), "it", "ii")
            s = s.reorder(name, ("b", "h", "it", "j", "ii", "lane")).unroll(name, "ii")
        for name in ("top", "total"):
            s = s.cache_write(name, "register", "it")
        return s


def in_pairs(workload: Workload) -> ComputeDefinition:
    """The stages of an attention, scaled where scores are read, keys and powers narrow."""
    compute = stored(Attention().compute(workload), workload)
    scale = Attention.scale(workload)

    def scaled(load: Load) -> Scalar:
        return call("multiply", load, scale) if load.buffer == "s" else load

    def plain(stage: Stage) -> Stage:
        if stage.name == "kt":
            return replace(
                stage, value=Load("k", tuple(a.var for a in stage.axes)), dtype=workload.dtype
            )
        if stage.name == "z":
            return replace(stage, value=rewrite(stage.value, lambda index: index, scaled))
        return replace(stage, dtype=workload.dtype) if stage.name == "p" else stage

    return replace(compute, stages=tuple(map(plain, compute.stages)))


def products(s: Schedule, stage: str, axis: str, count: int) -> Schedule:
    """Split a reduction into groups; `axis` counts them from now on."""
    return s.split(stage, axis, count, axis, f"{axis}p")


def packed(
    s: Schedule, name: str, reader: str, vectors: str, lanes: int, count: int, every: bool
) -> Schedule:
    """A copy of keys (kt) or values (vt) in groups, once a head or all heads before."""
    column, row = ("j", "k") if name == "kt" else (f"{name}.3", f"{name}.2")
    axes = (2, 3) if name == "kt" else (3, 2)
    panel = var(vectors) * lanes
    s = s.set_layout(name, grouped(4, *axes, panel, count))
    if not every:
        s = s.compute_at(name, "o", "h")
    s = s.split(name, column, lanes, "pv", "pl").split(name, "pv", var(vectors), "pt", "pi")
    s = s.split(name, row, count, "pk", "pp")
    lead = ("b", "h") if name == "kt" else (f"{name}.0", f"{name}.1")
    s = s.reorder(name, (*lead, "pt", "pk", "pi", "pp", "pl")).vectorize(name, "pl")
    s = s.unroll(name, "pp").tensorize(name, "pp", "interleave")
    return s.parallel(name, *lead, "pt") if every else s
