"""The last columns of a product with its operands exchanged.

A pass has 320 columns, whatever it needs of them: [m, k][k, n] with n = 320 q + r takes m vectors
through MXM for its last r columns too, for every 320 of k. Exchanged, the rows of `a` stand in the
planes and the r columns flow past:

    y[:, :320 q]  = a b[:, :320 q]
    rest[j, i]    = sum over k of b[k, 320 q + j] a[i, k]         r vectors for each 320 of m
    y[i, 320 q:]  = rest turned: sum over i' of identity[i, i'] rest[j, i']

which is exact where nothing follows the product's rounding: turning a rounded number changes
nothing. What is left over of m costs instead, and r of 320 columns cost r vectors.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.families.lpu.schedules.building_blocks.common import identity, picking_stage
from tilesmith.families.lpu.schedules.building_blocks.machine import LANES
from tilesmith.search_space.expressions.expression import Expr, as_expr, const
from tilesmith.search_space.expressions.scalar import Load, Scalar, load, loads, rewrite
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, axis
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.workloads.workload import Workload

HELD, FLOWS, REST, BACK = "rest.weights", "rest.rows", "rest", "rest.turned"
"""Stages: rows of `a` that planes are loaded from and columns of `b` that flow past, each where a
chain can have it beside the other product's; the product exchanged; the same turned back."""

INSTALL = 40
"""Vectors that a load and an install of weights take the time of, about."""


def remainder(workload: Workload) -> int:
    """Columns that are no whole tile, where they may be exchanged; else 0."""
    n, m = workload.integer("n"), workload.integer("m")
    plain = not workload.epilogue and workload.integer("batch") == 1
    if workload.dtype != "float16" or not plain or n < LANES or m < LANES:
        return 0
    return n % LANES


def shorter(workload: Workload) -> bool:
    """Whether the exchanged product takes fewer vectors through MXM."""
    m, rest = workload.integer("m"), remainder(workload)
    deep = -(-workload.integer("k") // LANES)
    return rest > 0 and deep * -(-m // LANES) * max(rest, INSTALL) + m < deep * m


def exchanged(compute: ComputeDefinition, workload: Workload, width: int) -> ComputeDefinition:
    """A product `c` and its `result`, the last columns of which are computed exchanged.

    `c` reads both its operands with k last; turning goes over `width` lanes of a vector.
    """
    *before, product, result = compute.stages
    rest, n = remainder(workload), workload.integer("n")
    (i, j), (k,) = product.axes, product.reduce_axes
    a, b = (
        next(f.buffer for f in loads(product.value) if name in f.indices[0].variables())
        for name in (i.name, j.name)
    )
    r, kk, rk = axis("rest.r", i.extent), axis("rest.k", k.extent), axis("rows.k", k.extent)
    held = Stage(HELD, (r, kk), load(a, r.var, kk.var), dtype=workload.dtype)
    jf, jr, ir, jt, it = (
        axis(name, extent)
        for name, extent in (
            ("rows.j", rest), ("rest.j", rest), ("rest.i", i.extent),
            ("back.j", rest), ("back.i", i.extent),
        )
    )  # fmt: skip
    source = next((stage for stage in before if stage.name == b and stage.reducer), None)
    if source is None:
        flows = Stage(FLOWS, (jf, rk), load(b, jf.var + (n - rest), rk.var), dtype=workload.dtype)
    else:
        own, flows = _parted(source, n - rest, (jf, rk))
        before = [own if stage is source else stage for stage in before]
    there: dict[str, Expr] = {i.name: ir.var, j.name: jr.var}
    names = {a: HELD, b: FLOWS}

    def access(load: Load) -> Scalar:
        return Load(names[load.buffer], load.indices)

    value = rewrite(product.value, lambda index: index.substitute(there), access)
    swapped = replace(product, name=REST, axes=(jr, ir), value=value, dtype=result.dtype)
    mirror = identity("rest.identity", workload.dtype, LANES)
    back = picking_stage(
        workload, BACK, (it, jt), it, lambda lane: load(REST, jt.var, lane), mirror, width
    )
    back = replace(
        back, dtype=result.dtype, store=(it.var, jt.var + (n - rest)),
        shape=result.tensor_shape, into=result.name,
    )  # fmt: skip
    whole = replace(j, extent=as_expr(n - rest))
    product = replace(product, axes=(i, whole))
    result = replace(
        result, axes=(result.axes[0], replace(result.axes[1], extent=whole.extent)),
        store=result.indices, shape=result.tensor_shape,
    )  # fmt: skip
    stages = (*before, held, flows, mirror, swapped, back, product, result)
    return replace(compute, stages=stages)


def _parted(turned: Stage, first: int, axes: tuple[Axis, Axis]) -> tuple[Stage, Stage]:
    """A turned matrix up to row `first`, a multiple of `LANES`, and what is below it."""
    (j, k), (jj,) = turned.axes, turned.reduce_axes
    below: dict[str, Expr] = {j.name: axes[0].var + first, k.name: axes[1].var}
    value = rewrite(turned.value, lambda index: index.substitute(below))
    last = replace(jj, extent=jj.extent.substitute(below))
    rest = replace(turned, name=FLOWS, axes=axes, value=value, reduce_axes=(last,))
    return replace(turned, axes=(replace(j, extent=const(first)), k)), rest


def with_exchanged(schedule: Schedule, series: int, width: int) -> Schedule:
    """How the stages that `exchanged` made are made."""
    (k,) = schedule.compute.stage(REST).reduce_axes
    compute = schedule.compute
    if not compute.is_constant(HELD):
        schedule = schedule.set_scope(HELD, "mem")
    if compute.stage(FLOWS).reducer:
        schedule = schedule.split(FLOWS, "rows.k", LANES, "rows.ko", "rows.ki")
        schedule = schedule.split(FLOWS, "rows.j", width, "rows.jo", "rows.ji")
        jj = compute.stage(FLOWS).reduce_axes[0].name
        schedule = schedule.reorder(FLOWS, ("rows.jo", "rows.ko", "rows.ji", "rows.ki", jj))
        schedule = schedule.cache_write(FLOWS, "sums", "rows.ko")
    elif not compute.is_constant(FLOWS):
        schedule = schedule.set_scope(FLOWS, "mem")
    schedule = schedule.split(REST, "rest.i", LANES, "rest.io", "rest.ii")
    schedule = schedule.split(REST, k.name, LANES, "rest.ko", "rest.ki")
    schedule = schedule.reorder(REST, ("rest.io", "rest.ko", "rest.j", "rest.ii", "rest.ki"))
    schedule = schedule.pipeline(REST, "rest.ko", series).cache_write(REST, "sums", "rest.io")
    schedule = schedule.split(BACK, "back.i", width, "back.io", "back.in")
    schedule = schedule.reorder(BACK, ("back.io", "back.in", "back.j", f"{BACK}.jj"))
    return schedule.cache_write(BACK, "sums", "back.io")
