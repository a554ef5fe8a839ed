"""Convolution on CPUs in matrix registers (AMX).

A tile of sums is 16 pixels times 16 output channels; its factors are 64 bytes of channels of 16
neighbouring pixels, and the weights of one tap for these channels. Neighbouring pixels have to lie
at one distance, across the ends of rows, too, and whatever the stride. So the image is copied, in
its frame and in zeros up to whole tiles, 64 bytes of channels together, one plane for each phase of
the stride, as rows of W pixels one behind the other (W: an output row and the reach of the taps):

    data.tiles[n, c, (py, px), Y*W + X] = framed[n, c, Y*stride + py, X*stride + px]

Output pixel (y, x) is position y*W + x, and a tap is a plane and a distance, the same for all:

    products[n, i, o] = sum over c, r, s of weight[o, c, r, s] *
        data.tiles[n, c, (r % stride, s % stride), i + (r // stride)*W + s // stride]

(r and s times the dilation). Positions between the rows are multiplied for nothing, 2 of 58 for a
3x3 kernel over rows of 56; tiles cut row by row would leave 8 of 64 empty, and 9 of 16 in rows of
7. Sums go through memory to the epilogue and to those of the output's pixels that they are, as in
`matmul_tiles`, whose form this is. Groups of channels stay with `conv_dot`.
"""

from dataclasses import dataclass
from functools import cached_property

from tilesmith.search_space.convolution.geometry import (
    ZERO,
    Geometry,
    has_pad_value,
    layout_names,
    layout_of,
)
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import Expr, as_expr, floordiv, mod, var
from tilesmith.search_space.expressions.scalar import Const, Load, Scalar, Select, load
from tilesmith.search_space.hardware.instruction_set import Tiles, vector_width
from tilesmith.search_space.hardware.matrix_registers import tile_product
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.fusion import epilogue_value
from tilesmith.search_space.operator_parts.integer_products import product_stage, weight_dtype
from tilesmith.search_space.schedules.cpu.algorithms.conv_direct import PIXELS_COPIED, once
from tilesmith.search_space.schedules.cpu.vectorisation.register_tiles import (
    registers_of,
    tile_knobs,
    tile_limit,
)
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, axis
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import block_counts, choice, layout
from tilesmith.search_space.spaces.space import Subspace
from tilesmith.search_space.workloads.template import compute_of, template_of
from tilesmith.search_space.workloads.workload import Workload

ALGORITHM = "tiles"

FEWEST_CHANNELS = 32
"""Bytes of a pixel below which registers are mostly empty."""
FEWEST_PRODUCTS = 64
"""Bytes of pixels under a kernel below which copying them is not the first choice."""


def applies(workload: Workload, target: Target) -> bool:
    """Whether the target has an instruction for the element types, and its registers fill."""
    g = Geometry.of(workload)
    if g.groups > 1 or g.channels * size_of(workload.dtype) < FEWEST_CHANNELS:
        return False
    return tile_product(target, workload.dtype, weight_dtype(workload)) is not None


def preferred(workload: Workload, target: Target) -> bool:
    """Whether the form applies and each pixel is multiplied often enough to be copied first."""
    g = Geometry.of(workload)
    below = g.channels * g.taps() * size_of(workload.dtype) < FEWEST_PRODUCTS
    return not below and applies(workload, target)


def _step(taps: int, dilation: int, stride: int) -> tuple[int, int]:
    """Along one axis: planes of the stride that taps are in, and how far they reach in them."""
    last = (taps - 1) * dilation
    if all(tap * dilation % stride == 0 for tap in range(taps)):
        return 1, last // stride
    return min(last + 1, stride), last // stride


@dataclass(frozen=True)
class Positions:
    """Where pixels stand in `data.tiles`.

    Attributes:
        planes: of the phases of the stride, (down, across).
        reach: of the taps in them, (rows, pixels).
        width: of a row, W.
        rows: in a plane.
        sums: positions of the output, in whole tiles.
    """

    planes: tuple[int, int]
    reach: tuple[int, int]
    width: int
    rows: int
    sums: int

    @classmethod
    def of(cls, g: Geometry, tile_rows: int) -> "Positions":
        both = [_step(g.kernel[d], g.dilation[d], g.stride[d]) for d in (0, 1)]
        (down, below), (across, beside) = both
        width = g.out_width + beside
        sums = -(-((g.out_height - 1) * width + g.out_width) // tile_rows) * tile_rows
        rows = 1 + below
        if g.out_height == 1:  # one row, which may be as long as its tiles
            width = sums + beside
        else:
            rows = -(-(sums + below * width + beside) // width)
        return cls((down, across), (below, beside), width, rows, sums)


def subspace(g: Geometry, target: Target) -> Subspace:
    """The knobs; operands need a register for each column of the sums, and one more."""
    tiles, lanes = registers_of(target), vector_width(target)
    down, across = _counts(g, tiles)
    names = layout_names(lanes)
    knobs = (
        layout("input_layout", names),
        layout("output_layout", names[-1:]),
        choice("reduction_order", ("c,r,s",) if g.taps() == 1 else ("c,r,s", "r,s,c")),
        *tile_knobs(down, across),
    )
    return Subspace((("algorithm", ALGORITHM),), knobs, (tile_limit(tiles),))


def default(g: Geometry, target: Target) -> Config:
    """Two by two tiles, a panel of weights against all pixels, which threads share."""
    tiles, lanes = registers_of(target), vector_width(target)
    down, across = _counts(g, tiles)
    return Config.of(
        algorithm=ALGORITHM,
        input_layout=layout_names(lanes)[1],
        output_layout=layout_names(lanes)[1],
        block_order="m,n" if down == 1 else "n,m",
        tile_order="nm",
        reduction_order="c,r,s",
        m_tiles=min(2, down),
        n_tiles=min(2, across),
        m_block=max(count for count in block_counts(down) if count <= min(down, 4)),
        n_block=1,
    )


def schedule(workload: Workload, target: Target, g: Geometry, structure: Config) -> Schedule:
    """See the module's docstring."""
    form = _Form(workload, target, g)
    schedule = form.copied(form.packed(Schedule(form.compute)), structure.text("input_layout"))
    last = schedule.compute.output.name
    for tensor in schedule.compute.inputs:
        if tensor.name not in ("data", "weight") and len(tensor.extents) == 4:
            schedule = schedule.set_layout(tensor.name, layout_of(structure.text("output_layout")))
    schedule = schedule.set_layout(last, layout_of(structure.text("output_layout")))
    for loop, size, count, block in (
        ("i", form.rows, var("m_tiles"), "m_block"),
        ("j", form.columns, var("n_tiles"), "n_block"),
    ):
        schedule = schedule.split("products", loop, size, f"{loop}t", f"{loop}l")
        schedule = schedule.split("products", f"{loop}t", count, f"{loop}t", f"{loop}i")
        schedule = schedule.split("products", f"{loop}t", var(block), f"{loop}o", f"{loop}m")
    schedule = schedule.split("products", "g", form.depth // form.products, "gt", "gq")
    outer = [{"m": "io", "n": "jo"}[x] for x in structure.text("block_order").split(",")]
    middle = ["im", "jm"] if structure.text("tile_order") == "mn" else ["jm", "im"]
    channels_first = structure.text("reduction_order") == "c,r,s"
    reduction = ("gt", "r", "s") if channels_first else ("r", "s", "gt")
    inner = (*reduction, "ii", "ji", "il", "jl", "gq", "p")
    schedule = schedule.reorder("products", ("n", *outer, *middle, *inner))
    schedule = schedule.unroll("products", "ii", "ji")
    schedule = schedule.tensorize("products", "il", form.instruction, "tile_zero")
    schedule = schedule.cache_write("products", "amx", middle[-1])
    schedule = schedule.reverse_compute_at("sums", "products", middle[-1])
    schedule = schedule.tensorize("sums", "il", "tile_store")
    schedule = schedule.reverse_compute_at(last, "sums", middle[-1]).vectorize(last, "jl")
    return schedule.parallel("products", "n", *outer)


def _counts(g: Geometry, tiles: Tiles) -> tuple[int, int]:
    """Tiles of pixels, and of output channels."""
    return Positions.of(g, tiles.rows).sums // tiles.rows, -(
        -g.out_channels // (tiles.row_bytes // 4)
    )


class _Form:
    """The stages of one convolution, padded to whole tiles, and the numbers they are made of."""

    def __init__(self, workload: Workload, target: Target, g: Geometry) -> None:
        self.workload, self.template, self.g = workload, template_of(workload.operator), g
        tiles = registers_of(target)
        instruction = tile_product(target, workload.dtype, weight_dtype(workload))
        assert instruction is not None, workload
        self.products = instruction.products
        self.lanes = vector_width(target)
        self.rows, self.columns = tiles.rows, tiles.row_bytes // 4
        self.depth = tiles.row_bytes // size_of(workload.dtype)
        self.channels = -(-g.channels // self.depth) * self.depth
        self.out_channels = -(-g.out_channels // self.columns) * self.columns
        whole = instruction.accumulator == "int32"
        self.instruction = "tile_multiply_whole" if whole else "tile_multiply"
        self.at = Positions.of(g, tiles.rows)

    @cached_property
    def compute(self) -> ComputeDefinition:
        """Stages data.tiles, weight.packed, products, sums and the result."""
        g, direct = self.g, compute_of(self.workload)
        n, i, j = axis("n", g.batch), axis("i", self.at.sums), axis("j", self.out_channels)
        group, p = axis("g", self.channels // self.products), axis("p", self.products)
        r, s = axis("r", g.kernel[0]), axis("s", g.kernel[1])
        down, across = r.var * g.dilation[0], s.var * g.dilation[1]
        plane = self._plane(mod(down, g.stride[0]), mod(across, g.stride[1]))
        step = floordiv(down, g.stride[0]) * self.at.width + floordiv(across, g.stride[1])
        channel = group.var * self.products + p.var
        pixel = load("data.tiles", n.var, channel, plane, i.var + step)
        tap = load("weight.packed", j.var, group.var, p.var, r.var, s.var)
        axes = (n, i, j)
        products = product_stage(self.workload, "products", axes, pixel, tap, (group, r, s, p))
        value = Load("products", tuple(a.var for a in axes))
        sums = Stage("sums", axes, value, dtype=products.dtype)
        result = self._result(sums)
        stages = (self._image(), self._weights(), products, sums, result)
        return ComputeDefinition("conv2d", direct.inputs, stages)

    def _plane(self, down: Expr, across: Expr) -> Expr:
        """The plane of a phase; phases that no tap is in have none."""
        below, beside = self.at.planes
        plane = down * beside if below > 1 else as_expr(0)
        return plane + across if beside > 1 else plane

    def _image(self) -> Stage:
        """`data.tiles`: see the module's docstring. What stands for channels that there are not is
        multiplied by zeros; floating frames are zero themselves."""
        g, at = self.g, self.at
        n, c = axis("pn", g.batch), axis("pc", self.channels)
        down, across = axis("pr", at.planes[0]), axis("ps", at.planes[1])
        y, x = axis("py", at.rows), axis("px", at.width)
        row = y.var * g.stride[0] + down.var - g.pads[0]
        column = x.var * g.stride[1] + across.var - g.pads[1]
        inside: list[Expr] = [] if self.channels == g.channels else [g.channels - 1 - c.var]
        for place, ahead, extent, most in (
            (row, g.pads[0], g.height, (at.rows - 1) * g.stride[0] + at.planes[0] - 1),
            (column, g.pads[1], g.width, (at.width - 1) * g.stride[1] + at.planes[1] - 1),
        ):
            inside += [place] if ahead else []
            inside += [extent - 1 - place] if most - ahead >= extent else []
        value: Scalar = load("data", n.var, c.var, row, column)
        if inside:
            frame = load("pad_value", 0) if has_pad_value(self.workload) else ZERO
            value = Select(tuple(inside), value, frame)
        planes = at.planes[0] * at.planes[1]
        store = (n.var, c.var, self._plane(down.var, across.var), y.var * at.width + x.var)
        shape = tuple(map(as_expr, (g.batch, self.channels, planes, at.rows * at.width)))
        axes = (n, c, down, across, y, x)
        dtype = self.workload.dtype
        return Stage("data.tiles", axes, value, store=store, shape=shape, dtype=dtype)

    def _weights(self) -> Stage:
        """`weight.packed`: weights in zeros, channels in groups of those multiplied together."""
        g = self.g
        o, c = axis("wo", self.out_channels), axis("wg", self.channels // self.products)
        p, r, s = axis("wp", self.products), axis("wr", g.kernel[0]), axis("ws", g.kernel[1])
        channel = c.var * self.products + p.var
        value: Scalar = load("weight", o.var, channel, r.var, s.var)
        inside = (
            *((g.out_channels - 1 - o.var,) if self.out_channels > g.out_channels else ()),
            *((g.channels - 1 - channel,) if self.channels > g.channels else ()),
        )
        if inside:
            value = Select(inside, value, Const(0.0))
        axes = (o, c, p, r, s)
        return Stage("weight.packed", axes, value, dtype=weight_dtype(self.workload))

    def _result(self, sums: Stage) -> Stage:
        """The epilogue of the positions that are pixels of the output."""
        g = self.g
        n, i, j = (a.var for a in sums.axes)
        y, x = as_expr(0), i
        if g.out_height > 1:
            y, x = floordiv(i, self.at.width), mod(i, self.at.width)
        at = (n, j, y, x)
        element = Load("sums", (n, i, j))
        value = epilogue_value(self.template, self.workload, at, element)
        guard = (
            *((g.out_height - 1 - y,) if self.at.sums > g.out_height * self.at.width else ()),
            *((g.out_width - 1 - x,) if self.at.width > g.out_width else ()),
            *((g.out_channels - 1 - j,) if self.out_channels > g.out_channels else ()),
        )
        shape = tuple(map(as_expr, (g.batch, g.out_channels, g.out_height, g.out_width)))
        dtype = self.template.result_dtype(self.workload)
        name = "out" if self.workload.epilogue else "conv"
        return Stage(name, sums.axes, value, store=at, shape=shape, guard=guard, dtype=dtype)

    def copied(self, schedule: Schedule, source: str) -> Schedule:
        """data.tiles[n, c/depth, plane, position, c%depth], vectors of channels at once."""
        depth = as_expr(self.depth)
        dimensions = (
            LayoutDimension(0),
            LayoutDimension(1, "outer", depth),
            LayoutDimension(2),
            LayoutDimension(3),
            LayoutDimension(1, "inner", depth),
        )
        schedule = schedule.set_layout("data", layout_of(source))
        schedule = schedule.set_layout("data.tiles", Layout(dimensions))
        schedule = schedule.split("data.tiles", "pc", depth, "pco", "pcd")
        schedule = schedule.split("data.tiles", "pcd", self.lanes, "pcv", "pcl")
        schedule = schedule.split("data.tiles", "px", PIXELS_COPIED, "pxt", "pxi")
        outer = ("pn", "pco", "pr", "ps", "py")
        schedule = schedule.reorder("data.tiles", (*outer, "pxt", "pxi", "pcv", "pcl"))
        schedule = schedule.unroll("data.tiles", "pxi", "pcv").vectorize("data.tiles", "pcl")
        return schedule.parallel("data.tiles", *outer)

    def packed(self, schedule: Schedule) -> Schedule:
        """weight.packed[o/panel, c/depth, r, s, c%depth, o%panel, p]."""
        panel: Expr = var("n_tiles") * self.columns
        block = as_expr(self.depth // self.products)
        dimensions = (
            LayoutDimension(0, "outer", panel),
            LayoutDimension(1, "outer", block),
            LayoutDimension(3),
            LayoutDimension(4),
            LayoutDimension(1, "inner", block),
            LayoutDimension(0, "inner", panel),
            LayoutDimension(2),
        )
        schedule = schedule.set_layout("weight.packed", Layout(dimensions))
        schedule = schedule.split("weight.packed", "wo", panel, "wt", "wi")
        schedule = schedule.reorder("weight.packed", ("wt", "wg", "wr", "ws", "wi", "wp"))
        return once(schedule, self.workload, "wt")
