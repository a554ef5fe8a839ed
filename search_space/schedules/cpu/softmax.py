"""Softmax on CPUs: a row at a time, in the fastest memory that holds it.

All of one row happens while it is in the fastest memory that holds it. Along the last axis the
vectors run along the row, with several accumulators; `row` says where e waits for its sum: in
registers (short rows, everything unrolled), in a buffer of one row, or nowhere (computed twice).
Along another axis the vectors run across the rows, which are neighbours in memory.
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
from tilesmith.search_space.spaces.knobs import Knob, choice
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.workload import Workload


def _split(workload: Workload) -> tuple[int, int, int]:
    """Rows, elements of a row, and neighbours of an element that belong to other rows."""
    rows, length, *across = (a.extent.constant or 1 for a in compute_of(workload).output.axes)
    return rows, length, across[0] if across else 1


@schedules("softmax", on="cpu")
class CpuSoftmax(CpuScheduler):
    """See the module's docstring."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        rows, length, neighbours = _split(workload)
        lanes = vector_width(target)
        if neighbours > 1:
            return SearchSpace((Subspace((("algorithm", "across"),), (self._keep(workload),)),))
        return row_space(rows, length, lanes, "along", {"row": "registers"}, self._keep(workload))

    def _keep(self, workload: Workload) -> Knob:
        return choice(
            "row", ["recomputed"] if workload.integer("log") else ["buffer", "recomputed"]
        )

    def default(self, workload: Workload, target: Target) -> Config:
        rows, length, neighbours = _split(workload)
        lanes = vector_width(target)
        keep = "recomputed" if workload.integer("log") else "buffer"
        if neighbours > 1:
            return Config.of(algorithm="across", row=keep)
        vectors = -(-length // lanes)
        counts = [a for a in accumulator_counts(length, lanes) if a <= 4]
        held = target.integer("vector.registers") - 4  # the rest is for the exponential
        if vectors <= held:
            several = max(t for t in (1, 2, 4) if t == 1 or (t <= rows and t * vectors <= held))
            fixed = {"algorithm": "registers", "row": "registers"}
            return Config.of({**fixed, "accumulators": counts[-1], "rows": several})
        several = 2 if rows > 1 and length * 8 < target.integer("l1.kib") * 512 else 1
        fixed = {"algorithm": "along", "row": keep}
        return Config.of({**fixed, "accumulators": counts[-1], "rows": several, "unroll": 1})

    def varying(
        self, workload: Workload, usual: Workload, largest: Workload, target: Target, config: Config
    ) -> Config:
        """Rows whose length varies do not stand in registers; several of them at a time keep the
        ports busy where a short one has no work for many accumulators."""
        length = compute_of(workload).output.axes[1].extent
        if length.constant is not None or config["algorithm"] == "across":
            return config
        knobs = dict(config.items())
        rows = max(r for r in (1, 2, 4) if r <= _split(usual)[0])
        if config["algorithm"] == "along":
            accumulators = min(2, config.integer("accumulators"))
            return Config.of({**knobs, "accumulators": accumulators, "rows": rows})
        row = "recomputed" if workload.integer("log") else "buffer"
        knobs |= {"algorithm": "along", "row": row, "unroll": 1, "accumulators": 1}
        return Config.of({**knobs, "rows": rows})

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        lanes = vector_width(target)
        schedule = Schedule(compute_of(workload))
        keep = structure.text("row")
        if keep == "recomputed" or workload.integer("log"):
            schedule = schedule.inline("e")
            keep = "recomputed"
        if structure.text("algorithm") == "across":
            return self._across(schedule, lanes, keep)
        place = ("y", "ro")
        unrolled = structure.text("algorithm") == "registers"
        schedule = schedule.split("y", "r", var("rows"), "ro", "r").unroll("y", "r")
        for name in ("e", "y"):
            if name == "e" and keep == "recomputed":
                continue
            schedule = schedule.split(name, "k", lanes, "kv", "lane")
            if unrolled:
                schedule = schedule.unroll(name, "r", "kv").vectorize(name, "lane")
                continue
            schedule = schedule.split(name, "kv", var("unroll"), "kt", "ki")
            schedule = schedule.reorder(name, ("kt", "r", "ki", "lane"))
            schedule = schedule.unroll(name, "r", "ki").vectorize(name, "lane")
        for name in ("m", "s"):
            accumulators = var("accumulators")
            schedule = reduce_row(schedule, name, "k", accumulators, lanes, place, ("r",))
            if unrolled:
                schedule = schedule.unroll(f"{name}.wide", "k.step")
        if keep != "recomputed":
            schedule = schedule.compute_at("e", *place, scope="register" if unrolled else "local")
        for name in ("m", "s", "t"):
            schedule = schedule.unroll(name, "r").compute_at(name, *place, scope="register")
        return schedule.parallel("y", "ro")

    def _across(self, schedule: Schedule, lanes: int, keep: str) -> Schedule:
        """One vector of neighbouring rows at a time, k outside."""
        schedule = schedule.split("y", "i", lanes, "iv", "lane")
        schedule = schedule.reorder("y", ("r", "iv", "k", "lane")).vectorize("y", "lane")
        for name in ("m", "s"):
            schedule = schedule.reorder(name, ("r", "k", "i"))
        for name in ("m", "s", "t", *(() if keep == "recomputed" else ("e",))):
            schedule = schedule.vectorize(name, "i")
            scope = "local" if name == "e" else "register"
            schedule = schedule.compute_at(name, "y", "iv", scope=scope)
        return schedule.parallel("y", "r", "iv")
