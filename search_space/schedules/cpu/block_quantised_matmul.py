"""Products with block-quantised weights on CPUs: weights stream by once, in panels.

Lanes are columns. A panel of `n_vectors` vectors of columns holds, block after block of k, words
of its columns side by side, so that a thread reads codes and scales of its panels in the order in
which they lie in memory. A block's products are added up in registers and go, scaled, into the tile
of `m_tile` rows:

    [a in blocks, quantised]                       once for all columns
    for panels of columns:                         in parallel
      for tiles of rows:
        c = 0
        for blocks of k:
          s = products of a block                  registers: unpacked weights serve all rows
          c += s * scale
        epilogue(c)
"""

from __future__ import annotations

from tilesmith.search_space.instruction_set import vector_width
from tilesmith.search_space.ir.expression import var
from tilesmith.search_space.operators.block_quantised_matmul import WORD, BlockQuantisedMatmul
from tilesmith.search_space.scheduler import schedules
from tilesmith.search_space.schedules.cpu.element_types import CpuScheduler
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import register_limit, tile, unrolled_limit
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.target import Target
from tilesmith.search_space.workload import Workload

ROWS = 8
"""Most rows of a tile."""
VECTORS = 4
"""Most vectors of a panel."""


@schedules("block_quantised_matmul", on="cpu")
class CpuBlockQuantisedMatmul(CpuScheduler):
    """See the module's docstring."""

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        m, n = workload.integer("m"), workload.integer("n")
        vectors = -(-n // vector_width(target))
        words = BlockQuantisedMatmul.block_bytes(workload) // WORD
        rows, columns, unroll = var("m_tile"), var("n_vectors"), var("g_unroll")
        knobs = (
            tile("m_tile", range(1, min(m, ROWS) + 1)),
            tile("n_vectors", range(1, min(vectors, VECTORS) + 1)),
            tile("g_unroll", [u for u in (1, 2, 4, 8) if u <= words]),
        )
        per_word = WORD * 8 // workload.integer("bits")
        limits = (
            register_limit(
                2 * rows * columns,
                columns,
                target.integer("vector.registers"),
                "2*m_tile*n_vectors + n_vectors + 1",
            ),
            unrolled_limit(
                rows * columns * unroll * per_word, f"{per_word}*m_tile*n_vectors*g_unroll"
            ),
        )
        return SearchSpace((Subspace((("algorithm", "lanes"),), knobs, limits),))

    def default(self, workload: Workload, target: Target) -> Config:
        """As many rows as the registers hold beside two vectors of columns."""
        m, n = workload.integer("m"), workload.integer("n")
        columns = min(2, -(-n // vector_width(target)))
        held = target.integer("vector.registers") - columns - 1
        return Config.of(
            algorithm="lanes",
            m_tile=max(1, min(m, 4, held // (2 * columns))),
            n_vectors=columns,
            g_unroll=1,
        )

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        lanes = vector_width(target)
        schedule = Schedule(BlockQuantisedMatmul().compute(workload))
        schedule = self._activations(workload, schedule, lanes)
        schedule = self._weights(workload, schedule, lanes)
        schedule = self._products(schedule, lanes)
        schedule = schedule.split("c", "i", var("m_tile"), "it", "ii")
        schedule = schedule.split("c", "j", lanes, "jv", "lane")
        schedule = schedule.split("c", "jv", var("n_vectors"), "jt", "ji")
        schedule = schedule.reorder("c", ("jt", "it", "B", "ii", "ji", "lane"))
        schedule = schedule.unroll("c", "ii", "ji").vectorize("c", "lane")
        schedule = schedule.cache_write("c", "register", "it")
        if workload.epilogue:
            schedule = schedule.reverse_compute_at("out", "c", "it")
        return schedule.parallel("c", "jt")

    def _activations(self, workload: Workload, s: Schedule, lanes: int) -> Schedule:
        """Blocks of a row, in vectors; quantised, one block after the other."""
        if workload.integer("k") % workload.integer("block") == 0:
            s = s.inline("x")
        else:
            s = s.split("x", "t", lanes, "tv", "lane").vectorize("x", "lane").parallel("x", "i")
        if workload.text("activations") != "int8":
            return s
        for name in ("top", "inverse", "unit", "u", "part"):
            s = s.parallel(name, "i", "B")
        return s

    def _weights(self, workload: Workload, s: Schedule, lanes: int) -> Schedule:
        """Words, scales and zero points in panels: [panel, block, word, column]."""
        panel = var("n_vectors") * lanes
        outer, inner = (LayoutDimension(0, part, panel) for part in ("outer", "inner"))
        s = s.set_layout("w", Layout((outer, LayoutDimension(1), LayoutDimension(2), inner)))
        names = ["w"]
        constant = workload.is_constant("q")
        if constant:
            s = s.compile_time("w")
        for name in ("scale", "zero") if workload.integer("zeros") else ("scale",):
            if not workload.is_constant(name):
                continue
            copy = f"{name}.packed"
            s = s.cache_read(name, "c" if name == "scale" or self._late(workload) else "s", copy)
            s = s.set_layout(copy, Layout((outer, LayoutDimension(1), inner))).compile_time(copy)
            names.append(copy)
        return s if constant else s.parallel("w", "j")

    @staticmethod
    def _late(workload: Workload) -> bool:
        """Whether zero points are taken away from the sum of a block."""
        return workload.text("activations") == "int8"

    def _products(self, s: Schedule, lanes: int) -> Schedule:
        """The products of a block, weights unpacked once for all rows of the tile."""
        s = s.compute_at("s", "c", "B", scope="register")
        s = s.split("s", "g", var("g_unroll"), "go", "gi")
        s = s.split("s", "j", lanes, "jv", "lane")
        s = s.reorder("s", ("B", "go", "gi", "s", "jv", "i", "lane"))
        return s.unroll("s", "gi", "s", "jv", "i").vectorize("s", "lane")
