"""2-D pooling on CPUs.

Vectors run along channels in the blocked layout, along the output's rows in NCHW; a window over the
whole image (global=1) is a reduction of its own. How many cells a mean counts is found at compile
time.
"""

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.vectorisation.element_types import CpuScheduler
from tilesmith.search_space.schedules.cpu.vectorisation.row_reduction import (
    accumulator_counts,
    reduce_row,
)
from tilesmith.search_space.schedules.cpu.vectorisation.stages import compute_of
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Knob, choice, in_layout, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload

UNROLLED_WINDOW = 16
"""Cells: windows up to this size are unrolled by default."""


@schedules("pool2d", on="cpu")
class CpuPool2d(CpuScheduler):
    """See the module's docstring."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        lanes = vector_width(target)
        blocked = in_layout("channels", f"NCHW{lanes}c")
        if workload.integer("global"):
            counts = self._accumulators(workload, target)
            knobs = tile("accumulators", counts[0]), tile("accumulators", counts[1])
            plain = in_layout("width", "NCHW")
            return SearchSpace((Subspace(blocked, knobs[:1]), Subspace(plain, knobs[1:])))
        rows, columns, most = _sizes(workload)
        window: list[Knob] = [choice("window", ["rows", "unrolled"])]
        if rows == 1 or rows * columns > 64:
            window = [choice("window", ["rows"])]
        pixels = [t for t in (1, 2, 3, 4, 6, 7, 8, 12, 14) if t <= most]
        vectors = [t for t in (1, 2, 3, 4) if t <= -(-most // lanes)]
        return SearchSpace(
            (
                Subspace(blocked, (*window, tile("w_tile", pixels))),
                Subspace(in_layout("width", "NCHW"), (*window, tile("w_tile", vectors))),
            )
        )

    def _accumulators(self, workload: Workload, target: Target) -> tuple[list[int], list[int]]:
        """Numbers of accumulators of a global window: blocked by channels, and along the image."""
        cells = workload.integer("h") * workload.integer("w")
        lanes = vector_width(target)
        return accumulator_counts(cells, 1), accumulator_counts(cells, lanes)

    def default(self, workload: Workload, target: Target) -> Config:
        lanes = vector_width(target)
        blocked = workload.integer("c") >= lanes
        fixed = dict(
            in_layout("channels", f"NCHW{lanes}c") if blocked else in_layout("width", "NCHW")
        )
        if workload.integer("global"):
            counts = self._accumulators(workload, target)[0 if blocked else 1]
            return Config.of({**fixed, "accumulators": max(a for a in counts if a <= 4)})
        rows, columns, most = _sizes(workload)
        small = rows * columns <= UNROLLED_WINDOW and rows > 1
        size = min(4, most) if blocked else 1
        return Config.of({**fixed, "window": "unrolled" if small else "rows", "w_tile": size})

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        lanes = vector_width(target)
        compute = compute_of(workload)
        schedule = Schedule(compute)
        counts = [s for s in compute.stages if s.name.endswith((".count", ".share"))]
        fixed = all(a.extent.constant for s in counts for a in (*s.axes, *s.reduce_axes))
        for stage in counts if fixed else ():
            schedule = schedule.compile_time(stage.name)
        layout = Layout.parse(structure.text("input_layout"))
        for tensor in compute.inputs:
            if len(tensor.extents) == 4:
                schedule = schedule.set_layout(tensor.name, layout)
            elif tensor.name == "x":  # the image as one axis
                flat = structure.text("input_layout").replace("HW", "P")
                schedule = schedule.set_layout("x", Layout.parse(flat, "NCP"))
        schedule = schedule.set_layout(compute.output.name, layout)
        blocked = structure.text("algorithm") == "channels"
        if workload.integer("global"):
            return self._global(schedule, lanes, blocked)
        return self._windows(schedule, structure, lanes, blocked)

    def _windows(
        self, schedule: Schedule, structure: Config, lanes: int, blocked: bool
    ) -> Schedule:
        """A tile of w_tile columns (or vectors of columns) in registers."""
        if blocked:
            schedule = schedule.split("window", "c", lanes, "cv", "lane")
            schedule = schedule.split("window", "j", var("w_tile"), "jt", "ji")
            outer = ["n", "cv", "i", "jt"]
        else:
            schedule = schedule.split("window", "j", lanes, "jv", "lane")
            schedule = schedule.split("window", "jv", var("w_tile"), "jt", "ji")
            outer = ["n", "c", "i", "jt"]
        schedule = schedule.reorder("window", (*outer, "r", "s", "ji", "lane"))
        schedule = schedule.vectorize("window", "lane").unroll("window", "s", "ji")
        if structure.text("window") == "unrolled":
            schedule = schedule.unroll("window", "r")
        schedule = schedule.cache_write("window", "register", "jt")
        if schedule.compute.output.name == "y":
            schedule = schedule.reverse_compute_at("y", "window", "jt")
        return schedule.parallel("window", *outer[:3])

    def _global(self, schedule: Schedule, lanes: int, blocked: bool) -> Schedule:
        """One window a channel; the image is one row."""
        loop = "c"
        if blocked:
            loop, wide = "cv", "window.wide"
            schedule = schedule.rfactor("window", "k", var("accumulators"), wide)
            schedule = schedule.set_layout(wide, Layout.permuted((0, 2, 3, 4, 1)))
            schedule = schedule.reorder(wide, ("k.step", "k.lane", "c"))
            schedule = schedule.unroll(wide, "k.lane").vectorize(wide, "c")
            schedule = schedule.split("window", "c", lanes, "cv", "lane")
            schedule = schedule.reorder("window", ("n", "cv", "i", "j", "k.lane", "lane"))
            schedule = schedule.unroll("window", "k.lane").vectorize("window", "lane")
            schedule = schedule.compute_at(wide, "window", "cv", scope="register")
        else:
            place = ("window", "c")
            schedule = reduce_row(schedule, "window", "k", var("accumulators"), lanes, place)
        schedule = schedule.cache_write("window", "register", loop)
        if schedule.compute.output.name == "y":
            schedule = schedule.reverse_compute_at("y", "window", loop)
        return schedule.parallel("window", "n", loop)


def _sizes(workload: Workload) -> tuple[int, int, int]:
    """Rows and columns of a window that is not global, and windows across."""
    window = compute_of(workload).stage("window")
    rows, columns = (a.extent.constant or 1 for a in window.reduce_axes)
    return rows, columns, window.axes[3].extent.constant or 1
