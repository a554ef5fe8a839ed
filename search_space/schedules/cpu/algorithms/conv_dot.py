"""Direct convolution on CPUs in dot products: bytes and 16-bit floats, several channels a lane.

An instruction set's dot product adds up P products in each lane of 32 bits. So channels are taken
in groups of P, which lie side by side: as the innermost part of a blocked layout, and in the
weights, packed as the accumulator tile reads them:

    weight.packed[o, g, p, r, s] = weight[o, g*P + p, r, s]         (0 behind the last channel)
    conv[n, o, y, x] = sum over g, r, s, p of data[n, g*P + p, ..] * weight.packed[o, g, p, r, s]

One instruction is (lane of output channels, p): a group of one pixel in every lane, times a vector
of weights. The tile is that of `conv_direct`: rows x columns of pixels times vectors of output
channels. Data that comes as NCHW, or that has a frame, is copied first, blocked. Where the last
group is not full, bytes are multiplied by zeros, whatever they are; floating data is copied with
zeros there, for zero times what is no number is none.
"""

from dataclasses import dataclass, replace

from tilesmith.search_space.convolution.geometry import Geometry, layout_names, layout_of
from tilesmith.search_space.expressions.dtypes import is_floating, size_of
from tilesmith.search_space.expressions.expression import Expr, as_expr, var
from tilesmith.search_space.expressions.scalar import Const, Load, Scalar, Select, load, rewrite
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.integer_products import weight_dtype
from tilesmith.search_space.schedules.cpu.algorithms.conv_direct import (
    X_TILE_LIMIT,
    even_tile,
    finish_tile,
    once,
    orders,
    pixel_copy,
)
from tilesmith.search_space.schedules.cpu.vectorisation.dot_products import group_of, prefers_dot
from tilesmith.search_space.schedules.cpu.vectorisation.stages import summed_of
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, axis
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import (
    Knob,
    block_counts,
    layout,
    register_limit,
    tile,
    unrolled_limit,
)
from tilesmith.search_space.spaces.space import Subspace
from tilesmith.search_space.workloads.workload import Workload


def products_of(workload: Workload, target: Target) -> int:
    """Channels of a group; 1 where there is no instruction for the element types."""
    return group_of(target, workload.dtype, weight_dtype(workload))


def preferred(workload: Workload, target: Target) -> bool:
    """Whether the form applies and is the first choice."""
    types = workload.dtype, weight_dtype(workload)
    return products_of(workload, target) > 1 and prefers_dot(target, *types)


LARGEST_INTERLEAVED = 8
"""Bytes of a pixel that are put side by side in a lane."""


@dataclass(frozen=True)
class _Groups:
    """How a convolution's channels are cut.

    Attributes:
        products: channels of a group (P).
        count: groups of all channels, the last filled up.
        block: groups of a block of the layout that is read.
    """

    products: int
    count: int
    block: int

    @classmethod
    def of(cls, g: Geometry, products: int, lanes: int) -> "_Groups":
        count = -(-g.channels // products)
        return cls(products, count, min(count, max(1, lanes // products)))

    @property
    def channels(self) -> int:
        """Channels with those that fill up the last group."""
        return self.count * self.products


def space(g: Geometry, target: Target, products: int) -> Subspace:
    """Knobs of the form: those of `conv_direct.channels_space`, channels counted in groups."""
    lanes, registers = vector_width(target), target.integer("vector.registers")
    groups = _Groups.of(g, products, lanes)
    names = layout_names(lanes) if g.blocks(lanes) else layout_names(lanes)[:1]
    vectors = -(-g.out_channels // lanes)
    knobs: tuple[Knob, ...] = (
        layout("input_layout", names),
        layout("output_layout", names[-1:]),
        *orders(g),
        tile("y_tile", range(1, min(g.out_height, 4) + 1)),
        tile("x_tile", range(1, min(g.out_width, X_TILE_LIMIT) + 1)),
        tile("n_vectors", range(1, min(vectors, 6) + 1)),
        tile("c_unroll", [u for u in (1, 2, 4) if u <= groups.block]),
        tile("y_block", block_counts(g.out_height)),
        tile("x_block", block_counts(-(-g.out_width // 4))),
        tile("c_block", block_counts(-(-groups.count // groups.block))),
    )
    size = var("y_tile") * var("x_tile") * var("n_vectors")
    formula = "y_tile*x_tile*n_vectors + n_vectors + 1"
    limit = register_limit(size, var("n_vectors"), registers, formula)
    code = unrolled_limit(size * var("c_unroll"), "y_tile*x_tile*n_vectors*c_unroll")
    return Subspace((("algorithm", "dot"),), knobs, (limit, code))


def default(g: Geometry, target: Target, products: int) -> Config:
    """A row of pixels times two vectors, everything else innermost."""
    lanes, registers = vector_width(target), target.integer("vector.registers")
    groups = _Groups.of(g, products, lanes)
    name = layout_names(lanes)[1 if g.blocks(lanes) else 0]
    vectors = min(2, -(-g.out_channels // lanes))
    columns = even_tile(g.out_width, min(X_TILE_LIMIT, (registers - 2 - vectors) // vectors))
    return Config.of(
        algorithm="dot",
        input_layout=name if g.channels >= lanes else layout_names(lanes)[0],
        output_layout=name,
        block_order="o,y,c",
        reduction_order=orders(g)[1].values[0],
        y_tile=1,
        x_tile=columns,
        n_vectors=vectors,
        c_unroll=max(u for u in (1, 2) if u <= groups.block),
        y_block=1,
        x_block=block_counts(-(-g.out_width // 4))[-1],
        c_block=block_counts(-(-groups.count // groups.block))[-1],
    )


def in_groups(workload: Workload, g: Geometry, groups: _Groups, plain: bool) -> ComputeDefinition:
    """The stages, the reduction over channels in groups: see the module's docstring.

    Args:
        plain: whether data comes as NCHW.
    """
    compute = summed_of(workload)
    conv = compute.stage("conv")
    _, r, s = conv.reduce_axes
    group, p = axis("g", groups.count), axis("p", groups.products)
    channel = group.var * groups.products + p.var
    filled = is_floating(workload.dtype) and groups.channels > g.channels
    copied = plain or filled
    names = {stage.name for stage in compute.stages}
    source = "padded" if copied or "padded" in names else "data"
    lead, o = conv.axes[0].var, conv.axes[1].var

    def access(operand: Load) -> Scalar:
        if operand.buffer == "weight":
            *leading, _, _, _, _ = operand.indices
            return load("weight.packed", *leading, o, group.var, p.var, r.var, s.var)
        _, _, row, column = operand.indices
        return load(source, lead, channel, row, column)

    value = rewrite(conv.value, lambda index: index, access)
    summed = replace(conv, value=value, reduce_axes=(group, r, s, p))
    stages: list[Stage] = [_packed(compute, g, groups)]
    for stage in compute.stages:
        if stage.name == "conv":
            if source == "padded" and "padded" not in names:
                stages.append(_copy(g, compute.dtype("data"), groups, filled))
            stages.append(summed)
        elif stage.name == "padded":
            frame = replace(stage, dtype=compute.dtype("data"))
            stages.append(_filled(frame, g, groups) if filled else frame)
        else:
            stages.append(stage)
    return replace(compute, stages=tuple(stages))


def _packed(compute: ComputeDefinition, g: Geometry, groups: _Groups) -> Stage:
    """`weight.packed`, groups of the convolution first."""
    lead = (axis("wn", g.groups),) if g.groups > 1 else ()
    o, c, p = axis("wo", g.out_channels), axis("wg", groups.count), axis("wp", groups.products)
    r, s = axis("wr", g.kernel[0]), axis("ws", g.kernel[1])
    channel = c.var * groups.products + p.var
    value: Scalar = load("weight", *(a.var for a in lead), o.var, channel, r.var, s.var)
    if groups.channels > g.channels:
        value = Select((g.channels - 1 - channel,), value, Const(0.0))
    dtype = compute.dtype("weight")
    return Stage("weight.packed", (*lead, o, c, p, r, s), value, dtype=dtype)


def _copy(g: Geometry, dtype: str, groups: _Groups, filled: bool) -> Stage:
    """`padded` where there is no frame."""
    n, c = axis("pn", g.batch), axis("pc", g.channels)
    y, x = axis("py", g.height), axis("px", g.width)
    value = load("data", n.var, c.var, y.var, x.var)
    stage = Stage("padded", (n, c, y, x), value, dtype=dtype)
    return _filled(stage, g, groups) if filled else stage


def _filled(stage: Stage, g: Geometry, groups: _Groups) -> Stage:
    """`padded` with zeros for the channels that fill up the last group."""
    n, c, y, x = stage.axes
    value = Select((g.channels - 1 - c.var,), stage.value, Const(0.0))
    return replace(stage, axes=(n, replace(c, extent=as_expr(groups.channels)), y, x), value=value)


def schedule(workload: Workload, target: Target, g: Geometry, structure: Config) -> Schedule:
    """See the module's docstring."""
    lanes = vector_width(target)
    groups = _Groups.of(g, products_of(workload, target), lanes)
    plain = structure.text("input_layout") == layout_names(lanes)[0]
    s = Schedule(in_groups(workload, g, groups, plain))
    s = _layouts(s, structure, groups, lanes)
    s = _pack(s, workload, g, groups, lanes)
    s = s.split("conv", "o", lanes, "ov", "lane").split("conv", "ov", var("n_vectors"), "ot", "oi")
    for name, size, block in (("y", "y_tile", "y_block"), ("x", "x_tile", "x_block")):
        s = s.split("conv", name, var(size), f"{name}t", f"{name}i")
        s = s.split("conv", f"{name}t", var(block), f"{name}o", f"{name}m")
    s = s.split("conv", "g", groups.block, "ct", "cl").split(
        "conv", "ct", var("c_block"), "co", "cm"
    )
    s = s.split("conv", "cl", var("c_unroll"), "cs", "ci")
    place = {"o": "ot", "y": "yo", "c": "co"}
    outer = [place[x] for x in structure.text("block_order").split(",")]
    channels_first = structure.text("reduction_order") == "c,r,s"
    reduction = ("cm", "r", "s") if channels_first else ("r", "s", "cm")
    tiles = ("yi", "xi", "oi", "p", "lane")
    s = s.reorder("conv", ("n", *outer, "xo", "ym", "xm", *reduction, "cs", "ci", *tiles))
    s = s.unroll("conv", "ci", "yi", "xi", "oi", "p").vectorize("conv", "lane")
    s = s.tensorize("conv", "p", "dot_product")
    return finish_tile(s, workload, ["n", *outer], "xm")


def _layouts(s: Schedule, structure: Config, groups: _Groups, lanes: int) -> Schedule:
    """Physical layouts of data, its copy, output and full-size epilogue operands."""
    result = layout_of(structure.text("output_layout"))
    s = s.set_layout("data", layout_of(structure.text("input_layout")))
    if any(stage.name == "padded" for stage in s.compute.stages):
        s = _copied(s, groups, structure.text("input_layout") == "NCHW", lanes)
    for tensor in s.compute.inputs:
        if tensor.name not in ("data", "weight") and len(tensor.extents) == 4:
            s = s.set_layout(tensor.name, result)
    s = s.set_layout("conv", result)
    return s.set_layout(s.compute.output.name, result)


def _copied(s: Schedule, groups: _Groups, plain: bool, lanes: int) -> Schedule:
    """The copy of an image, blocked by as many channels as a block of groups has: of a plain image
    of few channels a vector of pixels at once, else several pixels, of which only border ones are
    tested."""
    block = groups.block * groups.products
    s = s.set_layout("padded", layout_of(f"NCHW{block}c"))
    if not plain or block * size_of(s.compute.dtype("padded")) > LARGEST_INTERLEAVED:
        return pixel_copy(s, block).parallel("padded", "pn", "pcv", "py")
    s = s.split("padded", "pc", block, "pcv", "pcl").split("padded", "px", lanes, "pxv", "pxl")
    s = s.reorder("padded", ("pn", "pcv", "py", "pxv", "pcl", "pxl"))
    s = s.unroll("padded", "pcl").vectorize("padded", "pxl")
    s = s.tensorize("padded", "pcl", "interleave")
    return s.parallel("padded", "pn", "pcv", "py")


def _pack(s: Schedule, workload: Workload, g: Geometry, groups: _Groups, lanes: int) -> Schedule:
    """weight.packed[o/panel, g/block, r, s, g%block, o%panel, p], groups first."""
    panel: Expr = var("n_vectors") * lanes
    block = as_expr(groups.block)
    first = 0 if g.groups == 1 else 1
    o, c, p, r, q = range(first, first + 5)
    dimensions = (
        *(LayoutDimension(a) for a in range(first)),
        LayoutDimension(o, "outer", panel),
        LayoutDimension(c, "outer", block),
        LayoutDimension(r),
        LayoutDimension(q),
        LayoutDimension(c, "inner", block),
        LayoutDimension(o, "inner", panel),
        LayoutDimension(p),
    )
    s = s.set_layout("weight.packed", Layout(dimensions))
    s = s.split("weight.packed", "wo", panel, "wt", "wi")
    lead = ("wn",) if first else ()
    s = s.reorder("weight.packed", (*lead, "wt", "wg", "wr", "ws", "wi", "wp"))
    return once(s, workload, "wt")
