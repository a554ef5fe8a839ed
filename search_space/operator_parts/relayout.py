"""Changes of physical order: what transposes and layout changes have in common.

A transpose is a change from the row-major layout to one with permuted axes, so both are one
problem: a copy between two layouts of the same tensor, over axes that are merged where both layouts
keep them together.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilesmith.search_space.expressions.expression import ExprLike, as_expr
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.workloads.template import Template, template_of
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class Relayout:
    """A copy from one layout to another, over merged logical axes.

    Attributes:
        extents: of the logical axes; they may vary.
        source, target: layouts of both tensors.
    """

    extents: tuple[ExprLike, ...]
    source: Layout
    target: Layout

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents as numbers: only where they do not vary."""
        extents = tuple(as_expr(extent).constant for extent in self.extents)
        assert None not in extents, self.extents
        return tuple(extent or 0 for extent in extents)

    @classmethod
    def of(cls, shape: Sequence[ExprLike], source: Layout, target: Layout) -> "Relayout":
        """Drop axes of one element and merge neighbours that both layouts keep together."""
        relayout = cls(tuple(shape), source, target)
        for position in reversed(range(len(shape))):
            if (
                relayout.extents[position] == 1
                and len(relayout.extents) > 1
                and relayout._whole(position)
            ):
                relayout = relayout._without(position)
        pair = relayout._neighbours()
        while pair is not None:
            relayout = relayout._merged(*pair)
            pair = relayout._neighbours()
        return relayout

    def _whole(self, position: int) -> bool:
        return all(
            d.part == "whole"
            for layout in (self.source, self.target)
            for d in layout.dimensions
            if d.axis == position
        )

    def _without(self, position: int) -> "Relayout":
        def drop(layout: Layout) -> Layout:
            kept = (d for d in layout.dimensions if d.axis != position)
            return Layout(tuple(replace(d, axis=d.axis - (d.axis > position)) for d in kept))

        extents = self.extents[:position] + self.extents[position + 1 :]
        return Relayout(extents, drop(self.source), drop(self.target))

    def _neighbours(self) -> tuple[int, int] | None:
        """Two whole axes that follow each other in both layouts."""
        pairs = [_pairs(layout) for layout in (self.source, self.target)]
        common = sorted(pairs[0] & pairs[1])
        return common[0] if common else None

    def _merged(self, first: int, second: int) -> "Relayout":
        extents = list(self.extents)
        extents[first] = extents[first] * extents[second]
        return replace(self, extents=tuple(extents))._without(second)

    def compute(self, name: str, dtype: str) -> ComputeDefinition:
        """One stage `y`, a copy of `x` over axes d0, d1, ..."""
        axes = tuple(axis(f"d{i}", extent) for i, extent in enumerate(self.extents))
        indices = tuple(a.var for a in axes)
        stage = Stage("y", axes, load("x", *indices), dtype=dtype)
        return ComputeDefinition(name, (Tensor("x", self.extents, dtype),), (stage,))


class RelayoutTemplate(Template):
    """An operator that is a change of layout."""

    @abstractmethod
    def relayout(self, workload: Workload) -> Relayout:
        """The change of layout that this workload is."""

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage, a copy over the merged axes of the input."""
        return self.relayout(workload).compute(self.operator, workload.dtype)


def relayout_of(workload: Workload) -> Relayout:
    """The change of layout that a workload of such an operator is."""
    template = template_of(workload.operator)
    assert isinstance(template, RelayoutTemplate), template.operator
    return template.relayout(workload)


def _pairs(layout: Layout) -> set[tuple[int, int]]:
    """Whole axes directly followed by another whole axis."""
    following = zip(layout.dimensions, layout.dimensions[1:], strict=False)
    return {(a.axis, b.axis) for a, b in following if a.part == b.part == "whole"}
