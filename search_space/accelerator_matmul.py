"""Matrix products on Trainium-like cores, in the same primitives as for CPUs.

Blocks of both operands stand in SBUF with the reduction on partitions (what does not come that way
is transposed on the tensor engine); a tile of the result accumulates in a PSUM bank, passes through
the epilogue on its way to SBUF, and leaves in long rows. Two algorithms:

    tiled: for blocks of the result, n outside m or m outside n:
             load the outer operand's block once, the inner one's in every step
             for row tiles of 128:
               for column tiles of 512:  psum += stationary(128 x 128).T @ moving(128 x 512), k/128
                                         times;  row[columns] = epilogue(psum)
               store row

    split: for blocks of the result, for blocks of k:
             load both operands' blocks
             for row and column tiles:  psum = the block's part of the sum;  sum[tile] += psum
           then the epilogue and the store, row tile by row tile

The second takes any depth: where the operands' whole depth does not fit SBUF, partial sums stay
there in fp32. Knobs beside block sizes: copies of the operands' tiles (single, double, triple
buffering), columns loaded in one DMA row, and the engines that carry results and transposed tiles
out of PSUM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from search_space.accelerator import partitioned, with_store
from search_space.compute import ComputeDefinition, axis
from search_space.config import Config
from search_space.dtypes import size_of
from search_space.expression import Expr, as_expr, ceildiv, var
from search_space.knobs import Constraint, Knob, divisors, tile
from search_space.layout import Layout, LayoutDimension
from search_space.scalar import Load, rewrite
from search_space.schedule import Schedule
from search_space.space import SearchSpace, Subspace
from search_space.target import Target
from search_space.workload import Workload

LOAD_TILES = (1, 2, 4)
"""Column tiles loaded in one row: long enough for DMA, short enough for work to begin early."""

STAGED_PIECES = 10
"""Pieces of an epilogue's operand that may stand in SBUF at once."""

TRANSPOSE_GROUP = 4
"""Transposes that share a PSUM bank and one copy out of it."""

MOST_ROW_TILES, MOST_COLUMN_TILES = 32, 16
"""Tiles of a block at most."""

ENGINES = ("scalar", "vector")
"""Engines that carry tiles out of PSUM, the default first."""


Fixed = tuple[tuple[str, int | str], ...]


class MatmulSpace:
    """The knobs of a (batched) matrix product c[b, i, j] = sum_k a b on one core."""

    def __init__(self, workload: Workload, target: Target) -> None:
        self.workload, self.target = workload, target
        self.m, self.n, self.k = (workload.integer(name) for name in "mnk")
        self.batch = workload.integer("batch")
        self.rows, self.cols = target.integer("tensor.rows"), target.integer("tensor.cols")
        bank = target.integer("psum.mib") * 2**20 // target.integer("psum.partitions")
        bank //= target.integer("psum.banks") * 4
        self.wide = min(target.integer("tensor.moving_free"), bank)
        self.depth = -(-self.k // self.rows)
        self.size = size_of(workload.dtype)
        self.lead = ("b",) if self.batch > 1 else ()
        self.capacity = target.integer("sbuf.mib") * 2**20 // target.integer("sbuf.partitions")

    # -- space --------------------------------------------------------------------------------
    def space(self) -> SearchSpace:
        """Every configuration that fits SBUF."""
        kept = tuple(s for s in self._subspaces() if s.size)
        return SearchSpace(kept or (next(self._subspaces()),))

    def _subspaces(self) -> Iterator[Subspace]:
        """All subspaces; those the default is chosen from come first."""
        turns = ("vector", "scalar") if self._turned() else ("vector",)
        for copies_inner in (2, 1, 3):
            for evacuate in ENGINES:
                for turn in turns:
                    fixed: Fixed = (
                        ("copies_inner", copies_inner), ("evacuate", evacuate), ("turn", turn),
                    )  # fmt: skip
                    for copies_outer in (1, 2):
                        for outer in ("m", "n"):
                            yield self._tiled(outer, copies_outer, fixed)
                    if self.k_blocks:
                        yield self._split(fixed)

    def _turned(self) -> bool:
        """Whether an operand has to be transposed."""
        return not self.workload.integer("ta") or bool(self.workload.integer("tb"))

    def _tiled(self, outer: str, copies_outer: int, fixed: Fixed) -> Subspace:
        chosen: Fixed = (
            ("algorithm", "tiled"), ("copies_outer", copies_outer), ("outer", outer), *fixed,
        )  # fmt: skip
        copies = {"m": copies_outer, "n": dict(fixed)["copies_inner"]}
        if outer == "n":
            copies = {"m": copies["n"], "n": copies["m"]}
        a = self._operand("m", int(copies["m"]))
        b = self._operand("n", int(copies["n"]))
        return Subspace(chosen, self._tiles(), (self._limit(a + b + self._results(0)),))

    def _split(self, fixed: Fixed) -> Subspace:
        chosen: Fixed = (("algorithm", "split"), *fixed)
        copies = int(dict(fixed)["copies_inner"])
        knobs = (*self._tiles(), tile("k_block", self.k_blocks))
        operands = self._operand("m", copies, var("k_block"))
        operands = operands + self._operand("n", copies, var("k_block"))
        return Subspace(chosen, knobs, (self._limit(operands + self._results(4)),))

    def _tiles(self) -> tuple[Knob, ...]:
        rows = min(-(-self.m // self.cols), MOST_ROW_TILES)
        columns = min(-(-self.n // self.wide), MOST_COLUMN_TILES)
        knobs = [tile("m_tiles", range(1, rows + 1)), tile("n_tiles", range(1, columns + 1))]
        if self.workload.integer("ta") or not self.workload.integer("tb"):
            knobs.append(tile("load_tiles", [n for n in LOAD_TILES if n < 2 * columns]))
        return tuple(knobs)

    @property
    def k_blocks(self) -> list[int]:
        """Candidate depths of a block: whole parts of k, two tiles deep at least."""
        return [d for d in divisors(self.k, self.k // 2) if d >= 2 * self.rows]

    def _limit(self, value: Expr) -> Constraint:
        what = "bytes of SBUF a partition that the tiles take"
        return Constraint(value, self.capacity, what)

    def _operand(self, side: str, copies: int, depth: Expr | None = None) -> Expr:
        """Bytes a partition of an operand's block of `depth` (or all) rows of k."""
        if side == "m":
            extent = var("m_tiles") * self.cols
            transposed = not self.workload.integer("ta")
        else:
            extent = var("n_tiles") * self.wide
            transposed = bool(self.workload.integer("tb"))
        tiles = as_expr(self.depth) if depth is None else ceildiv(depth, self.rows)
        strip = tiles * (self.rows * self.size * 2) if transposed else as_expr(0)
        return extent * tiles * (self.size * copies) + strip

    def _results(self, sums: int) -> Expr:
        """Bytes a partition of rows on their way out, and of partial sums of `sums` bytes each."""
        columns = var("n_tiles") * self.wide
        operands = sum(1 for step in self.workload.epilogue if step.kind.operand != "none")
        staged = operands * STAGED_PIECES * min(self.wide, self.n) * self.size
        kept = var("m_tiles") * columns * sums
        return kept + columns * (self.size * 2) + (self.wide * 4 * 6 + staged)

    def default(self) -> Config:
        """The configuration that a closed form of traffic and tensor time likes best.

        Raises:
            ConfigError: no configuration fits SBUF.
        """
        best: tuple[float, Config] | None = None
        for algorithm in ("tiled", "split"):
            for subspace in self._subspaces():
                fixed = dict(subspace.fixed)
                if fixed["algorithm"] != algorithm or not self._usual(fixed):
                    continue
                rows = subspace.rows(0, subspace.cardinality)
                for row in rows[subspace.legal(rows)]:
                    config = subspace.config(row)
                    if config.get("load_tiles", 2) not in (1, 2):
                        continue
                    cost = self._cost(config)
                    if best is None or cost < best[0]:
                        best = cost, config
            if best is not None:
                return best[1]
        first = next(self._subspaces())
        self.space().validate(first.config(first.rows(0, 1)[0]))
        raise AssertionError("a space whose first configuration fits has a default")

    def _usual(self, fixed: dict[str, int | str]) -> bool:
        """Engines as the default has them: results leave by scalar, transposed tiles by vector."""
        return fixed["evacuate"] == ENGINES[0] and fixed["turn"] == "vector"

    def _cost(self, config: Config) -> float:
        """A rough time in ns: traffic or tensor engine, and what single buffering leaves bare."""
        blocks_m = -(-self.m // (config.integer("m_tiles") * self.cols))
        blocks_n = -(-self.n // (config.integer("n_tiles") * self.wide))
        split = config["algorithm"] == "split"
        m_outer = split or config["outer"] == "m"
        a, b = float(self.m * self.k * self.size), float(self.k * self.n * self.size)
        repeat_a, repeat_b = (1, blocks_m) if m_outer else (blocks_n, 1)
        if split:
            repeat_a, repeat_b = blocks_n, blocks_m
        bandwidth = self.target.number("dma.gbps_practical") * self.target.integer("dma.engines")
        factor = self.target.integer("tensor.fp32_factor") if self.size == 4 else 1
        rate = self.rows * self.cols * self.target.number("tensor.ghz") / factor
        turned = 0 if self.workload.integer("ta") else self.m * self.k * repeat_a
        turned += self.k * self.n * repeat_b if self.workload.integer("tb") else 0
        tensor = (self.m * self.n * self.k + turned * self.rows) / rate
        columns_a = config.integer("m_tiles") * self.cols
        load = int(config.get("load_tiles", 1))
        columns_b = min(config.integer("n_tiles"), load) * self.wide
        a *= self._row_cost(min(columns_a, self.m) if self.workload.integer("ta") else self.k)
        b *= self._row_cost(self.k if self.workload.integer("tb") else min(columns_b, self.n))
        moved = (a * repeat_a + b * repeat_b) / bandwidth
        inner, count = (b / blocks_n, blocks_n * blocks_m) if m_outer else (a / blocks_m, blocks_m)
        tiles = config.integer("m_tiles") if m_outer else config.integer("n_tiles")
        sweep = tensor / (blocks_n * blocks_m * tiles)
        bare = max(0.0, inner / bandwidth - 2 * sweep) * count
        if config.integer("copies_inner") > 1:
            bare = 0.0
        first = (a / blocks_m + b / blocks_n) / bandwidth
        return max(tensor, moved) + bare + first

    def _row_cost(self, elements: int) -> float:
        """What a DMA row of so many elements costs, relative to its bytes."""
        size = elements * self.size
        overhead = self.target.number("dma.row_overhead_bytes")
        return max(self.target.number("dma.row_floor_bytes"), size + overhead) / size

    # -- schedule -----------------------------------------------------------------------------
    def schedule(self, compute: ComputeDefinition, structure: Config) -> Schedule:
        """The schedule of a structural configuration; tile sizes stay symbols."""
        split = structure.text("algorithm") == "split"
        if split:
            compute = in_parts(compute)
        schedule = Schedule(with_store(compute, self.workload.dtype))
        schedule = schedule.split("result", "i", self.cols, "it", "ii")
        schedule = schedule.split("result", "it", var("m_tiles"), "io", "im")
        schedule = schedule.split("result", "j", var("n_tiles") * self.wide, "jo", "ji")
        m_outer = split or structure.text("outer") == "m"
        order = ("io", "jo") if m_outer else ("jo", "io")
        schedule = schedule.reorder("result", (*self.lead, *order, "im", "ii", "ji"))
        schedule = schedule.compute_at("row", "result", "im", "sbuf").pipeline("result", "im", 2)
        schedule = schedule.set_layout("row", _row_layout(len(self.lead) + 2))
        copies, turn = structure.integer("copies_inner"), structure.text("turn")
        if split:
            return self._in_parts(schedule, copies, turn, structure.text("evacuate"))
        schedule = self._whole(schedule, structure.text("evacuate"))
        places = dict(zip(("m", "n"), ("io", "jo"), strict=True))
        schedule = self._place(schedule, "a", "c", ("result", places["m"]), turn)
        schedule = self._place(schedule, "b", "c", ("result", places["n"]), turn)
        schedule = schedule.pipeline("result", order[1], copies)
        return schedule.pipeline("result", order[0], structure.integer("copies_outer"))

    def _whole(self, schedule: Schedule, engine: str) -> Schedule:
        """c in a PSUM bank for each column tile of `row`, and what the epilogue reads beside it."""
        schedule = schedule.split("row", "j", self.wide, "jt", "jj")
        schedule = schedule.reorder("row", (*self.lead, "jt", "i", "jj"))
        schedule = schedule.assign_engine("row", engine)
        schedule = schedule.compute_at("c", "row", "jt", "psum").pipeline("row", "jt", 4)
        schedule = schedule.set_layout("c", _row_layout(len(self.lead) + 2))
        schedule = schedule.split("c", "k", self.rows, "kt", "kk")
        return schedule.reorder("c", ("kt", "kk", "i", "j")).assign_engine("c", "tensor")

    def _in_parts(self, schedule: Schedule, copies: int, turn: str, engine: str) -> Schedule:
        """c in SBUF, a block of k at a time; each part of it in a PSUM bank."""
        rank = len(self.lead) + 2
        lead = range(rank - 2)
        schedule = schedule.assign_engine("row", engine)
        schedule = schedule.compute_at("c", "result", "jo", "sbuf")
        schedule = schedule.set_layout("c", partitioned(rank, rank - 2, self.cols, *lead, rank - 1))
        schedule = schedule.split("c", "i", self.cols, "ct", "ci")
        schedule = schedule.split("c", "j", self.wide, "jt", "jj")
        schedule = schedule.reorder("c", ("g", "ct", "jt", *self.lead, "ci", "jj"))
        schedule = schedule.compute_at("part", "c", "jt", "psum").pipeline("c", "jt", 4)
        schedule = schedule.set_layout("part", _row_layout(rank + 1))
        schedule = schedule.split("part", "ki", self.rows, "kt", "kk")
        schedule = schedule.reorder("part", ("kt", "kk", "g", "i", "j"))
        schedule = schedule.assign_engine("part", "tensor")
        schedule = self._place(schedule, "a", "part", ("c", "g"), turn)
        schedule = self._place(schedule, "b", "part", ("c", "g"), turn)
        return schedule.pipeline("c", "g", copies)

    def _place(
        self, schedule: Schedule, operand: str, reader: str, place: tuple[str, str], turn: str
    ) -> Schedule:
        """`operand`'s block in SBUF with k on partitions, transposed on the way if need be."""
        stored_k_first = bool(self.workload.integer("ta" if operand == "a" else "tb"))
        transposed = stored_k_first != (operand == "a")
        rank = len(self.lead) + 2
        k = rank - 1 if transposed else rank - 2
        free = rank - 2 if transposed else rank - 1
        lead = tuple(range(rank - 2))
        block = f"{operand}.block"
        schedule = schedule.cache_read(operand, reader, block, "sbuf")
        schedule = schedule.set_layout(block, partitioned(rank, k, self.rows, *lead, free))
        schedule = schedule.compute_at(block, *place, "sbuf")
        if transposed:
            return self._turn(schedule, operand, k, free, turn)
        row = var("load_tiles") * self.wide
        schedule = schedule.split(block, f"{block}.{free}", row, f"{block}.s", f"{block}.f")
        schedule = schedule.split(block, f"{block}.{k}", self.rows, f"{block}.kt", f"{block}.kk")
        names = tuple(f"{block}.{part}" for part in ("s", "kt", "kk", "f"))
        return schedule.reorder(block, (*(f"{block}.{d}" for d in lead), *names))

    def _turn(self, schedule: Schedule, operand: str, k: int, free: int, engine: str) -> Schedule:
        """Strips of the operand come as they lie and are transposed tile by tile, a few of which
        share a PSUM bank and one copy out of it."""
        rank = len(self.lead) + 2
        lead = tuple(range(rank - 2))
        block, turned, strip = f"{operand}.block", f"{operand}.turned", f"{operand}.strip"
        schedule = schedule.cache_read(operand, block, turned, "psum")
        schedule = schedule.cache_read(operand, turned, strip, "sbuf")
        group = self.rows * min(TRANSPOSE_GROUP, self.depth)
        schedule = schedule.split(block, f"{block}.{free}", self.cols, f"{block}.t", f"{block}.f")
        schedule = schedule.split(block, f"{block}.{k}", group, f"{block}.g", f"{block}.r")
        schedule = schedule.split(block, f"{block}.r", self.rows, f"{block}.kt", f"{block}.kk")
        names = tuple(f"{block}.{part}" for part in ("t", "g", "kk", "kt", "f"))
        schedule = schedule.reorder(block, (*(f"{block}.{d}" for d in lead), *names))
        schedule = schedule.assign_engine(block, engine)
        schedule = schedule.compute_at(strip, block, f"{block}.t", "sbuf")
        schedule = schedule.set_layout(
            strip, Layout(tuple(LayoutDimension(d) for d in (free, *lead, k)))
        )
        schedule = schedule.compute_at(turned, block, f"{block}.g", "psum")
        schedule = schedule.set_layout(turned, partitioned(rank, k, self.rows, *lead, free))
        schedule = schedule.split(
            turned, f"{turned}.{k}", self.rows, f"{turned}.kt", f"{turned}.kk"
        )
        schedule = schedule.assign_engine(turned, "tensor")
        return schedule.pipeline(block, f"{block}.t", 2).pipeline(block, f"{block}.g", 2)


def in_parts(compute: ComputeDefinition) -> ComputeDefinition:
    """c as the sum of `part`s, each over `k_block` elements of the reduction."""
    whole = compute.stage("c")
    (k,) = whole.reduce_axes
    size = var("k_block")
    g, ki = axis("g", ceildiv(k.extent, size)), axis("ki", size)
    *lead, i, j = whole.axes
    index = {k.name: g.var * size + ki.var}
    value = rewrite(whole.value, lambda e: e.substitute(index))
    part = replace(whole, name="part", axes=(*lead, g, i, j), reduce_axes=(ki,), value=value)
    places = (*(a.var for a in lead), g.var, i.var, j.var)
    total = replace(whole, value=Load("part", places), reduce_axes=(g,))
    stages = tuple(
        new for old in compute.stages for new in ((part, total) if old is whole else (old,))
    )
    return replace(compute, stages=stages)


def _row_layout(rank: int) -> Layout:
    """Rows (the last axis but one) on partitions."""
    axes = (rank - 2, *range(rank - 2), rank - 1)
    return Layout(tuple(LayoutDimension(axis) for axis in axes))
