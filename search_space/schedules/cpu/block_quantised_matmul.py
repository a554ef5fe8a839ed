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

from collections.abc import Mapping

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operators.block_quantised_matmul import WORD, BlockQuantisedMatmul
from tilesmith.search_space.schedules.cpu.vectorisation.dot_products import group_of
from tilesmith.search_space.schedules.cpu.vectorisation.element_types import CpuScheduler
from tilesmith.search_space.schedules.cpu.vectorisation.row_reduction import (
    accumulator_counts,
    reduce_row,
)
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import register_limit, tile, unrolled_limit
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import Panels, schedules
from tilesmith.search_space.workloads.workload import Workload

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
        products = _products(workload, target)
        words = BlockQuantisedMatmul.block_bytes(workload) // (products if products > 1 else WORD)
        rows, columns, unroll = var("m_tile"), var("n_vectors"), var("g_unroll")
        knobs = (
            tile("m_tile", range(1, min(m, ROWS) + 1)),
            tile("n_vectors", range(1, min(vectors, VECTORS) + 1)),
            tile("g_unroll", [u for u in (1, 2, 4, 8) if u <= words]),
        )
        steps = _steps(workload, products)
        limits = (
            register_limit(
                2 * rows * columns,
                columns,
                target.integer("vector.registers"),
                "2*m_tile*n_vectors + n_vectors + 1",
            ),
            unrolled_limit(rows * columns * unroll * steps, f"{steps}*m_tile*n_vectors*g_unroll"),
        )
        return SearchSpace((Subspace((("algorithm", _ALGORITHM[products > 1]),), knobs, limits),))

    def default(self, workload: Workload, target: Target) -> Config:
        """As many rows as the registers hold beside two vectors of columns; four of these where
        there is one row."""
        m, n = workload.integer("m"), workload.integer("n")
        products = _products(workload, target)
        columns = min(VECTORS if m == 1 else 2, -(-n // vector_width(target)))
        held = (target.integer("vector.registers") - columns - 1) // (2 * columns)
        rows = max(1, min(m, 4, held))
        words = BlockQuantisedMatmul.block_bytes(workload) // (products if products > 1 else WORD)
        most = 128 // (rows * columns * _steps(workload, products))
        return Config.of(
            algorithm=_ALGORITHM[products > 1],
            m_tile=rows,
            n_vectors=columns,
            g_unroll=max(u for u in (1, 2, 4, 8) if u == 1 or u <= min(most, words)),
        )

    def panels(self, workload: Workload, target: Target, config: Config) -> Mapping[str, Panels]:
        """Codes of a byte, four neighbours of a row in each word."""
        if workload.integer("bits") != 8 or not workload.is_constant("q"):
            return {}
        width = config.integer("n_vectors") * vector_width(target)
        return {"q": Panels(0, width, "w", WORD, workload.integer("block"))}

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        lanes = vector_width(target)
        products = _products(workload, target) if structure.text("algorithm") == "dot" else 1
        schedule = Schedule(BlockQuantisedMatmul().compute(workload, products))
        schedule = _activations(workload, schedule, lanes)
        schedule = _weights(workload, schedule, lanes, products)
        schedule = _block(schedule, lanes, products)
        schedule = schedule.split("c", "i", var("m_tile"), "it", "ii")
        schedule = schedule.split("c", "j", lanes, "jv", "lane")
        schedule = schedule.split("c", "jv", var("n_vectors"), "jt", "ji")
        schedule = schedule.reorder("c", ("jt", "it", "B", "ii", "ji", "lane"))
        schedule = schedule.unroll("c", "ii", "ji").vectorize("c", "lane")
        schedule = schedule.cache_write("c", "register", "it")
        if workload.epilogue:
            schedule = schedule.reverse_compute_at("out", "c", "it")
        return schedule.parallel("c", "jt")


_ALGORITHM = {False: "lanes", True: "dot"}


def _products(workload: Workload, target: Target) -> int:
    """Neighbours of a row that are multiplied at once, codes by codes."""
    whole = workload.text("activations") == "int8"
    return group_of(target, "int8", "uint8") if whole else 1


def _steps(workload: Workload, products: int) -> int:
    """Instructions that multiply what is in a word."""
    return (WORD if products == 1 else 1) * 8 // workload.integer("bits")


def _activations(workload: Workload, s: Schedule, lanes: int) -> Schedule:
    """Blocks of a row, in vectors; quantised, one block after the other."""
    if workload.integer("k") % workload.integer("block") == 0:
        s = s.inline("x")
    else:
        s = s.split("x", "t", lanes, "tv", "lane").vectorize("x", "lane").parallel("x", "i", "B")
    if workload.text("activations") != "int8":
        return s
    vectors = accumulator_counts(workload.integer("block"), lanes, 4)[-1]
    for name in ("top", "part"):
        s = reduce_row(s, name, "t", vectors, lanes, (name, "B")).parallel(name, "i", "B")
    s = s.inline("inverse").parallel("unit", "i", "B")
    return s.split("u", "t", lanes, "tv", "lane").vectorize("u", "lane").parallel("u", "i", "B")


def _weights(workload: Workload, s: Schedule, lanes: int, products: int) -> Schedule:
    """Words, scales and zero points in panels: [panel, block, word, column]."""
    panel = var("n_vectors") * lanes
    outer, inner = (LayoutDimension(0, part, panel) for part in ("outer", "inner"))
    bytes_ = (LayoutDimension(3),) if products > 1 else ()
    layout = Layout((outer, LayoutDimension(1), LayoutDimension(2), inner, *bytes_))
    s = s.set_layout("w", layout).split("w", "j", panel, "jt", "ji")
    s = s.reorder("w", ("jt", "B", "g", "ji"))
    s = s.unroll("w", "p") if products > 1 else s
    s = s.compile_time("w") if workload.is_constant("q") else s.parallel("w", "jt")
    for name in ("scale", "zero") if workload.integer("zeros") else ("scale",):
        if workload.is_constant(name):
            early = name == "zero" and workload.text("activations") == "float32"
            s = s.cache_read(name, "s" if early else "c", f"{name}.packed")
            s = s.set_layout(f"{name}.packed", Layout((outer, LayoutDimension(1), inner)))
            s = s.compile_time(f"{name}.packed")
    return s


def _block(s: Schedule, lanes: int, products: int) -> Schedule:
    """The products of a block, weights unpacked once for all rows of the tile."""
    s = s.compute_at("s", "c", "B", scope="register")
    s = s.split("s", "g", var("g_unroll"), "go", "gi")
    s = s.split("s", "j", lanes, "jv", "lane")
    if products == 1:
        s = s.reorder("s", ("B", "go", "gi", "s", "jv", "i", "lane"))
        return s.unroll("s", "gi", "s", "jv", "i").vectorize("s", "lane")
    s = s.reorder("s", ("B", "go", "gi", "jv", "h", "i", "p", "lane"))
    s = s.unroll("s", "gi", "jv", "h", "i", "p").vectorize("s", "lane")
    return s.tensorize("s", "p", "dot_product")
