"""Matrix products on LPU-like machines: passes of MXM, partial sums, epilogues on VXM.

    for tiles of 320 columns, of `m_tile` rows (either outside):
      for 320 of k, `series` passes to a chain:  sums[rows, columns] += a[rows, k] * b[columns, k]
      c = epilogue(sums)

One operand flows past, b stands in a plane: 320 x 320 weights for each pass. A float16 pass goes
over its k in two cycles a vector; bytes take one. Chains of other tiles take other planes, so
`m_tile` and the order say what runs beside what; passes in series hand their sums from plane to
plane, and write and read fewer partial sums for it.

What MXM does not want as it is stored, is turned (see `common`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilesmith.families.lpu.schedules.algorithms.remainders import (
    exchanged,
    remainder,
    shorter,
    with_exchanged,
)
from tilesmith.families.lpu.schedules.building_blocks.common import (
    ProductScheduler,
    lanes_a_cycle,
    planes,
    prepared,
    result_stage,
    turned,
    with_numbers,
    with_turned,
)
from tilesmith.families.lpu.schedules.building_blocks.machine import LANES
from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import choice, count, tile, tile_sizes
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import schedules
from tilesmith.search_space.workloads.template import compute_of
from tilesmith.search_space.workloads.workload import Workload

ORDERS = ("n,m", "m,n")
"""Which tiles are outside: of columns, so that weights stay, or of rows."""

RESTS = ("columns", "rows")
"""How columns that fill no tile are computed: as columns like others, or exchanged
(`remainders`)."""

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
