"""The order in which a schedule adds the terms of its sums.

Floating-point sums depend on their order in their last bits. Schedules of one computation whose
orders are equal compute the same bits on one instruction set, whatever their tiles, layouts, loops
over outputs and threads are.

    c = sum over k, in blocks of 64 and unrolled by 4         k:1
    conv = sum over c, r, s, channels in blocks of 16         c:16 r:1 s:1 c:1
    s.wide = sum over k, 32 partial sums (`rfactor`)          k.step:1 of x[k.step*32 + k.lane]

A letter stands for the loops over an axis that follow each other, the number for the step of the
innermost of them. Loops that step through an axis one in another are one: an accumulator tile goes
on from what the iteration before left in memory (`scheduling.emission`). What is in an order
besides: the term that is added, whether product and sum are rounded once, loops over lanes,
instructions that add several terms, and what is done to a sum afterwards. Whole numbers wrap around
and extremes choose: these reductions have no order.

Invariant: unequal orders may give equal bits, equal orders give equal bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import Scalar, expressions, rewrite

Numbers = Mapping[str, int]
"""Tile sizes by their symbols."""


@dataclass(frozen=True)
class ReduceLoop:
    """One loop over terms: of its axis, the step, the most iterations, and how they are added."""

    axis: str
    step: Expr
    limit: Expr
    how: str


@dataclass(frozen=True)
class Sum:
    """One stage: its term, and for a sum the loops over terms, outermost first."""

    stage: str
    value: Scalar
    once: bool
    extents: tuple[tuple[str, Expr], ...] = ()
    loops: tuple[ReduceLoop, ...] = ()

    @cached_property
    def variables(self) -> frozenset[str]:
        """Symbols in it, loop variables and axes among them."""
        inside = [*expressions(self.value), *(extent for _, extent in self.extents)]
        inside += [e for loop in self.loops for e in (loop.step, loop.limit)]
        return frozenset().union(*(e.variables() for e in inside))

    def at(self, numbers: Numbers) -> "StageOrder":
        """The order at these tile sizes."""
        value = self.value
        if not self.variables.isdisjoint(numbers):
            value = rewrite(value, lambda index: index.substitute(numbers))
        extents = {axis: extent.substitute(numbers) for axis, extent in self.extents}
        steps: list[tuple[str, str, int]] = []
        for loop in self.loops:
            step, limit = (e.substitute(numbers).constant for e in (loop.step, loop.limit))
            extent = extents[loop.axis].constant
            if limit == 1 or (step is not None and extent is not None and step >= extent):
                continue
            assert step is not None, (self.stage, loop)
            inside = limit is not None and (loop.axis, loop.how, step * limit)
            if steps and steps[-1] == inside:
                steps.pop()
            steps.append((loop.axis, loop.how, step))
        return StageOrder(self.stage, value, self.once, tuple(extents.items()), tuple(steps))


@dataclass(frozen=True)
class StageOrder:
    """The order of one stage at given tile sizes; equal ones add equally.

    Attributes:
        value: the term, or what is done to sums.
        once: whether a product and its addition are rounded once.
        extents: of the axes that are summed over.
        steps: (axis, how, step) of loops, as the module's docstring has them.
    """

    stage: str
    value: Scalar
    once: bool
    extents: tuple[tuple[str, Expr], ...]
    steps: tuple[tuple[str, str, int], ...]

    def __str__(self) -> str:
        steps = " ".join(f"{axis}{how}:{step}" for axis, how, step in self.steps)
        return f"{self.stage} {steps} of {self.value}"


@dataclass(frozen=True)
class Summation:
    """The order of every sum of a schedule, tile sizes symbolic."""

    sums: tuple[Sum, ...]

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names in it: symbols of tile sizes among others."""
        return frozenset().union(*(one.variables for one in self.sums))

    def at(self, numbers: Numbers) -> tuple[StageOrder, ...]:
        """The order at these tile sizes, stage by stage."""
        return tuple([one.at(numbers) for one in self.sums])
