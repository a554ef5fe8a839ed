"""2-D convolution: any kernel, stride, padding, dilation and groups, with a fused epilogue.

out[n, o, y, x] = sum over c, r, s of weight[o, c, r, s]
                  * data[n, c, y*stride + r*dilation - pad, x*stride + s*dilation - pad]
"""

from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.convolution.stages import direct
from tilesmith.search_space.convolution.template import IMAGE, KERNEL, Convolution
from tilesmith.search_space.operator_parts.integer_products import WEIGHTS
from tilesmith.search_space.scheduling.compute import ComputeDefinition
from tilesmith.search_space.workloads.template import Parameter, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("conv2d")
class Conv2d(Convolution):
    """See the module's docstring."""

    operator = "conv2d"
    summary = "2-D convolution, NCHW data, OIHW weights"
    examples = (
        "conv2d c=5 h=9 w=11 oc=20 kh=3 kw=3 pad=1 const=weight epilogue=bias,relu",
        "conv2d n=2 c=3 h=15 w=13 oc=7 kh=5 kw=3 stride=2 pad=2x1 dilation=2x1 const=weight",
        "conv2d c=32 h=7 w=7 oc=48 kh=1 kw=1 const=weight epilogue=bias,residual,relu",
        "conv2d n=2 c=6 h=9 w=9 oc=9 kh=3 kw=3 groups=3 pad=1x0x0x1 epilogue=bias",
        "conv2d c=5 h=7 w=9 oc=20 kh=3 kw=3 pad=1 weights=int8 dtype=uint8 const=weight "
        "epilogue=correction,rescale,relu,quantise_uint8",
    )
    varying = (
        "conv2d n=[b] c=5 h=9 w=11 oc=20 kh=3 kw=3 pad=1 const=weight epilogue=bias,relu",
        "conv2d n=[b] c=3 h=[h] w=[w] oc=7 kh=3 kw=3 stride=2 pad=1 const=weight",
        "conv2d n=2 c=20 h=[h] w=[w] oc=18 kh=1 kw=1 const=weight epilogue=bias,residual",
        "conv2d c=4 h=[h+2] w=[w+2] oc=6 kh=3 kw=3 groups=2 const=weight",
    )
    parameters = (
        *IMAGE,
        Parameter("oc", "output channels"),
        *KERNEL,
        Parameter("groups", "independent groups of channels", 1),
        WEIGHTS,
    )

    def compute(self, workload: Workload) -> ComputeDefinition:
        """See `convolution.stages`; of the view that is scheduled (`Geometry.view`)."""
        return direct(self, workload, Geometry.of(workload).view())
