"""Convolution of few channels on Trainium-like cores: kernel rows stacked on partitions.

A layer of 64 channels in and out would use 64 rows and 64 columns of an array of 128 x 128, a first
layer of three channels three rows. Here partitions hold channels as several kernel rows see them,
and columns hold several output rows:

    stacked[p*C + c, Y, x] = image[c, Y*step + p*dilation - pad, x - pad]
    psum[d*A + o, y, x]    = sum of  packed[b, s, q, d*A + o] * stacked[q, Y(y, b), x + s]

over b, s, q, where A is O or more: engines take the columns of each d out of PSUM, and begin where
they can. Output row y*fold + d needs input rows from (y*fold + d)*stride on; those that `fold`
outputs need together are `blocks` times `stack`: one matmul for each block and column of the
kernel. Where an output row does not need an input row, the packed weight is zero.

Rows of the stacked image may be all those of the image (`step` 1: each partition loads one long
run) or only those that matmuls begin at (less traffic, in shorter runs). The rows of p > 0 are
those of p = 0 moved up, so an engine may copy them on chip instead of DMA loading them again
(`stacker`).

Where the rows of a kernel leave most partitions empty (three channels, seven rows: 21 of 128), its
columns fill more of them (`PackedSpace`), `taps` beside each other:

    stacked[(t*P + p)*C + c, Y, x] = image[c, Y*step + p*dilation - pad, x + t*dilation - pad]
"""

import math
from typing import ClassVar

from tilesmith.families.trainium.schedules.convolution.conv import EVACUATION, ROW_TILES, ConvSpace
from tilesmith.families.trainium.schedules.convolution.conv_stacked_forms import StackedForm, forms
from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.expressions.expression import Expr, ceildiv, const, var
from tilesmith.search_space.expressions.scalar import (
    Const,
    Load,
    Scalar,
    Select,
    call,
    load,
    rewrite,
)
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, axis
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.workload import Workload

ROW_BYTES = 16
"""Rows of the image in SBUF begin at multiples of this."""

STACKERS = ("dma", "vector", "gpsimd")
"""What brings the rows of further kernel rows: DMA again, or an engine's copy of the first."""

BLOCK_ROWS = 16
"""Folded output rows of a block, untuned."""

LOAD_PARTS = (1, 2, 2.6, 3, 4, 5, 6, 8, 12)
"""Candidate numbers of parts an image is loaded in (2.6: a last part of half the size)."""


def applies(workload: Workload, g: Geometry, target: Target) -> bool:
    """Whether kernel rows of all channels fit the partitions, results fit the columns, and there is
    something to stack."""
    return (
        g.groups == 1
        and g.kernel[0] > 1
        and 2 * g.channels <= target.integer("tensor.rows")
        and g.out_channels <= target.integer("tensor.cols")
        and workload.is_constant("weight")
    )


class StackedSpace(ConvSpace):
    """Space and schedule of the stacked forms; other knobs are those of the shifted one."""

    algorithm = "stacked"
    parts: ClassVar[int] = 3
    """Parts that images are loaded in, untuned."""

    def __init__(
        self, workload: Workload, target: Target, g: Geometry, compute: ComputeDefinition
    ) -> None:
        super().__init__(workload, target, g, compute)
        self.source = compute
        self.forms = forms(g, self.rows, self.cols, self.columns_stacked(g))

    @staticmethod
    def columns_stacked(g: Geometry) -> tuple[int, ...]:
        """Candidate numbers of kernel columns on partitions."""
        return (1,)

    # -- space --------------------------------------------------------------------------------
    def space(self) -> SearchSpace:
        """Forms, order of loops, what stays in SBUF, rows, copies, engine."""
        spaces = [
            self._subspace(form, keep, copies, engine, stacker)
            for form in self.forms
            for stacker in (STACKERS if form.shifts else ("dma",))
            for keep in ("image", "rows")
            for copies in (1, 2)
            for engine in EVACUATION
        ]
        kept = tuple(s for s in spaces if s.size)
        return SearchSpace(kept or (spaces[0],))

    def _subspace(
        self, form: StackedForm, keep: str, copies: int, engine: str, stacker: str
    ) -> Subspace:
        most = min(max(1, self.wide // self.columns), form.height)
        rows = sorted({most, *range(1, min(most, 8) + 1)})
        blocks = sorted({min(form.height, b) for b in ROW_TILES})
        knobs = [tile("rows", rows), tile("row_tiles", blocks)]
        if keep == "image":
            cuts = {math.ceil(form.tall / n) for n in LOAD_PARTS}
            knobs.append(tile("load_rows", sorted(cuts)))
        fixed: tuple[tuple[str, int | str], ...] = (
            ("algorithm", self.algorithm), ("copies", copies), ("evacuate", engine),
            ("fold", form.fold), ("keep", keep), ("outer", "n"), ("stack", form.stack),
            ("stacker", stacker), ("step", form.step), *self.more(form),
        )  # fmt: skip
        limit = Constraint(
            self.stacked_bytes(form, keep, copies),
            self.capacity,
            "bytes of SBUF a partition that the tiles take",
        )
        whole = Constraint(
            (var("row_tiles") - 1) * var("rows"),
            form.height - 1,
            "rows of a block before its last tile",
        )
        return Subspace(fixed, tuple(knobs), (limit, whole))

    def more(self, form: StackedForm) -> tuple[tuple[str, int], ...]:
        """Fixed values beside those of every form."""
        return ()

    def stacked_bytes(self, form: StackedForm, keep: str, copies: int) -> Expr:
        """Bytes a partition of everything in SBUF at once."""
        g = self.g
        weights = form.blocks * form.across * form.columns * self.size * 2
        aligned = ROW_BYTES // self.size
        block = var("rows") * var("row_tiles")
        tall = block if keep == "rows" else ceildiv(form.height, block) * block
        wide = -(-g.out_width // self.columns) * self.columns
        width = -(-(self._span(const(wide), 1).constant or 1) // aligned) * aligned
        height = form.rows(tall)
        if keep == "image":
            height = ceildiv(height, var("load_rows")) * var("load_rows")
        result = block * (form.fold * wide * self.size * copies)
        operands = sum(1 for s in self.workload.epilogue if s.kind.operand == "full")
        staged = self.wide * self.size * 8 * operands
        image = height * (width * self.size * copies)
        return image + result + weights + staged + self.wide * 4 * 8 + self.size * 8

    def default(self) -> Config:
        """The fewest matmuls, whole images in SBUF if they fit, loaded in two or three parts."""
        space = self.space()
        best: tuple[tuple[float, ...], Config] | None = None
        for subspace in sorted(space.subspaces, key=self._promise, reverse=True):
            if best is not None and self._promise(subspace) < best[0][0]:
                break
            form = self._form(Config.of(dict(subspace.fixed)))
            rows = subspace.rows(0, subspace.cardinality)
            for row in rows[subspace.legal(rows)]:
                config = subspace.config(row)
                rank = self._rank(form, config)
                if best is None or rank > best[0]:
                    best = rank, config
        if best is None:
            space.validate(space.subspaces[0].config(space.subspaces[0].rows(0, 1)[0]))
        assert best is not None
        return best[1]

    def _promise(self, subspace: Subspace) -> float:
        """The first number of the rank of all configurations of a subspace."""
        return -self.work(self._form(Config.of(dict(subspace.fixed))))

    def work(self, form: StackedForm) -> float:
        """What a form takes most of: matmuls."""
        return form.blocks * form.height * form.across

    def time(self, form: StackedForm) -> float:
        """ns that a form takes of the tensor engine or of DMA, whichever is more, roughly."""
        number, g = self.target.number, self.g
        passes = self.target.integer("tensor.fp32_factor") if self.size == 4 else 1
        columns = form.blocks * form.height * form.across * g.out_width * g.batch
        rows = form.partitions * form.tall * g.batch
        run = g.width * self.size + number("dma.row_overhead_bytes")
        moved = rows * run / (number("dma.gbps_practical") * number("dma.engines"))
        return max(columns * passes / number("tensor.ghz"), moved)

    def quickest(self) -> float:
        """ns of the form that takes least."""
        return min(map(self.time, self.forms))

    def _rank(self, form: StackedForm, config: Config) -> tuple[float, ...]:
        parts = -(-form.tall // config.integer("load_rows")) if "load_rows" in config else 0
        rows = 4 if self.size == 4 else 2  # each pass of fp32 begins anew: longer ones pay
        return (
            -self.work(form),
            float(config["keep"] == "image"),
            config.integer("copies"),
            float(config["stacker"] == "vector"),
            float(config["evacuate"] == "scalar"),
            -abs(form.step - 1),
            -abs(parts - self.parts),
            -abs(config.integer("rows") - rows),
            -abs(config.integer("row_tiles") - BLOCK_ROWS // rows),
        )

    def _form(self, config: Config) -> StackedForm:
        stack, fold, step = (config.integer(name) for name in ("stack", "fold", "step"))
        return StackedForm(self.g, stack, fold, step, int(config.get("taps", 1)))

    # -- schedule -----------------------------------------------------------------------------
    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration; tile sizes stay symbols."""
        form, keep = self._form(structure), structure.text("keep")
        schedule = Schedule(stacked(self.source, form, self.workload.dtype))
        schedule = schedule.split("result", "o", self.cols, "oo", "oi")
        schedule = schedule.split("result", "y", form.fold, "yh", "yl")
        block = var("rows") * var("row_tiles")
        schedule = schedule.split("result", "yh", block, "yo", "yi")
        schedule = schedule.reorder("result", ("n", "oo", "yo", "oi", "yi", "yl", "x"))
        schedule = schedule.compute_at("row", "result", "yo", "sbuf")
        schedule = schedule.set_layout("row", Layout.permuted((1, 0, 2, 3, 4)))
        schedule = schedule.split("row", "y", var("rows"), "yt", "yr")
        schedule = schedule.split("row", "x", self.columns, "xt", "xr")
        schedule = schedule.reorder("row", ("n", "yt", "xt", "d", "o", "yr", "xr"))
        schedule = schedule.assign_engine("row", structure.text("evacuate"))
        schedule = schedule.compute_at("conv", "row", "xt", "psum").pipeline("row", "xt", 4)
        schedule = schedule.set_layout("conv", Layout.permuted((1, 0, 2, 3)))
        schedule = schedule.reorder("conv", ("b", "s", "q", "n", "m", "y", "x"))
        schedule = schedule.assign_engine("conv", "tensor")
        schedule = self._stack(schedule, form, keep)
        if structure.text("stacker") != "dma":
            schedule = schedule.assign_engine("stacked", structure.text("stacker"))
        schedule = schedule.compile_time("weight.packed")
        schedule = schedule.set_layout("weight.packed", Layout.permuted((0, 2, 1, 3)))
        schedule = schedule.cache_read("weight.packed", "conv", "weight.block", "sbuf")
        schedule = schedule.compute_at("weight.block", "result", "oo", "sbuf")
        schedule = schedule.set_layout("weight.block", Layout.permuted((2, 0, 1, 3)))
        schedule = schedule.unroll("weight.block", "weight.block.0")
        copies = structure.integer("copies")
        schedule = schedule.pipeline("result", "yo", copies)
        return schedule.pipeline("result", "n", copies).pipeline("result", "oo", 2)

    def _stack(self, schedule: Schedule, form: StackedForm, keep: str) -> Schedule:
        """The stacked image: kernel rows outside channels on partitions, loaded in parts."""
        loop = "yo" if keep == "rows" else "n"
        schedule = schedule.compute_at("stacked", "result", loop, "sbuf")
        schedule = schedule.set_layout("stacked", Layout.permuted((1, 0, 2, 3)))
        channels, taps, loops = self.g.channels, "pq", ["stacked.r"]
        if form.taps > 1:
            rows = form.stack * channels
            schedule = schedule.split("stacked", "pq", rows, "stacked.t", "stacked.q")
            taps, loops = "stacked.q", ["stacked.t", "stacked.r"]
        schedule = schedule.split("stacked", taps, channels, "stacked.r", "stacked.c")
        if keep == "rows":
            return schedule.unroll("stacked", *loops)
        schedule = schedule.split("stacked", "py", var("load_rows"), "stacked.p", "stacked.y")
        order = ("stacked.p", "pn", *loops, "stacked.c", "stacked.y", "px")
        return schedule.reorder("stacked", order).unroll("stacked", "stacked.p", *loops)


def stacked(compute: ComputeDefinition, form: StackedForm, dtype: str) -> ComputeDefinition:
    """`stacked`, `weight.packed`, `conv`, `row` and `result` in place of the direct stages."""
    image, packed, conv = _image(form, dtype), _packed(form, dtype), _product(compute, form)
    last = compute.output
    o, x = last.axes[1], last.axes[3]
    n, y, d = last.axes[0], axis("y", form.height), axis("d", form.fold)
    old = compute.stage("conv")

    def element(load: Load) -> Load:
        if load.buffer != "conv":
            return load
        return Load("conv", (n.var, d.var * form.apart + o.var, y.var, x.var))

    value: Scalar = Load("conv", tuple(a.var for a in last.axes)) if last is old else last.value
    row_of = {last.axes[2].name: y.var * form.fold + d.var}
    value = rewrite(value, lambda index: index.substitute(row_of), element)
    row = Stage("row", (n, o, y, d, x), value, dtype=dtype)
    at = last.axes[2].var
    result = Load("row", (n.var, o.var, at // form.fold, at % form.fold, x.var))
    stages = (image, packed, conv, row, Stage("result", last.axes, result, dtype=dtype))
    return ComputeDefinition(compute.name, compute.inputs, stages)


def _image(form: StackedForm, dtype: str) -> Stage:
    """`stacked`: rows of the image as kernel rows see them."""
    g = form.g
    n, q = axis("pn", g.batch), axis("pq", form.partitions)
    y, x = axis("py", form.rows(const(form.height))), axis("px", g.padded_width)
    kernel_row, column = q.var // g.channels, x.var - g.pads[1]
    if form.taps > 1:
        kernel_row = kernel_row % form.stack
        column = column + q.var // (form.stack * g.channels) * g.dilation[1]
    row = y.var * form.step + kernel_row * g.dilation[0] - g.pads[0]
    inside = (row, column, const(g.height - 1) - row, const(g.width - 1) - column)
    source = Load("data", (n.var, q.var % g.channels, row, column))
    return Stage("stacked", (n, q, y, x), Select(inside, source, Const(0.0)), dtype=dtype)


def _packed(form: StackedForm, dtype: str) -> Stage:
    """`weight.packed`: by block, tap, partition and column; zero where a row is not needed."""
    g = form.g
    b, s = axis("wb", form.blocks), axis("ws", form.across)
    q, m = axis("wq", form.partitions), axis("wm", form.columns)
    kernel_row, column = q.var // g.channels, s.var
    inside: tuple[Expr, ...] = ()
    if form.apart > g.out_channels:
        inside = (const(g.out_channels - 1) - m.var % form.apart,)
    if form.taps > 1:
        kernel_row = kernel_row % form.stack
        column = s.var * form.taps + q.var // (form.stack * g.channels)
        inside += (const(g.kernel[1] - 1) - column,)
    r = b.var * form.stack + kernel_row - m.var // form.apart * g.stride[0]
    element = load("weight", m.var % form.apart, q.var % g.channels, r, column)
    value = Select((r, const(g.kernel[0] - 1) - r, *inside), element, Const(0.0))
    return Stage("weight.packed", (b, s, q, m), value, dtype=dtype)


def _product(compute: ComputeDefinition, form: StackedForm) -> Stage:
    """`conv`: output rows folded onto channels."""
    g = form.g
    old = compute.stage("conv")
    n, x = old.axes[0], old.axes[3]
    m, y = axis("m", form.columns), axis("y", form.height)
    b, s = axis("b", form.blocks), axis("s", form.across)
    q = axis("q", form.partitions)
    row = y.var * form.advance + b.var * form.skip
    column = x.var * g.stride[1] + s.var * (form.taps * g.dilation[1])
    product = call(
        "multiply",
        load("stacked", n.var, q.var, row, column),
        load("weight.packed", b.var, s.var, q.var, m.var),
    )
    return Stage("conv", (n, m, y, x), product, (b, s, q), "sum")


COLUMNS = (2, 3, 4)
"""Kernel columns that may stand on partitions."""


def packs(g: Geometry, target: Target) -> bool:
    """Whether several columns of the kernel fit the partitions beside all its rows (where
    `applies`)."""
    return g.kernel[1] > 2 and 2 * g.kernel[0] * g.channels <= target.integer("tensor.rows")


class PackedSpace(StackedSpace):
    """The stacked forms with several columns of the kernel on partitions, too.

    That takes a few times the loads, in rows as long, and saves as many matmuls: it pays where
    channels are so few that a kernel's rows leave most partitions empty.
    """

    algorithm = "packed"
    parts = 6

    @staticmethod
    def columns_stacked(g: Geometry) -> tuple[int, ...]:
        return tuple(taps for taps in COLUMNS if taps < g.kernel[1])

    def more(self, form: StackedForm) -> tuple[tuple[str, int], ...]:
        return (("taps", form.taps),)

    def work(self, form: StackedForm) -> float:
        """ns of the tensor engine and DMA, whichever is longer, roughly."""
        return self.time(form)
