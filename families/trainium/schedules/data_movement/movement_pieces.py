"""Boxes that a movement of data copies: what stands on partitions, how long DMA rows are."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import Load, Scalar, Select, loads, rewrite
from tilesmith.search_space.scheduling.compute import Axis, Stage, axis


@dataclass(frozen=True)
class CopyBox:
    """A box of the result and what is copied there.

    Attributes:
        name: of its stage; the output for the last piece.
        axes: of the box, in the result's order, outermost first.
        partition: position of the axis on partitions.
        value: what is copied, over the axes.
        store: where to, in the result of shape `shape`.
    """

    name: str
    axes: tuple[Axis, ...]
    partition: int
    value: Scalar
    store: tuple[Expr, ...]
    shape: tuple[Expr, ...]
    dtype: str

    @property
    def free(self) -> tuple[Axis, ...]:
        """Axes beside the partition."""
        return tuple(a for i, a in enumerate(self.axes) if i != self.partition)

    @property
    def lead(self) -> Axis:
        """The axis on partitions."""
        return self.axes[self.partition]

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        return tuple(loads(self.value))

    def conditioned(self, name: str) -> bool:
        """Whether a condition depends on an axis."""
        conditions = self.value.condition if isinstance(self.value, Select) else ()
        return any(name in e.variables() for e in conditions)

    def affine(self, name: str) -> bool:
        """Whether all indices read move by constant steps along an axis, unconditionally."""
        factors = [index.coefficient(name) for load in self.loads for index in load.indices]
        return not self.conditioned(name) and all(
            factor is not None and factor.constant is not None for factor in factors
        )

    def partition_index(self) -> int | None:
        """The dimension of the tensor read that the partition axis, and it alone, walks.

        None if there is none: then rows cannot be loaded whole and rearranged on chip.
        """
        name, dimensions = self.lead.name, set()
        others = {a.name for a in self.free}
        for access in self.loads:
            places = [i for i, e in enumerate(access.indices) if name in e.variables()]
            if len(places) != 1 or access.indices[places[0]].variables() & others:
                return None
            dimensions.add((places[0], access.indices[places[0]]))
        return (
            next(iter(dimensions))[0]
            if len(dimensions) == 1 and not self.conditioned(name)
            else None
        )


def extent_of(axis: Axis) -> int:
    return axis.extent.constant or 1


def longest(axes: tuple[Axis, ...]) -> int:
    """The axis that fills partitions best: never the innermost one if there is another."""
    return max(range(max(1, len(axes) - 1)), key=lambda i: min(128, extent_of(axes[i])))


def piece_of(
    stage: Stage, axes: tuple[Axis, ...], partition: int, values: dict[str, Expr]
) -> CopyBox:
    """A box of a stage over other axes; one of a single axis gets one partition."""
    if len(axes) == 1:
        axes, partition = (axis(f"{axes[0].name}.one", 1), *axes), 0

    def index(expression: Expr) -> Expr:
        return expression.substitute(values)

    assert stage.store is not None and stage.shape is not None
    store = tuple(index(e) for e in stage.store)
    value = rewrite(stage.value, index)
    return CopyBox(stage.name, axes, partition, value, store, stage.shape, stage.dtype)


def contiguous_run(
    indices: tuple[Expr, ...],
    shape: tuple[int, ...],
    inside: dict[str, int],
    piece: CopyBox,
) -> int:
    """Contiguous elements that a box of `inside` axes touches in a partition, walked from the
    innermost index."""
    run = 1
    order = [a.name for a in piece.axes]
    for index, extent in reversed(list(zip(indices, shape, strict=True))):
        names = [n for n in index.variables() if n in inside]
        ends = piece.lead.name in names and inside[piece.lead.name] > 1
        names = [n for n in names if n != piece.lead.name]
        covered = 1
        for name in sorted(names, key=order.index, reverse=True):
            factor = index.coefficient(name)
            if factor is None or factor.constant != covered:
                return run * covered
            covered *= inside[name]
        run *= covered
        if covered < extent or ends:
            break
    return run


def missed(index: Expr, extent: int, axes: Mapping[str, Axis]) -> int:
    """Elements from the last that a strided index reaches to the end, or from its first back to the
    beginning; 0 where that is a stride or more, or it is not strided."""
    names = sorted(index.variables())
    step = index.coefficient(names[0]) if len(names) == 1 and names[0] in axes else None
    if step is None or step.constant is None or abs(step.constant) < 2:
        return 0
    ends = [index.substitute({names[0]: n}).constant for n in (0, extent_of(axes[names[0]]) - 1)]
    if ends[0] is None or ends[1] is None:
        return 0
    first, last = min(ends[0], ends[1]), max(ends[0], ends[1])
    after = extent - 1 - last
    if 0 < after < abs(step.constant):
        return after
    return -first if 0 < first < abs(step.constant) else 0
