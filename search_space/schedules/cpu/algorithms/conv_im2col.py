"""Convolution on CPUs as one matrix product over unfolded patches (im2col).

    col[n, (c, r, s), (y, x)] = data[n, c, y*stride + r*dilation - pad, x*stride + s*dilation - pad]
    conv[n, o, (y, x)]        = sum over (c, r, s) of weight[o, (c, r, s)] * col

The unfolded input costs kernel-size times the memory, but its rows are contiguous whatever the
stride, so that the product is the `width` form of a pointwise convolution. Plain NCHW in and out.

Chellapilla, Puri and Simard, "High Performance Convolutional Neural Networks for Document
Processing" (2006).
"""

from dataclasses import replace

from tilesmith.search_space.convolution import stages
from tilesmith.search_space.convolution.geometry import ZERO, Geometry, has_pad_value
from tilesmith.search_space.expressions.dtypes import computed_in
from tilesmith.search_space.expressions.expression import as_expr, const
from tilesmith.search_space.expressions.scalar import Scalar, Select, load
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.algorithms import conv_direct
from tilesmith.search_space.schedules.cpu.vectorisation.stages import with_result
from tilesmith.search_space.scheduling.compute import Stage, Tensor, axis
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import Subspace
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


def unfolded(g: Geometry) -> Geometry:
    """The pointwise convolution over patches."""
    return replace(
        g,
        channels=g.channels * g.taps(),
        height=1,
        width=g.out_height * g.out_width,
        kernel=(1, 1),
        stride=(1, 1),
        pads=(0, 0, 0, 0),
        dilation=(1, 1),
    )


def space(g: Geometry, target: Target) -> Subspace:
    """The knobs of the product; the patches have none."""
    subspace = conv_direct.width_space(unfolded(g), target)
    return replace(subspace, fixed=(("algorithm", "im2col"), *subspace.fixed[1:]))


def _patches(g: Geometry, dtype: str, frame: Scalar) -> Stage:
    n, c = axis("pn", g.batch), axis("pc", g.channels)
    r, s = axis("pr", g.kernel[0]), axis("ps", g.kernel[1])
    y, x = axis("py", g.out_height), axis("px", g.out_width)
    row = y.var * g.stride[0] + r.var * g.dilation[0] - g.pads[0]
    column = x.var * g.stride[1] + s.var * g.dilation[1] - g.pads[1]
    inside = (row, column, g.height - 1 - row, g.width - 1 - column)
    pixel = load("data", n.var, c.var, row, column)
    value = Select(inside, pixel, frame) if any(g.pads) else pixel
    patch = (c.var * g.kernel[0] + r.var) * g.kernel[1] + s.var
    store = (n.var, patch, const(0), y.var * g.out_width + x.var)
    product = unfolded(g)
    shape = (g.batch, product.channels, 1, product.width)
    extents = tuple(as_expr(e) for e in shape)
    return Stage("col", (n, c, r, s, y, x), value, store=store, shape=extents, dtype=dtype)


def schedule(workload: Workload, target: Target, g: Geometry, structure: Config) -> Schedule:
    """Patches first, on all threads; then the product."""
    product = unfolded(g)
    data = Tensor("data", (g.batch, g.channels, g.height, g.width), workload.dtype)
    template = template_of(workload.operator)
    frame = load("pad_value", 0) if has_pad_value(workload) else ZERO
    patches = _patches(g, computed_in(workload.dtype), frame)
    compute = stages.direct(template, workload, product, (patches,), data)
    schedule = Schedule(with_result(compute, workload))
    schedule = schedule.split("col", "px", vector_width(target), "pxo", "pxi")
    schedule = schedule.vectorize("col", "pxi").parallel("col", "pn", "pc")
    return conv_direct.width_loops(schedule, workload, target, product, structure)
