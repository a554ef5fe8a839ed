"""Resizing on CPUs.

An image's layout is a knob, as for convolutions: in the blocked one vectors run along channels, in
NCHW along rows, where a lane's source is found by shuffles if the pattern repeats within a vector.
"""

from math import gcd

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.vectorisation.element_types import CpuScheduler
from tilesmith.search_space.schedules.cpu.vectorisation.stages import compute_of
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import in_layout, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload


@schedules("resize", on="cpu")
class CpuResize(CpuScheduler):
    """See the module's docstring."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        lanes, sizes = vector_width(target), workload.shape("sizes")
        rows = tile("unroll", [u for u in (1, 2, 4) if u <= -(-sizes[-1] // lanes)])
        if not _is_image(workload):
            return SearchSpace((Subspace((("algorithm", "rows"),), (rows,)),))
        columns = tile("unroll", [u for u in (1, 2, 4, 8) if u <= sizes[-1]])
        return SearchSpace(
            (
                Subspace(in_layout("channels", f"NCHW{lanes}c"), (columns,)),
                Subspace(in_layout("rows", "NCHW"), (rows,)),
            )
        )

    def default(self, workload: Workload, target: Target) -> Config:
        lanes = vector_width(target)
        if not _is_image(workload):
            return Config.of(algorithm="rows", unroll=1)
        blocked = workload.shape("shape")[1] >= lanes
        fixed = in_layout("channels", f"NCHW{lanes}c") if blocked else in_layout("rows", "NCHW")
        return Config.of({**dict(fixed), "unroll": 1})

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        lanes = vector_width(target)
        schedule = Schedule(compute_of(workload))
        if "output_layout" in structure:
            layout = Layout.parse(structure.text("output_layout"))
            schedule = schedule.set_layout("x", layout).set_layout("y", layout)
        *outer, inner = (a.name for a in schedule.compute.output.axes)
        if structure.text("algorithm") == "channels":
            schedule = schedule.split("y", "d1", lanes, "vector", "lane")
            schedule = schedule.split("y", "d3", var("unroll"), "step", "part")
            outer = ["d0", "vector", "d2", "step"]
        else:
            schedule = schedule.split("y", inner, _period(workload, lanes), "vector", "lane")
            schedule = schedule.split("y", "vector", var("unroll"), "step", "part")
            outer = [*outer, "step"]
        schedule = schedule.reorder("y", (*outer, "part", "lane"))
        schedule = schedule.unroll("y", "part").vectorize("y", "lane")
        return schedule.parallel("y", *outer)


def _is_image(workload: Workload) -> bool:
    """Whether there are channels that a blocked layout could block."""
    shape, sizes = workload.shape("shape"), workload.shape("sizes")
    return len(shape) == 4 and shape[:2] == sizes[:2]


def _period(workload: Workload, lanes: int) -> int:
    """Lanes in use: most that a whole number of the pattern's periods fills."""
    extent, size = (workload.extents(name)[-1] for name in ("shape", "sizes"))
    if not isinstance(extent, int) or not isinstance(size, int):
        return lanes
    period = size // gcd(extent, size)
    return lanes // period * period if period <= lanes else lanes
