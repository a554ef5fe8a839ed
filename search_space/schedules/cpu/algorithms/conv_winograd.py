"""Winograd convolution F(m x m, 3 x 3) on CPUs, m = 2 or 4, its stages in one cache-sized block.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016):

    Y = A^T [ (G g G^T) * (B^T d B) ] A        for each m x m output tile, * element by element

    filters    u[a, b, o, c]  = (G g G^T)         once, at compile time
    windows    v[a, b, t, c]  = (B^T d B)         for a block of tiles t
    products   p[a, b, t, o]  = sum_c v * u       (m + 2)^2 matrix products
    result     conv[t, o, i, j] = (A^T p A)       straight into the output, epilogue fused

m = 4 does 36 multiplications where the direct form does 144; its error is some 1e-5 relative in
float32 (m = 2: 1e-6). The transforms are straight-line vector code: their matrices are literals.

A block of tiles is transformed, multiplied and transformed back before the next, so that v and p
stay in cache. The tiles of all images of a batch form one axis t.
"""

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.convolution.geometry import Geometry, layout_names, layout_of
from tilesmith.search_space.expressions.expression import Expr, as_expr, const, var
from tilesmith.search_space.expressions.scalar import Const, Load, Scalar, Select, call, load
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.fusion import epilogue_tensors, epilogue_value
from tilesmith.search_space.schedules.cpu.algorithms.conv_direct import pad_schedule
from tilesmith.search_space.schedules.cpu.vectorisation.stages import stored
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import (
    Constraint,
    Knob,
    choice,
    layout,
    register_limit,
    tile,
    unrolled_limit,
)
from tilesmith.search_space.spaces.space import Subspace
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

SIZES = (2, 4)
"""Output tile sizes m on offer."""
T_TILE_LIMIT = 28
"""Most tiles of an accumulator tile."""

_MATRICES: dict[int, tuple[list[list[float]], list[list[float]], list[list[float]]]] = {
    2: (
        [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
        [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]],
        [[1, 1, 1, 0], [0, 1, -1, -1]],
    ),
    4: (
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ],
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ],
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
    ),
}
"""m: (B^T, G, A^T) of F(m, 3), interpolation points 0, +-1 (and +-2); Lavin and Gray, section 4."""


def matrices(m: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(B^T, G, A^T) of F(m, 3)."""
    window, filter_, inverse = _MATRICES[m]
    return np.array(window, float), np.array(filter_, float), np.array(inverse, float)


def _tiles(g: Geometry, m: int) -> tuple[int, int, int]:
    """Tiles down, across, and in all (batch included)."""
    down, across = (g.out_height + m - 1) // m, (g.out_width + m - 1) // m
    return down, across, g.batch * down * across


def compute(workload: Workload, g: Geometry, m: int) -> ComputeDefinition:
    """The stages named in the module's docstring, each two-dimensional transform in two steps."""
    size = m + 2
    down, across, count = _tiles(g, m)
    columns, conv = _outputs(g, m)
    stages = (
        g.padding_stage(m * down + 2, m * across + 2),
        *_filters(g, size),
        *_windows(g, m),
        _products(g, size, count),
        columns,
        conv,
        _result(workload, g, m, conv),
    )
    window, filter_, inverse = matrices(m)
    tensors = (
        Tensor("data", (g.batch, g.channels, g.height, g.width), workload.dtype),
        Tensor(
            "weight", (g.out_channels, g.channels, 3, 3), workload.dtype,
            workload.is_constant("weight"),
        ),
        *epilogue_tensors(template_of(workload.operator), workload),
        Tensor.literal("B", window),
        Tensor.literal("G", filter_),
        Tensor.literal("A", inverse),
    )  # fmt: skip
    return ComputeDefinition("conv2d", tensors, stages)


def _position(g: Geometry, m: int, t: Expr) -> tuple[Expr, Expr, Expr]:
    """Image of tile t, and the tile's row and column in it."""
    down, across, _ = _tiles(g, m)
    if g.batch == 1:
        return const(0), t // across, t % across
    return t // (down * across), (t // across) % down, t % across


def _windows(g: Geometry, m: int) -> tuple[Stage, Stage]:
    """v = B^T d B in two steps."""
    size = m + 2
    a, b, t = axis("va", size), axis("vb", size), axis("vt", _tiles(g, m)[2])
    c, r, s = axis("vc", g.channels), axis("vr", size), axis("vs", size)
    image, row, column = _position(g, m, t.var)
    pixel = load("padded", image, c.var, row * m + r.var, column * m + s.var)
    rows = Stage(
        "v.rows", (a, s, t, c), call("multiply", load("B", a.var, r.var), pixel), (r,), "sum"
    )
    half = load("v.rows", a.var, s.var, t.var, c.var)
    whole = Stage("v", (a, b, t, c), call("multiply", load("B", b.var, s.var), half), (s,), "sum")
    return rows, whole


def _outputs(g: Geometry, m: int) -> tuple[Stage, Stage]:
    """conv = A^T p A in two steps."""
    y, x, o = axis("y", m), axis("x", m), axis("o", g.out_channels)
    t, a, b = axis("t", _tiles(g, m)[2]), axis("ia", m + 2), axis("ib", m + 2)
    product = load("p", a.var, b.var, t.var, o.var)
    first = call("multiply", load("A", y.var, a.var), product)
    half = load("conv.rows", y.var, b.var, t.var, o.var)
    second = call("multiply", load("A", x.var, b.var), half)
    return (
        Stage("conv.rows", (y, b, t, o), first, (a,), "sum"),
        Stage("conv", (y, x, t, o), second, (b,), "sum"),
    )


def _filters(g: Geometry, size: int) -> tuple[Stage, Stage]:
    """u = G g G^T in two steps."""
    a, b = axis("ua", size), axis("ub", size)
    o, c, r, s = axis("uo", g.out_channels), axis("uc", g.channels), axis("ur", 3), axis("us", 3)
    tap = load("weight", o.var, c.var, r.var, s.var)
    rows = Stage(
        "u.rows", (a, s, o, c), call("multiply", load("G", a.var, r.var), tap), (r,), "sum"
    )
    half = load("u.rows", a.var, s.var, o.var, c.var)
    whole = Stage("u", (a, b, o, c), call("multiply", load("G", b.var, s.var), half), (s,), "sum")
    return rows, whole


def _products(g: Geometry, size: int, count: int) -> Stage:
    a, b, t = axis("a", size), axis("b", size), axis("pt", count)
    o, c = axis("po", g.out_channels), axis("c", g.channels)
    product = call(
        "multiply", load("v", a.var, b.var, t.var, c.var), load("u", a.var, b.var, o.var, c.var)
    )
    return Stage("p", (a, b, t, o), product, (c,), "sum")


def _result(workload: Workload, g: Geometry, m: int, conv: Stage) -> Stage:
    """`out`: a tile's pixels at their place in the output, epilogue applied, overhang cut off."""
    y, x, t, o = conv.axes
    image, row, column = _position(g, m, t.var)
    place = (image, o.var, row * m + y.var, column * m + x.var)
    guard: list[Expr] = []
    if g.out_height % m != 0:
        guard.append(g.out_height - 1 - place[2])
    if g.out_width % m != 0:
        guard.append(g.out_width - 1 - place[3])
    value: Scalar = Load("conv", tuple(a.var for a in conv.axes))
    template = template_of(workload.operator)
    value = epilogue_value(template, workload, place, value)
    if guard:  # operands of the overhang must not be read either
        value = Select(tuple(guard), value, Const(0.0))
    shape = tuple(as_expr(e) for e in (g.batch, g.out_channels, g.out_height, g.out_width))
    dtype = template.result_dtype(workload)
    return Stage("out", conv.axes, value, store=place, shape=shape, guard=tuple(guard), dtype=dtype)


def space(g: Geometry, target: Target, m: int) -> Subspace:
    """Knobs of F(m, 3)."""
    lanes, registers = vector_width(target), target.integer("vector.registers")
    plain, blocked = layout_names(lanes)
    _, _, count = _tiles(g, m)
    vectors = -(-g.out_channels // lanes)
    knobs: tuple[Knob, ...] = (
        layout("input_layout", [plain, blocked]),
        layout("output_layout", [blocked]),
        choice("product_order", ("o,t", "t,o")),
        tile("t_block", _block_sizes(count)),
        tile("t_tile", range(1, min(count, T_TILE_LIMIT) + 1)),
        tile("n_vectors", range(1, min(vectors, 6) + 1)),
        tile("c_unroll", [u for u in (1, 2, 4, 8) if u <= g.channels]),
    )
    tile_size = var("t_tile") * var("n_vectors")
    formula = "t_tile*n_vectors + n_vectors + 1"
    limit = register_limit(tile_size, var("n_vectors"), registers, formula)
    fits = Constraint(var("t_tile") - var("t_block"), 0, "t_tile beyond t_block")
    code = unrolled_limit(tile_size * var("c_unroll"), "t_tile*n_vectors*c_unroll")
    return Subspace((("algorithm", f"winograd{m}"),), knobs, (limit, fits, code))


def _block_sizes(count: int) -> list[int]:
    """Tiles in a block: multiples of 7 and 8 up to 256, or all."""
    sizes = {
        s for s in (4, 7, 8, 14, 16, 21, 28, 32, 42, 48, 56, 64, 98, 128, 196, 256) if s < count
    }
    return sorted(sizes | {min(count, 256)})


def default(g: Geometry, target: Target, m: int) -> Config:
    """Seven tiles times two vectors; a block that keeps v and p within 512 KiB."""
    lanes, registers = vector_width(target), target.integer("vector.registers")
    _, blocked = layout_names(lanes)
    _, _, count = _tiles(g, m)
    per_tile = 4 * (m + 2) ** 2 * (g.channels + g.out_channels)
    fitting = [s for s in _block_sizes(count) if s * per_tile <= 512 << 10]
    block = fitting[-1] if fitting else _block_sizes(count)[0]
    vectors = min(2, -(-g.out_channels // lanes))
    limit = min(block, T_TILE_LIMIT, (registers - 2 - vectors) // vectors)
    return Config.of(
        algorithm=f"winograd{m}",
        input_layout=blocked,
        output_layout=blocked,
        product_order="o,t",
        t_block=block,
        t_tile=-(-block // -(-block // limit)),
        n_vectors=vectors,
        c_unroll=1,
    )


def schedule(
    workload: Workload, target: Target, g: Geometry, structure: Config, m: int
) -> Schedule:
    """See the module's docstring."""
    lanes = vector_width(target)
    s = Schedule(stored(compute(workload, g, m), workload))
    s = _layouts(s, structure, lanes)
    s = s.split("out", "t", var("t_block"), "tb", "ti").split("out", "o", lanes, "ov", "lane")
    s = s.reorder("out", ("tb", "ti", "ov", "y", "x", "lane"))
    s = s.unroll("out", "y", "x").vectorize("out", "lane").parallel("out", "tb")
    s = _inverse_stages(s)
    s = s.compute_at("p", "out", "tb")
    s = s.split("p", "pt", var("t_tile"), "to", "tt").split("p", "po", lanes, "pv", "pl")
    s = s.split("p", "pv", var("n_vectors"), "pp", "pn").split(
        "p", "c", var("c_unroll"), "co", "ci"
    )
    tiles = ["pp", "to"] if structure.text("product_order") == "o,t" else ["to", "pp"]
    s = s.reorder("p", ("a", "b", *tiles, "co", "ci", "tt", "pn", "pl"))
    s = s.unroll("p", "ci", "tt", "pn").vectorize("p", "pl")
    s = s.cache_write("p", "register", tiles[-1])
    s = _window_stages(s, lanes)
    return _filter_stages(s, workload, lanes)


def _layouts(s: Schedule, structure: Config, lanes: int) -> Schedule:
    """Where each tensor's elements lie."""
    _, blocked = layout_names(lanes)
    result = layout_of(structure.text("output_layout"))
    s = s.set_layout("data", layout_of(structure.text("input_layout")))
    s = s.set_layout("padded", layout_of(blocked))
    s = pad_schedule(s, blocked)
    for tensor in s.compute.inputs:
        if (
            tensor.name not in ("data", "weight")
            and tensor.values is None
            and len(tensor.extents) == 4
        ):
            s = s.set_layout(tensor.name, result)
    s = s.set_layout("out", result)
    panel = var("n_vectors") * lanes
    outer, inner = LayoutDimension(2, "outer", panel), LayoutDimension(2, "inner", panel)
    # u[a, b, o/panel, c, o%panel]: a product tile reads its filters in one run
    return s.set_layout(
        "u", Layout((LayoutDimension(0), LayoutDimension(1), outer, LayoutDimension(3), inner))
    )


def _inverse_stages(s: Schedule) -> Schedule:
    """conv and conv.rows: registers of one tile and one vector of channels."""
    s = s.compute_at("conv", "out", "ov", "register")
    s = s.reorder("conv", ("y", "x", "t", "ib", "o"))
    s = s.unroll("conv", "y", "x", "ib").vectorize("conv", "o")
    s = s.compute_at("conv.rows", "out", "ov", "register")
    s = s.reorder("conv.rows", ("y", "ib", "t", "ia", "o"))
    return s.unroll("conv.rows", "y", "ib", "ia").vectorize("conv.rows", "o")


def _window_stages(s: Schedule, lanes: int) -> Schedule:
    """v for the block of tiles, v.rows in registers."""
    s = s.compute_at("v", "out", "tb").split("v", "vc", lanes, "vv", "vl")
    s = s.reorder("v", ("vt", "vv", "va", "vb", "vs", "vl"))
    s = s.unroll("v", "va", "vb", "vs").vectorize("v", "vl")
    s = s.cache_write("v", "register", "vv")
    s = s.compute_at("v.rows", "v", "vv", "register")
    s = s.reorder("v.rows", ("vt", "vs", "vr", "va", "vc"))
    return s.unroll("v.rows", "va", "vs", "vr").vectorize("v.rows", "vc")


def _filter_stages(s: Schedule, workload: Workload, lanes: int) -> Schedule:
    """u once, if the weights are constant; u.rows in registers."""
    s = s.split("u", "uo", lanes, "uv", "ul").split("u", "uv", var("n_vectors"), "ut", "ui")
    s = s.reorder("u", ("ut", "ui", "uc", "ua", "ub", "us", "ul"))
    s = s.unroll("u", "ua", "ub", "us").vectorize("u", "ul")
    s = s.cache_write("u", "register", "uc")
    s = s.compute_at("u.rows", "u", "uc", "register")
    s = s.reorder("u.rows", ("uc", "us", "ur", "ua", "uo"))
    s = s.unroll("u.rows", "ua", "us", "ur").vectorize("u.rows", "uo")
    return s.compile_time("u") if workload.is_constant("weight") else s.parallel("u", "ut")
