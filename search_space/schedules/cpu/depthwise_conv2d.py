"""Depthwise convolution on CPUs, vectorised over channels or over width.

`channels` (blocked layouts): a tile of y_tile x x_tile pixels of one vector of channels; every tap
is one load of input, its weights stay in registers.

`width` (NCHW): a tile of y_tile rows times n_vectors vectors of pixels of one channel; weights are
broadcast. Rows shared by neighbouring outputs are loaded once and kept.

Bytes are multiplied in dot products where the target has them (`depthwise_dot`).

The zero frame is made where it is used: a strip of rows (`channels`) or one channel (`width`) at a
time, so that it never leaves the nearest cache. `frameless` is `channels` without one: sums leave
out the taps in it (`ir.transforms.borders`), and no image is copied.
"""

from tilesmith.search_space.convolution.geometry import (
    Geometry,
    has_pad_value,
    layout_names,
    layout_of,
)
from tilesmith.search_space.expressions.dtypes import is_narrow
from tilesmith.search_space.expressions.expression import as_expr, var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.algorithms import depthwise_dot
from tilesmith.search_space.schedules.cpu.vectorisation.element_types import CpuScheduler
from tilesmith.search_space.schedules.cpu.vectorisation.stages import has_result, summed_of
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import (
    Constraint,
    Knob,
    block_counts,
    choice,
    in_layout,
    layout,
    tile,
)
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload


@schedules("depthwise_conv2d", on="cpu")
class CpuDepthwise(CpuScheduler):
    """See the module's docstring."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        """The knobs of both forms."""
        g = Geometry.of(workload)
        if (products := depthwise_dot.products_of(workload, target, g)) > 1:
            return SearchSpace((depthwise_dot.space(g, target, products),))
        lanes, registers = vector_width(target), target.integer("vector.registers")
        plain, blocked = layout_names(lanes)
        rows = tile("y_tile", range(1, min(g.out_height, 8) + 1))
        channels: tuple[Knob, ...] = (
            layout("input_layout", [blocked]),
            layout("output_layout", [blocked]),
            rows,
            tile("x_tile", range(1, min(g.out_width, 28) + 1)),
            tile("y_block", block_counts(g.out_height)),
            choice("unroll_taps", ("all", "row")),
        )
        pixels = Constraint(
            var("y_tile") * var("x_tile") + 2,
            registers + 4,
            "vector registers of the accumulator tile (y_tile*x_tile + 2)",
        )
        vectors = -(-g.out_width // lanes)
        width: tuple[Knob, ...] = (
            rows,
            tile("n_vectors", range(1, min(vectors, 8) + 1)),
            choice("unroll_taps", ("all", "row")),
        )
        lines = Constraint(
            var("y_tile") * var("n_vectors") + 2,
            registers + 4,
            "vector registers of the accumulator tile (y_tile*n_vectors + 2)",
        )
        names = ("channels", "frameless") if _has_frame(workload, g) else ("channels",)
        subspaces = [Subspace((("algorithm", name),), channels, (pixels,)) for name in names]
        return SearchSpace((*subspaces, Subspace(in_layout("width", plain), width, (lines,))))

    def default(self, workload: Workload, target: Target) -> Config:
        """Blocked layouts, a tile of two rows that fills half the registers; a quarter of them
        where the frame is left out and rows of taps come one by one."""
        g = Geometry.of(workload)
        if (products := depthwise_dot.products_of(workload, target, g)) > 1:
            return depthwise_dot.default(g, target, products)
        return _default(g, target, _has_frame(workload, g) and not is_narrow(workload.dtype))

    def varying(
        self, workload: Workload, usual: Workload, largest: Workload, target: Target, config: Config
    ) -> Config:
        """Where borders are is known at sizes that are."""
        frameless = config.text("algorithm") == "frameless"
        return _default(Geometry.of(usual), target, False) if frameless else config

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        """See the module's docstring."""
        g, lanes = Geometry.of(workload), vector_width(target)
        if structure.text("algorithm") == "dot":
            return depthwise_dot.schedule(workload, target, g, structure)
        s = _layouts(Schedule(summed_of(workload)), workload, structure)
        if structure.text("algorithm") in ("channels", "frameless"):
            return _channels(s, workload, g, structure, lanes)
        return _width(s, workload, g, structure, lanes)


def _has_frame(workload: Workload, g: Geometry) -> bool:
    """Whether there are zeros around images that sums may leave out."""
    return any(g.pads) and not has_pad_value(workload)


def _default(g: Geometry, target: Target, frameless: bool) -> Config:
    """See `CpuDepthwise.default`."""
    lanes, registers = vector_width(target), target.integer("vector.registers")
    _, blocked = layout_names(lanes)
    rows = min(2, g.out_height)
    columns = registers // 4 if frameless else registers // 2 - 2
    return Config.of(
        algorithm="frameless" if frameless else "channels",
        input_layout=blocked,
        output_layout=blocked,
        y_tile=rows,
        x_tile=min(g.out_width, max(1, columns // rows)),
        y_block=max(s for s in block_counts(g.out_height) if s <= 8),
        unroll_taps="row" if frameless else "all",
    )


def _layouts(s: Schedule, workload: Workload, structure: Config) -> Schedule:
    source = layout_of(structure.text("input_layout"))
    result = layout_of(structure.text("output_layout"))
    s = s.set_layout("data", source)
    for tensor in s.compute.inputs:
        if tensor.name not in ("data", "weight") and len(tensor.extents) == 4:
            s = s.set_layout(tensor.name, result)
    return s.set_layout(s.compute.output.name, result)


def _taps(structure: Config) -> tuple[str, ...]:
    """Loops over taps that are unrolled."""
    return ("r", "s") if structure.text("unroll_taps") == "all" else ("s",)


def _channels(
    s: Schedule, workload: Workload, g: Geometry, structure: Config, lanes: int
) -> Schedule:
    s = s.cache_read("weight", "conv", "weight.packed")
    whole = (LayoutDimension(1), LayoutDimension(2), LayoutDimension(3))
    outer = LayoutDimension(0, "outer", as_expr(lanes))
    inner = LayoutDimension(0, "inner", as_expr(lanes))
    s = s.set_layout("weight.packed", Layout((outer, *whole, inner)))
    s = s.split("weight.packed", "weight.packed.0", lanes, "pt", "pl")
    s = s.reorder("weight.packed", ("pt", *(f"weight.packed.{d}" for d in (1, 2, 3)), "pl"))
    s = s.vectorize("weight.packed", "pl")
    constant = workload.is_constant("weight")
    s = s.compile_time("weight.packed") if constant else s.parallel("weight.packed", "pt")
    s = s.split("conv", "c", lanes, "ct", "lane")
    s = s.split("conv", "y", var("y_tile"), "yt", "yi").split(
        "conv", "yt", var("y_block"), "yo", "ym"
    )
    s = s.split("conv", "x", var("x_tile"), "xt", "xi")
    if frameless := structure.text("algorithm") == "frameless":
        s = s.inline("padded")
    taps = ("r", "yi", "s") if frameless else ("r", "s", "yi")
    s = s.reorder("conv", ("n", "ct", "yo", "ym", "xt", *taps, "xi", "lane"))
    s = s.unroll("conv", *_taps(structure), "yi", "xi").vectorize("conv", "lane")
    if any(g.pads) and not frameless:
        s = s.set_layout("padded", layout_of(structure.text("input_layout")))
        s = s.compute_at("padded", "conv", "yo").split("padded", "pc", lanes, "pcv", "pcl")
        s = s.reorder("padded", ("pn", "pcv", "py", "px", "pcl")).vectorize("padded", "pcl")
    return _tile(s, workload, "xt", ("n", "ct", "yo"))


def _width(s: Schedule, workload: Workload, g: Geometry, structure: Config, lanes: int) -> Schedule:
    s = s.split("conv", "y", var("y_tile"), "yt", "yi").split("conv", "x", lanes, "xv", "lane")
    s = s.split("conv", "xv", var("n_vectors"), "xt", "xi")
    s = s.reorder("conv", ("n", "c", "yt", "xt", "r", "s", "yi", "xi", "lane"))
    s = s.unroll("conv", *_taps(structure), "yi", "xi").vectorize("conv", "lane")
    if any(g.pads):
        s = s.compute_at("padded", "conv", "c").split("padded", "px", lanes, "pxo", "pxi")
        s = s.vectorize("padded", "pxi")
    return _tile(s, workload, "xt", ("n", "c"))


def _tile(s: Schedule, workload: Workload, at: str, parallel: tuple[str, ...]) -> Schedule:
    s = s.cache_write("conv", "register", at)
    if has_result(s.compute):
        s = s.reverse_compute_at("out", "conv", at)
    return s.parallel("conv", *parallel)
