"""Ways to stack a convolution on partitions and columns (`conv_stacked` says what that is).

Invariant: results of each folded output row begin at a column, hence a partition of PSUM, that
engines reach.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tilesmith.families.trainium.schedules.building_blocks.common import PARTITIONS_APART
from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.expressions.expression import Expr, const
from tilesmith.search_space.spaces.knobs import divisors


@dataclass(frozen=True)
class StackedForm:
    """One way to stack a convolution.

    Attributes:
        stack: kernel rows on partitions; fold: output rows on columns; step: image rows between
            two rows of the stacked image; taps: kernel columns on partitions.
    """

    g: Geometry
    stack: int
    fold: int
    step: int
    taps: int = 1

    @cached_property
    def partitions(self) -> int:
        """Partitions of the stacked image."""
        return self.taps * self.stack * self.g.channels

    @cached_property
    def apart(self) -> int:
        """Columns from one folded output row to the next."""
        filled = -(-self.g.out_channels // PARTITIONS_APART) * PARTITIONS_APART
        return self.g.out_channels if self.fold == 1 else filled

    @cached_property
    def columns(self) -> int:
        """Columns of the packed weights."""
        return (self.fold - 1) * self.apart + self.g.out_channels

    @cached_property
    def across(self) -> int:
        """Matmuls that bring all kernel columns."""
        return -(-self.g.kernel[1] // self.taps)

    @cached_property
    def needed(self) -> int:
        """Kernel rows (in units of the dilation) that `fold` output rows need together."""
        return self.g.kernel[0] + (self.fold - 1) * self.g.stride[0]

    @cached_property
    def blocks(self) -> int:
        """Matmuls that bring all of them."""
        return -(-self.needed // self.stack)

    @cached_property
    def advance(self) -> int:
        """Rows of the stacked image between two (folded) output rows."""
        return self.fold * self.g.stride[0] // self.step

    @cached_property
    def skip(self) -> int:
        """Rows of the stacked image between two blocks."""
        return self.stack * self.g.dilation[0] // self.step if self.blocks > 1 else 0

    @cached_property
    def shifts(self) -> bool:
        """Whether rows for later kernel rows are those of the first, so that engines may copy."""
        whole = self.g.channels % PARTITIONS_APART == 0
        single = self.stack > 1 and self.taps == 1
        return single and whole and self.g.dilation[0] % self.step == 0

    @cached_property
    def height(self) -> int:
        """Folded output rows."""
        return self.g.out_height // self.fold

    @cached_property
    def tall(self) -> int:
        """Rows of the stacked image that all of them read."""
        return self.rows(const(self.height)).constant or 1

    def rows(self, outputs: Expr) -> Expr:
        """Rows of the stacked image that consecutive folded output rows read."""
        return (outputs - 1) * self.advance + (self.blocks - 1) * self.skip + 1


def forms(g: Geometry, rows: int, cols: int, taps: Sequence[int] = (1,)) -> tuple[StackedForm, ...]:
    """The forms worth trying, the one with the fewest matmuls first."""
    candidates = []
    folds = [f for f in divisors(g.out_height, 8) if StackedForm(g, 1, f, 1).columns <= cols]
    for fold in folds if g.dilation[0] == 1 else [1]:
        needed = g.kernel[0] + (fold - 1) * g.stride[0]
        stack = min(needed, rows // g.channels)
        stack = -(-needed // -(-needed // stack))
        move = fold * g.stride[0]
        most = move if stack == needed else math.gcd(move, stack * g.dilation[0])
        candidates += [
            StackedForm(g, stack, fold, step, across)
            for across in taps
            for step in sorted({1, most})
            if across * stack * g.channels <= rows
        ]
    return tuple(sorted(candidates, key=lambda f: (f.blocks * f.height * f.across, f.step)))
