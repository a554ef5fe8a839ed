"""Matrix products on Trainium-like cores: what may be chosen, and what is chosen untuned.

Blocks of both operands stand in SBUF with the reduction on partitions (what does not come that way
is transposed on the tensor engine); a tile of the result accumulates in a PSUM bank, passes through
the epilogue on its way to SBUF, and leaves in long rows. Two algorithms:

    tiled: for blocks of the result, n outside m or m outside n:
             load the outer operand's block once, the inner one's in every step
             for row tiles of 128:
               for column tiles of 512:  psum += stationary(128 x 128).T @ moving(128 x 512), k/128
                                         times;  row[columns] = epilogue(psum)
               store row

    split: for blocks of the result, for blocks of k:
             load both operands' blocks
             for row and column tiles:  psum = the block's part of the sum;  sum[tile] += psum
           then the epilogue and the store, row tile by row tile

In the first, either operand is stationary. With a it is as above. With b, tiles are 128 columns of
the result by 512 of its rows, and turned once more before they are stored: that pays where the rows
of a do not fill tiles of 128, and where short moving tiles would cost more than the turning.

The second takes any depth, in blocks that need not divide it: partial sums stay in SBUF in fp32.
(To spill them to HBM would never pay: whatever block of sums fits needs less traffic for operands
than its sums would cost on the way out and back.) Where even the smallest tiles are too large for
SBUF, column tiles are narrower.

Of a batch of small products, a group has its tiles side by side: one copy takes the sums of all out
of PSUM, and groups are interleaved.

Knobs beside block sizes: copies of the operands' tiles (single, double, triple buffering), columns
loaded in one DMA row, the engines that carry results and transposed tiles out of PSUM, and the one
that adds a bias along the columns. `matmul_schedule` turns a choice into a schedule.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.schedules.building_blocks.machine import memories
from tilesmith.families.trainium.schedules.matrix_products.matmul_schedule import (
    ProductSchedule,
    late_epilogue,
)
from tilesmith.families.trainium.schedules.matrix_products.sums import leading
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import Expr, as_expr, ceildiv, minimum, var
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config, KnobValue
from tilesmith.search_space.spaces.knobs import Constraint, Knob, tile
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.template import compute_of
from tilesmith.search_space.workloads.workload import Workload

LOAD_TILES = (1, 2, 4)
"""Column tiles loaded in one row: long enough for DMA, short enough for work to begin early."""

STAGED_PIECES = 10
"""Pieces of an epilogue's operand that may stand in SBUF at once."""

TEMPORARIES = 6
"""fp32 tiles that an epilogue's expression may take between its instructions."""

LONGEST_PIECE = 2048
"""Columns that an epilogue takes at once where nothing else cuts rows."""

GROUPS = (1, 2, 4)
"""Products of a batch that may share tiles' places."""

MOST_ROW_TILES, MOST_COLUMN_TILES = 32, 16
"""Tiles of a block at most."""

NARROWEST = 32
"""Columns of a tile at least: fewer would not fill a tensor instruction."""

FIRST_SHOWN = 0.35
"""Share of the first blocks' load that no product runs beside: they are used as they come."""

SPLIT_PENALTY = 1.15
"""What a sum in parts takes beyond the closed form of the default."""

ENGINES = ("scalar", "vector")
"""Engines that carry tiles out of PSUM, the default first."""

BIAS_ENGINES = ("tensor", "vector")
"""Engines that add a bias along the columns: before the sums, or on their way out of PSUM."""

Fixed = tuple[tuple[str, int | str], ...]
Counts = NDArray[np.int64]
Times = NDArray[np.float64]


class MatmulSpace:
    """The knobs of a (batched) matrix product c[b, i, j] = sum_k a b on one core."""

    def __init__(self, workload: Workload, target: Target) -> None:
        self.workload, self.target = workload, target
        self.m, self.n, self.k = (workload.integer(name) for name in "mnk")
        self.batch = workload.integer("batch")
        self.rows, self.cols = target.integer("tensor.rows"), target.integer("tensor.cols")
        self.depth = -(-self.k // self.rows)
        self.size = size_of(workload.dtype)
        self.capacity = memories(target)["sbuf"].bytes
        bank = memories(target)["psum"].bank // 4
        self.wide = min(target.integer("tensor.moving_free"), bank)
        while self.wide >= 2 * NARROWEST and self._smallest() > self.capacity:
            self.wide //= 2

    @property
    def tall(self) -> int:
        """Rows of the result in a tile where b is stationary."""
        return min(self.wide, -(-self.m // self.cols) * self.cols)

    def _smallest(self) -> int:
        """Bytes a partition of the smallest tiles there are."""
        operands = self._operand("m", 1, var("k_block")) + self._operand("n", 1, var("k_block"))
        smallest = {"m_tiles": 1, "n_tiles": 1, "k_block": self.rows}
        return int((operands + self._results(4)).evaluate(smallest))

    # -- space --------------------------------------------------------------------------------
    def space(self) -> SearchSpace:
        """Every configuration that fits SBUF."""
        kept = tuple(s for s in self._subspaces() if s.size)
        return SearchSpace(kept or (self._last(),))

    def _last(self) -> Subspace:
        """The subspace with the smallest tiles, to say what does not fit."""
        fixed: Fixed = (("copies_inner", 1), ("evacuate", ENGINES[0]), ("turn", "vector"))
        return self._split(fixed) if self.k_blocks else self._tiled("a", "m", 1, fixed)

    def _subspaces(self) -> Iterator[Subspace]:
        """All subspaces; those the default is chosen from come first."""
        for copies_inner in (2, 1, 3):
            for evacuate in ENGINES:
                for turn in ("vector", "scalar"):
                    fixed: Fixed = (
                        ("copies_inner", copies_inner), ("evacuate", evacuate), ("turn", turn),
                    )  # fmt: skip
                    yield from self._with(fixed, turn == "vector" or self._turned())

    def _with(self, fixed: Fixed, turns_operands: bool) -> Iterator[Subspace]:
        """The subspaces of some copies and engines."""
        for copies_outer in (1, 2):
            for outer in ("m", "n"):
                for bias in self._biases if turns_operands else ():
                    for group in self.groups:
                        yield self._tiled("a", outer, copies_outer, (*fixed, *bias), group)
                yield self._tiled("b", outer, copies_outer, fixed)
        if self.k_blocks and turns_operands:
            yield self._split(fixed)

    def _turned(self) -> bool:
        """Whether an operand has to be transposed."""
        return not self.workload.integer("ta") or bool(self.workload.integer("tb"))

    @property
    def _biases(self) -> tuple[Fixed, ...]:
        """Engines that add the bias, where it is a choice."""
        if self.batch > 1 or leading(self.workload, "bias") is None:
            return ((),)
        return tuple((("bias", engine),) for engine in BIAS_ENGINES)

    @property
    def groups(self) -> tuple[int, ...]:
        """Products of a batch that may go together: their columns share a PSUM bank."""
        return tuple(g for g in GROUPS if g == 1 or (g <= self.batch and g * self.n <= self.wide))

    def _tiled(
        self, stationary: str, outer: str, copies_outer: int, fixed: Fixed, group: int = 1
    ) -> Subspace:
        chosen: Fixed = (
            ("algorithm", "tiled"), ("copies_outer", copies_outer), ("group", group),
            ("outer", outer), *fixed, ("stationary", stationary),
        )  # fmt: skip
        copies = {"m": copies_outer, "n": dict(fixed)["copies_inner"]}
        if outer == "n":
            copies = {"m": copies["n"], "n": copies["m"]}
        a = self._operand("m", int(copies["m"]), None, stationary)
        a = a * group
        b = self._operand("n", int(copies["n"]), None, stationary) * group
        seeded = dict(fixed).get("bias") == "tensor"
        seed = self._seed(int(copies["n"])) if seeded else as_expr(0)
        limit = self._limit(a + b + seed + self._results(0, stationary, seeded))
        return Subspace(chosen, self._tiles(stationary), (limit,))

    def _split(self, fixed: Fixed) -> Subspace:
        chosen: Fixed = (("algorithm", "split"), ("group", 1), *fixed, ("stationary", "a"))
        copies = int(dict(fixed)["copies_inner"])
        knobs = (*self._tiles("a"), tile("k_block", self.k_blocks))
        operands = self._operand("m", copies, var("k_block"))
        operands = operands + self._operand("n", copies, var("k_block"))
        return Subspace(chosen, knobs, (self._limit(operands + self._results(4)),))

    def _tiles(self, stationary: str) -> tuple[Knob, ...]:
        rows = min(-(-self.m // self._height(stationary)), MOST_ROW_TILES)
        columns = min(-(-self.n // self.wide), MOST_COLUMN_TILES)
        knobs = [tile("m_tiles", range(1, rows + 1)), tile("n_tiles", range(1, columns + 1))]
        if self.workload.integer("ta") or not self.workload.integer("tb"):
            knobs.append(tile("load_tiles", [n for n in LOAD_TILES if n < 2 * columns]))
        return tuple(knobs)

    def _height(self, stationary: str) -> int:
        """Rows of the result in a tile."""
        return self.cols if stationary == "a" else self.tall

    @property
    def k_blocks(self) -> list[int]:
        """Candidate depths of a block: powers of two of the array's rows, and half of all."""
        powers = [1 << e for e in range(self.depth.bit_length()) if 1 << e < self.depth]
        return [
            tiles * self.rows for tiles in sorted({*powers, -(-self.depth // 2)}) if self.depth > 1
        ]

    def _limit(self, value: Expr) -> Constraint:
        what = "bytes of SBUF a partition that the tiles take"
        return Constraint(value, self.capacity, what)

    def _operand(
        self, side: str, copies: int, depth: Expr | None = None, stationary: str = "a"
    ) -> Expr:
        """Bytes a partition of an operand's block of `depth` (or all) rows of k."""
        if side == "m":
            extent = var("m_tiles") * self._height(stationary)
            transposed = not self.workload.integer("ta")
        else:
            extent = var("n_tiles") * self.wide
            transposed = bool(self.workload.integer("tb"))
        tiles = as_expr(self.depth) if depth is None else ceildiv(depth, self.rows)
        strip = tiles * (self.rows * self.size * 2) if transposed else as_expr(0)
        return extent * tiles * (self.size * copies) + strip

    def _seed(self, copies: int) -> Expr:
        """Bytes a partition of the bias's row, and of ones."""
        return var("n_tiles") * (self.wide * self.size * copies) + self.cols * self.size

    def _results(self, sums: int, stationary: str = "a", seeded: bool = False) -> Expr:
        """Bytes a partition of rows on their way out, and of partial sums of `sums` bytes each."""
        columns = var("n_tiles") * self.wide
        at_once = minimum(columns, LONGEST_PIECE) if sums else as_expr(self.wide)
        kept = var("m_tiles") * columns * sums + at_once * self._epilogue(int(seeded))
        across = -(-self._height(stationary) // self.cols)
        turned = 0
        if stationary == "b":
            size = 4 if late_epilogue(self.workload) else self.size
            turned = -(-self.wide // self.cols) * self.tall * size * 2
        return kept + columns * (across * self.size * 2) + turned

    def _epilogue(self, first: int) -> int:
        """Bytes for each column of what an epilogue takes at once, from its step `first` on:
        temporaries, staged operands."""
        steps, across = self.workload.epilogue[first:], -(-self.n // self.wide)
        pieces = {"none": 0, "channel": across, "full": across * -(-self.m // self.cols)}
        staged = sum(min(STAGED_PIECES, pieces[s.kind.operand] * self.batch) for s in steps)
        return staged * self.size + (TEMPORARIES * 4 if steps else 0)

    # -- default ------------------------------------------------------------------------------
    def default(self) -> Config:
        """The configuration that a closed form of traffic and engines' time likes best.

        Raises:
            ConfigError: no configuration fits SBUF.
        """
        best: tuple[float, Config] | None = None
        for subspace in self._subspaces():
            fixed = dict(subspace.fixed)
            if fixed["evacuate"] != ENGINES[0] or fixed["turn"] != "vector":
                continue
            rows = subspace.rows(0, subspace.cardinality)
            rows = rows[subspace.legal(rows)]
            if not len(rows):
                continue
            cost = self._cost(fixed, subspace.tiles(rows))
            if best is None or cost.min() < best[0]:
                best = float(cost.min()), subspace.config(rows[cost.argmin()])
        if best is None:
            last = self._last()
            self.space().validate(last.config(last.rows(0, 1)[0]))
        assert best is not None, "a space whose smallest configuration fits has a default"
        return best[1]

    def _cost(self, fixed: Mapping[str, KnobValue], tiles: Mapping[str, Counts]) -> Times:
        """A rough time in ns: traffic or the busiest engine, and what single buffering leaves bare.

        Args:
            tiles: tile sizes of configurations, an array each.
        """
        stationary, split = str(fixed["stationary"]), fixed["algorithm"] == "split"
        blocks_m = -(-self.m // (tiles["m_tiles"] * self._height(stationary)))
        blocks_n = -(-self.n // (tiles["n_tiles"] * self.wide))
        m_outer = split or fixed["outer"] == "m"
        repeat_a = blocks_n if split or not m_outer else blocks_n**0
        repeat_b = blocks_m if m_outer else blocks_m**0
        turned_a = 0 if self.workload.integer("ta") else self.m * repeat_a
        turned_b = self.n * repeat_b if self.workload.integer("tb") else 0
        parts = -(-self.k // tiles["k_block"]) if split else 1
        bias = str(fixed.get("bias", ""))
        busy = self._engines(stationary, turned_a + turned_b, parts, bias) * self.batch
        a, b = self._moved(tiles, stationary)
        stored = self._row_cost(np.minimum(tiles["n_tiles"] * self.wide, self.n)) * self.m
        moved = (a * repeat_a + b * repeat_b + stored * self.n / self._bandwidth) * self.batch
        first = FIRST_SHOWN * (a / blocks_m + b / blocks_n)
        if split:
            first = first / parts
        bare = 0.0 * first
        if int(fixed["copies_inner"]) == 1:
            steps = blocks_n * blocks_m * parts
            inner = b / blocks_n if m_outer else a / blocks_m
            inner = (inner + a / blocks_m) / parts if split else inner
            hidden = busy / (steps * self.batch) * self._swept(fixed, tiles)
            bare = np.maximum(0.0, inner - hidden) * steps * self.batch
        last = (
            stored * np.minimum(tiles["n_tiles"] * self.wide, self.n) / blocks_m / self._bandwidth
        )
        whole = np.maximum(busy, moved) + bare + first + last
        if split:
            whole = SPLIT_PENALTY * whole + self._added() * blocks_m * blocks_n * parts
        chains = self.batch // int(fixed["group"]) if self.batch > 1 else 0
        if bias == "vector":  # its row goes to every partition, and results wait for one more sum
            spread = self._row_cost(np.array(self.n)) * self.n * min(self.m, self.cols)
            whole = whole + spread / self._bandwidth + self._added()
        return np.asarray(whole + self._added() * chains)

    def _added(self) -> float:
        """ns from a part of a sum in PSUM to the next one's turn: one dependent addition."""
        number = self.target.number
        return 2 * number("semaphore.ns") + number("vector.latency") / number("vector.ghz")

    def _swept(self, fixed: Mapping[str, KnobValue], tiles: Mapping[str, Counts]) -> Times:
        """Share of a block's products beside which the inner operand's only copy can be loaded.

        It is used up in the last sweep over it and needed bit by bit in the first; where each of
        its rows is used once, all but those loaded together.
        """
        rows = tiles["m_tiles"] * self._height(str(fixed["stationary"]))
        if fixed["algorithm"] == "split" or fixed["outer"] == "m":
            return np.asarray(np.minimum(1.0, 2.0 / tiles["m_tiles"]))
        together = tiles["load_tiles"] * self.wide if self.workload.integer("ta") else self.cols
        return np.asarray(1.0 - np.minimum(together, rows) / rows)

    def _engines(
        self, stationary: str, turned: Counts | int, parts: Counts | int, bias: str
    ) -> Times:
        """ns of the busiest engine for one product, `turned` columns of its operands turned."""
        number = self.target.number
        passes, extra = 1, 0.0
        if self.size == 4:
            passes, extra = (
                self.target.integer("tensor.fp32_factor"),
                number("tensor.fp32_pass_overhead"),
            )
        still, moving, most = (self.m, self.n, self.wide)
        if stationary == "b":
            still, moving, most = (self.n, self.m, self.tall)
        tiles = -(-still // self.cols)
        least = number("tensor.min_ii")
        full, rest = divmod(moving, most)
        depth = self.depth + (1 if bias == "tensor" else 0)
        cycles = tiles * depth * (full * (max(least, most) + extra))
        cycles += tiles * depth * (max(least, rest) + extra) if rest else 0
        own = -(-self.m // self.cols) * -(-self.n // self.cols) if stationary == "b" else 0
        turns = turned / self.cols * self.depth + own
        tensor = (cycles + turns * (self.cols + extra)) * passes / number("tensor.ghz")
        results = -(-self.m // self.cols) * self.n
        copied = turned * self.depth + (results if stationary == "b" else 0) + results * (parts - 1)
        copied = copied + (results if bias == "vector" else 0)
        return np.asarray(np.maximum(tensor, copied / number("vector.ghz")), dtype=np.float64)

    def _moved(self, tiles: Mapping[str, Counts], stationary: str) -> tuple[Times, Times]:
        """ns of DMA that either operand takes, once."""
        depth = np.minimum(tiles["k_block"], self.k) if "k_block" in tiles else np.array(self.k)
        together = tiles.get("load_tiles", np.array(1)) * self.wide
        columns = np.minimum(tiles["n_tiles"] * self.wide, self.n)
        columns = columns / -(-columns // together)
        rows = np.minimum(tiles["m_tiles"] * self._height(stationary), self.m)
        rows = rows / -(-rows // together)
        a = self._row_cost(rows if self.workload.integer("ta") else depth) * (self.m * self.k)
        b = self._row_cost(depth if self.workload.integer("tb") else columns) * (self.k * self.n)
        return a / self._bandwidth, b / self._bandwidth

    @property
    def _bandwidth(self) -> float:
        """Bytes a ns of all DMA engines."""
        return self.target.number("dma.gbps_practical") * self.target.integer("dma.engines")

    def _row_cost(self, elements: Counts) -> Times:
        """Bytes that each element of a DMA row of so many counts as."""
        return np.asarray(self.size + self.target.number("dma.row_overhead_bytes") / elements)

    # -- schedule -----------------------------------------------------------------------------
    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration; tile sizes stay symbols."""
        group = structure.integer("group")
        wide = self.wide if group == 1 else self.n
        product = ProductSchedule(self.workload, self.rows, self.cols, wide, self.tall, group)
        return product.build(compute_of(self.workload), structure)
