"""Schedules for looms: tiles of products, rows of pointwise expressions.

    for tiles of m_tile x n_tile:                          for rows of y:
      sum = 0                                                load what it reads
      for k, k_tile at a time: load a's and b's rows         tile = f(...)
        sum[i, :] += a[i, k] * b[k, :]                       y = tile
      tile = epilogue(sum); c = tile

The last dimension is the row that instructions take.
"""

from __future__ import annotations

from tilesmith.search_space.expressions.expression import Expr, var
from tilesmith.search_space.expressions.scalar import Call, Const, Load, Scalar
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, tile, tile_sizes
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import Scheduler, schedules
from tilesmith.search_space.workloads.template import compute_of
from tilesmith.search_space.workloads.workload import Workload

from .instructions import FUNCTIONS
from .machine import FAMILY, pad_bytes


def partial_results(value: Scalar) -> int:
    """Rows that an expression needs at once beside its operands, the result's own among them."""
    if not isinstance(value, Call):
        return 0
    first, *others = sorted(map(partial_results, value.arguments), reverse=True)
    return max(1, first, *(1 + other for other in others if other))


def refused(compute: ComputeDefinition, workload: Workload) -> str | None:
    """Why instructions cannot compute the pointwise stage at the end."""
    if workload.dtype != "float32":
        return f"a loom has fp32 numbers only, not {workload.dtype}"
    waiting, value = [compute.output.value], compute.output.value
    while waiting:
        found = waiting.pop()
        if isinstance(found, Call):
            if compute.output.reducer is None and found.function not in FUNCTIONS:
                return f"a loom has no instruction for '{found.function}'"
            waiting += found.arguments
        elif not isinstance(found, Load | Const):
            return "a loom cannot choose by position"
    if partial_results(value) > 1:
        return f"a loom holds one partial result at a time, and '{value}' has more"
    return None


def largest(space: SearchSpace) -> Config:
    """The largest tiles that are legal; `ConfigError` names the limit that the smallest break."""
    (subspace,) = space.subspaces
    chosen = Config.of({**dict(subspace.fixed), **{k.name: k.values[0] for k in subspace.knobs}})
    space.validate(chosen)
    for knob in reversed(subspace.knobs):  # long rows first
        for value in knob.values:
            wider = Config.of({**chosen, knob.name: value})
            chosen = wider if wider in space else chosen
    return chosen


def in_pad(words: Expr, target: Target) -> Constraint:
    """The limit on what tiles take."""
    return Constraint(words * 4, pad_bytes(target), "bytes of the scratchpad that tiles take")


def loaded(schedule: Schedule, tensor: str, reader: str, at: tuple[str, str]) -> Schedule:
    """What `reader` needs of a tensor in memory, copied to the pad in loop `at` (stage, loop)."""
    copy = f"{tensor}.pad"
    rank = next(len(t.shape) for t in schedule.compute.inputs if t.name == tensor)
    schedule = schedule.cache_read(tensor, reader, copy, "pad").compute_at(copy, *at, "pad")
    return schedule.tensorize(copy, f"{copy}.{rank - 1}", "load")


@schedules("matmul", on=FAMILY)
class LoomMatmul(Scheduler):
    """See the module's docstring."""

    def refusal(self, workload: Workload, target: Target) -> str | None:
        if workload.integer("ta") or workload.integer("tb"):
            return "a loom reads rows as they lie in memory, not transposed operands"
        return refused(compute_of(workload), workload)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        m, n, k = (workload.integer(name) for name in "mnk")
        row = target.integer("row.words")
        knobs = (
            tile("k_tile", tile_sizes(k, row)),
            tile("m_tile", tile_sizes(m, m)),
            tile("n_tile", tile_sizes(n, row)),
        )
        m_tile, n_tile, k_tile = (var(f"{name}_tile") for name in "mnk")
        kinds = [step.kind.operand for step in workload.epilogue]
        words = k_tile * (m_tile + n_tile) + n_tile * kinds.count("channel")
        words += m_tile * n_tile * (2 + kinds.count("full"))
        return SearchSpace((Subspace((("algorithm", "rows"),), knobs, (in_pad(words, target),)),))

    def default(self, workload: Workload, target: Target) -> Config:
        return largest(self.space(workload, target))

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        compute = compute_of(workload)
        schedule, product, result = Schedule(compute), compute.stages[0].name, compute.output.name
        if product == result:
            schedule, product = schedule.cache_result(result, "sum"), "sum"
        schedule = schedule.cache_result(result, "tile")
        for name, axis in (("m", "i"), ("n", "j"), ("k", "k")):
            schedule = schedule.split(product, axis, var(f"{name}_tile"), f"{axis}o", f"{axis}i")
        batch = ("b",) if workload.integer("batch") > 1 else ()
        schedule = schedule.reorder(product, (*batch, "io", "jo", "ko", "ii", "ki", "ji"))
        schedule = schedule.tensorize(product, "ji", "macc", "fill")
        schedule = schedule.cache_write(product, "pad", "jo")
        for operand in ("a", "b"):
            schedule = loaded(schedule, operand, product, (product, "ko"))
        schedule = schedule.reverse_compute_at("tile", product, "jo", "pad")
        schedule = schedule.tensorize("tile", "ji", "map")
        for tensor in compute.inputs[2:]:
            schedule = loaded(schedule, tensor.name, "tile", (product, "jo"))
        schedule = schedule.reverse_compute_at(result, "tile", "jo")
        return schedule.tensorize(result, "ji", "store")


@schedules("elementwise", on=FAMILY)
class LoomElementwise(Scheduler):
    """See the module's docstring."""

    def refusal(self, workload: Workload, target: Target) -> str | None:
        compute = compute_of(workload)
        *_, last = compute.output.axes or (None,)
        found = [compute.output.value]
        while found:
            value = found.pop()
            found += value.arguments if isinstance(value, Call) else ()
            if isinstance(value, Load) and (last is None or last.var not in value.indices):
                return "a loom's operands are rows: all have to vary along the last axis"
        return refused(compute, workload)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        compute = compute_of(workload)
        length = compute.output.axes[-1].extent.constant or 1
        knobs = (tile("row", tile_sizes(length, target.integer("row.words"))),)
        limit = in_pad(var("row") * (1 + len(compute.inputs)), target)
        return SearchSpace((Subspace((("algorithm", "rows"),), knobs, (limit,)),))

    def default(self, workload: Workload, target: Target) -> Config:
        return largest(self.space(workload, target))

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        compute = compute_of(workload)
        last = compute.output.axes[-1].name
        schedule = Schedule(compute).cache_result("y", "tile")
        schedule = schedule.split("y", last, var("row"), "step", "word")
        schedule = schedule.compute_at("tile", "y", "step", "pad").tensorize("tile", last, "map")
        for tensor in compute.inputs:
            schedule = loaded(schedule, tensor.name, "tile", ("y", "step"))
        return schedule.tensorize("y", "word", "store")
