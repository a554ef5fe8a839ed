"""Layer and RMS normalisation on CPUs: a row at a time.

Everything of one row happens while it is in the first-level cache; sums have several accumulators.
Rows that are short are unrolled, in registers.
"""

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.vectorisation.element_types import CpuScheduler
from tilesmith.search_space.schedules.cpu.vectorisation.row_reduction import (
    accumulator_counts,
    reduce_row,
    row_space,
)
from tilesmith.search_space.schedules.cpu.vectorisation.stages import compute_of
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload


def _rows(workload: Workload) -> tuple[int, int]:
    """(rows, elements of a row)."""
    rows, length = (a.extent.constant or 1 for a in compute_of(workload).output.axes)
    return rows, length


@schedules("layer_norm", "rms_norm", on="cpu")
class CpuNorm(CpuScheduler):
    """See the module's docstring."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        rows, length = _rows(workload)
        lanes = vector_width(target)
        return row_space(rows, length, lanes, "loops", {})

    def default(self, workload: Workload, target: Target) -> Config:
        (rows, length), lanes = _rows(workload), vector_width(target)
        vectors = -(-length // lanes)
        accumulators = max(a for a in accumulator_counts(length, lanes) if a <= 4)
        several = min(2, rows)
        if vectors <= target.integer("vector.registers") // 2:
            return Config.of(algorithm="registers", accumulators=accumulators, rows=several)
        unroll = max(u for u in (1, 2, 4) if u <= vectors)
        return Config.of(algorithm="loops", accumulators=accumulators, rows=several, unroll=unroll)

    def varying(
        self, workload: Workload, usual: Workload, largest: Workload, target: Target, config: Config
    ) -> Config:
        """Rows whose length varies do not stand in registers."""
        length = compute_of(workload).output.axes[1].extent
        if length.constant is not None or config["algorithm"] != "registers":
            return config
        return Config.of({**dict(config.items()), "algorithm": "loops", "unroll": 1})

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        lanes = vector_width(target)
        schedule = Schedule(compute_of(workload))
        unrolled = structure.text("algorithm") == "registers"
        schedule = schedule.split("y", "r", var("rows"), "ro", "r").unroll("y", "r")
        schedule = schedule.split("y", "k", lanes, "kv", "lane").vectorize("y", "lane")
        if unrolled:
            schedule = schedule.unroll("y", "kv")
        else:
            schedule = schedule.split("y", "kv", var("unroll"), "kt", "ki")
            schedule = schedule.reorder("y", ("ro", "kt", "r", "ki", "lane")).unroll("y", "ki")
        for stage in schedule.compute.stages[:-1]:
            name, place = stage.name, ("y", "ro")
            if stage.reducer is not None:
                accumulators = var("accumulators")
                schedule = reduce_row(schedule, name, "k", accumulators, lanes, place, ("r",))
                if unrolled:
                    schedule = schedule.unroll(f"{name}.wide", "k.step")
            schedule = schedule.unroll(name, "r").compute_at(name, *place, scope="register")
        return schedule.parallel("y", "ro")
