"""Fused attention on CPUs: the space of its schedules.

The product of two register tiles (scores, results), how many queries a block has, what is turned,
and in which order the tiles come (`attention_schedule`).
"""

from math import prod

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.algorithms.attention_schedule import CpuAttentionSchedule
from tilesmith.search_space.schedules.cpu.vectorisation.dot_products import prefers_dot
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import (
    UNROLLED_LIMIT,
    Constraint,
    Knob,
    choice,
    register_limit,
    tile,
    unrolled_limit,
)
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import PreparingScheduler, schedules
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

ROWS = 16
"""Most rows of a register tile."""
VECTORS = 6
"""Most vectors of one."""
BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Register tiles of results in a block of queries."""
BLOCK = var("o_rows") * var("m_block")
"""Queries of a block."""

FEW_QUERIES = 8
"""Up to here all queries of a head are one register tile."""

MANY_KEYS = 96
"""From here on scores are what most memory traffic would be for."""


def pays(workload: Workload, target: Target) -> bool:
    """Whether one kernel is faster than two products and a softmax: always but where many queries
    meet few keys and not all fits the second cache. There scores are no more than queries and
    results, and memory is read ahead better in long products than in blocks of queries.
    """
    m, n = workload.integer("m"), workload.integer("n")
    template = template_of(workload.operator)
    operands = (*template.inputs(workload), template.output(workload))
    nbytes = 4 * sum(prod(operand.shape) for operand in operands)
    return n >= min(m, MANY_KEYS) or nbytes <= target.integer("l2.kib") * 1024


class CpuAttentionSpace(CpuAttentionSchedule):
    """Space of one attention."""

    def __init__(self, workload: Workload, target: Target) -> None:
        super().__init__(workload, target)
        self.m, self.n, self.k = (workload.integer(name) for name in "mnk")
        self.batch, self.heads = workload.integer("batch"), workload.integer("heads")

    def space(self) -> SearchSpace:
        few = (self._unturned(),) if self.m <= FEW_QUERIES else ()
        pairs = (self._pairs_space(),) if self.products > 1 else ()
        return SearchSpace((self._keys(), self._queries(), *few, *pairs))

    def _pairs_space(self) -> Subspace:
        """Unrolled steps are of groups."""
        groups = {"s_unroll": -(-self.k // self.products), "o_unroll": -(-self.n // self.products)}
        tiles = (
            tile(knob.name, [u for u in (1, 2, 4, 8) if u <= groups[knob.name]])
            if knob.name in groups
            else knob
            for knob in self._tiles(min(self.m, ROWS), -(-self.n // self.lanes))
        )
        fits = Constraint(var("s_rows") - BLOCK, 0, "s_rows beyond the block of queries")
        knobs = (choice("pack", ("head", "all")), *tiles)
        return Subspace((("turn", "pairs"),), knobs, (*self._limits(), fits))

    def _unturned(self) -> Subspace:
        knobs = (
            choice("o_order", ("mn", "nm")),
            tile("s_unroll", (1, 2, 4)),
            *(k for k in self._tiles(1, 1) if k.name in ("o_rows", "o_vectors", "o_unroll")),
            tile("m_block", (1,)),
        )
        wide = var("o_rows") * var("s_unroll")
        registers = self.target.integer("vector.registers")
        formula = "o_rows*s_unroll + s_unroll + 1"
        limit = register_limit(wide, var("s_unroll"), registers, formula)
        code = unrolled_limit(wide * self._steps, f"o_rows*s_unroll*{self._steps}")
        return Subspace((("turn", "none"),), knobs, (limit, code, *self._limits("o")))

    @property
    def _steps(self) -> int:
        """Vectors of features of a key."""
        return -(-self.k // self.lanes)

    def _keys(self) -> Subspace:
        vectors = -(-self.n // self.lanes)
        knobs = (
            choice("pack", ("head", "all", "tile")),
            *self._tiles(min(self.m, ROWS), vectors),
        )
        fits = Constraint(var("s_rows") - BLOCK, 0, "s_rows beyond the block of queries")
        return Subspace((("turn", "keys"),), knobs, (*self._limits(), fits))

    def _queries(self) -> Subspace:
        vectors = -(-self.m // self.lanes)
        knobs = (
            *self._tiles(min(self.n, ROWS), vectors),
            tile("p_vectors", [t for t in (1, 2, 4) if t <= vectors]),
        )
        fit = (
            Constraint((var(name) - 1) * self.lanes - BLOCK + 1, 0, f"{name} beyond the block")
            for name in ("s_vectors", "p_vectors")
        )
        return Subspace((("turn", "queries"),), knobs, (*self._limits(), *fit))

    def _tiles(self, s_rows: int, s_vectors: int) -> tuple[Knob, ...]:
        """Both register tiles and the block."""
        o_vectors = -(-self.width // self.lanes)
        return (
            choice("s_order", ("mn", "nm")),
            choice("o_order", ("mn", "nm")),
            tile("s_rows", range(1, s_rows + 1)),
            tile("s_vectors", range(1, min(s_vectors, VECTORS) + 1)),
            tile("s_unroll", [u for u in (1, 2, 4, 8) if u <= self.k]),
            tile("o_rows", range(1, min(self.m, ROWS) + 1)),
            tile("o_vectors", range(1, min(o_vectors, VECTORS) + 1)),
            tile("o_unroll", [u for u in (1, 2, 4, 8) if u <= self.n]),
            tile("m_block", [b for b in BLOCKS if b <= self.m]),
        )

    def _limits(self, names: str = "so") -> tuple[Constraint, ...]:
        """Both tiles stay in registers, scores and powers of a block in the second cache (unless a
        register tile's do not)."""
        registers = self.target.integer("vector.registers")
        limits = []
        for name in names:
            rows, columns = var(f"{name}_rows"), var(f"{name}_vectors")
            formula = f"{name}_rows*{name}_vectors + {name}_vectors + 1"
            limits.append(register_limit(rows * columns, columns, registers, formula))
            unroll = var(f"{name}_unroll")
            formula = f"{name}_rows*{name}_vectors*{name}_unroll"
            limits.append(unrolled_limit(rows * columns * unroll, formula))
        most = Constraint(BLOCK, self._most(), "queries of a block", "choose a smaller one")
        return (*limits, most)

    def _most(self) -> int:
        """Queries whose scores and powers fit the second cache, all at most."""
        fitting = self.target.integer("l2.kib") * 1024 // (8 * self.n)
        return max(min(self.m + ROWS, fitting), ROWS)

    def default(self) -> Config:
        """Two vectors wide, as many rows as the registers hold; many queries at a time where there
        are few keys (memory is read ahead within a block only); a head's keys turned inside its
        loop where there are enough heads for many threads. Few queries, which are one tile, read
        keys and values once, as they come from memory."""
        registers = self.target.integer("vector.registers")
        if self.m <= FEW_QUERIES:
            return self._decoding(registers)
        dtype = self.workload.dtype
        return self.usual(self.products if prefers_dot(self.target, dtype, dtype) else 1)

    def usual(self, products: int) -> Config:
        """The default of many queries, with dot products of so many neighbours (1: without)."""
        registers = self.target.integer("vector.registers")
        vectors = min(2, -(-self.n // self.lanes))
        columns = min(2, -(-self.width // self.lanes))
        s_rows = min(self.m, (registers - vectors - 1) // vectors, 12)
        o_rows = min(self.m, (registers - columns - 1) // columns, 12)
        rows = min(self._most(), max(48, self.target.integer("l2.kib") * 1024 // (64 * self.n)))
        blocks = [b for b in BLOCKS if b == 1 or (b <= -(-self.m // o_rows) and b * o_rows <= rows)]
        return Config.of(
            turn="pairs" if products > 1 else "keys",
            pack="head" if self.batch * self.heads >= 8 else "all",
            s_order="nm",
            o_order="nm",
            s_rows=s_rows,
            s_vectors=vectors,
            s_unroll=max(u for u in (1, 2, 4) if u <= -(-self.k // products)),
            o_rows=o_rows,
            o_vectors=columns,
            o_unroll=max(u for u in (1, 2, 4) if u <= -(-self.n // products)),
            m_block=blocks[-1],
        )

    def _decoding(self, registers: int) -> Config:
        """One tile of queries: keys as they are, values read whole; keys turned a vector at a time
        where they are too long for that."""
        columns = min(VECTORS, -(-self.width // self.lanes), (registers - 1) // (self.m + 1))
        knobs: dict[str, str | int] = {
            "turn": "none",
            "o_order": "nm",
            "s_unroll": 1,
            "o_rows": self.m,
            "o_vectors": columns,
            "o_unroll": max(u for u in (1, 2, 4) if u <= self.n),
            "m_block": 1,
        }
        if self.m * self._steps > UNROLLED_LIMIT:
            knobs |= {"turn": "keys", "pack": "tile", "s_order": "nm"}
            knobs |= {"s_rows": self.m, "s_vectors": 1}
        return Config.of(knobs)


@schedules("attention", on="cpu")
class CpuAttention(PreparingScheduler):
    """See the module's docstring."""

    def prepare(self, workload: Workload, target: Target) -> CpuAttentionSpace:
        return CpuAttentionSpace(workload, target)

    def varying(
        self, workload: Workload, usual: Workload, largest: Workload, target: Target, config: Config
    ) -> Config:
        """Keys whose number varies are in no groups."""
        if config.text("turn") == "pairs" and isinstance(workload["n"], str):
            return CpuAttentionSpace(usual, target).usual(1)
        return config

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        return CpuAttentionSchedule(workload, target).schedule(structure)
