"""Permutations of axes on Trainium-like cores, layout changes among them.

Where the innermost axis stays innermost, or where the axes that change places are short, a
permutation is a movement of data like others (`movement`). Where the innermost axes
of source (s) and result (t) differ, rows can be turned on the tensor engine, so that DMA sees long
rows on both sides:

    for other axes: for blocks of s, of t:
      load strip[t % 128, t // 128, s]
      for 128 of s:  for 512 of t:  psum[s, t] = strip[t, s] transposed;  row[s, t] = psum
                     store row                                                    (1 to 4 copies)

Iterations are interleaved, so that turning and copying never wait for each other's latencies.
"""

from dataclasses import replace
from itertools import product as combinations
from math import prod

from tilesmith.families.trainium.schedules.building_blocks.common import CoreScheduler
from tilesmith.families.trainium.schedules.building_blocks.machine import memories
from tilesmith.families.trainium.schedules.data_movement.movement import MovementSpace
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import Expr, as_expr, minimum, var
from tilesmith.search_space.expressions.scalar import Load
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.relayout import Relayout, relayout_of
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload

TURNED = "turned"

GROUP = 4
"""Transposes that share a PSUM bank and one copy out of it."""

FLOATS = ("float32", "bfloat16", "float16")
"""What the tensor engine turns."""


def permutation(relayout: Relayout, name: str, dtype: str) -> ComputeDefinition:
    """The change of layout as copies between plain tensors of the physical shapes.

    An axis that a layout cuts into blocks falls into axes of its own; blocks that are not full are
    stages of their own, and what pads the last block is not written.
    """
    source = tuple(e.constant or 1 for e in relayout.source.shape(relayout.shape))
    target = relayout.target.shape(relayout.shape)
    parts = [_parts(relayout, position) for position in range(len(relayout.shape))]
    stages = [_stage(relayout, chosen, target, dtype) for chosen in combinations(*parts)]
    named = [replace(s, name=f"y.{i}", into="y") for i, s in enumerate(stages[:-1])]
    return ComputeDefinition(name, (Tensor("x", source, dtype),), (*named, stages[-1]))


Part = tuple[tuple[Axis, ...], Expr]
"""Axes of a part of a logical axis, and the logical index over them."""


def _parts(relayout: Relayout, position: int) -> list[Part]:
    """A logical axis as full blocks of every size, and what remains."""
    dimensions = (*relayout.source.dimensions, *relayout.target.dimensions)
    factors = {
        d.factor.constant or 1 for d in dimensions if d.axis == position and d.part == "inner"
    }
    return _blocks(f"d{position}", relayout.shape[position], sorted(factors, reverse=True))


def _blocks(name: str, extent: int, factors: list[int]) -> list[Part]:
    if not factors:
        whole = axis(name, extent)
        return [((whole,), whole.var)]
    size, *smaller = factors
    count, rest = divmod(extent, size)
    parts: list[Part] = []
    if count:
        outer = axis(f"{name}.{size}", count)
        for axes, index in _blocks(f"{name}.b{size}", size, smaller):
            parts.append(((outer, *axes), outer.var * size + index))
    if rest:
        for axes, index in _blocks(f"{name}.r{size}", rest, smaller):
            parts.append((axes, index + count * size))
    return parts


def _stage(
    relayout: Relayout, parts: tuple[Part, ...], shape: tuple[Expr, ...], dtype: str
) -> Stage:
    """One combination of parts: axes in the order of the result's memory."""
    bounds = {a.name: a.extent - 1 for axes, _ in parts for a in axes}
    logical = [index for _, index in parts]
    store = relayout.target.indices(logical, bounds)
    order = [n for index in store for n in _by_step(index)]
    known = {a.name: a for axes, _ in parts for a in axes}
    value = Load("x", relayout.source.indices(logical, bounds))
    axes = tuple(known[name] for name in order)
    return Stage("y", axes, value, store=store, shape=shape, dtype=dtype)


def _by_step(index: Expr) -> list[str]:
    """The variables of an index, the one with the largest step first."""

    def step(name: str) -> int:
        factor = index.coefficient(name)
        return (factor.constant if factor is not None else 0) or 0

    return sorted(index.variables(), key=step, reverse=True)


class PermutationSpace:
    """Space and schedule of a change of layout.

    Args:
        relayout: what changes, axes that stay neighbours merged.
        dtype: of the elements.
    """

    def __init__(self, relayout: Relayout, name: str, dtype: str, target: Target) -> None:
        self.compute = permutation(relayout, name, dtype)
        self.movement = MovementSpace(self.compute, dtype, target)
        self.dtype, self.size, self.target = dtype, size_of(dtype), target
        self.rows, self.cols = target.integer("tensor.rows"), target.integer("tensor.cols")
        self.partitions = target.integer("sbuf.partitions")
        self.capacity = memories(target)["sbuf"].bytes

    # -- which axes turn ----------------------------------------------------------------------
    def turns(self) -> tuple[Axis, Axis] | None:
        """The innermost axes of source and result, where they differ and engines can turn them."""
        if len(self.movement.stages) > 1 or self.dtype not in FLOATS:
            return None
        (stage,) = self.movement.stages
        (source,) = self.movement.pieces("0")[0].loads
        inner = [a for a in stage.axes if a.name in source.indices[-1].variables()]
        if len(inner) != 1 or inner[0] is stage.axes[-1] or source.indices[-1] != inner[0].var:
            return None
        return inner[0], stage.axes[-1]

    # -- space --------------------------------------------------------------------------------
    def space(self) -> SearchSpace:
        """Movements of data, and turning blocks of s by t."""
        spaces = list(self.movement.space().subspaces)
        turns = self.turns()
        if turns is not None:
            spaces += self._turned(*turns)
        kept = tuple(s for s in spaces if s.size)
        return SearchSpace(kept or (spaces[0],))

    def _turned(self, s: Axis, t: Axis) -> list[Subspace]:
        limit = Constraint(
            self._bytes(s, t), self.capacity, "bytes of SBUF a partition that the tiles take"
        )
        knobs = (
            tile("s_tiles", _counts(-(-_extent(s) // self.cols), 16)),
            tile("t_tiles", _counts(-(-_extent(t) // self.rows), 32)),
        )
        return [
            Subspace(
                (("algorithm", TURNED), ("copies", copies), ("engine", engine)), knobs, (limit,)
            )
            for copies in (1, 2, 3, 4)
            for engine in ("vector", "scalar")
        ]

    def _bytes(self, s: Axis, t: Axis) -> Expr:
        """Bytes a partition of strips and rows, at four copies."""
        columns = minimum(var("s_tiles") * self.cols, s.extent)
        strip = var("t_tiles") * columns
        row = minimum(var("t_tiles") * self.rows, t.extent)
        return (strip + row) * (4 * self.size)

    def default(self) -> Config:
        """Turned in blocks of about 1,024 by 1,024 if it can be, else the cheapest movement."""
        moved = self.movement.default()
        turns = self.turns()
        if turns is None:
            return moved
        turned = [c for c in self.space() if c.text("algorithm") == TURNED]
        if not turned or self._cheap(moved):
            return moved
        blocks = {"s_tiles": -(-_extent(turns[0]) // self.cols), "t_tiles": 8}

        def distance(config: Config) -> tuple[object, ...]:
            far = [abs(config.integer(n) - min(8, b)) for n, b in blocks.items()]
            return (*far, -config.integer("copies"), config.text("engine") != "scalar")

        return min(turned, key=distance)

    def _cheap(self, config: Config) -> bool:
        """Whether a movement costs less than turning would, roughly."""
        turns = self.turns()
        assert turns is not None
        s, t = turns
        (stage,) = self.movement.stages
        others = prod(_extent(a) for a in stage.axes) // (_extent(s) * _extent(t))
        count = others * -(-_extent(s) // self.cols) * -(-_extent(t) // self.rows)
        passes = self.target.integer("tensor.fp32_factor") if self.size == 4 else 1
        turning = count * 64 * (passes + 4) / self.target.number("tensor.ghz")
        number = self.target.number
        run = min(_extent(s), _extent(t)) * self.size
        rows = 2 * others * _extent(s) * _extent(t) * self.size / run
        row = run + number("dma.row_overhead_bytes")
        turning = max(turning, rows * row / number("dma.gbps_practical") / number("dma.engines"))
        pieces = self.movement.pieces(config.text("rows"))
        return self.movement.cost(pieces, config) < turning + 2 * (
            number("dma.start_ns") + number("dma.transfer_floor_ns")
        )

    # -- schedule -----------------------------------------------------------------------------
    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration; tile sizes stay symbols."""
        if structure.text("algorithm") != TURNED:
            return self.movement.schedule(structure)
        turns = self.turns()
        assert turns is not None
        s, t = (a.name for a in turns)
        schedule = self._stages()
        (stage,) = self.movement.stages
        others = tuple(a.name for a in stage.axes if a.name not in (s, t))
        schedule = schedule.split("y", s, self.cols, "st", "si")
        schedule = schedule.split("y", "st", var("s_tiles"), "sb", "sm")
        schedule = schedule.split("y", t, var("t_tiles") * self.rows, "tb", "ti")
        schedule = schedule.reorder("y", (*others, "sb", "tb", "sm", "si", "ti"))
        rank = len(stage.axes)
        ps, pt = (next(i for i, a in enumerate(stage.axes) if a.name == n) for n in (s, t))
        rest = tuple(i for i in range(rank) if i not in (ps, pt))
        schedule = schedule.compute_at("strip", "y", "tb", "sbuf")
        schedule = schedule.set_layout("strip", _partitioned(pt, self.rows, (*rest, ps)))
        schedule = schedule.split("strip", f"strip.{pt}", self.rows, "strip.tt", "strip.tk")
        plain = Layout(tuple(LayoutDimension(i) for i in (ps, *rest, pt)))
        schedule = schedule.compute_at("row", "y", "sm", "sbuf").set_layout("row", plain)
        schedule = schedule.assign_engine("row", structure.text("engine"))
        schedule = schedule.split("row", f"row.{pt}", self.rows * GROUP, "row.g", "row.f")
        order = (*(f"row.{i}" for i in rest), "row.g", f"row.{ps}", "row.f")
        schedule = schedule.reorder("row", order).pipeline("row", "row.g", 4)
        schedule = schedule.compute_at("turned", "row", "row.g", "psum").set_layout("turned", plain)
        schedule = schedule.split("turned", f"turned.{pt}", self.rows, "turned.tt", "turned.tk")
        schedule = schedule.assign_engine("turned", "tensor")
        copies = structure.integer("copies")
        schedule = schedule.interleave("y", (*others, "sb")[0])
        return schedule.pipeline("y", "sm", copies).pipeline("y", "tb", copies)

    def _stages(self) -> Schedule:
        """strip, turned, row and y, each a copy of the one before."""
        (stage,) = self.movement.stages
        stages: list[Stage] = []
        value = stage.value
        for name in ("strip", "turned", "row"):
            axes = tuple(axis(f"{name}.{i}", a.extent) for i, a in enumerate(stage.axes))
            if name == "strip":
                substitution = {a.name: b.var for a, b in zip(stage.axes, axes, strict=True)}
                assert isinstance(value, Load)
                value = Load(value.buffer, tuple(e.substitute(substitution) for e in value.indices))
            else:
                value = Load(stages[-1].name, tuple(a.var for a in axes))
            stages.append(Stage(name, axes, value, dtype=self.dtype))
        last = Load("row", tuple(a.var for a in stage.axes))
        return Schedule(replace(self.compute, stages=(*stages, replace(stage, value=last))))


def _partitioned(position: int, rows: int, others: tuple[int, ...]) -> Layout:
    """[axis % rows, axis // rows, others...]"""
    factor = as_expr(rows)
    return Layout(
        (
            LayoutDimension(position, "inner", factor),
            LayoutDimension(position, "outer", factor),
            *(LayoutDimension(other) for other in others),
        )
    )


def _counts(tiles: int, limit: int) -> list[int]:
    top = min(tiles, limit)
    return sorted({1 << e for e in range(top.bit_length()) if 1 << e <= top} | {top})


def _extent(axis: Axis) -> int:
    return axis.extent.constant or 1


@schedules("layout_transform", "transpose", on="trainium")
class PermutationOnCore(CoreScheduler):
    """See the module's docstring."""

    def prepare(self, workload: Workload, target: Target) -> PermutationSpace:
        operator, dtype = workload.operator, workload.dtype
        return PermutationSpace(relayout_of(workload), operator, dtype, target)
