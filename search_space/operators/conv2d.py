"""2-D convolution: any kernel, stride, padding, dilation and groups, with a fused epilogue.

    out[n, o, y, x] = sum over c, r, s of weight[o, c, r, s]
                      * data[n, c, y*stride + r*dilation - pad, x*stride + s*dilation - pad]

The algorithm is a knob: direct over output channels, direct over width, im2col, and Winograd
F(2x2, 3x3) and F(4x4, 3x3); each is a file in `search_space/convolution/`. So are the layouts of
data and output, NCHW or blocked by the vector width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from search_space import accelerator
from search_space.accelerator_conv import ConvSpace
from search_space.config import Config
from search_space.convolution import direct, im2col, winograd
from search_space.convolution.geometry import Geometry
from search_space.convolution.reference import convolve
from search_space.schedule import Schedule
from search_space.space import SearchSpace
from search_space.target import Target
from search_space.template import Operand, Parameter, Template, templates
from search_space.workload import Workload


@templates.register("conv2d")
class Conv2d(Template):
    """See the module's docstring."""

    operator = "conv2d"
    fuses_epilogues = True
    summary = "2-D convolution, NCHW data, OIHW weights"
    examples = (
        "conv2d c=5 h=9 w=11 oc=20 kh=3 kw=3 pad=1 const=weight epilogue=bias,relu",
        "conv2d n=2 c=3 h=15 w=13 oc=7 kh=5 kw=3 stride=2 pad=2x1 dilation=2x1 const=weight",
        "conv2d c=32 h=7 w=7 oc=48 kh=1 kw=1 const=weight epilogue=bias,residual,relu",
        "conv2d n=2 c=6 h=9 w=9 oc=9 kh=3 kw=3 groups=3 pad=1x0x0x1 epilogue=bias",
    )
    parameters = (
        Parameter("n", "batch", 1),
        Parameter("c", "input channels"),
        Parameter("h", "input height"),
        Parameter("w", "input width"),
        Parameter("oc", "output channels"),
        Parameter("kh", "kernel height"),
        Parameter("kw", "kernel width"),
        Parameter("stride", "step, as 2 or 2x1", "1"),
        Parameter("pad", "zeros around, as 1, 0x1 or TOPxLEFTxBOTTOMxRIGHT", "0"),
        Parameter("dilation", "distance of taps, as 1 or 2x1", "1"),
        Parameter("groups", "independent groups of channels", 1),
    )

    def check(self, workload: Workload) -> None:
        Geometry.of(workload)

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        g = Geometry.of(workload)
        return (
            Operand("data", (g.batch, g.channels, g.height, g.width), workload.dtype),
            Operand("weight", (g.out_channels, g.channels // g.groups, *g.kernel), workload.dtype),
        )

    def output(self, workload: Workload) -> Operand:
        g = Geometry.of(workload)
        shape = (g.batch, g.out_channels, g.out_height, g.out_width)
        return Operand("out", shape, workload.dtype, "output")

    def channel_axis(self, workload: Workload) -> int:
        return 1

    def flops(self, workload: Workload) -> int:
        return Geometry.of(workload).flops()

    def reference(self, workload: Workload, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        return convolve(Geometry.of(workload), inputs["data"], inputs["weight"])

    def _shifted(self, workload: Workload, target: Target) -> ConvSpace:
        g = Geometry.of(workload).view()
        return ConvSpace(workload, target, g, direct.compute(self, workload, g))

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        if target.family == accelerator.FAMILY:
            return self._shifted(workload, target).space()
        g = Geometry.of(workload).view()
        found = [direct.channels_space(g, target), direct.width_space(g, target)]
        if not g.pointwise:
            found.append(im2col.space(g, target))
        if g.winograd:
            found += [winograd.space(g, target, m) for m in winograd.SIZES]
        return SearchSpace(tuple(found))

    def default(self, workload: Workload, target: Target) -> Config:
        if target.family == accelerator.FAMILY:
            return self._shifted(workload, target).default()
        return direct.channels_default(Geometry.of(workload).view(), target)

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        if target.family == accelerator.FAMILY:
            return self._shifted(workload, target).schedule(structure)
        g = Geometry.of(workload).view()
        match structure.text("algorithm"):
            case "channels":
                return direct.channels_schedule(self, workload, target, g, structure)
            case "winograd2" | "winograd4" as name:
                m = int(name[-1])
                return winograd.schedule(self, workload, target, g, structure, m)
            case "im2col":
                return im2col.schedule(self, workload, target, g, structure)
            case _:
                return direct.width_schedule(self, workload, target, g, structure)
