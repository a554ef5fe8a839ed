"""Softmax and its logarithm along one axis.

    m = max_k x[k];  e[k] = exp(x[k] - m);  s = sum_k e[k];  y[k] = e[k] / s
    with log=1:                                              y[k] = (x[k] - m) - log(s)

All of one row happens while it is in the fastest memory that holds it. Along the last axis the
vectors run along the row, with several accumulators; `row` says where e waits for its sum: in
registers (short rows, everything unrolled), in a buffer of one row, or nowhere (computed twice).
Along another axis the vectors run across the rows, which are neighbours in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.errors import WorkloadError
from tilesmith.search_space.flattening import check_extents, product
from tilesmith.search_space.ir.expression import Expr, var
from tilesmith.search_space.ir.scalar import Scalar, call, load
from tilesmith.search_space.schedules.cpu.row_reduction import accumulator_counts, reduce_row
from tilesmith.search_space.schedules.trainium import common as accelerator
from tilesmith.search_space.schedules.trainium.rows import RowsSpace
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, choice, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.target import Target
from tilesmith.search_space.template import Operand, Parameter, Template, templates
from tilesmith.search_space.workload import Workload

UNROLLED_VECTORS = 64
"""Vectors: rows times row length up to which everything is unrolled (code size)."""


@templates.register("softmax")
class Softmax(Template):
    """See the module's docstring."""

    operator = "softmax"
    summary = "softmax or log-softmax along one axis"
    parameters = (
        Parameter("shape", "of input and output, e.g. 1536x128", text=True),
        Parameter("axis", "normalised over; negative counts from the end", -1, minimum=-8),
        Parameter("log", "1 gives the logarithm", 0, minimum=0),
    )
    examples = (
        "softmax shape=5x37",
        "softmax shape=3x64",
        "softmax shape=7x1",
        "softmax shape=1009",
        "softmax shape=2x3x131 log=1",
        "softmax shape=2x11x19 axis=1",
        "softmax shape=13x5 axis=0 log=1",
    )

    def check(self, workload: Workload) -> None:
        shape, position = workload.shape("shape"), workload.integer("axis")
        check_extents(self.operator, "shape", shape)
        if not -len(shape) <= position < len(shape):
            raise WorkloadError(
                f"operator 'softmax': axis={position} is out of range for {len(shape)} axes"
            )

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        return (Operand("x", workload.shape("shape"), workload.dtype),)

    def output(self, workload: Workload) -> Operand:
        return Operand("y", workload.shape("shape"), workload.dtype, "output")

    def flops(self, workload: Workload) -> int:
        return 5 * product(workload.shape("shape"))

    def reference(self, workload: Workload, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        x, position = inputs["x"], workload.integer("axis")
        shifted = x - x.max(axis=position, keepdims=True)
        total = np.exp(shifted).sum(axis=position, keepdims=True)
        log = workload.integer("log")
        return np.asarray(shifted - np.log(total) if log else np.exp(shifted) / total)

    def _split(self, workload: Workload) -> tuple[int, int, int]:
        """Elements before, along and after the axis."""
        shape = workload.shape("shape")
        position = workload.integer("axis") % len(shape)
        return product(shape[:position]), shape[position], product(shape[position + 1 :])

    def compute(self, workload: Workload) -> ComputeDefinition:
        """Stages m, e, s, t (1/s or log s) and y over rows r, columns k (and neighbours i)."""
        rows, length, neighbours = self._split(workload)
        r, k = axis("r", rows), axis("k", length)
        across = (axis("i", neighbours),) if neighbours > 1 else ()
        row = (r, *across)
        one = tuple(a.var for a in row)
        x, e = self._load("x", r, k.var, across), self._load("e", r, k.var, across)
        m, t = load("m", *one), load("t", *one)
        log = workload.integer("log")
        power = call("exp", call("subtract", x, m))
        value = call("subtract", call("subtract", x, m), t) if log else call("multiply", e, t)
        stages = (
            Stage("m", row, x, (k,), "max"),
            Stage("e", (r, k, *across), power),
            Stage("s", row, e, (k,), "sum"),
            Stage("t", row, call("log" if log else "reciprocal", load("s", *one))),
            Stage("y", (r, k, *across), value),
        )
        shape = (rows, length, neighbours) if across else (rows, length)
        return ComputeDefinition("softmax", (Tensor("x", shape, workload.dtype),), stages)

    def _load(self, name: str, r: Axis, k: Expr, across: tuple[Axis, ...]) -> Scalar:
        return load(name, r.var, k, *(a.var for a in across))

    # -- accelerators -------------------------------------------------------------------------
    def _rows_space(self, workload: Workload, target: Target) -> RowsSpace:
        return RowsSpace(self.compute(workload), workload.dtype, target)

    # -- CPU ----------------------------------------------------------------------------------
    def space(self, workload: Workload, target: Target) -> SearchSpace:
        if target.family == accelerator.FAMILY:
            return self._rows_space(workload, target).space()
        rows, length, neighbours = self._split(workload)
        lanes = target.integer("vector.lanes")
        if neighbours > 1:
            return SearchSpace((Subspace((("algorithm", "across"),), (self._keep(workload),)),))
        vectors = -(-length // lanes)
        several = tile("rows", [t for t in (1, 2, 4) if t <= rows])
        accumulators = tile("accumulators", accumulator_counts(length, lanes))
        unroll = tile("unroll", [u for u in (1, 2, 4, 8) if u <= vectors])
        subspaces = [
            Subspace(
                (("algorithm", "along"),), (self._keep(workload), several, accumulators, unroll)
            )
        ]
        if vectors <= UNROLLED_VECTORS // 2:
            limit = Constraint(
                var("rows") * vectors,
                UNROLLED_VECTORS,
                "vectors of unrolled code (rows times the vectors of a row)",
                "choose fewer rows",
            )
            fixed = (("algorithm", "registers"), ("row", "registers"))
            subspaces.append(Subspace(fixed, (several, accumulators), (limit,)))
        return SearchSpace(tuple(subspaces))

    def _keep(self, workload: Workload) -> Any:
        return choice(
            "row", ["recomputed"] if workload.integer("log") else ["buffer", "recomputed"]
        )

    def default(self, workload: Workload, target: Target) -> Config:
        if target.family == accelerator.FAMILY:
            return self._rows_space(workload, target).default()
        rows, length, neighbours = self._split(workload)
        lanes = target.integer("vector.lanes")
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

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        if target.family == accelerator.FAMILY:
            return self._rows_space(workload, target).schedule(structure)
        lanes = target.integer("vector.lanes")
        schedule = Schedule(self.compute(workload))
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
