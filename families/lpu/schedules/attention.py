"""Attention on LPU-like machines: scores with keys in the planes, results with powers in them.

    z[q, j]   = scale * sum over k of q[q, k] * k[j, k] + mask        queries flow past keys
    top[q]    = max over j of z[q, j]                                 SXM, sixteen rows at a time
    p[q, j]   = exp(z[q, j] - top[q])                                 float16, 1 at most
    o[e, q]   = sum over j of vt[e, j] * p[q, j]                      values flow past powers
    y[q, e]   = o[e, q] / o[v, q], turned

A pass has 320 columns, and a head's values are some 64: queries as columns fill it, and as many
vectors flow past as a head has values, not as there are queries. One row of `vt` more, of ones,
gives the sums of powers on the way. Values are turned before and results behind, for all heads
together where they lie beside each other (`packed_attention`), where heads are lanes of the same
rows and nothing else moves. Heads go a few at a time, so that one's softmax runs beside others'
products.
"""

from dataclasses import dataclass, replace

from tilesmith.families.lpu.schedules.building_blocks.common import (
    LpuScheduler,
    identity,
    lanes_a_cycle,
    picking_stage,
    prepared,
)
from tilesmith.families.lpu.schedules.building_blocks.machine import LANES
from tilesmith.search_space.expressions.expression import Expr, as_expr, const, var
from tilesmith.search_space.expressions.scalar import Const, Load, Scalar, call, load
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.attention_masks import MASKS
from tilesmith.search_space.operator_parts.integer_products import product_stage
from tilesmith.search_space.operators.attention import Attention, greatest, guarded, selects
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

FEWEST_QUERIES = 16
"""Queries below which attention is left to be products and a softmax: turning values would take
longer than it saves."""

ENOUGH_ROWS = 256
"""Rows of scores that the default takes at a time, about."""


@dataclass(frozen=True)
class AttentionOnRows:
    """Space and schedule of one attention; see the module's docstring."""

    workload: Workload
    target: Target

    def size(self, name: str) -> int:
        return self.workload.integer(name)

    @property
    def packed(self) -> bool:
        return self.workload.operator == "packed_attention"

    @property
    def width(self) -> int:
        """Features of a value."""
        return Attention.width(self.workload)

    def space(self) -> SearchSpace:
        heads = self.size("heads")
        most = [count for count in range(1, heads + 1) if heads % count == 0]
        return SearchSpace((Subspace((("algorithm", "columns"),), (tile("heads", most),)),))

    def default(self) -> Config:
        heads, rows = self.size("heads"), self.size("m")
        options = [count for count in range(1, heads + 1) if heads % count == 0]
        enough = next((n for n in options if n * rows >= ENOUGH_ROWS), heads)
        return Config.of(algorithm="columns", heads=enough)

    # -- stages -------------------------------------------------------------------------------
    def compute(self) -> ComputeDefinition:
        """See the module's docstring; `os`, `t` and `ot` are sums, their reciprocals and the
        results before they are turned."""
        workload, width, dtype = self.workload, self.width, self.workload.dtype
        b, h, i, j, k = (
            axis(name, self.size(size))
            for name, size in zip("bhijk", ("batch", "heads", "m", "n", "k"), strict=True)
        )
        e, more, lane = axis("e", width), axis("e", width + 1), axis("top.l", LANES)

        def at(name: str, *axes: Axis) -> Load:
            return load(name, b.var, h.var, *(a.var for a in axes))

        score = call("multiply", at("s", i, j), Attention.scale(workload))
        kind = workload.text("mask")
        if kind != "none":
            where = {"b": b.var, "h": h.var, "m": i.var, "n": j.var}
            score = call("add", score, Load("mask", tuple(where[name] for name in MASKS[kind])))
        top = load("top", b.var, h.var, i.var, j.var % LANES)
        power = call("exp", call("subtract", at("z", i, j), greatest(workload, top)))
        total = load("os", b.var, h.var, const(width), i.var)
        stages = (
            product_stage(
                workload, "s", (b, h, i, j), self._row("q", b, h, i, k), self._row("k", b, h, j, k),
                (k,),
            ),
            Stage("z", (b, h, i, j), score, dtype=dtype),
            Stage("top", (b, h, i, lane), at("z", i, j), (j,), "max", dtype=dtype),
            Stage("p", (b, h, i, j), power, dtype=dtype),
            *self._values(),
            product_stage(workload, "o", (b, h, more, i), at("vt", more, j), at("p", i, j), (j,)),
            Stage("os", (b, h, more, i), at("o", more, i)),
            Stage("t", (b, h, i), call("reciprocal", total)),
            self._mixed(b, h, e, i),
            *self._results(),
        )  # fmt: skip
        operands = template_of(workload.operator).inputs(workload)
        tensors = (Tensor(o.name, o.shape, o.dtype, workload.is_constant(o.name)) for o in operands)
        return ComputeDefinition(workload.operator, tuple(tensors), stages)

    def _row(self, name: str, b: Axis, h: Axis, row: Axis, lane: Axis) -> Load:
        """An element of a head of an operand."""
        if not self.packed:
            return load(name, b.var, h.var, row.var, lane.var)
        return load(name, b.var, row.var, h.var * as_expr(lane.extent) + lane.var)

    def _mixed(self, b: Axis, h: Axis, e: Axis, i: Axis) -> Stage:
        """Results before they are turned; rows of packed heads stand behind each other."""
        ratio = load("t", b.var, h.var, i.var)
        product = call("multiply", load("os", b.var, h.var, e.var, i.var), ratio)
        value = guarded(self.workload, ratio, product)
        stage = Stage("ot", (b, h, e, i), value, dtype=self.workload.dtype)
        if not self.packed:
            return stage
        sizes = (self.size("batch"), self.size("heads") * self.width, self.size("m"))
        store = (b.var, h.var * self.width + e.var, i.var)
        return replace(stage, store=store, shape=tuple(map(as_expr, sizes)))

    def _values(self) -> tuple[Stage, ...]:
        """Values turned, and a row of ones for each head."""
        width, heads, keys = self.width, self.size("heads"), self.size("n")
        b, h, j, one = (
            axis(f"vt.{name}", extent)
            for name, extent in (("b", self.size("batch")), ("h", heads), ("j", keys), ("one", 1))
        )
        shape = tuple(map(as_expr, (self.size("batch"), heads, width + 1, keys)))
        ones = Stage(
            "vt", (b, h, one, j), Const(1.0), dtype=self.workload.dtype,
            store=(b.var, h.var, one.var + width, j.var), shape=shape,
        )  # fmt: skip
        columns = heads * width if self.packed else width
        c, lanes = axis("vt.c", columns), lanes_a_cycle(self.workload, self.target)
        mirror = identity("vt.identity", self.workload.dtype, min(columns, LANES))
        if self.packed:
            axes: tuple[Axis, ...] = (b, c, j)
            store: tuple[Expr, ...] = (b.var, c.var // width, c.var % width, j.var)
        else:
            axes = (b, h, c, j)
            store = (b.var, h.var, c.var, j.var)

        def source(at: Expr) -> Scalar:
            return load("v", b.var, *(() if self.packed else (h.var,)), j.var, at)

        turned = picking_stage(self.workload, "vt.part", axes, c, source, mirror, lanes)
        turned = replace(turned, dtype=self.workload.dtype, store=store, shape=shape, into="vt")
        return mirror, turned, ones

    def _results(self) -> tuple[Stage, ...]:
        """Results turned back."""
        width, heads, rows = self.width, self.size("heads"), self.size("m")
        b, h, i = axis("y.b", self.size("batch")), axis("y.h", heads), axis("y.i", rows)
        c, lanes = (
            axis("y.c", heads * width if self.packed else width),
            lanes_a_cycle(self.workload, self.target),
        )
        mirror = identity("y.identity", self.workload.dtype, min(rows, LANES))
        axes = (b, i, c) if self.packed else (b, h, i, c)

        def source(at: Expr) -> Scalar:
            return load("ot", b.var, *(() if self.packed else (h.var,)), c.var, at)

        turned = picking_stage(self.workload, "y", axes, i, source, mirror, lanes)
        return mirror, replace(turned, dtype=self.workload.dtype)

    # -- schedule -----------------------------------------------------------------------------
    def schedule(self, structure: Config) -> Schedule:
        """See the module's docstring; `heads` stays a symbol."""
        schedule = prepared(Schedule(self.compute()))
        lanes = lanes_a_cycle(self.workload, self.target)
        over = ("vt.b",) if self.packed else ("vt.b", "vt.h")
        schedule = self._turning(schedule, "vt.part", over, ("vt.c", "vt.j"), lanes)
        schedule = schedule.set_scope("vt", "mem")
        schedule = schedule.split("ot", "h", var("heads"), "ho", "hi").unroll("ot", "b", "ho")
        for name, scope in (("z", "mem"), ("top", "stream"), ("p", "mem"), ("os", "mem")):
            schedule = schedule.compute_at(name, "ot", "ho", scope)
        schedule = schedule.compute_at("t", "ot", "ho", "mem")
        schedule = schedule.reorder("top", ("j", "b", "h", "i", "top.l"))
        schedule = self._product(schedule, "s", "z", ("i", "j"), "k")
        schedule = self._product(schedule, "o", "os", ("e", "i"), "j")
        over = ("y.b",) if self.packed else ("y.b", "y.h")
        return self._turning(schedule, "y", over, ("y.i", "y.c"), lanes)

    @staticmethod
    def _product(
        schedule: Schedule, name: str, result: str, axes: tuple[str, str], depth: str
    ) -> Schedule:
        """A product as passes, whose sums go into a result's rows."""
        rows, columns = axes
        schedule = schedule.split(result, columns, LANES, f"{result}.co", f"{result}.ci")
        schedule = schedule.reorder(result, ("b", "h", f"{result}.co", rows, f"{result}.ci"))
        schedule = schedule.unroll(result, "b", "h", f"{result}.co")
        schedule = schedule.compute_at(name, result, f"{result}.co", "sums")
        schedule = schedule.split(name, depth, LANES, f"{name}.ko", f"{name}.ki")
        loops = ("b", "h", f"{name}.ko", rows, columns, f"{name}.ki")
        return schedule.reorder(name, loops).pipeline(name, f"{name}.ko", 2)

    @staticmethod
    def _turning(
        schedule: Schedule, name: str, over: tuple[str, ...], axes: tuple[str, str], lanes: int
    ) -> Schedule:
        """A product with the identity."""
        picked, columns = axes
        schedule = schedule.split(name, picked, lanes, f"{name}.po", f"{name}.pi")
        schedule = schedule.split(name, columns, LANES, f"{name}.co", f"{name}.ci")
        order = (f"{name}.po", f"{name}.co", f"{name}.pi", f"{name}.ci", f"{name}.jj")
        schedule = schedule.reorder(name, (*over, *order)).unroll(name, *over)
        return schedule.cache_write(name, "sums", f"{name}.co")


@schedules("attention", "packed_attention", on="lpu")
class AttentionOnLpu(LpuScheduler):
    """See the module's docstring."""

    dtypes = ("float16",)

    def refusal(self, workload: Workload, target: Target) -> str | None:
        if workload.integer("m") < FEWEST_QUERIES:
            return (
                f"attention of fewer than {FEWEST_QUERIES} queries is products and a softmax on "
                f"target '{target.name}'"
            )
        if selects(workload):
            return f"masks of attention are added, they do not select, on target '{target.name}'"
        return super().refusal(workload, target)

    def prepare(self, workload: Workload, target: Target) -> AttentionOnRows:
        return AttentionOnRows(workload, target)
