"""Rows that no partition holds, on Trainium-like cores: piece by piece, once for each reduction.

A row's scalars (a maximum, a sum) need all of it, and what is computed of them needs it again. Each
reduction and the result have loops over pieces of their own, in which what they read is loaded and
computed for them alone; reductions leave a part for each piece, which are reduced at the end:

    m[r] = max_k x[r, k]; s[r] = sum_k f(x[r, k], m[r]); y[r, k] = g(x[r, k], m[r], s[r])
      -->  for blocks of 128 rows:
             for pieces:  load x; m.part = max;       m = max of the parts
             for pieces:  load x; s.part = sum of f;  s = sum of the parts
             for pieces:  load x; g; store                               (1 to 3 copies of each)

A piece is whole along its last axes, as far as they go: a run of memory. Axes that are kept beside
the rows (neighbours of a softmax's axis) are cut to `kept` elements, for a part has as many.
"""

from dataclasses import replace
from math import prod

from tilesmith.families.trainium.schedules.building_blocks.common import parted
from tilesmith.search_space.expressions.expression import const
from tilesmith.search_space.expressions.scalar import Load, loads, rewrite
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint
from tilesmith.search_space.spaces.space import Subspace

ALGORITHM = "pieces"

PIECES = (8192, 4096, 2048, 1024, 512, 128)
"""Elements of a row that are on a partition at once."""

KEPT = (64, 16, 4, 1)
"""Elements of the kept axes beside the rows that a piece has at most."""


class LongRows:
    """Space and schedule of a computation over rows, in pieces of them.

    Args:
        compute: its stages have the rows first; the last two are `row` and `result`, and inputs
            are copied to stages `*.rows` (see `rows.RowsSpace`).
        partitions, capacity: of SBUF, and bytes of one.
    """

    def __init__(self, compute: ComputeDefinition, partitions: int, capacity: int) -> None:
        self.compute, self.partitions, self.capacity = compute, partitions, capacity
        self.rows, *self.others = compute.output.axes
        self.cut = {a.name for s in compute.stages for a in s.reduce_axes}
        self.axes = _as_they_lie(compute)
        copied = {f"{t.name}.rows" for t in compute.inputs} & {s.name for s in compute.stages}
        self.spread = len(compute.inputs) - len(copied)

    def tiles(self, structure: Config) -> dict[str, int]:
        """Elements of each axis beside the rows in a piece: the last ones whole as far as it goes,
        of the kept ones at most `kept`."""
        left = {True: structure.integer("piece"), False: structure.integer("kept")}
        sizes: dict[str, int] = {}
        kept = prod(_extent(a) for a in self.axes if a.name not in self.cut)
        left[True] = max(1, left[True] // min(kept, left[False]))
        for a in reversed(self.axes):
            sizes[a.name] = min(_extent(a), left[a.name in self.cut])
            left[a.name in self.cut] //= sizes[a.name]
            if sizes[a.name] < _extent(a):
                left[a.name in self.cut] = 1
        return sizes

    def subspaces(self) -> list[Subspace]:
        """Pieces, kept elements and copies that fit."""
        subspaces = []
        for piece in PIECES:
            for kept in KEPT:
                for copies in (3, 2, 1):
                    fixed = (
                        ("algorithm", ALGORITHM), ("columns", 1), ("copies", copies),
                        ("kept", kept), ("piece", piece),
                    )  # fmt: skip
                    structure = Config.of(dict(fixed))
                    limit = Constraint(
                        const(self._bytes(structure)),
                        self.capacity,
                        "bytes of SBUF a partition that the pieces of a row take",
                        "choose smaller pieces or fewer copies",
                    )
                    subspaces.append(Subspace(fixed, (), (limit,)))
        return [subspace for subspace in subspaces if subspace.size]

    def _bytes(self, structure: Config) -> int:
        """Bytes a partition, of 4 an element: pieces, parts; temporaries, and staged pieces of what
        has no rows, 8 of each."""
        tiles = self.tiles(structure)
        box = prod(tiles.values())
        wide = sum(self._is_wide(stage) for stage in self.compute.stages) + 1
        reductions = sum(bool(stage.reduce_axes) for stage in self.compute.stages)
        parts = prod(-(-_extent(a) // tiles[a.name]) for a in self.axes if a.name in self.cut)
        kept = prod(n for name, n in tiles.items() if name not in self.cut)
        each = wide * (reductions + 1) * box + (parts + 4) * kept * (reductions + 1)
        return 4 * (structure.integer("copies") * each + 8 * box + 8 * self.spread * box)

    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration."""
        tiles, copies = self.tiles(structure), structure.integer("copies")
        compute, at = self._pieced(tiles)
        schedule = Schedule(compute)
        schedule = schedule.split("result", self.rows.name, self.partitions, "ro", "ri")
        outer: dict[bool, list[str]] = {False: ["ro"], True: []}
        inner = ["ri"]
        for a in self.others:
            name = a.name
            if tiles[name] < _extent(a):
                schedule = schedule.split("result", name, tiles[name], f"{name}.o", f"{name}.i")
                outer[name in self.cut].append(f"{name}.o")
                name = f"{name}.i"
            inner.append(name)
        schedule = schedule.reorder("result", (*outer[False], *outer[True], *inner))
        block, piece = outer[False][-1], (outer[False] + outer[True])[-1]
        for stage in compute.stages[:-1]:
            schedule = self._ordered(schedule, stage)
            place = at.get(stage.name, ("result", piece if stage.name == "row" else block))
            place = ("result", piece) if place == ("row", "") else place
            schedule = schedule.compute_at(stage.name, *place, "sbuf")
            if stage.name in at and place[0] != "result":
                schedule = schedule.pipeline(place[0], place[1], copies)
        schedule = schedule.interleave("result", "ro").pipeline("result", block, copies)
        return schedule.pipeline("result", piece, copies) if piece != block else schedule

    def _ordered(self, schedule: Schedule, stage: Stage) -> Schedule:
        """Rows of a part first in memory, pieces outside; reduced axes outside of the others."""
        names = [a.name for a in stage.axes]
        place = names.index(self.rows.name)
        if place:
            order = (place, *(n for n in range(len(names)) if n != place))
            schedule = schedule.set_layout(stage.name, Layout.permuted(order))
        if stage.reduce_axes:
            over = [a.name for a in stage.reduce_axes]
            loops = (*names[:place], *over, *names[place:])
            schedule = schedule.reorder(stage.name, loops)
        return schedule

    def _is_wide(self, stage: Stage) -> bool:
        """Whether a stage is of whole rows, and no result."""
        if stage.reduce_axes or stage.name in ("row", "result"):
            return False
        return stage.name.endswith(".rows") or any(a.name in self.cut for a in stage.axes)

    def _pieced(
        self, tiles: dict[str, int]
    ) -> tuple[ComputeDefinition, dict[str, tuple[str, str]]]:
        """The computation with each reduction in parts and stages of whole rows for each of their
        readers; where these are attached, by name ("row" and no loop: with the result's pieces)."""
        wide = {s.name: s for s in self.compute.stages if self._is_wide(s)}
        at: dict[str, tuple[str, str]] = {}
        stages: list[Stage] = []
        for stage in self.compute.stages:
            if stage.name in wide:
                continue
            parts, place = [stage], ("row", "") if stage.name == "row" else None
            for a in stage.reduce_axes:
                if tiles[a.name] < _extent(a):
                    number = len(parts)
                    names = f"{stage.name}.part{number}", f"{stage.name}.g{number}"
                    parts[:1] = parted(parts[0], a, tiles[a.name], *names)
                    place = names[0], f"{stage.name}.g1"
            own = _clones(stage, wide)
            renamed = {old: new.name for old, new in own.items()}
            stages += own.values()
            stages += [_reading(parts[0], renamed), *parts[1:]]
            if place is not None:
                at |= dict.fromkeys((new.name for new in own.values()), place)
        return replace(self.compute, stages=tuple(stages)), at


def _extent(a: Axis) -> int:
    return a.extent.constant or 1


def _as_they_lie(compute: ComputeDefinition) -> tuple[Axis, ...]:
    """The axes beside the rows, as those of the widest operand lie in memory."""
    rows = compute.output.axes[0].name
    known = {a.name: a for s in reversed(compute.stages) for a in (*s.axes, *s.reduce_axes)}
    copied = {s.name for s in compute.stages if s.name.endswith(".rows")}
    reads = [
        load.indices
        for s in compute.stages
        if s.name not in copied
        for load in loads(s.value)
        if load.buffer in copied or any(t.name == load.buffer for t in compute.inputs)
    ]
    order: dict[str, None] = {}
    for indices in sorted(reads, key=len, reverse=True):
        names = [name for index in indices for name in sorted(index.variables())]
        order |= dict.fromkeys(name for name in names if name in known and name != rows)
    wanted = [a.name for a in compute.output.axes[1:]]
    wanted += [a.name for s in compute.stages for a in s.reduce_axes]
    missing = [name for name in dict.fromkeys(wanted) if name not in order]
    return tuple(known[name] for name in (*missing, *order))


def _clones(reader: Stage, wide: dict[str, Stage]) -> dict[str, Stage]:
    """The stages of whole rows that one reads, through others too, as its own, by their names."""
    clones: dict[str, Stage] = {}

    def visit(stage: Stage) -> None:
        for name in sorted(stage.reads & wide.keys()):
            if name not in clones:
                visit(wide[name])
                names = {old: new.name for old, new in clones.items()}
                own = replace(wide[name], name=f"{name}.{reader.name}")
                clones[name] = _reading(own, names)

    visit(reader)
    return clones


def _reading(stage: Stage, names: dict[str, str]) -> Stage:
    """A stage that reads others by new names."""

    def access(load: Load) -> Load:
        return Load(names.get(load.buffer, load.buffer), load.indices)

    return replace(stage, value=rewrite(stage.value, lambda index: index, access))
