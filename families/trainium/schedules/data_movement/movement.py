"""Data movement on Trainium-like cores: slices, concatenations, padding, resizing, permutations.

A copy goes from HBM through SBUF back to HBM, a box at a time. What DMA pays for is rows: each
contiguous run costs as much as 2.4 KiB, however short it is. So there are two ways to rearrange:

    direct         DMA gathers the elements where they belong, then stores long rows
    vector, ...    DMA loads long rows, that engine moves elements along the free axes, DMA stores

One axis of the result stands on partitions; of the others, outermost first, the first `at` are
run, the next is cut into blocks of `block`, the rest are whole. A long contiguous axis is folded:
its first part on partitions, the remainder (fewer than 128 elements) moved by itself.

    for outer axes: for 128 partitions: for blocks:  load; (move;) store            (1 to 3 copies)
"""

from dataclasses import replace
from math import prod

from tilesmith.families.kit.programs.strides import boxes
from tilesmith.families.trainium.schedules.building_blocks.machine import memories
from tilesmith.families.trainium.schedules.data_movement.movement_pieces import (
    CopyBox,
    contiguous_run,
    extent_of,
    longest,
    missed,
    piece_of,
)
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import (
    Expr,
    as_expr,
    const,
    maximum,
    minimum,
    var,
)
from tilesmith.search_space.expressions.scalar import Load, Scalar, Select, rewrite
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, axis
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace

FOLDED_BYTES = 2048
"""Bytes of a folded axis that a partition gets at least: a DMA row that pays."""

NEARLY = 1.3
"""Times the least cost that counts as nearly as good."""

CHIP_BYTES = 4
"""Bytes of the largest elements that engines move (two of four make one of eight)."""

FOLD = "fold"


class MovementSpace:
    """Space and schedule of a computation that only copies.

    Args:
        compute: stages that each copy a box (a `Load`, or a `Select` between loads and numbers)
            into the one result, without reductions.
        dtype: of the elements.
    """

    def __init__(self, compute: ComputeDefinition, dtype: str, target: Target) -> None:
        self.compute, self.dtype, self.target = compute, dtype, target
        self.size = size_of(dtype)
        self.partitions = target.integer("sbuf.partitions")
        self.capacity = memories(target)["sbuf"].bytes
        self.stages = tuple(self._tidied(stage) for stage in compute.stages)
        self.shapes = {t.name: t.shape for t in compute.inputs}

    def _tidied(self, stage: Stage) -> Stage:
        """A stage without axes of one element, its store written out."""
        kept = tuple(a for a in stage.axes if a.extent.constant != 1) or stage.axes[-1:]
        zero = {a.name: const(0) for a in stage.axes if a not in kept}

        def index(expression: Expr) -> Expr:
            return expression.substitute(zero)

        return replace(
            stage,
            axes=kept,
            value=rewrite(stage.value, index),
            store=tuple(index(e) for e in stage.indices),
            shape=stage.tensor_shape,
        )

    # -- pieces -------------------------------------------------------------------------------
    def leads(self) -> tuple[str, ...]:
        """What may stand on partitions: `fold`, or an axis by its number (of the longest box)."""
        stage = max(self.stages, key=lambda s: prod(extent_of(a) for a in s.axes))
        folding = [FOLD] if any(self._folds(s) for s in self.stages) else []
        outer = [i for i, a in enumerate(stage.axes[:-1]) if extent_of(a) > 1]
        steady = [i for i in outer if piece_of(stage, stage.axes, i, {}).affine(stage.axes[i].name)]
        return (*folding, *map(str, steady or ([] if folding else outer))) or ("0",)

    def pieces(self, lead: str) -> tuple[CopyBox, ...]:
        """The boxes of every stage; the last is called as the output."""
        boxes = [piece for stage in self.stages for piece in self._pieces(stage, lead)]
        last = self.compute.output.name
        names = [f"{last}.{i}" for i in range(len(boxes) - 1)] + [last]
        return tuple(replace(p, name=n) for p, n in zip(boxes, names, strict=True))

    def _pieces(self, stage: Stage, lead: str) -> list[CopyBox]:
        partitions = self._folds(stage) if lead == FOLD else 0
        if not partitions:
            position = int(lead) if lead != FOLD else -1
            if not 0 <= position < len(stage.axes) - 1:
                position = longest(stage.axes)
            return [piece_of(stage, stage.axes, position, {})]
        *outer, last = stage.axes
        width, rest = divmod(extent_of(last), partitions)
        p, f = axis(f"{last.name}.p", partitions), axis(f"{last.name}.f", width)
        values = {last.name: p.var * width + f.var}
        pieces = [piece_of(stage, (*outer, p, f), len(outer), values)]
        if rest:
            f = axis(f"{last.name}.r", rest)
            axes = (*outer, f)
            values = {last.name: f.var + partitions * width}
            pieces.append(piece_of(stage, axes, longest(axes), values))
        return pieces

    def _folds(self, stage: Stage) -> int:
        """Partitions that the last axis is folded over; 0 if it is short or not contiguous."""
        last = stage.axes[-1]
        piece = piece_of(stage, stage.axes, 0, {})
        factors = [load.indices[-1].coefficient(last.name) for load in piece.loads]
        if not piece.affine(last.name) or any(f is None or f.constant != 1 for f in factors):
            return 0
        count = min(self.partitions, extent_of(last) * self.size // FOLDED_BYTES)
        return count if count > 1 else 0

    # -- space --------------------------------------------------------------------------------
    def space(self) -> SearchSpace:
        """Ways, the axis on partitions, what is run and what is whole, copies, engines."""
        spaces = []
        for lead in self.leads():
            pieces = self.pieces(lead)
            free = max(len(p.free) for p in pieces)
            for way in self._ways(pieces):
                for at in range(free if way == "direct" else self._steady(pieces)):
                    for copies in (1, 2, 3):
                        spaces.append(self._subspace(pieces, lead, way, at, copies))
        kept = tuple(s for s in spaces if s.size)
        return SearchSpace(kept or (spaces[0],))

    def _ways(self, pieces: tuple[CopyBox, ...]) -> tuple[str, ...]:
        """`direct`, and `chip` on each engine where that rearranges anything."""
        if self.size > CHIP_BYTES or any(p.partition_index() is None for p in pieces):
            return ("direct",)
        if all(self._contiguous(p) for p in pieces):
            return ("direct",)
        return ("direct", "vector", "scalar", "gpsimd")

    def _steady(self, pieces: tuple[CopyBox, ...]) -> int:
        """Values of `at` on chip: rows are loaded in front of affine loops only."""
        counts = []
        for piece in pieces:
            odd = [i for i, a in enumerate(piece.free) if not piece.affine(a.name)]
            counts.append(min([*(i + 1 for i in odd), len(piece.free)]))
        return min(counts)

    def _contiguous(self, piece: CopyBox) -> bool:
        """Whether the innermost run is the same in source and result, and long."""
        last = piece.axes[-1]
        factors = [load.indices[-1].coefficient(last.name) for load in piece.loads]
        together = piece.affine(last.name) and all(
            f is not None and f.constant == 1 for f in factors
        )
        return together and extent_of(last) * self.size >= FOLDED_BYTES

    def _subspace(
        self, pieces: tuple[CopyBox, ...], lead: str, way: str, at: int, copies: int
    ) -> Subspace:
        extents = {extent_of(p.free[at]) for p in pieces if at < len(p.free)}
        top = max(extents, default=1)
        blocks = sorted({1 << e for e in range(14) if 1 << e < top} | {top})
        limit = Constraint(
            sum((self._bytes(p, way, at) for p in pieces), const(0)) * copies,
            self.capacity,
            "bytes of SBUF a partition that the tiles take",
            "choose a smaller block or fewer copies",
        )
        fixed = (("algorithm", way), ("at", at), ("copies", copies), ("rows", lead))
        return Subspace(fixed, (tile("block", blocks),), (limit,))

    def _blocked(self, piece: CopyBox, way: str, at: int) -> Axis | None:
        """The axis cut into blocks; on chip it must move the source by constant steps."""
        if at >= len(piece.free):
            return None
        free_axis = piece.free[at]
        return free_axis if way == "direct" or piece.affine(free_axis.name) else None

    def _bytes(self, piece: CopyBox, way: str, at: int) -> Expr:
        """Bytes a partition of one piece's tiles."""
        blocked, result = self._blocked(piece, way, at), as_expr(1)
        sizes: dict[str, Expr] = {piece.lead.name: const(1)}
        for position, a in enumerate(piece.free):
            sizes[a.name] = const(1) if position < at else a.extent
            if a is blocked:
                sizes[a.name] = minimum(var("block"), a.extent)
            result = result * sizes[a.name]
        if way != "direct":
            result = result + self._source_elements(piece, sizes)
        return result * self.size

    def _source_elements(self, piece: CopyBox, sizes: dict[str, Expr]) -> Expr:
        """Elements a partition of the rows loaded for one tile."""
        total = as_expr(1)
        skipped, access = piece.partition_index(), piece.loads[0]
        for position, index in enumerate(access.indices):
            if position == skipped:
                continue
            span = as_expr(1)
            for name in index.variables():
                factor = index.coefficient(name)
                step = None if factor is None else factor.constant
                if sizes[name].constant != 1 and step is None:
                    span = as_expr(self.shapes[access.buffer][position])
                elif step is not None:
                    span = span + (sizes[name] - 1) * abs(step)
            total = total * minimum(span, self.shapes[access.buffer][position])
        return total

    # -- default ------------------------------------------------------------------------------
    def default(self) -> Config:
        """The configuration that a rough model of DMA rows and copies likes best; of those that are
        nearly as good, one that fills partitions best: so neighbours in a model keep their rows.
        """
        space = self.space()
        configs = list(space)
        if not configs:
            space.validate(space.subspaces[0].config(space.subspaces[0].rows(0, 1)[0]))
        known = {lead: self.pieces(lead) for lead in self.leads()}
        costs = {c: self.cost(known[c.text("rows")], c) for c in configs}
        least = min(costs.values())
        near = [c for c in configs if costs[c] <= NEARLY * least]
        filled = {
            lead: min(self.partitions, *(extent_of(piece.lead) for piece in pieces))
            for lead, pieces in known.items()
        }
        return min(near, key=lambda c: (-filled[c.text("rows")], costs[c], c.key))

    def cost(self, pieces: tuple[CopyBox, ...], config: Config) -> float:
        """ns, roughly: DMA rows over all engines, moves on chip, and starts left bare."""
        way, at, copies = config.text("algorithm"), config.integer("at"), config.integer("copies")
        number = self.target.number
        engines, bandwidth = number("dma.engines"), number("dma.gbps_practical")
        overhead = number("dma.row_overhead_bytes")
        total = 0.0
        for piece in pieces:
            blocked = self._blocked(piece, way, at)
            block = min(config.integer("block"), extent_of(blocked)) if blocked else 1
            inside = {a.name: extent_of(a) for a in piece.free[at + 1 :]} | {
                piece.lead.name: min(extent_of(piece.lead), self.partitions)
            }
            if at < len(piece.free):
                inside[piece.free[at].name] = block if blocked else extent_of(piece.free[at])
            elements = prod(extent_of(a) for a in piece.axes)
            per_tile = prod(inside.values())
            tiles = max(1.0, elements / per_tile)
            dma = 0.0
            for run in (self._stored_run(piece, inside), self._loaded_run(piece, inside, way)):
                row = min(run, per_tile) * self.size
                dma += elements * self.size / row * (row + overhead)
            dma /= engines * bandwidth
            move = 0.0
            if way != "direct":
                count = boxes(piece.value, inside)
                each = per_tile / inside[piece.lead.name] / count
                cycles = each + 150.0 if way == "gpsimd" else max(64.0, each)
                move = tiles * count * cycles / number(f"{way}.ghz")
            start = 2 * (number("dma.start_ns") + number("dma.transfer_floor_ns"))
            if copies > 1:
                total += max(dma, move) + move / tiles + start
            else:
                total += dma + move + start * tiles
            total += tiles * 60.0 + 100.0 * (copies - 1)
        return total

    def _stored_run(self, piece: CopyBox, inside: dict[str, int]) -> int:
        """Contiguous elements of the result in a tile."""
        shape = tuple(e.constant or 1 for e in piece.shape)
        return contiguous_run(piece.store, shape, inside, piece)

    def _loaded_run(self, piece: CopyBox, inside: dict[str, int], way: str) -> int:
        """Contiguous elements of the source in a tile."""
        access = piece.loads[0]
        shape = self.shapes[access.buffer]
        if way == "direct":
            factor = access.indices[-1].coefficient(piece.axes[-1].name)
            if factor is None or factor.constant != 1:
                return 1  # elements that follow each other in HBM would lie apart on chip
            return contiguous_run(access.indices, shape, inside, piece)
        run, place = 1, piece.partition_index()
        for d, (index, extent) in reversed(
            list(enumerate(zip(access.indices, shape, strict=True)))
        ):
            if d == place:
                break
            names = [n for n in index.variables() if n in inside]
            steps = [index.coefficient(n) for n in names]
            span = extent
            if all(s is not None and s.constant is not None for s in steps):
                span = 1 + sum(
                    (inside[n] - 1) * abs((s and s.constant) or 1)
                    for n, s in zip(names, steps, strict=True)
                )
            run *= min(span, extent)
            if span < extent:
                break
        return run

    # -- schedule -----------------------------------------------------------------------------
    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration; `block` stays a symbol."""
        way, at = structure.text("algorithm"), structure.integer("at")
        pieces = self.pieces(structure.text("rows"))
        stages = [stage for piece in pieces for stage in self._stages(piece, way, pieces[-1].name)]
        schedule = Schedule(replace(self.compute, stages=tuple(stages)))
        for piece in pieces:
            schedule = self._placed(schedule, piece, way, at, structure.integer("copies"))
        return schedule

    def _stages(self, piece: CopyBox, way: str, output: str) -> list[Stage]:
        """(source rows,) the box in the result's order, and its store."""
        stages, value = [], piece.value
        if way != "direct":
            stages.append(self._source(piece))
            value = rewrite(value, lambda index: index, lambda f: self._moved(piece, f))
            if isinstance(value, Load):
                value = self._whole(piece, value)
        stages.append(Stage(f"{piece.name}.tile", piece.axes, value, dtype=piece.dtype))
        element = Load(f"{piece.name}.tile", tuple(a.var for a in piece.axes))
        into = "" if piece.name == output else output
        stages.append(
            Stage(
                piece.name, piece.axes, element, store=piece.store, shape=piece.shape,
                dtype=piece.dtype, into=into,
            )
        )  # fmt: skip
        return stages

    def _source(self, piece: CopyBox) -> Stage:
        """Rows of the source as they lie in HBM, one for each partition."""
        place, access = piece.partition_index(), piece.loads[0]
        assert place is not None
        name = f"{piece.name}.source"
        shape = self.shapes[access.buffer]
        axes = [axis(f"{name}.{d}", extent) for d, extent in enumerate(shape)]
        indices = [a.var for a in axes]
        indices[place] = access.indices[place]
        others = [a for d, a in enumerate(axes) if d != place]
        value = Load(access.buffer, tuple(indices))
        return Stage(name, (piece.lead, *others), value, dtype=piece.dtype)

    def _moved(self, piece: CopyBox, load: Load) -> Load:
        """The same element in the rows on chip; indices that a condition guards kept in range."""
        place = piece.partition_index()
        indices = []
        for d, (index, extent) in enumerate(
            zip(load.indices, self.shapes[load.buffer], strict=True)
        ):
            if d == place:
                continue
            if any(piece.conditioned(name) for name in index.variables()):
                index = minimum(maximum(index, 0), extent - 1)
            indices.append(index)
        return Load(f"{piece.name}.source", (piece.lead.var, *indices))

    def _whole(self, piece: CopyBox, load: Load) -> Scalar:
        """A strided load of rows on chip, with a second one beside it that is never taken: rows are
        loaded as far as either reaches, so that they are whole where strides leave out their ends.
        """
        skipped = piece.partition_index()
        extents = [e for d, e in enumerate(self.shapes[piece.loads[0].buffer]) if d != skipped]
        reached = [load.indices[0]]
        for index, extent in zip(load.indices[1:], extents, strict=True):
            reached.append(index + missed(index, extent, {a.name: a for a in piece.free}))
        if tuple(reached) == load.indices:
            return load
        return Select((piece.lead.var,), load, Load(load.buffer, tuple(reached)))

    def _placed(
        self, schedule: Schedule, piece: CopyBox, way: str, at: int, copies: int
    ) -> Schedule:
        name, lead = piece.name, piece.lead.name
        schedule = schedule.split(name, lead, self.partitions, "po", "pi")
        outer = [*(a.name for a in piece.free[:at]), "po"]
        inner = ["pi", *(a.name for a in piece.free[at:])]
        blocked = self._blocked(piece, way, at)
        if blocked is not None:
            schedule = schedule.split(name, blocked.name, var("block"), "bo", "bi")
            outer, inner = [*outer, "bo"], ["pi", "bi", *inner[2:]]
        schedule = schedule.reorder(name, (*outer, *inner))
        order = (piece.partition, *(i for i in range(len(piece.axes)) if i != piece.partition))
        stage = f"{name}.tile"
        schedule = schedule.compute_at(stage, name, outer[-1], "sbuf")
        schedule = schedule.set_layout(stage, Layout.permuted(order))
        if way != "direct":
            schedule = schedule.assign_engine(stage, way)
            schedule = schedule.compute_at(f"{name}.source", name, outer[-1], "sbuf")
        return schedule.pipeline(name, outer[-1], copies)
