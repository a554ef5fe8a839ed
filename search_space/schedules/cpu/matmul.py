"""Matrix products on CPUs: Goto's schedule.

The schedule is the one of Goto and van de Geijn ("Anatomy of High-Performance Matrix
Multiplication", 2008) with every size a knob: an m_tile x (n_vectors vectors) accumulator tile in
registers, `b` packed into panels as wide as the tile, cache blocks and their loop order around it.

Algorithms: `blocked` multiplies element by element; `dot` takes the reduction in groups of
neighbours, which one instruction multiplies and adds up (`dot_products`), and has `b` packed so.
"""

from collections.abc import Mapping

from tilesmith.search_space.expressions.dtypes import is_floating, is_narrow, widened
from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.algorithms import matmul_tiles
from tilesmith.search_space.schedules.cpu.vectorisation.dot_products import (
    MANY,
    group_of,
    grouped,
    prefers_dot,
)
from tilesmith.search_space.schedules.cpu.vectorisation.element_types import CpuScheduler
from tilesmith.search_space.schedules.cpu.vectorisation.stages import has_result, summed_of
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import (
    block_counts,
    choice,
    order,
    register_limit,
    tile,
    unrolled_limit,
)
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import Panels, schedules
from tilesmith.search_space.workloads.template import Operand, template_of
from tilesmith.search_space.workloads.workload import Workload

FEW_ROWS = 8
"""Rows of a below which matrix registers, which are mostly empty then, are not the first choice."""


@schedules("matmul", on="cpu")
class BlockedMatmul(CpuScheduler):
    """See the module's docstring."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        products = _products(workload, target)
        subspaces = [_subspace(workload, target, products)]
        if matmul_tiles.applies(workload, target):
            subspaces.insert(0, matmul_tiles.subspace(workload, target))
        packs = not workload.is_constant("b")  # which may cost more than it saves
        if products > 1 and (packs or is_floating(workload.dtype)):
            subspaces.append(_subspace(workload, target, 1))
        return SearchSpace(tuple(subspaces))

    def default(self, workload: Workload, target: Target) -> Config:
        if matmul_tiles.applies(workload, target) and workload.integer("m") >= FEW_ROWS:
            return matmul_tiles.default(workload, target)
        return _default(workload, target, _first(workload, target))

    def canonical(self, workload: Workload, target: Target) -> Config:
        """Return a default that does not depend on the number of rows, which may be a batch."""
        if matmul_tiles.applies(workload, target):
            return matmul_tiles.default(workload, target)
        return _default(workload, target.uncalibrated, _products(workload, target))

    def panels(self, workload: Workload, target: Target, config: Config) -> Mapping[str, Panels]:
        """`b`, as `_pack` and `matmul_tiles` have it."""
        if len(_b(workload).shape) != 2 or not workload.is_constant("b"):
            return {}
        axis = 0 if workload.integer("tb") else 1
        if config.text("algorithm") == matmul_tiles.ALGORITHM:
            return {"b": matmul_tiles.panels(workload, target, config, axis)}
        if config.text("pack_b") != "panels":
            return {}
        width = config.integer("n_vectors") * vector_width(target)
        dot = config.text("algorithm") == _ALGORITHM[True]
        group = _products(workload, target) if dot else 1
        return {"b": Panels(axis, width, "b.packed", group, group)}

    def varying(
        self, workload: Workload, usual: Workload, largest: Workload, target: Target, config: Config
    ) -> Config:
        """Blocks of everything are of everything at the largest sizes, too; a reduction whose end
        varies has no groups."""
        if config.text("algorithm") == matmul_tiles.ALGORITHM:
            config = _default(usual, target, _first(usual, target))
        if config.text("algorithm") == "dot" and isinstance(workload["k"], str):
            config = _default(usual, target, 1)
        products = _products(usual, target) if config.text("algorithm") == "dot" else 1
        knobs = dict(config.items())
        for axis, tile_size, group in (("m", "m_tile", 1), ("k", "k_unroll", products)):
            step = config.integer(tile_size) * group
            if config.integer(f"{axis}_block") >= -(-usual.integer(axis) // step):
                knobs[f"{axis}_block"] = -(-largest.integer(axis) // step)
        return Config.of(knobs)

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        if structure.text("algorithm") == matmul_tiles.ALGORITHM:
            return matmul_tiles.schedule(workload, target, structure)
        lanes = vector_width(target)
        schedule = Schedule(summed_of(workload))
        batch = ("b",) if len(schedule.compute.output.axes) > 2 else ()
        products = _products(workload, target) if structure.text("algorithm") == "dot" else 1
        if products == 1:
            schedule = _widened(workload, schedule, lanes)
        if structure.text("pack_b") == "panels":
            schedule = _pack(workload, schedule, lanes, products)
        group = () if products == 1 else ("kp",)
        if group:
            schedule = schedule.split("c", "k", products, "k", "kp")
        for loop, size, block in (
            ("i", var("m_tile"), "m_block"),
            ("k", var("k_unroll"), "k_block"),
        ):
            schedule = schedule.split("c", loop, size, f"{loop}t", f"{loop}i")
            schedule = schedule.split("c", f"{loop}t", var(block), f"{loop}o", f"{loop}m")
        schedule = schedule.split("c", "j", lanes, "jv", "lane")
        schedule = schedule.split("c", "jv", var("n_vectors"), "jt", "ji")
        schedule = schedule.split("c", "jt", var("n_block"), "jo", "jm")
        outer = [
            {"m": "io", "n": "jo", "k": "ko"}[x] for x in structure.text("block_order").split(",")
        ]
        middle = ["im", "jm"] if structure.text("tile_order") == "mn" else ["jm", "im"]
        schedule = schedule.reorder(
            "c", (*batch, *outer, *middle, "km", "ki", "ii", "ji", *group, "lane")
        )
        schedule = schedule.vectorize("c", "lane").unroll("c", "ki", "ii", "ji", *group)
        if group:
            schedule = schedule.tensorize("c", "kp", "dot_product")
        schedule = schedule.cache_write("c", "register", middle[-1])
        if has_result(schedule.compute):
            schedule = schedule.reverse_compute_at("out", "c", middle[-1])
        parallel = [loop for loop in (*batch, *outer) if loop != "ko"]
        if outer[0] != "ko":
            parallel = [*batch, *outer[: outer.index("ko")]]
        return schedule.parallel("c", *(parallel if outer[0] != "ko" else batch))


def _b(workload: Workload) -> Operand:
    return template_of("matmul").inputs(workload)[1]


def _products(workload: Workload, target: Target) -> int:
    """Neighbours of a row of a that are multiplied at once."""
    if workload.integer("ta"):  # neighbours lie apart
        return 1
    a, b = template_of("matmul").inputs(workload)
    return group_of(target, a.dtype, b.dtype)


def _first(workload: Workload, target: Target) -> int:
    """The same of the first choice."""
    a, b = template_of("matmul").inputs(workload)
    rows = min(workload.integer("m"), MANY)
    return _products(workload, target) if prefers_dot(target, a.dtype, b.dtype, rows) else 1


def _subspace(workload: Workload, target: Target, products: int) -> Subspace:
    """The knobs of one algorithm; the reduction is counted in groups of `products`."""
    m, n = (workload.integer(name) for name in "mn")
    groups = -(-workload.integer("k") // products)
    lanes = vector_width(target)
    registers = target.integer("vector.registers")
    vectors = -(-n // lanes)
    packs = ["panels"] if workload.integer("tb") or products > 1 else ["panels", "none"]
    knobs = (
        choice("pack_b", packs),
        order("block_order", ("m", "n", "k"), trivial=("m",) if m == 1 else ()),
        choice("tile_order", ("nm",) if m == 1 else ("mn", "nm")),
        tile("m_tile", range(1, min(m, 16) + 1)),
        tile("n_vectors", range(1, min(vectors, 6) + 1)),
        tile("k_unroll", [u for u in (1, 2, 4, 8, 16) if u <= groups]),
        tile("m_block", block_counts(m)),
        tile("n_block", block_counts(vectors)),
        tile("k_block", block_counts(groups)),
    )
    rows, columns = var("m_tile"), var("n_vectors")
    limit = register_limit(rows * columns, columns, registers, "m_tile*n_vectors + n_vectors + 1")
    code = unrolled_limit(rows * columns * var("k_unroll"), "m_tile*n_vectors*k_unroll")
    return Subspace((("algorithm", _ALGORITHM[products > 1]),), knobs, (limit, code))


_ALGORITHM = {False: "blocked", True: "dot"}


def _default(workload: Workload, target: Target, products: int) -> Config:
    """Two vectors wide, as many rows as the registers hold, whole k, panels packed."""
    m, n = (workload.integer(name) for name in "mn")
    groups = -(-workload.integer("k") // products)
    vectors = -(-n // vector_width(target))
    columns = min(2, vectors)
    rows = min(m, (target.integer("vector.registers") - columns - 1) // columns, 12)
    return Config.of(
        algorithm=_ALGORITHM[products > 1],
        pack_b="panels",
        block_order="m,n,k" if m == 1 else "n,m,k",
        tile_order="nm",
        m_tile=rows,
        n_vectors=columns,
        k_unroll=max(u for u in (1, 2, 4) if u <= groups),
        m_block=block_counts(m)[-1],
        n_block=1,
        k_block=block_counts(groups)[-1],
    )


def _widened(workload: Workload, schedule: Schedule, lanes: int) -> Schedule:
    """a of a narrow type is widened once: its elements are read one by one, and each many times."""
    dtype = schedule.compute.dtype("a")
    if not is_narrow(dtype):
        return schedule
    schedule = schedule.cache_read("a", "c", "a.wide", dtype=widened(dtype))
    *outer, last = (f"a.wide.{axis}" for axis in range(len(schedule.compute.output.axes)))
    schedule = schedule.split("a.wide", last, lanes, "wv", "wl").vectorize("a.wide", "wl")
    return schedule.parallel("a.wide", *outer)


def _pack(workload: Workload, schedule: Schedule, lanes: int, products: int) -> Schedule:
    """b -> b.packed[j/panel, k, j%panel] (batch first), once for constant b; with groups
    b.packed[j/panel, k/products, j%panel, k%products]."""
    rank = len(schedule.compute.output.axes)
    panel = var("n_vectors") * lanes
    row, column = (rank - 1, rank - 2) if workload.integer("tb") else (rank - 2, rank - 1)
    dtype = schedule.compute.dtype("b")
    once = products == 1 and not workload.is_constant("b")  # weights stay as narrow as they are
    schedule = schedule.cache_read("b", "c", "b.packed", dtype=widened(dtype) if once else dtype)
    layout = Layout.blocked(rank, column, panel, [*range(rank - 2), column, row])
    if products > 1:
        layout = grouped(rank, column, row, panel, products)
    schedule = schedule.set_layout("b.packed", layout)
    j, k = f"b.packed.{column}", f"b.packed.{row}"
    schedule = schedule.split("b.packed", j, lanes, "pv", "pl")
    schedule = schedule.split("b.packed", "pv", var("n_vectors"), "pt", "pi")
    inner: tuple[str, ...] = ("pi", "pl")
    if products > 1:
        schedule = schedule.split("b.packed", k, products, "pk", "pp")
        k, inner = "pk", ("pi", "pp", "pl")
    schedule = schedule.reorder("b.packed", ("pt", k, *inner)).vectorize("b.packed", "pl")
    if products > 1:
        schedule = schedule.unroll("b.packed", "pp").tensorize("b.packed", "pp", "interleave")
    if workload.is_constant("b"):
        return schedule.compile_time("b.packed")
    batch = ("b.packed.0",) if rank == 3 else ()
    return schedule.parallel("b.packed", *batch, "pt")
