"""What the convolution templates share: parameters, operands and the reference in numpy.

The frame that `pad` puts around the image is of zeros where elements are floating. Where they are
whole numbers it is of `pad_value`, an operand of one element behind the weights: a quantised zero
is the zero point of its tensor, so that with it in the frame

    sum (data - z) weight = sum data weight - z sum weight

holds at the border as it does inside: the correction for z is one constant for each output channel.
An operand, not a parameter: layers that differ in their zero points are one workload.

The reference, `convolve`, is independent of the stages.
"""

import numpy as np

from tilesmith.search_space.convolution.geometry import Geometry, has_pad_value
from tilesmith.search_space.expressions.dtypes import Array, Arrays
from tilesmith.search_space.operator_parts.integer_products import (
    check_weights,
    sum_dtype,
    weight_dtype,
    widened,
)
from tilesmith.search_space.workloads.template import Operand, Parameter, Template
from tilesmith.search_space.workloads.workload import Workload


def convolve(g: Geometry, data: Array, weight: Array, frame: int = 0) -> Array:
    """Cross-correlation, one matrix product for each kernel tap and group.

    Args:
        data: (n, c, h, w).
        weight: (oc, c / groups, kh, kw).
        frame: what stands around the image.

    Returns:
        (n, oc, out_height, out_width), accumulated in at least float32.
    """
    top, left, bottom, right = g.pads
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=frame)
    groups, per_group = g.groups, g.channels // g.groups
    result = np.zeros((g.batch, g.out_channels, g.out_height, g.out_width), dtype=data.dtype)
    view = result.reshape(g.batch, groups, g.out_channels // groups, -1)
    weights = weight.reshape(groups, g.out_channels // groups, per_group, *g.kernel)
    for r in range(g.kernel[0]):
        for s in range(g.kernel[1]):
            y, x = r * g.dilation[0], s * g.dilation[1]
            rows = slice(y, y + (g.out_height - 1) * g.stride[0] + 1, g.stride[0])
            columns = slice(x, x + (g.out_width - 1) * g.stride[1] + 1, g.stride[1])
            patch = padded[:, :, rows, columns].reshape(g.batch, groups, per_group, -1)
            view += np.matmul(weights[None, :, :, :, r, s], patch)
    return result


IMAGE = (
    Parameter("n", "batch", 1, varies=True),
    Parameter("c", "input channels"),
    Parameter("h", "input height", varies=True),
    Parameter("w", "input width", varies=True),
)
KERNEL = (
    Parameter("kh", "kernel height"),
    Parameter("kw", "kernel width"),
    Parameter("stride", "step, as 2 or 2x1", "1"),
    Parameter("pad", "frame of zeros or `pad_value`, as 1, 0x1 or TOPxLEFTxBOTTOMxRIGHT", "0"),
    Parameter("dilation", "distance of taps, as 1 or 2x1", "1"),
)
"""Beside `integer_products.WEIGHTS`, the last parameter of every convolution."""


class Convolution(Template):
    """A two-dimensional convolution of NCHW data with OIHW weights (I per group)."""

    fuses_epilogues = True

    def check(self, workload: Workload) -> None:
        check_weights(workload)
        Geometry.of(workload)

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        """Data and weights; of whole numbers in a frame, what the frame is filled with, too."""
        g = Geometry.of(workload)
        frame = (Operand("pad_value", (1,), workload.dtype),) if has_pad_value(workload) else ()
        return (
            Operand("data", (g.batch, g.channels, g.height, g.width), workload.dtype),
            Operand(
                "weight",
                (g.out_channels, g.channels // g.groups, *g.kernel),
                weight_dtype(workload),
            ),
            *frame,
        )

    def output(self, workload: Workload) -> Operand:
        g = Geometry.of(workload)
        shape = (g.batch, g.out_channels, g.out_height, g.out_width)
        return Operand("out", shape, self.result_dtype(workload), "output")

    def unfused_dtype(self, workload: Workload) -> str:
        return sum_dtype(workload)

    def channel_axis(self, workload: Workload) -> int:
        return 1

    def flops(self, workload: Workload) -> int:
        return Geometry.of(workload).flops()

    def reference(self, workload: Workload, inputs: Arrays) -> Array:
        data, weight = (widened(inputs[name], workload) for name in ("data", "weight"))
        frame = int(inputs["pad_value"][0]) if has_pad_value(workload) else 0
        return convolve(Geometry.of(workload), data, weight, frame)
