"""Samples of images on CPUs.

In the blocked layout vectors run along channels, so that a pixel is one load wherever it is; in
NCHW along samples, lane by lane, which pays with few channels only and is not offered for more: 64
channels took 16 times as long so, and 3 times with the conversions that a lone node needs.
"""

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.vectorisation.element_types import CpuScheduler
from tilesmith.search_space.schedules.cpu.vectorisation.stages import compute_of
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import choice, in_layout, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload

_UNROLLED = 16
"""Taps up to which their loop is unrolled."""


@schedules("sample", on="cpu")
class CpuSample(CpuScheduler):
    """See the module's docstring."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        lanes = vector_width(target)
        samples = workload.integer("oh") * workload.integer("ow")
        order = choice("order", ["channels", "samples"])
        if workload.integer("c") < lanes // 2:
            return SearchSpace((Subspace(in_layout("samples", "NCHW"), (order,)),))
        sizes = tile("p_tile", [size for size in (1, 2, 4, 8) if size <= samples])
        return SearchSpace((Subspace(in_layout("channels", f"NCHW{lanes}c"), (order, sizes)),))

    def default(self, workload: Workload, target: Target) -> Config:
        lanes, samples = vector_width(target), workload.integer("oh") * workload.integer("ow")
        if workload.integer("c") < lanes // 2:
            return Config.of({**dict(in_layout("samples", "NCHW")), "order": "channels"})
        size = max(size for size in (1, 2, 4) if size <= samples)
        fixed = dict(in_layout("channels", f"NCHW{lanes}c"))
        return Config.of({**fixed, "order": "channels", "p_tile": size})

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        lanes = vector_width(target)
        compute = compute_of(workload)
        schedule = Schedule(compute)
        flat = structure.text("input_layout").replace("HW", "P")
        for name in ("x", "y"):
            schedule = schedule.set_layout(name, Layout.parse(flat, "NCP"))
        if structure.text("algorithm") == "channels":
            schedule = schedule.split("y", "c", lanes, "cv", "lane")
            schedule = schedule.split("y", "p", var("p_tile"), "pt", "pi").unroll("y", "pi")
            outer, inner = ["cv", "pt"], ["t", "pi", "lane"]
        else:
            schedule = schedule.split("y", "p", lanes, "pt", "lane")
            outer, inner = ["c", "pt"], ["t", "lane"]
        if structure.text("order") == "channels":  # the samples of a region are decoded once
            outer.reverse()
        schedule = schedule.reorder("y", ("r", *outer, *inner)).vectorize("y", "lane")
        if workload.integer("taps") <= _UNROLLED:
            schedule = schedule.unroll("y", "t")
        schedule = schedule.cache_write("y", "register", outer[-1])
        return schedule.parallel("y", "r", *outer)
