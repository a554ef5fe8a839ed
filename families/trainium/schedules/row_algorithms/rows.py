"""Rows on partitions: how maps, reductions and normalisations run on Trainium-like cores.

128 rows at a time come to SBUF, one on each partition; every stage works along the free axis while
they are there, scalars of a row being one column; the result leaves in the rows' own order. Where
a row is longer than SBUF allows, it is cut into columns; if something is reduced along it, into
pieces (`long_rows`).

    rows:   for blocks of 128 rows (for columns):  load; stage after stage; store    (1 to 3 copies)
    whole:  for blocks of 128 rows:                the same of all that a row has, several axes

Blocks are interleaved: engines work on whichever is ready for them. Of rows of several axes (all
pairs of a few elements, say) the first cuts what is not the last axis into single elements, each a
transfer of its own; the second repeats on chip what is read along one of them.
"""

from dataclasses import replace
from math import prod

from tilesmith.families.trainium.schedules.building_blocks.common import with_store
from tilesmith.families.trainium.schedules.building_blocks.flags import arithmetic
from tilesmith.families.trainium.schedules.building_blocks.machine import memories
from tilesmith.families.trainium.schedules.row_algorithms.long_rows import ALGORITHM as PIECES
from tilesmith.families.trainium.schedules.row_algorithms.long_rows import LongRows
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import const, minimum, var
from tilesmith.search_space.expressions.scalar import Call, Load, Scalar, loads, rewrite
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, divisors, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace

LONGEST = 8192
"""Elements of a row at most where it may be cut; longer ones only make DMA wait."""

PIECE = 2048
"""Elements that one elementwise instruction works on at most."""

STAGED = 8
"""Pieces of an operand without rows (a scale, a bias) that stand in SBUF, on all partitions."""

TEMPORARIES = 8
"""Tiles of a piece that an expression may need beside its stages' own."""


WHOLE = "whole"
"""Rows of several axes in one piece; see the module's docstring."""


class RowsSpace:
    """Space and schedule of a computation whose stages share their first axis, the rows.

    Args:
        compute: its last stage has the rows first; other stages too, or are scalars of a row.
        dtype: of the result.
    """

    has_pieces = True
    """Whether rows that do not fit are reduced piece by piece."""

    def __init__(self, compute: ComputeDefinition, dtype: str, target: Target) -> None:
        if len(compute.output.axes) == 1 and not any(s.reduce_axes for s in compute.stages):
            compute = folded(compute, target)
        stages = tuple(replace(s, value=arithmetic(s.value)) for s in compute.stages)
        self.compute = with_store(_staged(replace(compute, stages=stages)), dtype)
        self.target, self.size = target, size_of(dtype)
        last = self.compute.output
        names = {s.name for s in self.compute.stages}
        self.spread = sum(f"{t.name}.rows" not in names for t in self.compute.inputs)
        self.rows_axis, *self.others = last.axes
        self.reduces = any(stage.reduce_axes for stage in compute.stages)
        self.partitions = target.integer("sbuf.partitions")
        self.capacity = memories(target)["sbuf"].bytes

    @property
    def refusal(self) -> str | None:
        """See `Scheduler.refusal`."""
        name = self.rows_axis.name
        for stage in self.compute.stages:
            if not stage.axes or stage.axes[0].name != name or name in _reduced(stage):
                return (
                    f"stage '{stage.name}' of '{self.compute.name}' does not keep the rows "
                    f"'{name}'; this target runs what is reduced along the last axes only"
                )
        return None

    @property
    def length(self) -> int:
        """Elements of a row."""
        total = 1
        for other in self.others:
            total *= other.extent.constant or 1
        return total

    @property
    def cut(self) -> int:
        """Extent of the last axis, which may be cut into columns (1 if there is none)."""
        if self.reduces or not self.others:
            return 1
        return self.others[-1].extent.constant or 1

    @property
    def has_short_rows(self) -> bool:
        """Whether a row of several axes is one instruction's, so that none has to be cut."""
        several = sum((a.extent.constant or 1) > 1 for a in self.others) > 1
        return several and not self.reduces and self.length <= PIECE

    def space(self) -> SearchSpace:
        """Copies of the tiles, and columns at a time where rows may be cut."""
        algorithms = ("rows", WHOLE) if self.has_short_rows else ("rows",)
        spaces = [self._subspace(name, copies) for name in algorithms for copies in (1, 2, 3)]
        kept = tuple(s for s in spaces if s.size)
        if not kept and self.reduces and self.has_pieces:
            kept = tuple(self.in_pieces.subspaces())
        return SearchSpace(kept or (spaces[0],))

    @property
    def in_pieces(self) -> LongRows:
        """The same piece by piece."""
        return LongRows(self.compute, self.partitions, self.capacity)

    def _subspace(self, algorithm: str, copies: int) -> Subspace:
        cuts = self.cut > 1 and algorithm != WHOLE
        full = [s for s in self.compute.stages[:-1] if len(s.axes) > 1]
        width = minimum(var("columns"), self.cut) if cuts else const(self.length)
        held = width * len(full) if not self.reduces else const(sum(map(_elements, full)))
        limit = Constraint(
            held * (4 * copies)
            + minimum(width, PIECE) * (4 * TEMPORARIES)
            + minimum(width, STAGED * PIECE) * (4 * self.spread),
            self.capacity,
            "bytes of SBUF a partition that the tiles take",
            "choose fewer columns or copies",
        )
        fixed = (("algorithm", algorithm), ("copies", copies))
        return Subspace(fixed, (tile("columns", _columns(self.cut) if cuts else [1]),), (limit,))

    def default(self) -> Config:
        """Two blocks under way, of chains three; about 2,048 columns at a time."""
        space = self.space()
        configs = list(space)
        if not configs:
            space.validate(space.subspaces[0].config(space.subspaces[0].rows(0, 1)[0]))
        wanted = 3 if self.reduces else 2
        algorithm = WHOLE if self._pays_whole() else "rows"
        return min(
            configs,
            key=lambda c: (
                c["algorithm"] != algorithm,
                abs(c.integer("copies") - wanted),
                abs(c.integer("columns") - 2048),
            ),
        )

    def _pays_whole(self) -> bool:
        """Whether instructions on whole rows take less than the transfers of their parts."""
        if not self.has_short_rows:
            return False
        number, rows = self.target.number, self.rows_axis.extent.constant or 1
        tensors = 1 + sum(len(t.shape) > 1 for t in self.compute.inputs)
        runs = tensors * self.length // self.cut
        bandwidth = number("dma.gbps_practical") * number("dma.engines")
        passes = sum(calls(stage.value) for stage in self.compute.stages)
        blocks = -(-rows // self.partitions)
        engine = blocks * passes * self.length / number("vector.ghz")
        run = self.cut * self.size + number("dma.row_overhead_bytes")
        moved = max(rows * run / bandwidth, blocks * number("dma.transfer_floor_ns"))
        return engine < runs * moved

    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration; `columns` stays a symbol."""
        if structure["algorithm"] == PIECES:
            return self.in_pieces.schedule(structure)
        schedule = Schedule(self.compute)
        name = self.rows_axis.name
        schedule = schedule.split("result", name, self.partitions, "ro", "ri")
        outer = ["ro"]
        inner = ["ri", *(a.name for a in self.others)]
        if self.cut > 1 and structure["algorithm"] != WHOLE:
            last = self.others[-1].name
            schedule = schedule.split("result", last, var("columns"), "co", "ci")
            outer += [*(a.name for a in self.others[:-1]), "co"]
            inner = ["ri", "ci"]
        schedule = schedule.reorder("result", (*outer, *inner))
        place = outer[-1]
        for stage in self.compute.stages[:-1]:
            if stage.reduce_axes:
                over = tuple(a.name for a in stage.reduce_axes)
                schedule = schedule.reorder(stage.name, (*over, *(a.name for a in stage.axes)))
            schedule = schedule.compute_at(stage.name, "result", place, "sbuf")
        schedule = schedule.interleave("result", outer[0])
        return schedule.pipeline("result", place, structure.integer("copies"))


def folded(compute: ComputeDefinition, target: Target) -> ComputeDefinition:
    """A map over one axis of N elements as a map over R rows of N / R, as many as partitions."""
    (whole,) = compute.output.axes
    extent = whole.extent.constant or 1
    partitions = target.integer("sbuf.partitions")
    widths = [d for d in divisors(extent, LONGEST // 4) if extent // d >= min(partitions, extent)]
    width = widths[-1]
    r, k = axis("r", extent // width), axis("k", width)

    def access(load: Load) -> Load:
        return Load(load.buffer, (r.var, k.var) if load.indices == (whole.var,) else load.indices)

    def fold(tensor: Tensor) -> Tensor:
        return (
            replace(tensor, extents=(extent // width, width))
            if tensor.shape == (extent,)
            else tensor
        )

    stages = tuple(
        replace(s, axes=(r, k), value=rewrite(s.value, lambda index: index, access))
        for s in compute.stages
    )
    return replace(compute, inputs=tuple(map(fold, compute.inputs)), stages=stages)


def calls(value: Scalar) -> int:
    """Instructions of an expression, at most."""
    return 1 + sum(map(calls, value.arguments)) if isinstance(value, Call) else 0


def _elements(stage: Stage) -> int:
    """Of a row, in a stage's tile."""
    return prod(a.extent.constant or 1 for a in stage.axes[1:])


def _reduced(stage: Stage) -> set[str]:
    return {axis.name for axis in stage.reduce_axes}


def _columns(extent: int) -> list[int]:
    """Candidate widths: divisors and powers of two, and everything if it is not too long."""
    powers = [1 << e for e in range(6, 14) if 1 << e < extent]
    return sorted(
        {min(extent, LONGEST), *powers, *(d for d in divisors(extent, LONGEST) if d >= 64)}
    )


def _staged(compute: ComputeDefinition) -> ComputeDefinition:
    """Inputs that have the rows first are copied to SBUF once, for all stages that read them."""
    rows = compute.output.axes[0]
    copies: dict[str, Stage] = {}
    for tensor in compute.inputs:
        uses = [f for s in compute.stages for f in loads(s.value) if f.buffer == tensor.name]
        if not uses or any(f.indices[:1] != (rows.var,) for f in uses):
            continue
        axes = (rows, *(axis(f"{tensor.name}.{d}", n) for d, n in enumerate(tensor.shape) if d))
        element = Load(tensor.name, tuple(a.var for a in axes))
        copies[tensor.name] = Stage(f"{tensor.name}.rows", axes, element, dtype=tensor.dtype)

    def access(load: Load) -> Load:
        name = copies[load.buffer].name if load.buffer in copies else load.buffer
        return Load(name, load.indices)

    stages = tuple(
        replace(s, value=rewrite(s.value, lambda index: index, access)) for s in compute.stages
    )
    return replace(compute, stages=(*copies.values(), *stages))
