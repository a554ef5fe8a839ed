"""Convolutions as stages: the direct form, which schedules of every family start from.

padded[n, c, y, x] = data in a frame of zeros or pad_value  (if there is padding)
conv[n, o, y, x]   = sum over c, r, s of padded * weight
out[n, o, y, x]    = epilogue(conv)                         (if there is an epilogue)
"""

from tilesmith.search_space.convolution.geometry import ZERO, Geometry, has_pad_value
from tilesmith.search_space.expressions.dtypes import computed_in
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import load
from tilesmith.search_space.operator_parts.fusion import epilogue_stage, epilogue_tensors
from tilesmith.search_space.operator_parts.integer_products import product_stage, weight_dtype
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.workloads.template import Template
from tilesmith.search_space.workloads.workload import Workload


def direct(
    template: Template,
    workload: Workload,
    g: Geometry,
    leading: tuple[Stage, ...] = (),
    data: Tensor | None = None,
) -> ComputeDefinition:
    """A convolution: stages `padded` (if there is padding), `conv` and, with an epilogue, `out`.

    Args:
        g: a view (`Geometry.view`); with groups, its batch runs over images and groups.
        leading: stages before these, the last of which is convolved instead of `data`.
        data: the input tensor, where it is not of the view's shape.
    """
    n, o = axis("n", g.batch), axis("o", g.out_channels)
    y, x = axis("y", g.out_height), axis("x", g.out_width)
    c, r, s = axis("c", g.channels), axis("r", g.kernel[0]), axis("s", g.kernel[1])
    stages = leading
    if any(g.pads):
        stages = (*stages, _frame(workload, g))
    source = stages[-1].name if stages else "data"
    row = y.var * g.stride[0] + r.var * g.dilation[0]
    column = x.var * g.stride[1] + s.var * g.dilation[1]
    group = () if g.groups == 1 else (_group(g, n.var),)
    pixel = load(source, n.var, c.var, row, column)
    tap = load("weight", *group, o.var, c.var, r.var, s.var)
    conv = product_stage(workload, "conv", (n, o, y, x), pixel, tap, (c, r, s))
    lead = () if g.groups == 1 else (g.groups,)
    weight = Tensor(
        "weight",
        (*lead, g.out_channels, g.channels, *g.kernel),
        weight_dtype(workload),
        workload.is_constant("weight"),
    )
    data = data or Tensor("data", (g.batch, g.channels, g.height, g.width), workload.dtype)
    extra = tuple(_view_of(t, g) for t in epilogue_tensors(template, workload))
    channel = o.var if g.groups == 1 else _group(g, n.var) * g.out_channels + o.var
    out = epilogue_stage(template, workload, conv, channel=channel)
    return ComputeDefinition(
        "conv2d", (data, weight, *_pad_value(workload), *extra), (*stages, conv, *out)
    )


def _frame(workload: Workload, g: Geometry) -> Stage:
    """The input in its frame; values that are computed with are float32."""
    frame = load("pad_value", 0) if has_pad_value(workload) else ZERO
    return g.padding_stage(g.padded_height, g.padded_width, computed_in(workload.dtype), frame)


def _pad_value(workload: Workload) -> tuple[Tensor, ...]:
    """What the frame is filled with, where it is an operand."""
    if not has_pad_value(workload):
        return ()
    return (Tensor("pad_value", (1,), workload.dtype, workload.is_constant("pad_value")),)


def _group(g: Geometry, n: Expr) -> Expr:
    """Which group an image-and-group index belongs to."""
    return n if g.batch == g.groups else n % g.groups


def _view_of(tensor: Tensor, g: Geometry) -> Tensor:
    """An epilogue tensor of the output's shape, in the view's shape."""
    if len(tensor.extents) != 4:
        return tensor
    shape = (g.batch, g.out_channels, g.out_height, g.out_width)
    return Tensor(tensor.name, shape, tensor.dtype, tensor.constant)


def depthwise(template: Template, workload: Workload, g: Geometry) -> ComputeDefinition:
    """A convolution of each channel by itself: the same stages as `direct`."""
    n, c = axis("n", g.batch), axis("c", g.channels)
    y, x = axis("y", g.out_height), axis("x", g.out_width)
    r, s = axis("r", g.kernel[0]), axis("s", g.kernel[1])
    padded = any(g.pads)
    row = y.var * g.stride[0] + r.var * g.dilation[0]
    column = x.var * g.stride[1] + s.var * g.dilation[1]
    pixel = load("padded" if padded else "data", n.var, c.var, row, column)
    tap = load("weight", c.var, 0, r.var, s.var)
    conv = product_stage(workload, "conv", (n, c, y, x), pixel, tap, (r, s))
    frame = (_frame(workload, g),) if padded else ()
    tensors = (
        Tensor("data", (g.batch, g.channels, g.height, g.width), workload.dtype),
        Tensor(
            "weight",
            (g.channels, 1, *g.kernel),
            weight_dtype(workload),
            workload.is_constant("weight"),
        ),
        *_pad_value(workload),
        *epilogue_tensors(template, workload),
    )
    stages = (*frame, conv, *epilogue_stage(template, workload, conv))
    return ComputeDefinition("depthwise_conv2d", tensors, stages)
