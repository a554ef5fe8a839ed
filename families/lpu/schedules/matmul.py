"""Matrix products on LPU-like machines: passes of MXM, partial sums, epilogues on VXM.

    for tiles of 320 columns, of `m_tile` rows (either outside):
      for 320 of k, `series` passes to a chain:  sums[rows, columns] += a[rows, k] * b[columns, k]
      c = epilogue(sums)

One operand flows past, b stands in a plane: 320 x 320 weights for each pass. A float16 pass goes
over its k in two cycles a vector; bytes take one. Chains of other tiles take other planes, so
`m_tile` and the order say what runs beside what; passes in series hand their sums from plane to
plane, and write and read fewer partial sums for it.

What MXM does not want as it is stored, is turned (see `common`).

The last columns may have their operands exchanged (`with_exchanged`). A pass has 320 columns,
whatever it needs of them: [m, k][k, n] with n = 320 q + r takes m vectors through MXM for its last
r columns too, for every 320 of k. Exchanged, the rows of `a` stand in the planes and the r columns
flow past:

    y[:, :320 q]  = a b[:, :320 q]
    rest[j, i]    = sum over k of b[k, 320 q + j] a[i, k]         r vectors for each 320 of m
    y[i, 320 q:]  = rest turned: sum over i' of identity[i, i'] rest[j, i']

which is exact where nothing follows the product's rounding: turning a rounded number changes
nothing. What is left over of m costs instead, and r of 320 columns cost r vectors.
"""

from dataclasses import dataclass, replace

from tilesmith.families.lpu.schedules.building_blocks.common import (
    ProductScheduler,
    identity,
    lanes_a_cycle,
    picking_stage,
    planes,
    prepared,
    result_stage,
    turned,
    with_numbers,
    with_turned,
)
from tilesmith.families.lpu.schedules.building_blocks.machine import LANES
from tilesmith.search_space.expressions.expression import Expr, as_expr, const, var
from tilesmith.search_space.expressions.scalar import Load, Scalar, load, loads, rewrite
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, axis
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import choice, count, tile, tile_sizes
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.template import compute_of
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


ORDERS = ("n,m", "m,n")
"""Which tiles are outside: of columns, so that weights stay, or of rows."""

RESTS = ("columns", "rows")
"""How columns that fill no tile are computed: as columns like others, or exchanged
(`with_exchanged`)."""

SERIES = (1, 2)
"""Passes in one chain."""

SHORTEST = 32
"""Rows of a tile at least, where there are so many: a plane takes about as long to load."""

MOST_TILES = 64
"""Tiles of rows at most: each is a chain with weights to load."""


@dataclass(frozen=True)
class _MatmulSpace:
    """The knobs of a (batched) matrix product, and schedules of them."""

    workload: Workload
    target: Target

    @property
    def m(self) -> int:
        return self.workload.integer("m")

    def space(self) -> SearchSpace:
        deep = -(-self.workload.integer("k") // LANES)
        series = [s for s in SERIES if s == 1 or s <= deep]
        knobs = (
            choice("order", ORDERS),
            choice("rest", RESTS if remainder(self.workload) else RESTS[:1]),
            count("series", series),
            tile("m_tile", self.tiles()),
        )
        return SearchSpace((Subspace((("algorithm", "passes"),), knobs),))

    def tiles(self) -> list[int]:
        """Rows of a tile: all of them in a few equal parts, divisors and powers of two."""
        least = max(min(self.m, SHORTEST), -(-self.m // MOST_TILES))
        parts = {-(-self.m // parts) for parts in (1, 2, 3, 4, 6, 8)}
        return sorted(t for t in {*tile_sizes(self.m, self.m), *parts} if t >= least)

    def default(self) -> Config:
        """Rows in as many tiles as planes that columns and batch leave free; passes in series where
        a plane is left for them."""
        columns = -(-self.workload.integer("n") // LANES) * self.workload.integer("batch")
        parts = max(1, planes(self.workload, self.target) // columns)
        rows = -(-self.m // parts)
        m_tile = min(t for t in self.tiles() if t >= min(rows, self.m))
        deep = -(-self.workload.integer("k") // LANES)
        series = 2 if deep > 1 else 1
        rest = RESTS[shorter(self.workload)]
        return Config.of(algorithm="passes", order="n,m", rest=rest, series=series, m_tile=m_tile)

    # -- schedule -----------------------------------------------------------------------------
    def schedule(self, structure: Config) -> Schedule:
        """See the module's docstring; `m_tile` stays a symbol."""
        compute = with_numbers(result_stage(compute_of(self.workload), self.workload))
        names, width = self._turned(), lanes_a_cycle(self.workload, self.target)
        for name in names:
            compute = turned(compute, name, "c", self.workload, width)
        series, rest = structure.integer("series"), structure.text("rest") == "rows"
        if rest:
            compute = exchanged(compute, self.workload, width)
        schedule = prepared(Schedule(compute))
        for name in names:
            schedule = with_turned(schedule, name, width)
        batch = ("b",) if self.workload.integer("batch") > 1 else ()
        schedule = schedule.split("c", "i", var("m_tile"), "io", "ii")
        schedule = schedule.split("c", "j", LANES, "jo", "ji").split("c", "k", LANES, "ko", "ki")
        outer = ("jo", "io") if structure.text("order") == "n,m" else ("io", "jo")
        schedule = schedule.reorder("c", (*batch, *outer, "ko", "ii", "ji", "ki"))
        schedule = schedule.pipeline("c", "ko", series)
        schedule = schedule.cache_write("c", "sums", outer[-1])
        if rest:
            schedule = with_exchanged(schedule, series, width)
        return schedule.reverse_compute_at(compute.output.name, "c", outer[-1])

    def _turned(self) -> list[str]:
        """Operands that are not stored with k along the lanes."""
        turned = ["a"] if self.workload.integer("ta") else []
        return turned if self.workload.integer("tb") else [*turned, "b"]


@schedules("matmul", on="lpu")
class LpuMatmul(ProductScheduler):
    """See the module's docstring."""

    def prepare(self, workload: Workload, target: Target) -> _MatmulSpace:
        return _MatmulSpace(workload, target)
