"""Depthwise 2-D convolution: every channel convolved with its own kernel.

    out[n, c, y, x] = sum over r, s of weight[c, 0, r, s]
                      * data[n, c, y*stride + r*dilation - pad, x*stride + s*dilation - pad]

A template of its own beside `conv2d`: there is nothing to contract over channels, so memory and
loads decide, not multiply-adds.
"""

from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.convolution.stages import depthwise
from tilesmith.search_space.convolution.template import IMAGE, KERNEL, Convolution
from tilesmith.search_space.operator_parts.integer_products import WEIGHTS
from tilesmith.search_space.scheduling.compute import ComputeDefinition
from tilesmith.search_space.workloads.template import templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("depthwise_conv2d")
class DepthwiseConv2d(Convolution):
    """See the module's docstring."""

    operator = "depthwise_conv2d"
    summary = "2-D convolution of each channel by itself, NCHW data, (c, 1, kh, kw) weights"
    examples = (
        "depthwise_conv2d c=20 h=9 w=11 kh=3 kw=3 pad=1 const=weight epilogue=bias,relu",
        "depthwise_conv2d n=2 c=5 h=13 w=7 kh=5 kw=3 stride=2 pad=2x1x1x0",
        "depthwise_conv2d c=20 h=7 w=9 kh=3 kw=3 pad=1 weights=int8 dtype=uint8 const=weight "
        "epilogue=correction,rescale,quantise_uint8",
    )
    varying = (
        "depthwise_conv2d n=[b] c=20 h=9 w=11 kh=3 kw=3 pad=1 const=weight epilogue=bias,relu",
        "depthwise_conv2d n=[b] c=5 h=[h] w=[w] kh=3 kw=3 stride=2 pad=1",
    )
    parameters = (*IMAGE, *KERNEL, WEIGHTS)

    def compute(self, workload: Workload) -> ComputeDefinition:
        """See `convolution.stages`."""
        return depthwise(self, workload, Geometry.of(workload))
