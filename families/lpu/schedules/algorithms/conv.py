"""Convolution on LPU-like machines: products of blocks of pixels with block-Toeplitz weights.

A row of lanes holds a block of pixels with their channels (`blocks`), of the input and the result.
What one block of results takes of one block of the input is a matrix, in which a weight stands
wherever a tap leads from the one pixel to the other:

    w[dy, dx][(iy, ix, o), (jy, jx, c)] = weight[o, c, r, s]     if tap r, s leads there, else 0
    conv[n, y, x][(iy, ix, o)] = sum over dy, dx of  w[dy, dx] data[n, y m + dy, x m + dx]

So few channels still fill a plane, and no lane has to be moved. Where blocks of results are smaller
than what they stride over, blocks come in phases, each with matrices of its own. Border blocks are
rows of zeros, or of the quantised zero. Groups are blocks of the matrix.

    for images, phases, 320 lanes of the result, `rows` rows of blocks:
      for dy, dx, 320 lanes of the input, `series` passes to a chain:  sums += data * w
      result = epilogue(sums)
"""

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from tilesmith.families.lpu.schedules.building_blocks.blocks import PixelBlock
from tilesmith.families.lpu.schedules.building_blocks.common import with_numbers
from tilesmith.families.lpu.schedules.building_blocks.edges import chosen, edge_stages
from tilesmith.families.lpu.schedules.building_blocks.machine import LANES
from tilesmith.search_space.convolution.geometry import Geometry, has_pad_value
from tilesmith.search_space.expressions.expression import Expr, as_expr, const, floordiv
from tilesmith.search_space.expressions.scalar import Const, Load, Scalar, Select, load, rewrite
from tilesmith.search_space.operator_parts.fusion import epilogue_tensors, epilogue_value
from tilesmith.search_space.operator_parts.integer_products import product_stage, weight_dtype
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.workloads.template import Template
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class Direction:
    """One direction of a convolution in blocks: height or width.

    Attributes:
        extent, out: pixels of input and result; inside, produced: pixels of their blocks.
        kernel, stride, before, dilation: of the convolution; `before`: the frame's.
    """

    name: str
    extent: int
    out: int
    inside: int
    produced: int
    kernel: int
    stride: int
    before: int
    dilation: int

    @property
    def step(self) -> int:
        """Input pixels from one block of results to the next."""
        return self.produced * self.stride

    @property
    def phases(self) -> int:
        """Blocks of results until one begins as the first does within its block of the input."""
        return self.inside // gcd(self.inside, self.step)

    @property
    def moved(self) -> int:
        """Input blocks from one block of results to that of the same phase."""
        return self.phases * self.step // self.inside

    @property
    def fits(self) -> bool:
        """Whether blocks and phases divide the result."""
        return self.out % (self.produced * self.phases) == 0 and self.extent % self.inside == 0

    def first(self, phase: Expr | int) -> Expr:
        """The first input block that results of a phase take."""
        return floordiv(as_expr(phase) * self.step - self.before, self.inside)

    def count(self, phase: Expr | int) -> Expr:
        """How many they take."""
        reach = (self.produced - 1) * self.stride + (self.kernel - 1) * self.dilation
        last = floordiv(as_expr(phase) * self.step - self.before + reach, self.inside)
        return last - self.first(phase) + 1

    def tests(self, place: Expr) -> tuple[Expr, ...]:
        """What is >= 0 where an input block lies in the image; only what can fail, or what the
        verifier does not see that it cannot: where a block is one of several, or of a phase."""
        low = min(self.first(phase).constant or 0 for phase in range(self.phases)) < 0
        plain = self.phases == 1 and self.counts == (1,) and not low
        high = () if plain else (self.extent // self.inside - 1 - place,)
        return (place, *high) if low else high

    @cached_property
    def counts(self) -> tuple[int, ...]:
        return tuple(self.count(phase).constant or 0 for phase in range(self.phases))

    @property
    def edged(self) -> bool:
        """Whether results take a block and the edges of both beside it, which are pixels of
        different places in theirs: one row of lanes holds both edges."""
        reach = self.produced - 1 + (self.kernel - 1) * self.dilation - self.before
        same = self.stride == 1 and self.inside == self.produced and self.extent == self.out
        around = self.phases == 1 and self.counts == (3,) and self.before <= self.inside
        return same and around and reach - self.inside < self.inside - self.before

    @property
    def taken(self) -> tuple[int, ...]:
        """Rows of lanes that results of each phase take."""
        return (2,) if self.edged else self.counts

    def upper(self, pixel: Expr) -> Expr:
        """1 where an edge's pixel is one of the block before, else 0."""
        return floordiv(pixel + self.before, self.inside)

    def place(self, phase: Expr, taken: Expr, pixel: Expr) -> Expr:
        """Where a pixel of a row of lanes stands, from a result's block on."""
        if not self.edged:
            return (self.first(phase) + taken) * self.inside + pixel
        back = floordiv(self.upper(pixel) + taken, 2)
        return pixel + self.inside * taken - 2 * self.inside * back


@dataclass(frozen=True)
class BlockedConvolution:
    """A convolution in given blocks of input and result, as stages.

    Stages: `taps` (the matrices, known at compile time if the weights are), those of `edges` where
    there are some, `conv`, and `out`.
    """

    template: Template
    workload: Workload
    source: PixelBlock
    result: PixelBlock

    @cached_property
    def g(self) -> Geometry:
        return Geometry.of(self.workload)

    @cached_property
    def directions(self) -> tuple[Direction, Direction]:
        g = self.g
        return (
            Direction(
                "y", g.height, g.out_height, self.source.rows, self.result.rows, g.kernel[0],
                g.stride[0], g.pads[0], g.dilation[0],
            ),
            Direction(
                "x", g.width, g.out_width, self.source.columns, self.result.columns, g.kernel[1],
                g.stride[1], g.pads[1], g.dilation[1],
            ),
        )  # fmt: skip

    @property
    def fits(self) -> bool:
        return all(direction.fits for direction in self.directions)

    @property
    def lanes(self) -> tuple[int, int]:
        """Lanes of a block of the input, and of the result."""
        return self.source.pixels * self.g.channels, self.result.pixels * self.g.out_channels

    @property
    def passes(self) -> int:
        """Vectors that pass MXM, over all planes."""
        deep, wide = (-(-lanes // LANES) for lanes in self.lanes)
        vertical, horizontal = self.directions
        rows = vertical.out // (vertical.produced * vertical.phases)
        columns = horizontal.out // (horizontal.produced * horizontal.phases)
        taken = sum(vertical.taken) * sum(horizontal.taken)
        return self.g.batch * rows * columns * taken * deep * wide

    @property
    def rows(self) -> int:
        """Rows of blocks of a phase."""
        vertical, _ = self.directions
        return vertical.out // (vertical.produced * vertical.phases)

    @property
    def columns(self) -> int:
        """Blocks of a phase in a row."""
        _, horizontal = self.directions
        return horizontal.out // (horizontal.produced * horizontal.phases)

    @property
    def tiles(self) -> int:
        """Chains that nothing but images, phases and lanes of the result make."""
        vertical, horizontal = self.directions
        wide = -(-self.lanes[1] // LANES)
        return self.g.batch * vertical.phases * horizontal.phases * wide

    @property
    def depth(self) -> int:
        """Passes that are added up, at most."""
        vertical, horizontal = self.directions
        return max(vertical.taken) * max(horizontal.taken) * -(-self.lanes[0] // LANES)

    # -- stages -------------------------------------------------------------------------------
    def compute(self) -> ComputeDefinition:
        """The stages, of tensors in the shapes of their blocks."""
        conv = self._conv()
        *spread, out = self._out(conv)
        stages = (*self._frame(), *spread, self._taps(), *self._edges(), conv, out)
        tensors = [
            Tensor("data", self._shape(self.source, False), self.workload.dtype),
            self._weight(),
        ]
        if has_pad_value(self.workload):
            constant = self.workload.is_constant("pad_value")
            tensors.append(Tensor("pad_value", (1,), self.workload.dtype, constant))
        full = self._shape(self.result, True)
        tensors += epilogue_tensors(self.template, self.workload, full)
        return with_numbers(ComputeDefinition("conv2d", tuple(tensors), stages))

    def _weight(self) -> Tensor:
        operands = {o.name: o for o in self.template.inputs(self.workload)}
        constant = self.workload.is_constant("weight")
        return Tensor("weight", operands["weight"].extents, weight_dtype(self.workload), constant)

    def _shape(self, block: PixelBlock, result: bool) -> tuple[int, ...]:
        g = self.g
        height, width = (g.out_height, g.out_width) if result else (g.height, g.width)
        lanes = self.lanes[1 if result else 0]
        return (g.batch, height // block.rows, width // block.columns, lanes)

    def _frame(self) -> tuple[Stage, ...]:
        """The quantised zero over a row of lanes."""
        if not has_pad_value(self.workload):
            return ()
        one, lane = axis("frame.e", 1), axis("frame.l", LANES)
        value = load("pad_value", 0)
        return (Stage("frame", (one, lane), value, dtype=self.workload.dtype),)

    def _taps(self) -> Stage:
        """The matrices of all phases and input blocks; rows are lanes of the result."""
        g, (vertical, horizontal) = self.g, self.directions
        fy, fx = axis("w.fy", vertical.phases), axis("w.fx", horizontal.phases)
        dy, dx = axis("w.dy", max(vertical.taken)), axis("w.dx", max(horizontal.taken))
        iy, ix = axis("w.iy", self.result.rows), axis("w.ix", self.result.columns)
        jy, jx = axis("w.jy", self.source.rows), axis("w.jx", self.source.columns)
        o, c = axis("w.o", g.out_channels), axis("w.c", g.channels)
        inside: list[Expr] = []
        taps: list[Expr] = []
        for direction, f, d, i, j in (
            (vertical, fy, dy, iy, jy), (horizontal, fx, dx, ix, jx),
        ):  # fmt: skip
            to = direction.place(f.var, d.var, j.var)
            start = f.var * direction.step + i.var * direction.stride - direction.before
            away = to - start
            last = (direction.kernel - 1) * direction.dilation
            inside += [away, last - away]
            if direction.dilation > 1:
                inside.append(-(away % direction.dilation))
            taps.append(floordiv(away, direction.dilation))
        channel: Expr = c.var
        if g.groups > 1:
            group, other = (
                floordiv(a.var, n // g.groups) for a, n in ((o, g.out_channels), (c, g.channels))
            )
            inside += [group - other, other - group]
            channel = c.var % (g.channels // g.groups)
        value = Select(tuple(inside), load("weight", o.var, channel, *taps), Const(0.0))
        row = (iy.var * self.result.columns + ix.var) * g.out_channels + o.var
        lane = (jy.var * self.source.columns + jx.var) * g.channels + c.var
        store = (fy.var, fx.var, dy.var, dx.var, row, lane)
        lanes = self.lanes
        shape = (*(a.extent for a in (fy, fx, dy, dx)), const(lanes[1]), const(lanes[0]))
        return Stage(
            "taps", (fy, fx, dy, dx, iy, ix, o, jy, jx, c), value, store=store, shape=shape,
            dtype=weight_dtype(self.workload),
        )  # fmt: skip

    def _conv(self) -> Stage:
        """`conv` over images, phases, blocks and lanes."""
        vertical, horizontal = self.directions
        n = axis("n", self.g.batch)
        fy, fx = axis("fy", vertical.phases), axis("fx", horizontal.phases)
        y = axis("y", vertical.out // (vertical.produced * vertical.phases))
        x = axis("x", horizontal.out // (horizontal.produced * horizontal.phases))
        dy, dx = (
            axis(name, 2 if direction.edged else direction.count(f.var))
            for name, direction, f in (("dy", vertical, fy), ("dx", horizontal, fx))
        )
        o, k = axis("o", self.lanes[1]), axis("k", self.lanes[0])
        places, tests = list[Expr](), list[Expr]()
        for direction, f, d, at in ((vertical, fy, dy, y), (horizontal, fx, dx, x)):
            if direction.edged:
                places.append(at.var)
            else:
                places.append(at.var * direction.moved + direction.first(f.var) + d.var)
                tests += direction.tests(places[-1])
        where = (n.var, *places, k.var)
        down, along = (
            d.var if direction.edged else None
            for d, direction in ((dy, vertical), (dx, horizontal))
        )
        pixel = chosen(down, along, lambda tensor: self._pixel(tensor, where, tests))
        tap = load("taps", fy.var, fx.var, dy.var, dx.var, o.var, k.var)
        return product_stage(self.workload, "conv", (n, fy, y, fx, x, o), pixel, tap, (dy, dx, k))

    def _pixel(
        self, tensor: str, where: tuple[Expr, ...], tests: list[Expr] | tuple[Expr, ...]
    ) -> Scalar:
        """A row of lanes, or what lies outside the image."""
        pixel: Scalar = load(tensor, *where)
        outside: Scalar = Const(0.0)
        if has_pad_value(self.workload):
            outside = load("frame", 0, where[-1] % LANES)
        return Select(tuple(tests), pixel, outside) if tests else pixel

    def _edges(self) -> tuple[Stage, ...]:
        """What `edges` makes, over the images and rows of lanes of the input."""
        g, source = self.g, self.source
        extents = (g.batch, g.height // source.rows, g.width // source.columns)
        shape = (*extents, self.lanes[0])
        outside = {1: self.directions[0].tests, 2: self.directions[1].tests}

        def row(tensor: str, where: tuple[Expr, ...], moved: int) -> Scalar:
            return self._pixel(tensor, where, outside[moved](where[moved]))

        def upper(direction: int, lane: Expr) -> Expr:
            pixel = floordiv(lane, g.channels)
            place = (floordiv(pixel, source.columns), pixel % source.columns)[direction - 1]
            edges = self.directions[direction - 1]
            return place + edges.before - edges.inside

        edged = (self.directions[0].edged, self.directions[1].edged)
        return edge_stages(edged, shape, self.workload.dtype, row, upper)

    def _out(self, conv: Stage) -> tuple[Stage, ...]:
        """`out` over the same axes, stored where its block stands; before it, operands of channels
        over all pixels of a block."""
        vertical, horizontal = self.directions
        n, fy, y, fx, x, o = conv.axes
        store = (n.var, y.var * vertical.phases + fy.var, x.var * horizontal.phases + fx.var, o.var)
        element = Load(conv.name, tuple(a.var for a in conv.axes))
        value = epilogue_value(self.template, self.workload, store, element, o.var)
        spread: dict[str, Stage] = {}
        channels = {o.name for o in self.template.operands(self.workload) if len(o.extents) == 1}

        def access(load: Load) -> Scalar:
            if load.buffer not in channels or load.indices != (o.var,) or self._single:
                return load
            lane, name = axis("all.o", o.extent), f"{load.buffer}.pixels"
            source = Load(load.buffer, (lane.var % self.g.out_channels,))
            operand = next(
                t for t in self.template.operands(self.workload) if t.name == load.buffer
            )
            spread[name] = Stage(name, (lane,), source, dtype=operand.dtype)
            return Load(name, (o.var,))

        value = rewrite(value, lambda index: index, access)
        dtype = self.template.result_dtype(self.workload)
        shape = tuple(as_expr(e) for e in self._shape(self.result, True))
        out = Stage("out", conv.axes, value, store=store, shape=shape, dtype=dtype)
        return (*spread.values(), out)

    @property
    def _single(self) -> bool:
        return self.result.pixels == 1
