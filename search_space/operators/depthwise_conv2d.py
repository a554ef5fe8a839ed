"""Depthwise 2-D convolution: every channel convolved with its own kernel.

    out[n, c, y, x] = sum over r, s of weight[c, 0, r, s]
                      * data[n, c, y*stride + r*dilation - pad, x*stride + s*dilation - pad]

A template of its own beside `conv2d`: there is nothing to contract over channels, so memory and
loads decide, not multiply-adds. Its schedules are in `search_space/convolution/depthwise.py`.
"""

from __future__ import annotations

from tilesmith.search_space.convolution import depthwise
from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.convolution.template import IMAGE, KERNEL, Convolution
from tilesmith.search_space.schedules.trainium import common as accelerator
from tilesmith.search_space.schedules.trainium.windows import WindowSpace
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.target import Target
from tilesmith.search_space.template import templates
from tilesmith.search_space.workload import Workload


@templates.register("depthwise_conv2d")
class DepthwiseConv2d(Convolution):
    """See the module's docstring."""

    operator = "depthwise_conv2d"
    summary = "2-D convolution of each channel by itself, NCHW data, (c, 1, kh, kw) weights"
    examples = (
        "depthwise_conv2d c=20 h=9 w=11 kh=3 kw=3 pad=1 const=weight epilogue=bias,relu",
        "depthwise_conv2d n=2 c=5 h=13 w=7 kh=5 kw=3 stride=2 pad=2x1x1x0",
    )
    parameters = (*IMAGE, *KERNEL)

    def _windows_space(self, workload: Workload, target: Target) -> WindowSpace:
        compute = depthwise.compute(self, workload, Geometry.of(workload))
        return WindowSpace(compute, "data", workload.dtype, target)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        if target.family == accelerator.FAMILY:
            return self._windows_space(workload, target).space()
        return SearchSpace(depthwise.spaces(Geometry.of(workload), target))

    def default(self, workload: Workload, target: Target) -> Config:
        if target.family == accelerator.FAMILY:
            return self._windows_space(workload, target).default()
        return depthwise.default(Geometry.of(workload), target)

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        if target.family == accelerator.FAMILY:
            return self._windows_space(workload, target).schedule(structure)
        return depthwise.schedule(self, workload, target, Geometry.of(workload), structure)
