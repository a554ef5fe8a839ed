"""Direct convolution on CPUs, vectorised over output channels or over output width.

`channels`: an accumulator tile of (rows x columns) pixels times n_vectors vectors of output
channels; input pixels are broadcast, weights packed so that the tile reads them in one run. Works
on plain and channel-blocked inputs, any stride and dilation; writes blocked outputs (plain ones
where the layout cannot be blocked), as vectors of channels lie there.

`frameless`: `channels` on images that are read without a frame: sums leave out the taps in it
(`ir.transforms.borders`). For few input channels, whose copy into a frame costs what a tap does.

`width`: a tile of oc_tile output channels times n_vectors vectors of neighbouring pixels; weights
are broadcast. Needs no channel blocking, so it is the natural form for NCHW in and out at stride 1.

A pointwise convolution is flattened first: its pixels form one long row.
"""

from dataclasses import replace

from tilesmith.search_space.convolution.geometry import (
    Geometry,
    has_pad_value,
    layout_names,
    layout_of,
)
from tilesmith.search_space.expressions.dtypes import is_narrow, widened
from tilesmith.search_space.expressions.expression import as_expr, var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.vectorisation.stages import has_result, summed_of
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import (
    Knob,
    block_counts,
    choice,
    in_layout,
    layout,
    order,
    register_limit,
    tile,
    tile_sizes,
    unrolled_limit,
)
from tilesmith.search_space.spaces.space import Subspace
from tilesmith.search_space.workloads.workload import Workload

X_TILE_LIMIT = 28
"""Most pixels of a tile's row: more would not fit any register file."""


def orders(g: Geometry) -> tuple[Knob, Knob]:
    """Orders of cache blocks, and of a reduction; a single row or tap has no place in them."""
    reductions = ("r,s,c",) if g.taps() == 1 else ("c,r,s", "r,s,c")
    return (
        order("block_order", ("o", "y", "c"), trivial=("y",) if g.out_height == 1 else ()),
        choice("reduction_order", reductions),
    )


def channels_space(g: Geometry, target: Target) -> Subspace:
    """Knobs of the form vectorised over output channels."""
    lanes, registers = vector_width(target), target.integer("vector.registers")
    names = layout_names(lanes) if g.blocks(lanes) else layout_names(lanes)[:1]
    vectors = -(-g.out_channels // lanes)
    knobs: tuple[Knob, ...] = (
        layout("input_layout", names),
        layout("output_layout", names[-1:]),
        *orders(g),
        tile("y_tile", range(1, min(g.out_height, 4) + 1)),
        tile("x_tile", range(1, min(g.out_width, X_TILE_LIMIT) + 1)),
        tile("n_vectors", range(1, min(vectors, 6) + 1)),
        tile("c_unroll", [u for u in (1, 2, 4, 8, 16) if u <= min(g.channels, lanes)]),
        tile("y_block", block_counts(g.out_height)),
        tile("x_block", block_counts(-(-g.out_width // 4))),
        tile("c_block", block_counts(-(-g.channels // lanes))),
    )
    tile_size = var("y_tile") * var("x_tile") * var("n_vectors")
    formula = "y_tile*x_tile*n_vectors + n_vectors + 1"
    limit = register_limit(tile_size, var("n_vectors"), registers, formula)
    code = unrolled_limit(tile_size * var("c_unroll"), "y_tile*x_tile*n_vectors*c_unroll")
    return Subspace((("algorithm", "channels"),), knobs, (limit, code))


def frameless_space(g: Geometry, target: Target) -> Subspace:
    """Knobs of `channels`, all tiles of a row in one block: its ends are borders."""
    channels = channels_space(g, target)
    knobs = (
        replace(knob, values=knob.values[-1:]) if knob.name == "x_block" else knob
        for knob in channels.knobs
    )
    return Subspace((("algorithm", "frameless"),), tuple(knobs), channels.constraints)


def has_few_framed(workload: Workload, g: Geometry, target: Target) -> bool:
    """Whether there are fewer input channels than lanes, in images with a frame of zeros."""
    zeros = any(g.pads) and not has_pad_value(workload) and not is_narrow(workload.dtype)
    return zeros and g.channels < vector_width(target)


def channels_default(g: Geometry, target: Target) -> Config:
    """A row of pixels times two vectors, everything else innermost."""
    lanes, registers = vector_width(target), target.integer("vector.registers")
    name = layout_names(lanes)[1 if g.blocks(lanes) else 0]
    vectors = min(2, -(-g.out_channels // lanes))
    limit = min(X_TILE_LIMIT, (registers - 2 - vectors) // vectors)
    columns = even_tile(g.out_width, limit)
    return Config.of(
        algorithm="channels",
        input_layout=name,
        output_layout=name,
        block_order="o,y,c",
        reduction_order=orders(g)[1].values[0],
        y_tile=1,
        x_tile=columns,
        n_vectors=vectors,
        c_unroll=max(u for u in (1, 2, 4) if u <= min(g.channels, lanes)),
        y_block=1,
        x_block=block_counts(-(-g.out_width // 4))[-1],
        c_block=block_counts(-(-g.channels // lanes))[-1],
    )


def even_tile(extent: int, limit: int) -> int:
    """The tile up to `limit` that wastes least: fewest tiles, then the most even."""
    tiles = -(-extent // max(1, limit))
    return -(-extent // tiles)


def channels_schedule(
    workload: Workload, target: Target, g: Geometry, structure: Config
) -> Schedule:
    """See the module's docstring."""
    lanes = vector_width(target)
    schedule = Schedule(summed_of(workload))
    schedule = set_layouts(schedule, workload, structure, g)
    schedule = _widened(schedule, structure.text("input_layout"))
    inner_channels = min(lanes, g.channels)
    schedule = _pack_panels(schedule, workload, g, lanes, inner_channels)
    schedule = schedule.split("conv", "o", lanes, "ov", "lane")
    schedule = schedule.split("conv", "ov", var("n_vectors"), "ot", "oi")
    for name, size, block in (("y", "y_tile", "y_block"), ("x", "x_tile", "x_block")):
        schedule = schedule.split("conv", name, var(size), f"{name}t", f"{name}i")
        schedule = schedule.split("conv", f"{name}t", var(block), f"{name}o", f"{name}m")
    schedule = schedule.split("conv", "c", inner_channels, "ct", "cl")
    schedule = schedule.split("conv", "ct", var("c_block"), "co", "cm")
    schedule = schedule.split("conv", "cl", var("c_unroll"), "cs", "ci")
    place = {"o": "ot", "y": "yo", "c": "co"}
    outer = [place[x] for x in structure.text("block_order").split(",")]
    reduction = (
        ["cm", "r", "s"] if structure.text("reduction_order") == "c,r,s" else ["r", "s", "cm"]
    )
    schedule = schedule.reorder(
        "conv",
        ("n", *outer, "xo", "ym", "xm", *reduction, "cs", "ci", "yi", "xi", "oi", "lane"),
    )
    schedule = schedule.unroll("conv", "ci", "yi", "xi", "oi").vectorize("conv", "lane")
    return finish_tile(schedule, workload, ["n", *outer], "xm")


def _pack_panels(
    schedule: Schedule, workload: Workload, g: Geometry, lanes: int, inner: int
) -> Schedule:
    """weight[o, c, r, s] -> packed[o/panel, c/inner, r, s, c%inner, o%panel], groups first."""
    panel, narrow = var("n_vectors") * lanes, as_expr(inner)
    first = 0 if g.groups == 1 else 1
    dimensions = (
        LayoutDimension(first, "outer", panel),
        LayoutDimension(first + 1, "outer", narrow),
        LayoutDimension(first + 2),
        LayoutDimension(first + 3),
        LayoutDimension(first + 1, "inner", narrow),
        LayoutDimension(first, "inner", panel),
    )
    lead = (LayoutDimension(0),) if first else ()
    schedule = schedule.cache_read("weight", "conv", "weight.packed")
    schedule = schedule.set_layout("weight.packed", Layout((*lead, *dimensions)))
    names = [f"weight.packed.{d}" for d in range(first + 4)]
    schedule = schedule.split("weight.packed", names[first], lanes, "pv", "pl")
    schedule = schedule.split("weight.packed", "pv", var("n_vectors"), "pt", "pi")
    moved = (*names[:first], "pt", *names[first + 1 :], "pi", "pl")
    schedule = schedule.reorder("weight.packed", moved)
    return once(schedule, workload, "pt")


def once(schedule: Schedule, workload: Workload, loop: str) -> Schedule:
    """Packing happens at compile time for constant weights, else on all threads."""
    if workload.is_constant("weight"):
        return schedule.compile_time("weight.packed")
    return schedule.parallel("weight.packed", loop)


def set_layouts(schedule: Schedule, workload: Workload, structure: Config, g: Geometry) -> Schedule:
    """Physical layouts of data, padded data, output and full-size epilogue operands."""
    source = layout_of(structure.text("input_layout"))
    result = layout_of(structure.text("output_layout"))
    schedule = schedule.set_layout("data", source)
    if any(g.pads) and structure.text("algorithm") == "frameless":
        schedule = schedule.inline("padded")
    elif any(g.pads):
        schedule = schedule.set_layout("padded", source)
        schedule = pad_schedule(schedule, structure.text("input_layout"))
    for tensor in schedule.compute.inputs:
        if tensor.name not in ("data", "weight") and len(tensor.extents) == 4:
            schedule = schedule.set_layout(tensor.name, result)
    if has_result(schedule.compute):
        schedule = schedule.set_layout("conv", result)
    return schedule.set_layout(schedule.compute.output.name, result)


def pad_schedule(schedule: Schedule, name: str) -> Schedule:
    """Loops of the padding copy."""
    return _copy_schedule(schedule, name, "padded", ("pn", "pc", "py", "px"))


def _copy_schedule(
    schedule: Schedule, name: str, stage: str, axes: tuple[str, str, str, str]
) -> Schedule:
    """Loops of a copy of data in the layout `name`: vector along whatever is contiguous."""
    n, c, y, x = axes
    if name == "NCHW":
        schedule = schedule.split(stage, x, 16, "pxo", "pxi")
        return schedule.vectorize(stage, "pxi").parallel(stage, n, c)
    lanes = int(name.removeprefix("NCHW").removesuffix("c"))
    schedule = schedule.split(stage, c, lanes, "pco", "pci")
    schedule = schedule.reorder(stage, (n, "pco", y, x, "pci"))
    return schedule.vectorize(stage, "pci").parallel(stage, n, "pco", y)


def _widened(schedule: Schedule, name: str) -> Schedule:
    """Data of a narrow type that no frame is put around (which widens it) is widened once: its
    elements are read one by one, and each many times."""
    dtype = schedule.compute.dtype("data")
    if not is_narrow(dtype) or "data" not in schedule.compute.stage("conv").reads:
        return schedule
    schedule = schedule.cache_read("data", "conv", "data.wide", dtype=widened(dtype))
    schedule = schedule.set_layout("data.wide", layout_of(name))
    axes = ("data.wide.0", "data.wide.1", "data.wide.2", "data.wide.3")
    return _copy_schedule(schedule, name, "data.wide", axes)


PIXELS_COPIED = 8
"""At once: the border is tested for as often."""


def pixel_copy(schedule: Schedule, lanes: int) -> Schedule:
    """Loops of the padding copy in blocked layouts, several pixels at once."""
    schedule = schedule.split("padded", "pc", lanes, "pcv", "pcl")
    schedule = schedule.split("padded", "px", PIXELS_COPIED, "pxt", "pxi")
    schedule = schedule.reorder("padded", ("pn", "pcv", "py", "pxt", "pxi", "pcl"))
    return schedule.unroll("padded", "pxi").vectorize("padded", "pcl")


def finish_tile(schedule: Schedule, workload: Workload, outer: list[str], at: str) -> Schedule:
    """Accumulators in registers at loop `at`, the epilogue behind them, threads outside."""
    schedule = schedule.cache_write("conv", "register", at)
    if has_result(schedule.compute):
        schedule = schedule.reverse_compute_at("out", "conv", at)
    spatial = outer[: outer.index("co")] if "co" in outer else outer
    return schedule.parallel("conv", *spatial)


def width_space(g: Geometry, target: Target) -> Subspace:
    """Knobs of the form vectorised over output width."""
    lanes, registers = vector_width(target), target.integer("vector.registers")
    vectors = -(-g.out_width // lanes)
    knobs: tuple[Knob, ...] = (
        *orders(g),
        tile("o_tile", range(1, min(g.out_channels, 16) + 1)),
        tile("n_vectors", range(1, min(vectors, 6) + 1)),
        tile("c_unroll", [u for u in (1, 2, 4, 8) if u <= g.channels]),
        tile("o_block", block_counts(-(-g.out_channels // 4))),
        tile("x_block", block_counts(vectors)),
        tile("c_block", tile_sizes(g.channels, g.channels)),
    )
    tile_size = var("o_tile") * var("n_vectors")
    formula = "o_tile*n_vectors + n_vectors + 1"
    limit = register_limit(tile_size, var("n_vectors"), registers, formula)
    code = unrolled_limit(tile_size * var("c_unroll"), "o_tile*n_vectors*c_unroll")
    return Subspace(in_layout("width", "NCHW"), knobs, (limit, code))


def width_configs(g: Geometry, target: Target) -> tuple[Config, ...]:
    """Tiles that fill the registers, one for each number of vectors, everything else innermost."""
    lanes, registers = vector_width(target), target.integer("vector.registers")
    vectors = -(-g.out_width // lanes)
    return tuple(
        Config.of(
            algorithm="width",
            input_layout="NCHW",
            output_layout="NCHW",
            block_order="o,y,c",
            reduction_order=orders(g)[1].values[0],
            o_tile=even_tile(g.out_channels, min(16, (registers - 1 - count) // count)),
            n_vectors=count,
            c_unroll=max(u for u in (1, 2, 4) if u <= g.channels),
            o_block=block_counts(-(-g.out_channels // 4))[-1],
            x_block=1,
            c_block=g.channels,
        )
        for count in range(1, min(vectors, 6) + 1)
    )


def width_schedule(workload: Workload, target: Target, g: Geometry, structure: Config) -> Schedule:
    """See the module's docstring."""
    schedule = Schedule(summed_of(workload))
    schedule = set_layouts(schedule, workload, structure, g)
    return width_loops(schedule, workload, target, g, structure)


def width_loops(
    schedule: Schedule, workload: Workload, target: Target, g: Geometry, structure: Config
) -> Schedule:
    """The loops of the `width` form around a stage `conv`."""
    lanes = vector_width(target)
    schedule = schedule.cache_read("weight", "conv", "weight.packed")
    first = 0 if g.groups == 1 else 1
    packed = Layout.blocked(first + 4, first, var("o_tile"), range(first + 4))
    schedule = schedule.set_layout("weight.packed", packed)
    schedule = once(schedule, workload, f"weight.packed.{first}")
    schedule = schedule.split("conv", "o", var("o_tile"), "ot", "oi")
    schedule = schedule.split("conv", "ot", var("o_block"), "oo", "om")
    schedule = schedule.split("conv", "x", lanes, "xv", "lane")
    schedule = schedule.split("conv", "xv", var("n_vectors"), "xt", "xi")
    schedule = schedule.split("conv", "xt", var("x_block"), "xo", "xm")
    schedule = schedule.split("conv", "c", var("c_unroll"), "ct", "ci")
    schedule = schedule.split("conv", "ct", var("c_block"), "co", "cm")
    place = {"o": "oo", "y": "y", "c": "co"}
    outer = [place[x] for x in structure.text("block_order").split(",")]
    reduction = (
        ["cm", "ci", "r", "s"]
        if structure.text("reduction_order") == "c,r,s"
        else ["r", "s", "cm", "ci"]
    )
    schedule = schedule.reorder(
        "conv", ("n", *outer, "xo", "xm", "om", *reduction, "oi", "xi", "lane")
    )
    inner = ["ci", "oi", "xi"] if structure.text("reduction_order") == "r,s,c" else ["oi", "xi"]
    schedule = schedule.unroll("conv", *inner).vectorize("conv", "lane")
    return finish_tile(schedule, workload, ["n", *outer], "om")
