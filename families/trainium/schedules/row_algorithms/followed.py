"""Reductions along an axis that others follow, on Trainium-like cores: channels of an image.

What follows the axis is dealt to the partitions, `width` neighbours to each, and every partition
reduces its own; nothing is turned.

    y[b, i] = max_c x[b, c, i]
      -->  y[b, r, w] = max_c x[b, c, r*width + w]    (r on partitions; x comes as [r, c, w])

    for images, 128 of r:  load; reduce; store        (1 to 3 copies)

A wider piece makes transfers of longer runs and fewer partitions busy. Elements of one sum stand
`width` apart, at which the vector engine runs at half its rate. Of an axis that no partition holds
`piece` elements are there at a time, each such part reduced alone.
"""

from dataclasses import replace

from tilesmith.families.trainium.schedules.building_blocks.common import in_parts, with_store
from tilesmith.families.trainium.schedules.building_blocks.machine import memories
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import const
from tilesmith.search_space.expressions.scalar import Load, loads, rewrite
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, divisors
from tilesmith.search_space.spaces.space import SearchSpace, Subspace

ALGORITHM = "followed"

WIDEST = 2048
"""Elements that follow each other on a partition, at most."""

PIECES = (4096, 1024, 256, 64)
"""Elements of an axis in a part of it."""


class FollowedSpace:
    """Space and schedule of a reduction along an axis that others follow.

    Args:
        compute: a stage `total`, perhaps followed by maps over the same axes.
        dtype: of the result.
    """

    def __init__(self, compute: ComputeDefinition, dtype: str, target: Target) -> None:
        self.compute, self.dtype, self.target = compute, dtype, target
        self.size = size_of(dtype)
        self.partitions = target.integer("sbuf.partitions")
        total = compute.stages[0]
        self.before, self.along, self.behind = _extents(total)

    @property
    def widths(self) -> tuple[int, ...]:
        """Neighbours on a partition; none where this is no such reduction, or where an operand
        repeats along what follows."""
        stages = self.compute.stages
        known = all(a.extent.constant for s in stages for a in (*s.axes, *s.reduce_axes))
        plain = all(
            (factor := index.coefficient(a.name)) is not None and factor.constant is not None
            for stage in stages
            for load in loads(stage.value)
            for index in load.indices
            for a in stage.axes
        )
        return divisors(self.behind, WIDEST) if known and plain and self.behind > 1 else ()

    def space(self) -> SearchSpace:
        """Widths and copies that fit."""
        subspaces = [self._subspace(width, copies) for width in self.widths for copies in (1, 2, 3)]
        kept = [s for s in subspaces if s.size]
        if not kept:
            subspaces = [
                self._subspace(width, copies, piece)
                for width in self.widths
                for copies in (1, 2, 3)
                for piece in PIECES
                if piece < self.along
            ]
            kept = [s for s in subspaces if s.size]
        return SearchSpace(tuple(kept))

    def _subspace(self, width: int, copies: int, piece: int = 0) -> Subspace:
        parts = -(-self.along // piece) if piece else 0
        rest = max(4, self.size) * (len(self.compute.stages) + parts) + self.size
        limit = Constraint(
            const(copies * width * ((piece or self.along) * self.size + rest)),
            memories(self.target)["sbuf"].bytes,
            "bytes of SBUF a partition that the tiles take",
            "choose fewer copies or a smaller width",
        )
        cut = (("piece", piece),) if piece else ()
        fixed = (("algorithm", ALGORITHM), ("copies", copies), *cut, ("width", width))
        return Subspace(fixed, (), (limit,))

    def default(self) -> Config:
        """The width for which transfers, and the vector engine beside or after them, take least."""
        return min(
            self.space(),
            key=lambda c: (
                self.cost(c.integer("width")), -c.integer("copies"), -int(c.get("piece", 0))
            ),
        )  # fmt: skip

    def cost(self, width: int) -> float:
        """ns, roughly: of one block of partitions all is done in turn."""
        number = self.target.number
        rows = self.behind // width
        run = width * self.size + number("dma.row_overhead_bytes")
        bandwidth = number("dma.gbps_practical") * number("dma.engines")
        moved = self.before * rows * (self.along + 1) * run / bandwidth
        blocks = self.before * -(-rows // self.partitions)
        passed = blocks * 2 * self.along * width / number("vector.ghz")
        return max(moved, passed) + min(moved, passed) / blocks

    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration."""
        compute, piece = self._dealt(structure.integer("width")), int(structure.get("piece", 0))
        if piece:
            name = self.compute.stages[0].name
            (c,) = compute.stage(name).reduce_axes
            compute = in_parts(compute, name, c.name, piece)
        schedule = Schedule(compute)
        schedule = schedule.split("result", "r", self.partitions, "ro", "ri")
        schedule = schedule.reorder("result", ("b", "ro", "ri", "w"))
        for stage in schedule.compute.stages[:-1]:
            names = [a.name for a in stage.axes]
            on = names.index("r")
            others = tuple(n for n in range(len(names)) if n != on)
            place = ("part", "g") if piece and stage.name.endswith(".rows") else ("result", "ro")
            schedule = schedule.compute_at(stage.name, *place, "sbuf")
            schedule = schedule.set_layout(stage.name, Layout.permuted((on, *others)))
            if stage.reduce_axes:
                over, lead = [a.name for a in stage.reduce_axes], names.count("g")
                schedule = schedule.reorder(stage.name, (*names[:lead], *over, *names[lead:]))
        if piece:
            schedule = schedule.pipeline("part", "g", structure.integer("copies"))
        schedule = schedule.interleave("result", "b")
        return schedule.pipeline("result", "ro", structure.integer("copies"))

    def _dealt(self, width: int) -> ComputeDefinition:
        """The computation with what follows the axis as pieces r and elements w of one."""
        total = self.compute.stages[0]
        (c,) = total.reduce_axes
        b, r, w = axis("b", self.before), axis("r", self.behind // width), axis("w", width)
        (source,) = loads(total.value)
        *first, last = total.axes
        index = {a.name: b.var for a in first} | {last.name: r.var * width + w.var}
        each, whole = (b.var, r.var, w.var), tuple(a.var for a in total.axes)
        copy = f"{source.buffer}.rows"
        element = Load(source.buffer, (b.var, c.var, r.var, w.var))
        rows = Stage(copy, (b, r, c, w), element, dtype=self._dtype(source.buffer))

        def access(load: Load) -> Load:
            same = load.indices == tuple(e.substitute(index) for e in whole)
            return replace(load, indices=each) if same else load

        def stage(old: Stage) -> Stage:
            value = rewrite(old.value, lambda e: e.substitute(index), access)
            return replace(old, axes=(b, r, w), value=value)

        reduced = replace(total, axes=(b, r, w), value=Load(copy, (b.var, r.var, c.var, w.var)))
        shape = (self.before, self.behind // width, width)
        full = tuple(a.extent for a in total.axes)

        def tensor(old: Tensor) -> Tensor:
            if old.name == source.buffer:
                return replace(old, extents=tuple(map(const, (shape[0], self.along, *shape[1:]))))
            return replace(old, extents=tuple(map(const, shape))) if old.extents == full else old

        dealt = replace(
            self.compute,
            inputs=tuple(map(tensor, self.compute.inputs)),
            stages=(rows, reduced, *map(stage, self.compute.stages[1:])),
        )
        return with_store(dealt, self.dtype)

    def _dtype(self, name: str) -> str:
        return next(t.dtype for t in self.compute.inputs if t.name == name)


def _extents(total: Stage) -> tuple[int, int, int]:
    """Extents before, along and behind the one axis that is reduced; nothing behind it where others
    are, or where it is the last."""
    (source,) = loads(total.value)
    order = [index.variables() for index in source.indices]
    over = total.reduce_axes
    if len(over) != 1 or len(total.axes) > 2 or source.indices[-1] == over[0].var:
        return 1, 1, 1
    *first, last = total.axes
    if frozenset([last.name]) != frozenset(order[-1]):
        return 1, 1, 1
    before = first[0].extent.constant or 1 if first else 1
    return before, over[0].extent.constant or 1, last.extent.constant or 1
