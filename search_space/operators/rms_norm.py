"""RMS normalisation: rows divided by the root of their mean square, as Llama-like models do.

    y[k] = x[k] / sqrt(mean_k x[k]^2 + epsilon) * scale[k]

over the last `axes` axes, which are one row: a layer normalisation that takes no mean away, and has
no bias. Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019; ONNX's
RMSNormalization, from opset 23 on.
"""

from tilesmith.search_space.operator_parts.flattening import product
from tilesmith.search_space.operators.layer_norm import LayerNorm
from tilesmith.search_space.workloads.template import Parameter, templates
from tilesmith.search_space.workloads.workload import Workload


@templates.register("rms_norm")
class RmsNorm(LayerNorm):
    """See the module's docstring."""

    operator = "rms_norm"
    centred = False
    summary = "RMS normalisation over the last axes"
    parameters = (
        Parameter.shape("shape", "of input and output, e.g. 128x4096"),
        Parameter("axes", "how many of the last axes are normalised over", 1),
        Parameter("epsilon", "added to the mean square", "1e-5"),
        Parameter("scale", "1 multiplies by an operand `scale`", 1, minimum=0),
    )
    examples = (
        "rms_norm shape=5x37",
        "rms_norm shape=3x2x64 epsilon=0.001 epilogue=silu",
        "rms_norm shape=1009 scale=0",
        "rms_norm shape=6x3x7 axes=2 epilogue=residual",
        "rms_norm shape=7x1",
        "rms_norm shape=2x600 const=scale epilogue=bias",
    )
    varying = (
        "rms_norm shape=[b]x[s]x37",
        "rms_norm shape=[b*s]x600 epilogue=residual",
        "rms_norm shape=3x[s]",
    )

    def flops(self, workload: Workload) -> int:
        return 4 * product(workload.shape("shape"))
