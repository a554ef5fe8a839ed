"""Spaces and schedules for Trainium-like cores, in the same primitives as for CPUs.

A matrix product there: blocks of both operands stand in SBUF with the reduction on partitions
(what does not come that way is transposed on the tensor engine); a tile of the result accumulates
in a PSUM bank over the whole reduction, passes through the epilogue on its way to SBUF, and leaves
in long rows.

    for blocks of the result, n outside m or m outside n:
      load the outer operand's block once, the inner one's in every step      (1 or 2 copies each)
      for row tiles of 128:
        for column tiles of 512:  psum += stationary(128 x 128).T @ moving(128 x 512), k/128 times;
                                  row[columns] = epilogue(psum)
        store row

Limits are the target's: array rows and columns, a PSUM bank, bytes of SBUF a partition.
"""

from __future__ import annotations

from search_space.compute import ComputeDefinition, Stage
from search_space.config import Config
from search_space.dtypes import size_of
from search_space.expression import Expr, as_expr, minimum, var
from search_space.knobs import Constraint, choice, tile
from search_space.layout import Layout, LayoutDimension
from search_space.scalar import Load
from search_space.schedule import Schedule
from search_space.space import SearchSpace, Subspace
from search_space.target import Target
from search_space.workload import Workload

FAMILY = "trainium"
TRANSFER_COLUMNS = 2
"""Column tiles loaded in one row: long enough for DMA, short enough for work to begin early."""

STAGED_PIECES = 10
"""Pieces of an epilogue's operand that may stand in SBUF at once."""

TRANSPOSE_GROUP = 4
"""Transposes that share a PSUM bank and one copy out of it."""


def with_store(compute: ComputeDefinition, dtype: str) -> ComputeDefinition:
    """The same computation ending in a copy to HBM: `row` (in SBUF), then `result`."""
    *before, last = compute.stages
    axes = last.axes
    indices = tuple(axis.var for axis in axes)
    if last.reducer is not None:
        before.append(last)
        last = Stage("row", axes, Load(last.name, indices), dtype=dtype)
    else:
        last = Stage("row", last.axes, last.value, dtype=dtype)
    result = Stage("result", axes, Load("row", indices), dtype=dtype)
    return ComputeDefinition(compute.name, compute.inputs, (*before, last, result))


def partitioned(rank: int, axis: int, rows: int, *others: int) -> Layout:
    """[axis % rows, axis // rows, others...]: an axis on partitions, its excess beside it."""
    factor = as_expr(rows)
    dimensions = (
        LayoutDimension(axis, "inner", factor),
        LayoutDimension(axis, "outer", factor),
        *(LayoutDimension(other) for other in others),
    )
    assert len(dimensions) == rank + 1
    return Layout(dimensions)


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
        self.capacity = target.integer("sbuf.mib") * 2**20 // target.integer("sbuf.partitions")

    def space(self) -> SearchSpace:
        """Every configuration that fits SBUF."""
        row_tiles, column_tiles = -(-self.m // self.cols), -(-self.n // self.wide)
        knobs = (
            choice("outer", ("m", "n")),
            tile("m_tiles", _counts(row_tiles, 32)),
            tile("n_tiles", _counts(column_tiles, 16)),
        )
        spaces = []
        for copies_outer in (1, 2):
            for copies_inner in (1, 2, 3):
                fixed = (
                    ("algorithm", "tiled"),
                    ("copies_inner", copies_inner),
                    ("copies_outer", copies_outer),
                )
                for outer in ("m", "n"):
                    limit = Constraint(
                        self.bytes(outer, copies_outer, copies_inner),
                        self.capacity,
                        "bytes of SBUF a partition that the tiles take",
                    )
                    chosen = (("outer", outer), *fixed)
                    spaces.append(Subspace(chosen, knobs[1:], (limit,)))
        kept = tuple(s for s in spaces if s.size)
        return SearchSpace(kept or (spaces[0],))

    def bytes(self, outer: str, copies_outer: int, copies_inner: int) -> Expr:
        """Bytes a partition of everything in SBUF at once."""
        m_tiles, n_tiles = var("m_tiles"), var("n_tiles")
        copies_a, copies_b = (
            (copies_outer, copies_inner) if outer == "m" else (copies_inner, copies_outer)
        )
        columns = minimum(n_tiles * self.wide, self.n)
        rows = minimum(m_tiles * self.cols, self.m)
        a = self._operand(rows, self.cols, copies_a, not self.workload.integer("ta"))
        b = self._operand(columns, self.wide, copies_b, bool(self.workload.integer("tb")))
        operands = sum(1 for step in self.workload.epilogue if step.kind.operand != "none")
        staged = operands * STAGED_PIECES * min(self.wide, self.n) * self.size
        return a + b + columns * (self.size * 2) + (self.wide * 4 * 6 + staged)

    def _operand(self, extent: Expr, step: int, copies: int, transposed: bool) -> Expr:
        block = extent * (self.depth * self.size * copies)
        return block + (self.depth * self.rows * self.size * 2 if transposed else 0)

    def default(self) -> Config:
        """The configuration that a rough model likes best.

        Chosen by a closed form of traffic and tensor time.
        """
        best: tuple[float, Config] | None = None
        space = self.space()
        for subspace in space.subspaces:
            rows = subspace.rows(0, subspace.cardinality)
            for row in rows[subspace.legal(rows)]:
                config = subspace.config(row)
                cost = self._cost(config)
                if best is None or cost < best[0]:
                    best = cost, config
        if best is None:
            space.validate(space.subspaces[0].config(space.subspaces[0].rows(0, 1)[0]))
        assert best is not None
        return best[1]

    def _cost(self, config: Config) -> float:
        """A rough time in ns: traffic or tensor engine, and what single buffering leaves bare."""
        blocks_m = -(-self.m // (config.integer("m_tiles") * self.cols))
        blocks_n = -(-self.n // (config.integer("n_tiles") * self.wide))
        m_outer = config["outer"] == "m"
        a, b = float(self.m * self.k * self.size), float(self.k * self.n * self.size)
        repeat_a, repeat_b = (1, blocks_m) if m_outer else (blocks_n, 1)
        bandwidth = self.target.number("dma.gbps_practical") * self.target.integer("dma.engines")
        factor = self.target.integer("tensor.fp32_factor") if self.size == 4 else 1
        rate = self.rows * self.cols * self.target.number("tensor.ghz") / factor
        turned = 0 if self.workload.integer("ta") else self.m * self.k * repeat_a
        turned += self.k * self.n * repeat_b if self.workload.integer("tb") else 0
        tensor = (self.m * self.n * self.k + turned * self.rows) / rate
        columns_a = config.integer("m_tiles") * self.cols
        columns_b = min(config.integer("n_tiles"), TRANSFER_COLUMNS) * self.wide
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
        """The schedule of a structural configuration; m_tiles and n_tiles stay symbols."""
        schedule = Schedule(with_store(compute, self.workload.dtype))
        batch = ("b",) if self.batch > 1 else ()
        m_outer = structure.text("outer") == "m"
        schedule = schedule.split("result", "i", self.cols, "it", "ii")
        schedule = schedule.split("result", "it", var("m_tiles"), "io", "im")
        schedule = schedule.split("result", "j", var("n_tiles") * self.wide, "jo", "ji")
        order = ("io", "jo") if m_outer else ("jo", "io")
        schedule = schedule.reorder("result", (*batch, *order, "im", "ii", "ji"))
        schedule = schedule.compute_at("row", "result", "im", "sbuf").pipeline("result", "im", 2)
        schedule = self._product(schedule)
        loops = dict(zip(("m", "n"), ("io", "jo"), strict=True))
        schedule = self._place(schedule, "a", loops["m"], 0, not self.workload.integer("ta"))
        schedule = self._place(schedule, "b", loops["n"], 1, bool(self.workload.integer("tb")))
        inner, outer = order[1], order[0]
        schedule = schedule.pipeline("result", inner, structure.integer("copies_inner"))
        return schedule.pipeline("result", outer, structure.integer("copies_outer"))

    def _product(self, schedule: Schedule) -> Schedule:
        """c in a PSUM bank for each column tile of `row`, and what the epilogue reads beside it."""
        schedule = schedule.set_layout("row", self._row_layout())
        schedule = schedule.split("row", "j", self.wide, "jt", "jj")
        batch = ("b",) if self.batch > 1 else ()
        schedule = schedule.reorder("row", (*batch, "jt", "i", "jj"))
        schedule = schedule.compute_at("c", "row", "jt", "psum").pipeline("row", "jt", 4)
        schedule = schedule.set_layout("c", self._row_layout())
        schedule = schedule.split("c", "k", self.rows, "kt", "kk")
        return schedule.reorder("c", ("kt", "kk", "i", "j")).assign_engine("c", "tensor")

    def _row_layout(self) -> Layout:
        rank = 3 if self.batch > 1 else 2
        axes = (rank - 2, *range(rank - 2), rank - 1)
        return Layout(tuple(LayoutDimension(axis) for axis in axes))

    def _place(
        self, schedule: Schedule, operand: str, loop: str, column: int, transposed: bool
    ) -> Schedule:
        """`operand`'s block in SBUF with k on partitions, transposed on the way if need be."""
        rank = 3 if self.batch > 1 else 2
        k = rank - 1 if transposed else rank - 2
        free = rank - 2 if transposed else rank - 1
        lead = tuple(range(rank - 2))
        block = f"{operand}.block"
        schedule = schedule.cache_read(operand, "c", block, "sbuf")
        schedule = schedule.set_layout(block, partitioned(rank, k, self.rows, *lead, free))
        schedule = schedule.compute_at(block, "result", loop, "sbuf")
        if not transposed:
            row = TRANSFER_COLUMNS * self.wide
            schedule = schedule.split(block, f"{block}.{free}", row, f"{block}.s", f"{block}.f")
            schedule = schedule.split(
                block, f"{block}.{k}", self.rows, f"{block}.kt", f"{block}.kk"
            )
            names = tuple(f"{block}.{part}" for part in ("s", "kt", "kk", "f"))
            return schedule.reorder(block, (*(f"{block}.{d}" for d in lead), *names))
        turned, strip = f"{operand}.turned", f"{operand}.strip"
        schedule = schedule.cache_read(operand, block, turned, "psum")
        schedule = schedule.cache_read(operand, turned, strip, "sbuf")
        group = self.rows * min(TRANSPOSE_GROUP, self.depth)
        schedule = schedule.split(block, f"{block}.{free}", self.cols, f"{block}.t", f"{block}.f")
        schedule = schedule.split(block, f"{block}.{k}", group, f"{block}.g", f"{block}.r")
        schedule = schedule.split(block, f"{block}.r", self.rows, f"{block}.kt", f"{block}.kk")
        names = tuple(f"{block}.{part}" for part in ("t", "g", "kk", "kt", "f"))
        schedule = schedule.reorder(block, (*(f"{block}.{d}" for d in lead), *names))
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


def _counts(tiles: int, limit: int) -> list[int]:
    """Candidate numbers of tiles in a block: powers of two and divisors, or everything."""
    top = min(tiles, limit)
    powers = {1 << e for e in range(top.bit_length()) if 1 << e <= top}
    return sorted(powers | {d for d in range(1, top + 1) if tiles % d == 0} | {top})
