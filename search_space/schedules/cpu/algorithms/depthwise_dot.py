"""Depthwise convolution of bytes on CPUs in dot products: neighbouring taps of a row in a lane.

There is nothing to add up over channels; what one instruction adds up in a lane are P taps that lie
side by side in a row, of one channel:

    weight.packed[c, g, p, r] = weight[c, 0, r, g*P + p]            (0 behind the last tap)
    conv[n, c, y, x] = sum over r, g, p of
                       padded[n, c, y*stride + r*dilation, x*stride + g*P + p] * weight.packed

Channels lie innermost, so P pixels are as many bytes as P lanes have, and code turns them, channels
first, by one shuffle; the rows of a tile that neighbouring outputs share are turned once. The image
is copied strip by strip into its frame, with as many columns more as the last group of taps reads.
"""

from dataclasses import replace

from tilesmith.search_space.convolution.geometry import (
    ZERO,
    Geometry,
    has_pad_value,
    layout_names,
    layout_of,
)
from tilesmith.search_space.expressions.expression import as_expr, var
from tilesmith.search_space.expressions.scalar import Load, Scalar, Select, load, rewrite
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.integer_products import BYTES, weight_dtype
from tilesmith.search_space.schedules.cpu.algorithms.conv_direct import pixel_copy
from tilesmith.search_space.schedules.cpu.vectorisation.dot_products import group_of
from tilesmith.search_space.schedules.cpu.vectorisation.stages import has_result, summed_of
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, axis
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import (
    UNROLLED_LIMIT,
    Constraint,
    Knob,
    block_counts,
    layout,
    tile,
)
from tilesmith.search_space.spaces.space import Subspace
from tilesmith.search_space.workloads.workload import Workload


def products_of(workload: Workload, target: Target, g: Geometry) -> int:
    """Taps of a group; 1 where the form does not apply."""
    if workload.dtype not in BYTES or g.dilation[1] != 1:
        return 1
    return group_of(target, workload.dtype, weight_dtype(workload))


def _steps(g: Geometry, products: int) -> int:
    """Dot products of one output."""
    return g.kernel[0] * -(-g.kernel[1] // products)


def space(g: Geometry, target: Target, products: int) -> Subspace:
    """A tile of y_tile x x_tile pixels of one vector of channels, taps unrolled."""
    lanes, registers = vector_width(target), target.integer("vector.registers")
    blocked = layout_names(lanes)[1]
    knobs: tuple[Knob, ...] = (
        layout("input_layout", [blocked]),
        layout("output_layout", [blocked]),
        tile("y_tile", range(1, min(g.out_height, 8) + 1)),
        tile("x_tile", range(1, min(g.out_width, 16) + 1)),
        tile("y_block", block_counts(g.out_height)),
    )
    pixels = var("y_tile") * var("x_tile")
    limits = (
        Constraint(
            pixels + 2, registers, "vector registers of the accumulator tile (y_tile*x_tile + 2)"
        ),
        Constraint(
            pixels * _steps(g, products),
            2 * UNROLLED_LIMIT,
            "unrolled dot products of the tile (y_tile*x_tile*steps)",
        ),
    )
    fits = min(_steps(g, products), 2 * UNROLLED_LIMIT)  # one pixel is always legal
    first, second = limits
    return Subspace(
        (("algorithm", "dot"),), knobs, (first, replace(second, limit=max(second.limit, fits)))
    )


def default(g: Geometry, target: Target, products: int) -> Config:
    """Return tiles that are tall: their rows share the reordered inputs."""
    lanes, registers = vector_width(target), target.integer("vector.registers")
    blocked = layout_names(lanes)[1]
    most = max(1, min(registers // 2, 2 * UNROLLED_LIMIT // _steps(g, products)))
    rows = min(4, g.out_height, most)
    return Config.of(
        algorithm="dot",
        input_layout=blocked,
        output_layout=blocked,
        y_tile=rows,
        x_tile=min(g.out_width, max(1, most // rows)),
        y_block=max(s for s in block_counts(g.out_height) if s <= 4),
    )


def in_groups(workload: Workload, g: Geometry, products: int) -> ComputeDefinition:
    """The stages, the taps of a row in groups: see the module's docstring."""
    compute = summed_of(workload)
    conv = compute.stage("conv")
    r, s = conv.reduce_axes
    groups = -(-g.kernel[1] // products)
    group, p = axis("g", groups), axis("p", products)
    tap = group.var * products + p.var
    columns = max(g.padded_width, (g.out_width - 1) * g.stride[1] + groups * products)
    frame = load("pad_value", 0) if has_pad_value(workload) else ZERO
    padded = g.padding_stage(g.padded_height, columns, compute.dtype("data"), frame)

    def access(operand: Load) -> Scalar:
        if operand.buffer == "weight":
            return load("weight.packed", operand.indices[0], group.var, p.var, r.var)
        return Load("padded", operand.indices)

    value = rewrite(conv.value, lambda index: index.substitute({s.name: tap}), access)
    summed = replace(conv, value=value, reduce_axes=(r, group, p))
    rest = tuple(stage for stage in compute.stages if stage.name not in ("conv", "padded"))
    packed = _packed(compute, g, products)
    return replace(compute, stages=(packed, padded, summed, *rest))


def _packed(compute: ComputeDefinition, g: Geometry, products: int) -> Stage:
    c, r = axis("wc", g.channels), axis("wr", g.kernel[0])
    group, p = axis("wg", -(-g.kernel[1] // products)), axis("wp", products)
    tap = group.var * products + p.var
    value: Scalar = load("weight", c.var, 0, r.var, tap)
    if g.kernel[1] % products:
        value = Select((g.kernel[1] - 1 - tap,), value, ZERO)
    return Stage("weight.packed", (c, group, p, r), value, dtype=compute.dtype("weight"))


def schedule(workload: Workload, target: Target, g: Geometry, structure: Config) -> Schedule:
    """See the module's docstring."""
    lanes = vector_width(target)
    s = Schedule(in_groups(workload, g, products_of(workload, target, g)))
    blocked = layout_of(structure.text("input_layout"))
    outputs = (t.name for t in s.compute.inputs if t.name != "weight" and len(t.extents) == 4)
    for name in (*outputs, "padded", "conv", s.compute.output.name):
        s = s.set_layout(name, blocked)
    s = _pack(s, workload, lanes)
    s = s.split("conv", "c", lanes, "ct", "lane")
    s = s.split("conv", "y", var("y_tile"), "yt", "yi")
    s = s.split("conv", "yt", var("y_block"), "yo", "ym")
    s = s.split("conv", "x", var("x_tile"), "xt", "xi")
    s = s.reorder("conv", ("n", "ct", "yo", "ym", "xt", "r", "g", "yi", "xi", "p", "lane"))
    s = s.unroll("conv", "r", "g", "yi", "xi", "p").vectorize("conv", "lane")
    s = s.tensorize("conv", "p", "dot_product")
    s = pixel_copy(s.compute_at("padded", "conv", "yo"), lanes)
    s = s.cache_write("conv", "register", "xt")
    if has_result(s.compute):
        s = s.reverse_compute_at("out", "conv", "xt")
    return s.parallel("conv", "n", "ct", "yo")


def _pack(s: Schedule, workload: Workload, lanes: int) -> Schedule:
    """weight.packed[c/lanes, r, g, c%lanes, p]."""
    c, g, p, r = range(4)
    channels = as_expr(lanes)
    dimensions = (
        LayoutDimension(c, "outer", channels),
        LayoutDimension(r),
        LayoutDimension(g),
        LayoutDimension(c, "inner", channels),
        LayoutDimension(p),
    )
    s = s.set_layout("weight.packed", Layout(dimensions))
    s = s.split("weight.packed", "wc", lanes, "wt", "wi")
    s = s.reorder("weight.packed", ("wt", "wr", "wg", "wi", "wp"))
    if workload.is_constant("weight"):
        return s.compile_time("weight.packed")
    return s.parallel("weight.packed", "wt")
