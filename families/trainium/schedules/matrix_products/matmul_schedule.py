"""Schedules of matrix products on Trainium-like cores: structures, with tile sizes left symbols.

`matmul.MatmulSpace` says which there are and how large tiles may be; this module turns
one into primitives. Blocks of both operands stand in SBUF with the reduction on partitions; a tile
of sums is as long as the moving operand's and as wide as the stationary one's:

    a stationary:  psum[128 rows, wide columns] += a.block(128 x 128).T @ b.block(128 x wide)
    b stationary:  psum[128 columns, wide rows] += b.block(128 x 128).T @ a.block(128 x wide)

The second gives the result's columns on partitions: `columns` takes them out of PSUM (epilogue
applied), and the tensor engine turns them, a bank at a time, into the rows that are stored.

In the first, sums can begin with a bias along the columns (`sums`).
"""

from dataclasses import dataclass, replace

from tilesmith.families.trainium.schedules.building_blocks.common import (
    in_parts,
    partitioned,
    with_store,
)
from tilesmith.families.trainium.schedules.matrix_products.sums import with_bias
from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.scalar import Load, rewrite
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

TRANSPOSE_GROUP = 4
"""Transposes that share a PSUM bank and one copy out of it."""


@dataclass(frozen=True)
class ProductSchedule:
    """The schedules of one product c[b, i, j] = sum_k a b.

    Attributes:
        rows, cols: of the tensor engine's array.
        wide: columns of the result in one tile; tall: rows, where b is stationary.
        group: products of a batch whose tiles share places: copies and transposes of all at once.
    """

    workload: Workload
    rows: int
    cols: int
    wide: int
    tall: int
    group: int = 1

    @property
    def lead(self) -> tuple[str, ...]:
        """The batch loop, if there is one."""
        return ("b",) if self.workload.integer("batch") > 1 else ()

    @property
    def rank(self) -> int:
        return len(self.lead) + 2

    def build(self, compute: ComputeDefinition, structure: Config) -> Schedule:
        """The schedule of a structural configuration."""
        split = structure.text("algorithm") == "split"
        if split:
            compute = in_parts(compute, "c", "k", var("k_block"))
        compute = with_store(compute, self.workload.dtype)
        turned = structure.text("stationary") == "b"
        seeded = structure.get("bias", "") == "tensor"
        if turned:
            compute = with_columns(compute, self.workload)
        if seeded:
            compute = with_bias(compute, self.workload, self.cols)
        schedule = self._blocks(Schedule(compute), self.tall if turned else self.cols, structure)
        schedule = self._turned(schedule, structure) if turned else schedule
        copies, turn = structure.integer("copies_inner"), structure.text("turn")
        if split:
            return self._in_parts(schedule, copies, turn, structure.text("evacuate"))
        if not turned:
            schedule = self._whole(schedule, structure.text("evacuate"))
        if seeded:
            schedule = self._seeded(schedule)
        order = ("io", "jo") if structure.text("outer") == "m" else ("jo", "io")
        schedule = self._place(schedule, "a", "c", ("result", "io"), turn)
        schedule = self._place(schedule, "b", "c", ("result", "jo"), turn)
        schedule = schedule.pipeline("result", order[1], copies)
        return schedule.pipeline("result", order[0], structure.integer("copies_outer"))

    def _blocks(self, schedule: Schedule, tall: int, structure: Config) -> Schedule:
        """The result in blocks, block rows of `tall` rows; `row` is one of them on its way out."""
        schedule = schedule.split("result", "i", tall, "it", "ii")
        schedule = schedule.split("result", "it", var("m_tiles"), "io", "im")
        schedule = schedule.split("result", "j", var("n_tiles") * self.wide, "jo", "ji")
        m_outer = structure.get("outer", "m") == "m"
        order = ("io", "jo") if m_outer else ("jo", "io")
        if self.group > 1:
            schedule = schedule.split("result", "b", self.group, "bo", "bi")
            schedule = schedule.reorder("result", ("bo", *order, "im", "bi", "ii", "ji"))
            schedule = schedule.interleave("result", "bo")
        else:
            schedule = schedule.reorder("result", (*self.lead, *order, "im", "ii", "ji"))
        schedule = schedule.compute_at("row", "result", "im", "sbuf").pipeline("result", "im", 2)
        if structure.text("stationary") == "a":
            return schedule.set_layout("row", _on_partitions(self.rank, self.rank - 2))
        schedule = schedule.split("result", "ii", self.cols, "iq", "ir")
        lead, i, j = range(self.rank - 2), self.rank - 2, self.rank - 1
        return schedule.set_layout("row", partitioned(self.rank, i, self.cols, *lead, j))

    def _whole(self, schedule: Schedule, engine: str) -> Schedule:
        """c in a PSUM bank for each column tile of `row`, and what the epilogue reads beside it."""
        schedule = schedule.split("row", "j", self.wide, "jt", "jj")
        schedule = schedule.reorder("row", ("jt", *self.lead, "i", "jj"))
        schedule = schedule.assign_engine("row", engine)
        schedule = schedule.compute_at("c", "row", "jt", "psum").pipeline("row", "jt", 4)
        schedule = schedule.set_layout("c", _on_partitions(self.rank, self.rank - 2))
        if self.group > 1:
            schedule = schedule.unroll("c", "b")
        return self._reduction(schedule, "c", "k", ("i", "j"))

    def _seeded(self, schedule: Schedule) -> Schedule:
        """The bias's row on one partition, times ones, where c's sums begin."""
        schedule = schedule.set_scope("ones", "sbuf")
        schedule = schedule.compute_at("bias.strip", "result", "jo", "sbuf")
        schedule = schedule.compute_at("seed", "row", "jt", "psum")
        schedule = schedule.set_layout("seed", _on_partitions(self.rank, self.rank - 2))
        schedule = schedule.reorder("seed", ("z", "i", "j"))
        return schedule.assign_engine("seed", "tensor")

    def _turned(self, schedule: Schedule, structure: Config) -> Schedule:
        """c in PSUM, columns on partitions; `columns` in SBUF; `row` from them by transposes."""
        rank, lead = self.rank, range(self.rank - 2)
        i, j = rank - 2, rank - 1
        schedule = schedule.split("row", "j", self.wide, "jt", "jj")
        schedule = schedule.split("row", "i", self.cols, "iq", "ii")
        schedule = schedule.reorder("row", (*self.lead, "jt", "iq", "ii", "jj"))
        schedule = schedule.assign_engine("row", structure.text("turn"))
        schedule = schedule.cache_read("columns", "row", "turned", "psum")
        schedule = schedule.compute_at("turned", "row", "iq", "psum").pipeline("row", "iq", 2)
        schedule = schedule.set_layout("turned", _on_partitions(rank, i))
        schedule = schedule.split("turned", f"turned.{j}", self.cols, "turned.t", "turned.j")
        schedule = schedule.assign_engine("turned", "tensor")
        schedule = schedule.compute_at("columns", "row", "jt", "sbuf").pipeline("row", "jt", 2)
        schedule = schedule.set_layout("columns", partitioned(rank, j, self.cols, *lead, i))
        schedule = schedule.split("columns", "j", self.cols, "ct", "cj")
        schedule = schedule.reorder("columns", (*self.lead, "ct", "cj", "i"))
        schedule = schedule.assign_engine("columns", structure.text("evacuate"))
        schedule = schedule.compute_at("c", "columns", "ct", "psum").pipeline("columns", "ct", 2)
        schedule = schedule.set_layout("c", _on_partitions(rank, j))
        return self._reduction(schedule, "c", "k", ("i", "j"))

    def _reduction(
        self, schedule: Schedule, stage: str, k: str, inner: tuple[str, ...]
    ) -> Schedule:
        schedule = schedule.split(stage, k, self.rows, "kt", "kk")
        schedule = schedule.reorder(stage, ("kt", "kk", *inner))
        return schedule.assign_engine(stage, "tensor")

    def _in_parts(self, schedule: Schedule, copies: int, turn: str, engine: str) -> Schedule:
        """c in SBUF, a block of k at a time; each part of it in a PSUM bank."""
        rank = self.rank
        lead = range(rank - 2)
        schedule = schedule.assign_engine("row", engine)
        schedule = schedule.compute_at("c", "result", "jo", "sbuf")
        schedule = schedule.set_layout("c", partitioned(rank, rank - 2, self.cols, *lead, rank - 1))
        schedule = schedule.split("c", "i", self.cols, "ct", "ci")
        schedule = schedule.split("c", "j", self.wide, "jt", "jj")
        schedule = schedule.reorder("c", ("g", "ct", "jt", *self.lead, "ci", "jj"))
        schedule = schedule.compute_at("part", "c", "jt", "psum").pipeline("c", "jt", 4)
        schedule = schedule.set_layout("part", _on_partitions(rank + 1, rank - 1))
        schedule = self._reduction(schedule, "part", "ki", ("g", "i", "j"))
        schedule = self._place(schedule, "a", "part", ("c", "g"), turn)
        schedule = self._place(schedule, "b", "part", ("c", "g"), turn)
        return schedule.pipeline("c", "g", copies)

    def _place(
        self, schedule: Schedule, operand: str, reader: str, place: tuple[str, str], turn: str
    ) -> Schedule:
        """`operand`'s block in SBUF with k on partitions, transposed on the way if need be."""
        stored_k_first = bool(self.workload.integer("ta" if operand == "a" else "tb"))
        transposed = stored_k_first != (operand == "a")
        rank = self.rank
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
        rank = self.rank
        lead = tuple(range(rank - 2))
        block, turned, strip = f"{operand}.block", f"{operand}.turned", f"{operand}.strip"
        schedule = schedule.cache_read(operand, block, turned, "psum")
        schedule = schedule.cache_read(operand, turned, strip, "sbuf")
        depth = -(-self.workload.integer("k") // self.rows)
        group = self.rows * min(max(1, TRANSPOSE_GROUP // self.group), depth)
        schedule = schedule.split(block, f"{block}.{free}", self.cols, f"{block}.t", f"{block}.f")
        schedule = schedule.split(block, f"{block}.{k}", group, f"{block}.g", f"{block}.r")
        schedule = schedule.split(block, f"{block}.r", self.rows, f"{block}.kt", f"{block}.kk")
        names = ("t", "g", *lead, "kt", "kk", "f")
        schedule = schedule.reorder(block, [f"{block}.{part}" for part in names])
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


def with_columns(compute: ComputeDefinition, workload: Workload) -> ComputeDefinition:
    """`columns` between c and `row`: the sums with the result's columns on partitions.

    The epilogue is applied there, unless it reads a tensor of the result's shape, whose rows would
    fall apart: then `row` applies it, and sums wait in fp32.
    """
    row = compute.stage("row")
    indices = tuple(a.var for a in row.axes)
    if late_epilogue(workload):
        columns = Stage("columns", row.axes, Load("c", indices))
        value = rewrite(
            row.value, lambda e: e, lambda x: Load("columns", x.indices) if x.buffer == "c" else x
        )
    else:
        columns = Stage("columns", row.axes, row.value, dtype=workload.dtype)
        value = Load("columns", indices)
    stages = tuple(
        new
        for old in compute.stages
        for new in ((columns, replace(row, value=value)) if old is row else (old,))
    )
    return replace(compute, stages=stages)


def late_epilogue(workload: Workload) -> bool:
    """Whether an epilogue reads a tensor of the result's shape."""
    return any(step.kind.operand == "full" for step in workload.epilogue)


def _on_partitions(rank: int, axis: int) -> Layout:
    """An axis on partitions, the others beside it in their order."""
    rest = (other for other in range(rank) if other != axis)
    return Layout(tuple(LayoutDimension(d) for d in (axis, *rest)))
