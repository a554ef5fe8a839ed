"""Convolution of few channels on Trainium-like cores: kernel rows stacked on partitions.

A network's first layer has three channels, and three of 128 rows of the tensor engine would work.
Here each partition holds one channel as one row of the kernel sees it: q = channel x kernel row,
loaded by DMA with the kernel row's shift. What remains of the window are its columns, taps in the
free axis:

    stacked[q, y, x] = image[q // kh, y*stride + q % kh, x];   psum += weight[q, s, o].T @
    stacked[q, y, x+s]
"""

from __future__ import annotations

from search_space.accelerator_conv import ConvSpace
from search_space.compute import ComputeDefinition, Stage, axis
from search_space.convolution.geometry import Geometry
from search_space.expression import Expr, ceildiv, const, var
from search_space.layout import Layout, LayoutDimension
from search_space.scalar import Const, Load, Select, call, load
from search_space.schedule import Schedule
from search_space.target import Target
from search_space.workload import Workload


def applies(workload: Workload, g: Geometry, target: Target) -> bool:
    """Whether all channels' kernel rows fit the partitions, and there is something to stack."""
    return (
        g.groups == 1
        and g.kernel[0] > 1
        and g.channels * g.kernel[0] <= target.integer("tensor.rows")
        and workload.is_constant("weight")
    )


class StackedSpace(ConvSpace):
    """Space and schedule of the stacked form; knobs are those of the shifted one."""

    algorithm = "stacked"

    def __init__(
        self, workload: Workload, target: Target, g: Geometry, compute: ComputeDefinition
    ) -> None:
        super().__init__(workload, target, g, _stacked(compute, g, workload.dtype))

    def keeps(self) -> tuple[str, ...]:
        """With rows of padding only whole images: in a block of rows the frame's edge would slant
        over two loops (output row and stacked kernel row), which no single transfer can follow."""
        return ("image",) if self.g.pads[0] or self.g.pads[2] else super().keeps()

    def bytes(self, keep: str, copies: int) -> Expr:
        """Bytes a partition of everything in SBUF at once."""
        g = self.g
        weights = g.kernel[1] * min(g.out_channels, self.cols) * self.size * 2
        block = var("rows") * var("row_tiles")
        tall = block if keep == "rows" else ceildiv(g.out_height, block) * block
        wide = -(-g.out_width // self.columns) * self.columns
        width = self._span(const(wide), 1).constant or 1
        image = tall * (width * self.size * copies)
        result = block * (wide * self.size * copies)
        operands = sum(1 for s in self.workload.epilogue if s.kind.operand == "full")
        staged = self.wide * self.size * 8 * operands
        return image + result + weights + staged + self.wide * 4 * 8 + self.size * 8

    def _reduction(self, schedule: Schedule) -> Schedule:
        return schedule.reorder("conv", ("s", "q", "n", "o", "y", "x"))

    def _image(self, schedule: Schedule, loop: str) -> Schedule:
        """The stacked image: kernel rows within channels, one partition each."""
        schedule = schedule.compute_at("stacked", "result", loop, "sbuf")
        schedule = schedule.set_layout("stacked", _layout(1, 0, 2, 3))
        return schedule.split("stacked", "pq", self.g.kernel[0], "stacked.c", "stacked.r")

    def _weights(self, schedule: Schedule) -> Schedule:
        """Weights of 128 output channels in SBUF as [q, s, o]."""
        schedule = schedule.compile_time("weight.packed")
        schedule = schedule.cache_read("weight.packed", "conv", "weight.block", "sbuf")
        return schedule.compute_at("weight.block", "result", "oo", "sbuf")


def _stacked(compute: ComputeDefinition, g: Geometry, dtype: str) -> ComputeDefinition:
    """`stacked`, `weight.packed` and `conv` in place of `padded` and `conv`."""
    kh = g.kernel[0]
    n, q = axis("pn", g.batch), axis("pq", g.channels * kh)
    y, x = axis("py", g.out_height), axis("px", g.padded_width)
    row = y.var * g.stride[0] + q.var % kh * g.dilation[0] - g.pads[0]
    column = x.var - g.pads[1]
    inside = (row, column, const(g.height - 1) - row, const(g.width - 1) - column)
    source = Load("data", (n.var, q.var // kh, row, column))
    stacked = Stage("stacked", (n, q, y, x), Select(inside, source, Const(0.0)), dtype=dtype)
    wq, ws, wo = axis("wq", g.channels * kh), axis("ws", g.kernel[1]), axis("wo", g.out_channels)
    element = load("weight", wo.var, wq.var // kh, wq.var % kh, ws.var)
    packed = Stage("weight.packed", (wq, ws, wo), element, dtype=dtype)
    old = compute.stage("conv")
    over = (axis("q", g.channels * kh), axis("s", g.kernel[1]))
    on, oo, oy, ox = (a.var for a in old.axes)
    product = call(
        "multiply",
        load("stacked", on, over[0].var, oy, ox * g.stride[1] + over[1].var * g.dilation[1]),
        load("weight.packed", over[0].var, over[1].var, oo),
    )
    conv = Stage("conv", old.axes, product, over, "sum")
    rest = tuple(s for s in compute.stages if s.name not in ("padded", "conv"))
    return ComputeDefinition(compute.name, compute.inputs, (stacked, packed, conv, *rest))


def _layout(*axes: int) -> Layout:
    return Layout(tuple(LayoutDimension(axis) for axis in axes))
