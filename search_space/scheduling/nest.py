"""`Nest`: the loops of one stage while its schedule is replayed.

A nest starts with one loop for each axis (spatial, then reduce) and keeps, for each axis, its value
in terms of the loop variables. Splitting and reordering change the loops; the axis values follow,
so that every access can be written in loop variables at any time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilesmith.search_space.expressions.expression import ONE, Expr, ceildiv, minimum, var
from tilesmith.search_space.ir.program import LoopKind
from tilesmith.search_space.scheduling.compute import Stage
from tilesmith.search_space.scheduling.schedule import (
    Annotate,
    Pipeline,
    Primitive,
    Reorder,
    Split,
    Tensorize,
)
from tilesmith.search_space.support.errors import ScheduleError


@dataclass(frozen=True)
class NestLoop:
    """One loop.

    Attributes:
        name: the schedule's name for it.
        variable: its variable in the program, unique there.
        extent: iterations, perhaps a `min` of a tail.
        limit: the most iterations it ever has (sizes buffers, bounds indices).
        intrinsic: the instruction that the loop and all inside it are.
        initial: the one that initialises the stage's accumulator tile.
    """

    name: str
    variable: str
    extent: Expr
    limit: Expr
    reduce: bool
    kind: LoopKind = "serial"
    stages: int = 1
    intrinsic: str = ""
    initial: str = ""


@dataclass
class Nest:
    """A stage's loops, outermost first, and the values of its axes."""

    stage: Stage
    loops: list[NestLoop]
    axis_values: dict[str, Expr]
    taken: set[str]
    """Variable names in use in the whole program."""
    bases: dict[str, Expr] = field(default_factory=dict)
    """First index of each axis inside an attached region (zero at the root)."""
    ends: dict[str, Expr] = field(default_factory=dict)
    """What each axis stays below."""
    limits: dict[str, Expr] = field(default_factory=dict)
    """The most points of each axis that are ever covered."""

    @classmethod
    def of(
        cls, stage: Stage, regions: Mapping[str, tuple[Expr, Expr, Expr]], taken: set[str]
    ) -> "Nest":
        """A loop for each axis; `regions` gives (base, extent, limit) of partial axes."""
        nest = cls(stage, [], {}, taken)
        for axes, reduce in ((stage.axes, False), (stage.reduce_axes, True)):
            for axis in axes:
                base, extent, limit = regions.get(
                    axis.name, (axis.extent - axis.extent, axis.extent, axis.extent)
                )
                variable = nest._fresh(axis.name)
                nest.loops.append(NestLoop(axis.name, variable, extent, limit, reduce))
                nest.axis_values[axis.name] = base + var(variable)
                nest.bases[axis.name] = base
                nest.ends[axis.name] = base + extent
                nest.limits[axis.name] = limit
        return nest._bounded()

    def _bounded(self) -> "Nest":
        """The same, where extents of reductions depend on the stage's own axes: they are in terms
        of loops then, and largest where these axes are zero (the last part is the short one)."""
        first = {a.name: a.extent - a.extent for a in self.stage.axes}
        single = {name for name, limit in self.limits.items() if limit == ONE}
        values = {n: self.bases[n] if n in single else v for n, v in self.axis_values.items()}
        for index, loop in enumerate(self.loops):
            if loop.reduce and first.keys() & loop.extent.variables():
                limit = loop.extent.substitute(first)
                extent = loop.extent.substitute(values)
                self.loops[index] = replace(loop, extent=extent, limit=limit)
                self.limits[loop.name] = limit
        return self

    def _fresh(self, name: str) -> str:
        candidate = name
        if candidate in self.taken:
            candidate = f"{self.stage.name}.{name}"
        number = 2
        while candidate in self.taken:
            candidate, number = f"{self.stage.name}.{name}{number}", number + 1
        self.taken.add(candidate)
        return candidate

    def position(self, name: str) -> int:
        """Index of the loop of that name; `ScheduleError` if there is none."""
        for index, loop in enumerate(self.loops):
            if loop.name == name:
                return index
        known = ", ".join(loop.name for loop in self.loops)
        raise ScheduleError(f"stage '{self.stage.name}' has no loop '{name}'; it has {known}")

    def apply(self, primitive: Primitive) -> None:
        """Replay one loop primitive (others are ignored: they are not about loops)."""
        match primitive:
            case Split(_, loop, factor, outer, inner):
                self._split(loop, factor, outer, inner)
            case Reorder(_, loops):
                self._reorder(loops)
            case Annotate(_, loop, kind):
                self._change(loop, kind=kind)
            case Pipeline(_, loop, depth):
                self._change(loop, stages=depth)
            case Tensorize(_, loop, intrinsic, initial):
                self._change(loop, intrinsic=intrinsic, initial=initial)
            case _:
                pass

    def _change(self, name: str, **fields: object) -> None:
        index = self.position(name)
        self.loops[index] = replace(self.loops[index], **fields)  # type: ignore[arg-type]

    def _split(self, name: str, factor: Expr, outer: str, inner: str) -> None:
        """for i in n  -->  for outer in ceil(n/f): for inner in min(f, n - outer*f)"""
        index = self.position(name)
        loop = self.loops[index]
        divides = (loop.extent % factor).constant == 0
        high, low = self._fresh(outer), self._fresh(inner)
        rest = factor if divides else minimum(factor, loop.extent - var(high) * factor)
        one = NestLoop(
            outer, high, ceildiv(loop.extent, factor), ceildiv(loop.limit, factor), loop.reduce
        )
        limit = minimum(factor, loop.limit) if factor.constant else factor
        two = NestLoop(inner, low, rest, limit, loop.reduce)
        values = {loop.variable: var(high) * factor + var(low)}
        self.taken.discard(loop.variable)
        self.loops[index : index + 1] = [one, two]
        self.loops = [replace(item, extent=item.extent.substitute(values)) for item in self.loops]
        self.axis_values = {a: e.substitute(values) for a, e in self.axis_values.items()}

    def _reorder(self, names: tuple[str, ...]) -> None:
        """The named loops take each other's places, in the order given."""
        places = sorted(self.position(name) for name in names)
        if len(set(places)) != len(names):
            raise ScheduleError(f"reorder of stage '{self.stage.name}' names a loop twice: {names}")
        moved = [self.loops[self.position(name)] for name in names]
        for place, loop in zip(places, moved, strict=True):
            self.loops[place] = loop

    def write_indices(self) -> tuple[Expr, ...]:
        """Logical indices of the element written, in loop variables."""
        return tuple(index.substitute(self.axis_values) for index in self.stage.indices)

    def spans(self, fixed: set[str]) -> tuple[dict[str, Expr], dict[str, Expr]]:
        """(axis values, bounds) for region inference, `fixed` loop variables held.

        An axis none of whose loops is fixed is one variable bounded by its own limit: tighter than
        the sum over its loops, whose tiles may overhang.
        """
        values, bounds = {}, self.bounds()
        for axis, value in self.axis_values.items():
            base = self.bases[axis]
            if fixed.isdisjoint((value - base).variables()):
                bounds[f"{self.stage.name}:{axis}"] = self.limits[axis] - 1
                value = base + var(f"{self.stage.name}:{axis}")
            values[axis] = value
        return values, {v: top for v, top in bounds.items() if v not in fixed}

    def bounds(self) -> dict[str, Expr]:
        """Inclusive upper bound of every loop variable."""
        return {loop.variable: loop.limit - 1 for loop in self.loops}
