"""Edges of the blocks beside a block, in rows of lanes of their own.

A result takes its block and the edges of the blocks around it. The edges of both blocks beside one
stand in different lanes of theirs, so that one row of lanes holds both:

    sides[n, y, x]    the edges left and right of a block
    ends[n, y, x]     those above and below
    corners[n, y, x]  above and below of `sides`: rows that are put together once are not again
"""

from collections.abc import Callable

from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import Scalar, Select
from tilesmith.search_space.scheduling.compute import Stage, axis

EDGES = ("sides", "ends", "corners")
"""Names of the stages."""

Row = Callable[[str, tuple[Expr, ...], int], Scalar]
"""A row of lanes of a tensor at a place, or what lies beside the image in a direction (1: rows,
2: columns)."""


def chosen(
    vertical: Expr | None, horizontal: Expr | None, pixel: Callable[[str], Scalar]
) -> Scalar:
    """The tensor that a tap takes: 0 stands for a block and 1 for edges, None if there are none."""

    def along(inside: str, beside: str) -> Scalar:
        if horizontal is None:
            return pixel(inside)
        return Select((-horizontal,), pixel(inside), pixel(beside))

    if vertical is None:
        return along("data", "sides")
    return Select((-vertical,), along("data", "sides"), along("ends", "corners"))


def edge_stages(
    edged: tuple[bool, bool],
    shape: tuple[int, int, int, int],
    dtype: str,
    row: Row,
    upper: Callable[[int, Expr], Expr],
) -> tuple[Stage, ...]:
    """The stages of the directions that have edges, rows and columns.

    Args:
        shape: images, rows, columns, lanes.
        upper: >= 0 where a lane holds an edge of the block before, in a direction.
    """

    def stage(name: str, source: str, direction: int) -> Stage:
        axes = tuple(
            axis(f"{name}.{each}", extent) for each, extent in zip("nyxk", shape, strict=True)
        )

        def beside(step: int) -> Scalar:
            place = [a.var for a in axes]
            place[direction] = place[direction] + step
            return row(source, tuple(place), direction)

        value = Select((upper(direction, axes[-1].var),), beside(-1), beside(1))
        return Stage(name, axes, value, dtype=dtype)

    vertical, horizontal = edged
    stages = []
    if horizontal:
        stages.append(stage("sides", "data", 2))
    if vertical:
        stages.append(stage("ends", "data", 1))
    if vertical and horizontal:
        stages.append(stage("corners", "sides", 1))
    return tuple(stages)
