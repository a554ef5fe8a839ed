"""Maxima over windows of images in blocks of pixels on LPU-like machines (see `blocks`).

Where a step of the window is a whole block, every result takes the same pixels of the blocks around
its own. The lanes of those are compared first, all pixels side by side, and then the pixels of a
row among each other, half of them with the other half:

    near[n, y, x, (jy, jx, c)] = max over dy, dx of  data[n, y + dy, x + dx, (jy, jx, c)]
                                                     where that pixel is in the window
    half[n, y, x, l] = max(near[n, y, x, l], near[n, y, x, l + half of the lanes])

so that a window of 3 x 3 with step 2 reads four rows and moves lanes twice, where pixels alone read
nine rows. The result is single pixels (`NHWC`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from tilesmith.families.lpu.schedules.building_blocks.blocks import PixelBlock, blocks_of
from tilesmith.search_space.expressions.expression import Expr, floordiv, var
from tilesmith.search_space.expressions.scalar import REDUCERS, Const, Scalar, Select, call, load
from tilesmith.search_space.operators.pool2d import Pool2d, Window
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


@dataclass(frozen=True)
class BlockedPool:
    """The maxima over windows of an image in given blocks, as stages."""

    workload: Workload
    block: PixelBlock

    @cached_property
    def windows(self) -> tuple[Window, Window]:
        template = template_of("pool2d")
        assert isinstance(template, Pool2d), "it is registered so"
        return template.windows(self.workload)

    @property
    def sides(self) -> tuple[tuple[Window, int], tuple[Window, int]]:
        """Every direction's window, and pixels of a block."""
        vertical, horizontal = self.windows
        return (vertical, self.block.rows), (horizontal, self.block.columns)

    @property
    def fits(self) -> bool:
        """Whether a step is a block."""
        return all(window.stride == pixels for window, pixels in self.sides)

    def first(self, side: int) -> int:
        """The first block of a window, from the result's own."""
        window, pixels = self.sides[side]
        return -window.before // pixels

    def count(self, side: int) -> int:
        """Blocks of a window."""
        window, pixels = self.sides[side]
        return (window.reach - 1 - window.before) // pixels - self.first(side) + 1

    def taken(self, side: int, block: int, pixel: int) -> bool:
        """Whether a window takes a pixel of a block."""
        window, pixels = self.sides[side]
        away = block * pixels + pixel + window.before
        return 0 <= away < window.reach and away % window.dilation == 0

    # -- stages -------------------------------------------------------------------------------
    def compute(self) -> ComputeDefinition:
        """`near`, and a stage for every half, the last one `y`."""
        number = self.workload.integer
        vertical, horizontal = self.windows
        rows, columns = number("h") // self.block.rows, number("w") // self.block.columns
        lanes = self.block.pixels * number("c")
        tensor = Tensor("x", (number("n"), rows, columns, lanes), self.workload.dtype)
        stages: list[Stage] = []
        while not stages or lanes > number("c"):
            name = f"half{len(stages)}" if stages else "near"
            lanes = lanes // 2 if stages else lanes
            extents = (number("n"), vertical.out, horizontal.out, lanes)
            name = "y" if lanes == number("c") else name
            axes = tuple(axis(f"{name}.{a}", e) for a, e in zip("nyxl", extents, strict=True))
            where = tuple(a.var for a in axes)
            if stages:
                *place, lane = where
                parts = (load(stages[-1].name, *place, at) for at in (lane, lane + lanes))
                value: Scalar = call("maximum", *parts)
            else:
                value = self._near(where, (rows, columns))
            stages.append(Stage(name, axes, value, dtype=self.workload.dtype))
        return ComputeDefinition("pool2d", (tensor,), tuple(stages))

    def _near(self, where: tuple[Expr, ...], extents: tuple[int, int]) -> Scalar:
        pooled: Scalar | None = None
        for away in product(*(range(self.count(side)) for side in (0, 1))):
            blocks = [self.first(side) + away[side] for side in (0, 1)]
            inside = self._inside(blocks, where[3])
            if inside is None:
                continue
            places = [where[1] + blocks[0], where[2] + blocks[1]]
            tests = [
                test
                for side, place in enumerate(places)
                for test in self._tests(side, place, blocks[side], extents[side])
            ]
            value: Scalar = load("x", where[0], *places, where[3])
            neutral = Const(REDUCERS["max"])
            value = Select(tuple(tests), value, neutral) if tests else value
            value = Select(inside, value, neutral) if inside else value
            pooled = value if pooled is None else call("maximum", pooled, value)
        assert pooled is not None, "a window takes something"
        return pooled

    def _inside(self, blocks: list[int], lane: Expr) -> tuple[Expr, ...] | None:
        """What is >= 0 on the lanes of a block's pixels that a window takes; None: on no lane."""
        channels = self.workload.integer("c")
        pixel = floordiv(lane, channels)
        tests: list[Expr] = []
        for side, at in enumerate((floordiv(pixel, self.block.columns), pixel)):
            pixels = self.sides[side][1]
            taken = [p for p in range(pixels) if self.taken(side, blocks[side], p)]
            if not taken:
                return None
            if len(taken) < pixels:
                place = at % self.block.columns if side else at
                tests += list(self._among(place, taken, pixels))
        return tuple(tests)

    def _among(self, place: Expr, taken: list[int], pixels: int) -> Iterator[Expr]:
        """What is >= 0 where a place is one of those taken, which are evenly apart."""
        step = taken[1] - taken[0] if len(taken) > 1 else 1
        yield place - taken[0]
        yield taken[-1] - place
        if step > 1:
            yield -((place - taken[0] + step * pixels) % step)

    def _tests(self, side: int, place: Expr, block: int, extent: int) -> Iterator[Expr]:
        """What is >= 0 where a block lies in the image; only what can fail."""
        if block < 0:
            yield place
        if self.windows[side].out - 1 + block >= extent:
            yield extent - 1 - place

    # -- schedule -----------------------------------------------------------------------------
    def schedule(self) -> Schedule:
        """Rows of results at a time; what is between is written, for lanes of it are moved."""
        schedule = Schedule(self.compute())
        *between, last = schedule.compute.stages
        n, y, x, lane = (a.name for a in last.axes)
        schedule = schedule.split(last.name, y, var("rows"), "yo", "yi")
        schedule = schedule.reorder(last.name, (n, "yo", "yi", x, lane)).unroll(last.name, "yo")
        for stage in between:
            schedule = schedule.compute_at(stage.name, last.name, "yo", "mem")
        return schedule


def forms(workload: Workload) -> list[BlockedPool]:
    """Ways to pool an image in blocks: maxima of whole images, in bytes or floats."""
    number = workload.integer
    if workload.text("kind") != "max" or number("global") or workload.epilogue:
        return []
    if workload.sizes:
        return []
    blocks = blocks_of(number("c"), number("h"), number("w"))
    forms = (BlockedPool(workload, block) for block in blocks if block.pixels > 1)
    return [form for form in forms if form.fits]
