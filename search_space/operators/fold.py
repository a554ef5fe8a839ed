"""Columns added up where they belong in images: Col2Im, the transpose of taking windows out.

    y[n, c, i, j] = sum of x[n, c, r, s, a, b]  over  a step - top + r dilation = i,
                                                      b step - left + s dilation = j

The column of block (a, b) holds a number for each cell (r, s) of its window. Every pixel sums the
cells of the blocks that cover it; those of none are zero.
"""

from dataclasses import dataclass

import numpy as np

from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import Const, Select, load
from tilesmith.search_space.operator_parts.window_parameters import pair_of, sides_of
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class _Blocks:
    """One direction: pixels, cells of a window, and where windows lie."""

    extent: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def count(self) -> int:
        """Blocks."""
        room = self.extent + self.before + self.after - (self.kernel - 1) * self.dilation - 1
        return room // self.stride + 1 if room >= 0 else 0

    def block(self, pixel: Expr, cell: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        """Return the block in which a pixel is this cell, and expressions >= 0 if it exists."""
        place = pixel + self.before - cell * self.dilation
        number = place // self.stride
        tests: list[Expr] = []
        if self.before < (self.kernel - 1) * self.dilation:
            tests.append(place)
        if (self.extent - 1 + self.before) // self.stride >= self.count:
            tests.append(self.count * self.stride - 1 - place)
        if self.stride > 1:
            tests.append(-(place % self.stride))
        return number, tuple(tests)


@templates.register("fold")
class _Fold(Template):
    """See the module's docstring."""

    operator = "fold"
    summary = "columns of windows added up where they belong in images"
    parameters = (
        Parameter("n", "batch", 1),
        Parameter("c", "channels of the images"),
        Parameter("h", "height of an image"),
        Parameter("w", "width of an image"),
        Parameter("kh", "window height", 1),
        Parameter("kw", "window width", 1),
        Parameter("stride", "step, as 2 or 2x1", "1"),
        Parameter("pad", "padding, as 1, 0x1 or TOPxLEFTxBOTTOMxRIGHT", "0"),
        Parameter("dilation", "distance of cells, as 1 or 2x1", "1"),
    )
    examples = (
        "fold c=3 h=5 w=19 kh=3 kw=2 pad=1x0x1x1",
        "fold n=2 c=2 h=8 w=37 kh=2 kw=3 stride=2x3",
        "fold c=1 h=9 w=8 kh=3 kw=2 stride=2x1 dilation=2x3 pad=1x0x0x1",
        "fold c=5 h=1 w=1",
    )

    def blocks(self, workload: Workload) -> tuple[_Blocks, _Blocks]:
        """Vertical and horizontal."""
        top, left, bottom, right = sides_of(workload)
        stride, dilation = pair_of(workload, "stride"), pair_of(workload, "dilation")
        number = workload.integer
        return (
            _Blocks(number("h"), number("kh"), stride[0], dilation[0], top, bottom),
            _Blocks(number("w"), number("kw"), stride[1], dilation[1], left, right),
        )

    def check(self, workload: Workload) -> None:
        for blocks, name in zip(self.blocks(workload), ("height", "width"), strict=True):
            if blocks.count < 1:
                raise WorkloadError(
                    f"operator 'fold': a window does not fit the padded {name} of "
                    f"{blocks.extent + blocks.before + blocks.after}"
                )

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        vertical, horizontal = self.blocks(workload)
        lead = workload.integer("n"), workload.integer("c")
        shape = (*lead, vertical.kernel, horizontal.kernel, vertical.count, horizontal.count)
        return (Operand("x", shape, workload.dtype),)

    def output(self, workload: Workload) -> Operand:
        shape = tuple(workload.integer(name) for name in "nchw")
        return Operand("y", shape, workload.dtype, "output")

    def channel_axis(self, workload: Workload) -> int:
        return 1

    def flops(self, workload: Workload) -> int:
        return int(np.prod(self.inputs(workload)[0].shape))

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        x, (vertical, horizontal) = inputs["x"], self.blocks(workload)
        wide = [b.extent + b.before + b.after for b in (vertical, horizontal)]
        y = np.zeros((*x.shape[:2], *wide), x.dtype)
        for r in range(vertical.kernel):
            for s in range(horizontal.kernel):
                rows = r * vertical.dilation + np.arange(vertical.count) * vertical.stride
                columns = s * horizontal.dilation + np.arange(horizontal.count) * horizontal.stride
                y[:, :, rows[:, None], columns] += x[:, :, r, s]
        top, left = vertical.before, horizontal.before
        return y[:, :, top : top + vertical.extent, left : left + horizontal.extent]

    def compute(self, workload: Workload) -> ComputeDefinition:
        """One stage `y` over n, c, i, j, reduced over the cells r, s."""
        vertical, horizontal = self.blocks(workload)
        output = self.output(workload)
        n, c, i, j = (axis(a, e) for a, e in zip("ncij", output.shape, strict=True))
        r, s = axis("r", vertical.kernel), axis("s", horizontal.kernel)
        row, above = vertical.block(i.var, r.var)
        column, beside = horizontal.block(j.var, s.var)
        value = load("x", n.var, c.var, r.var, s.var, row, column)
        tests = (*above, *beside)
        chosen = Select(tests, value, Const(0.0)) if tests else value
        stage = Stage("y", (n, c, i, j), chosen, (r, s), "sum", dtype=workload.dtype)
        x = self.inputs(workload)[0]
        return ComputeDefinition(self.operator, (Tensor("x", x.shape, x.dtype),), (stage,))
