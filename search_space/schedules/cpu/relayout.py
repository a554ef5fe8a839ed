"""Relayout: the same elements in another physical order; transposes and layout changes alike.

A transpose is a change from the row-major layout to one with permuted axes: both are one problem,
which axes may merge, and which two are contiguous, one in the source and one in the target. If
they are the same axis, vectors run along it. If not, tiles of lanes x lanes are transposed in
registers, so that memory sees whole vectors on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilesmith.search_space.ir.expression import var
from tilesmith.search_space.ir.scalar import load
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Knob, choice, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace


@dataclass(frozen=True)
class Relayout:
    """A copy from one layout to another, over merged logical axes.

    Attributes:
        shape: logical extents.
        source, target: layouts of both tensors.
    """

    shape: tuple[int, ...]
    source: Layout
    target: Layout

    @classmethod
    def of(cls, shape: Sequence[int], source: Layout, target: Layout) -> Relayout:
        """Drop axes of one element and merge neighbours that both layouts keep together."""
        found = cls(tuple(shape), source, target)
        for position in reversed(range(len(shape))):
            if found.shape[position] == 1 and len(found.shape) > 1 and found._whole(position):
                found = found._without(position)
        pair = found._neighbours()
        while pair is not None:
            found = found._merged(*pair)
            pair = found._neighbours()
        return found

    def _whole(self, position: int) -> bool:
        return all(
            d.part == "whole"
            for layout in (self.source, self.target)
            for d in layout.dimensions
            if d.axis == position
        )

    def _without(self, position: int) -> Relayout:
        def drop(layout: Layout) -> Layout:
            kept = (d for d in layout.dimensions if d.axis != position)
            return Layout(tuple(replace(d, axis=d.axis - (d.axis > position)) for d in kept))

        shape = self.shape[:position] + self.shape[position + 1 :]
        return Relayout(shape, drop(self.source), drop(self.target))

    def _neighbours(self) -> tuple[int, int] | None:
        """Two whole axes that follow each other in both layouts."""
        pairs = [_pairs(layout) for layout in (self.source, self.target)]
        common = sorted(pairs[0] & pairs[1])
        return common[0] if common else None

    def _merged(self, first: int, second: int) -> Relayout:
        shape = list(self.shape)
        shape[first] *= shape[second]
        return replace(self, shape=tuple(shape))._without(second)

    def compute(self, name: str, dtype: str) -> ComputeDefinition:
        """One stage `y`, a copy of `x` over axes d0, d1, ..."""
        axes = tuple(axis(f"d{i}", extent) for i, extent in enumerate(self.shape))
        indices = tuple(a.var for a in axes)
        stage = Stage("y", axes, load("x", *indices), dtype=dtype)
        return ComputeDefinition(name, (Tensor("x", self.shape, dtype),), (stage,))

    @property
    def _inner(self) -> tuple[int, int]:
        """The axes that are contiguous in source and target."""
        return self.source.dimensions[-1].axis, self.target.dimensions[-1].axis

    def _factor(self, position: int) -> int:
        """Smallest block that either layout cuts an axis into; 0 where neither does."""
        dimensions = (*self.source.dimensions, *self.target.dimensions)
        inner = [d.factor.constant or 0 for d in dimensions if d.axis == position and _cut(d)]
        return min(inner, default=0)

    def space(self, lanes: int) -> SearchSpace:
        """`unroll` vectors of a copy; which side a transpose walks along."""
        source, target = self._inner
        if source != target:
            walk: tuple[Knob, ...] = (choice("walk", ["source", "target"]),)
            return SearchSpace((Subspace((("algorithm", "transpose"),), walk),))
        vectors = -(-self.shape[target] // (self._factor(target) or lanes))
        counts = tile("unroll", [u for u in (1, 2, 4, 8) if u <= vectors])
        return SearchSpace((Subspace((("algorithm", "copy"),), (counts,)),))

    def default(self, lanes: int) -> Config:
        """Walk along the source (many writes in flight hurt less than reads)."""
        if self._inner[0] != self._inner[1]:
            return Config.of(algorithm="transpose", walk="source")
        counts = [int(u) for u in self.space(lanes).describe()["unroll"]]
        return Config.of(algorithm="copy", unroll=max(u for u in counts if u <= 4))

    def schedule(self, name: str, dtype: str, lanes: int, structure: Config) -> Schedule:
        """Vectors or tiles inside, the other loops in the target's order around them."""
        schedule = Schedule(self.compute(name, dtype))
        schedule = schedule.set_layout("x", self.source).set_layout("y", self.target)
        source, target = self._inner
        for position in range(len(self.shape)):
            factor = self._factor(position)
            if factor or position in self._inner:
                d = f"d{position}"
                schedule = schedule.split("y", d, factor or lanes, f"{d}v", f"{d}l")
        outer = self._outer_loops()
        if source == target:
            vectors = f"d{target}v"
            schedule = schedule.split("y", vectors, var("unroll"), "step", "part")
            outer = ["step" if loop == vectors else loop for loop in outer]
            schedule = schedule.reorder("y", (*outer, "part", f"d{target}l"))
            schedule = schedule.unroll("y", "part").vectorize("y", f"d{target}l")
            return schedule.parallel("y", *outer)
        last = f"d{source if structure.text('walk') == 'source' else target}v"
        outer = [*(loop for loop in outer if loop != last), last]
        schedule = schedule.reorder("y", (*outer, f"d{source}l", f"d{target}l"))
        schedule = schedule.unroll("y", f"d{source}l").vectorize("y", f"d{target}l")
        schedule = schedule.tensorize("y", f"d{source}l", "transpose")
        return schedule.parallel("y", *outer)

    def _outer_loops(self) -> list[str]:
        """Every loop but the innermost of source and target, in the target's order."""
        found: list[str] = []
        for dimension in self.target.dimensions:
            d = f"d{dimension.axis}"
            if not self._factor(dimension.axis):
                found.append(f"{d}v" if dimension.axis in self._inner else d)
                continue
            if dimension.part != "inner":
                found.append(f"{d}v")
            if dimension.part != "outer" and dimension.axis not in self._inner:
                found.append(f"{d}l")
        return found


def _cut(dimension: LayoutDimension) -> bool:
    return dimension.part == "inner"


def _pairs(layout: Layout) -> set[tuple[int, int]]:
    """Whole axes directly followed by another whole axis."""
    following = zip(layout.dimensions, layout.dimensions[1:], strict=False)
    return {(a.axis, b.axis) for a, b in following if a.part == b.part == "whole"}
