"""Fused attention on CPUs whose products add up neighbours in one instruction: narrow operands.

The order of `attention_schedule` with turned keys, but that keys and values are copied in groups of
P neighbours (`dot_products`), and powers are stored narrow:

    kt[j/panel, k/P, j%panel, k%P]    keys; their scale multiplies scores instead
    p[i, j]                           of the operands' type, read in groups
    vt[e/panel, j/P, e%panel, j%P]    values
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.scalar import Load, Scalar, call, rewrite
from tilesmith.search_space.operators.attention import Attention
from tilesmith.search_space.schedules.cpu.vectorisation.dot_products import grouped
from tilesmith.search_space.schedules.cpu.vectorisation.stages import stored
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.workloads.workload import Workload


def in_pairs(workload: Workload) -> ComputeDefinition:
    """The stages of an attention, scaled where scores are read, keys and powers narrow."""
    compute = stored(Attention().compute(workload), workload)
    scale = Attention.scale(workload)

    def scaled(load: Load) -> Scalar:
        return call("multiply", load, scale) if load.buffer == "s" else load

    def plain(stage: Stage) -> Stage:
        if stage.name == "kt":
            return replace(
                stage, value=Load("k", tuple(a.var for a in stage.axes)), dtype=workload.dtype
            )
        if stage.name == "z":
            return replace(stage, value=rewrite(stage.value, lambda index: index, scaled))
        return replace(stage, dtype=workload.dtype) if stage.name == "p" else stage

    return replace(compute, stages=tuple(map(plain, compute.stages)))


def products(s: Schedule, stage: str, axis: str, count: int) -> Schedule:
    """Split a reduction into groups; `axis` counts them from now on."""
    return s.split(stage, axis, count, axis, f"{axis}p")


def packed(
    s: Schedule, name: str, reader: str, vectors: str, lanes: int, count: int, every: bool
) -> Schedule:
    """A copy of keys (kt) or values (vt) in groups, once a head or all heads before."""
    column, row = ("j", "k") if name == "kt" else (f"{name}.3", f"{name}.2")
    axes = (2, 3) if name == "kt" else (3, 2)
    panel = var(vectors) * lanes
    s = s.set_layout(name, grouped(4, *axes, panel, count))
    if not every:
        s = s.compute_at(name, "o", "h")
    s = s.split(name, column, lanes, "pv", "pl").split(name, "pv", var(vectors), "pt", "pi")
    s = s.split(name, row, count, "pk", "pp")
    lead = ("b", "h") if name == "kt" else (f"{name}.0", f"{name}.1")
    s = s.reorder(name, (*lead, "pt", "pk", "pi", "pp", "pl")).vectorize(name, "pl")
    s = s.unroll(name, "pp").tensorize(name, "pp", "interleave")
    return s.parallel(name, *lead, "pt") if every else s
