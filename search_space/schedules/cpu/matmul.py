"""Matrix products on CPUs: Goto's schedule.

The schedule is the one of Goto and van de Geijn ("Anatomy of High-Performance Matrix
Multiplication", 2008) with every size a knob: an m_tile x (n_vectors vectors) accumulator tile in
registers, `b` packed into panels as wide as the tile, cache blocks and their loop order around it.
"""

from __future__ import annotations

from tilesmith.search_space.instruction_set import vector_width
from tilesmith.search_space.ir.expression import Expr, var
from tilesmith.search_space.scheduler import schedules
from tilesmith.search_space.schedules.cpu.element_types import CpuScheduler
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
from tilesmith.search_space.target import Target
from tilesmith.search_space.template import compute_of
from tilesmith.search_space.workload import Workload


@schedules("matmul", on="cpu")
class BlockedMatmul(CpuScheduler):
    """See the module's docstring."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        m, n, k = (workload.integer(name) for name in "mnk")
        lanes = vector_width(target)
        registers = target.integer("vector.registers")
        vectors = -(-n // lanes)
        packs = ["panels"] if workload.integer("tb") else ["panels", "none"]
        knobs = (
            choice("pack_b", packs),
            order("block_order", ("m", "n", "k"), trivial=("m",) if m == 1 else ()),
            choice("tile_order", ("nm",) if m == 1 else ("mn", "nm")),
            tile("m_tile", range(1, min(m, 16) + 1)),
            tile("n_vectors", range(1, min(vectors, 6) + 1)),
            tile("k_unroll", [u for u in (1, 2, 4, 8, 16) if u <= k]),
            tile("m_block", block_counts(m)),
            tile("n_block", block_counts(vectors)),
            tile("k_block", block_counts(k)),
        )
        rows, columns = var("m_tile"), var("n_vectors")
        limit = register_limit(
            rows * columns, columns, registers, "m_tile*n_vectors + n_vectors + 1"
        )
        code = unrolled_limit(rows * columns * var("k_unroll"), "m_tile*n_vectors*k_unroll")
        return SearchSpace((Subspace((("algorithm", "blocked"),), knobs, (limit, code)),))

    def default(self, workload: Workload, target: Target) -> Config:
        """Two vectors wide, as many rows as the registers hold, whole k, panels packed."""
        m, n, k = (workload.integer(name) for name in "mnk")
        vectors = -(-n // vector_width(target))
        columns = min(2, vectors)
        rows = min(m, (target.integer("vector.registers") - columns - 1) // columns, 12)
        return Config.of(
            algorithm="blocked",
            pack_b="panels",
            block_order="m,n,k" if m == 1 else "n,m,k",
            tile_order="nm",
            m_tile=rows,
            n_vectors=columns,
            k_unroll=max(u for u in (1, 2, 4) if u <= k),
            m_block=block_counts(m)[-1],
            n_block=1,
            k_block=block_counts(k)[-1],
        )

    def varying(
        self, workload: Workload, usual: Workload, largest: Workload, target: Target, config: Config
    ) -> Config:
        """Blocks of everything are of everything at the largest sizes, too."""
        found = dict(config.items())
        for axis, tile_size in (("m", "m_tile"), ("k", "k_unroll")):
            tiles = -(-usual.integer(axis) // config.integer(tile_size))
            if config.integer(f"{axis}_block") >= tiles:
                found[f"{axis}_block"] = -(-largest.integer(axis) // config.integer(tile_size))
        return Config.of(found)

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        lanes = vector_width(target)
        schedule = Schedule(compute_of(workload))
        batch = ("b",) if len(schedule.compute.output.axes) > 2 else ()
        panel = var("n_vectors") * lanes
        if structure.text("pack_b") == "panels":
            schedule = self._pack(workload, schedule, panel, lanes)
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
        schedule = schedule.reorder("c", (*batch, *outer, *middle, "km", "ki", "ii", "ji", "lane"))
        schedule = schedule.vectorize("c", "lane").unroll("c", "ki", "ii", "ji")
        schedule = schedule.cache_write("c", "register", middle[-1])
        if workload.epilogue:
            schedule = schedule.reverse_compute_at("out", "c", middle[-1])
        parallel = [loop for loop in (*batch, *outer) if loop != "ko"]
        if outer[0] != "ko":
            parallel = [*batch, *outer[: outer.index("ko")]]
        return schedule.parallel("c", *(parallel if outer[0] != "ko" else batch))

    def _pack(self, workload: Workload, schedule: Schedule, panel: Expr, lanes: int) -> Schedule:
        """b -> b.packed[j/panel, k, j%panel] (batch first), once for constant b."""
        rank = len(schedule.compute.output.axes)
        transposed = bool(workload.integer("tb"))
        column = rank - 2 if transposed else rank - 1
        row = rank - 1 if transposed else rank - 2
        schedule = schedule.cache_read("b", "c", "b.packed")
        schedule = schedule.set_layout(
            "b.packed",
            Layout.blocked(rank, column, panel, [*range(rank - 2), column, row]),
        )
        j, k = f"b.packed.{column}", f"b.packed.{row}"
        schedule = schedule.split("b.packed", j, lanes, "pv", "pl")
        schedule = schedule.split("b.packed", "pv", var("n_vectors"), "pt", "pi")
        schedule = schedule.reorder("b.packed", ("pt", k, "pi", "pl")).vectorize("b.packed", "pl")
        if workload.is_constant("b"):
            return schedule.compile_time("b.packed")
        batch = ("b.packed.0",) if rank == 3 else ()
        return schedule.parallel("b.packed", *batch, "pt")
