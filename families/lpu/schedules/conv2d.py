"""`conv2d` on LPU-like machines: which blocks, in which order; see `conv` for what is computed."""

from dataclasses import dataclass
from functools import cached_property

from tilesmith.families.lpu.schedules.algorithms.conv import BlockedConvolution
from tilesmith.families.lpu.schedules.building_blocks.blocks import PixelBlock, blocks_of
from tilesmith.families.lpu.schedules.building_blocks.common import (
    ProductScheduler,
    at_a_time,
    planes,
    prepared,
)
from tilesmith.families.lpu.schedules.building_blocks.edges import EDGES
from tilesmith.families.lpu.schedules.building_blocks.machine import LANES
from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import choice, count, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

ORDERS = ("o,y", "y,o")
"""Which tiles are outside: of lanes of the result, so that weights stay, or of rows."""

SERIES = (1, 2, 4)
"""Passes in one chain."""


@dataclass(frozen=True)
class _ConvSpace:
    """The knobs of a convolution, and schedules of them."""

    workload: Workload
    target: Target

    @cached_property
    def forms(self) -> tuple[BlockedConvolution, ...]:
        """The convolution in every pair of blocks that it can be done in."""
        template, number = template_of(self.workload.operator), self.workload.integer
        shape = template.output(self.workload).shape
        sources = blocks_of(number("c"), number("h"), number("w"))
        forms = (
            BlockedConvolution(template, self.workload, source, result)
            for source in sources
            for result in blocks_of(shape[1], *shape[2:])
        )
        return tuple(form for form in forms if form.fits)

    def space(self) -> SearchSpace:
        """For every pair of blocks: order, passes in series, rows of blocks at a time."""
        spaces = []
        for form in self.forms:
            fixed = (
                ("algorithm", "blocks"), ("input_layout", form.source.layout),
                ("output_layout", form.result.layout),
            )  # fmt: skip
            series = self._series(form)
            knobs = (
                choice("order", ORDERS), count("series", series), tile("rows", _rows(form)),
            )  # fmt: skip
            spaces.append(Subspace(fixed, knobs))
        return SearchSpace(tuple(spaces))

    def default(self) -> Config:
        """The blocks with the fewest passes; rows in as many tiles as leave no plane idle; passes
        in series as far as planes go."""
        form = min(self.forms, key=lambda f: (f.passes, f.source.pixels, f.result.pixels))
        return Config.of(
            algorithm="blocks",
            input_layout=form.source.layout,
            output_layout=form.result.layout,
            order="o,y",
            series=max(s for s in self._series(form)),
            rows=at_a_time(_rows(form), form.columns),
        )

    def _series(self, form: BlockedConvolution) -> list[int]:
        """Passes that one chain adds up, on planes of their own."""
        most = planes(self.workload, self.target)
        return [s for s in SERIES if s <= most]

    def form(self, config: Config) -> BlockedConvolution:
        source, result = (PixelBlock.of(config.text(f"{n}_layout")) for n in ("input", "output"))
        return BlockedConvolution(
            template_of(self.workload.operator), self.workload, source, result
        )

    # -- schedule -----------------------------------------------------------------------------
    def schedule(self, structure: Config) -> Schedule:
        """See the module's docstring of `conv`; `rows` stays a symbol."""
        schedule = prepared(Schedule(self.form(structure).compute()))
        schedule = schedule.split("conv", "y", var("rows"), "yo", "yi")
        schedule = schedule.split("conv", "o", LANES, "oo", "oi")
        schedule = schedule.split("conv", "k", LANES, "ko", "ki")
        for stage in schedule.compute.stages:
            if stage.name in EDGES:
                y, yo, yi = (f"{stage.name}.{axis}" for axis in ("y", "yo", "yi"))
                schedule = schedule.split(stage.name, y, var("rows"), yo, yi)
                others = (f"{stage.name}.{axis}" for axis in ("n", "yi", "x", "k"))
                schedule = schedule.reorder(stage.name, (yo, *others)).unroll(stage.name, yo)
        outer = ("oo", "yo") if structure.text("order") == "o,y" else ("yo", "oo")
        inner = ("dy", "dx", "ko", "yi", "x", "oi", "ki")
        schedule = schedule.reorder("conv", ("n", "fy", "fx", *outer, *inner))
        for loop in ("dy", "dx", "ko"):
            schedule = schedule.pipeline("conv", loop, structure.integer("series"))
        schedule = schedule.cache_write("conv", "sums", outer[-1])
        return schedule.reverse_compute_at("out", "conv", outer[-1])


def _rows(form: BlockedConvolution) -> list[int]:
    """Rows of blocks at a time: all of a phase in a few equal parts."""
    rows = form.rows
    return sorted({-(-rows // parts) for parts in (1, 2, 3, 4, 6, 8, 12, 16)})


@schedules("conv2d", on="lpu")
class LpuConv2d(ProductScheduler):
    """See the module's docstring."""

    def refusal(self, workload: Workload, target: Target) -> str | None:
        if not workload.is_constant("weight"):
            return (
                f"{target.name} lays out the weights of convolutions at compile time; give "
                "const=weight"
            )
        return super().refusal(workload, target)

    def prepare(self, workload: Workload, target: Target) -> _ConvSpace:
        return _ConvSpace(workload, target)
