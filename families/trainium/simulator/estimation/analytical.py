"""The analytical fidelity: one symbolic program, thousands of configurations, in numpy.

The program's structure is walked once for a whole batch; tile sizes are arrays with one element
for each configuration. Every statement gets the time it occupies each engine, and the span from
its start to its last result when run alone. They compose as the hardware does:

    nest        instructions x issue time on one engine; span = that + latency (DMA: + start time)
    sequence    occupancies add; spans add (each statement needs the one before)
    loop        n iterations, d copies of its tiles: the first takes its span, each further one the
                longest occupancy, or 1/d of the span if that is longer

The estimate is the whole program's span, and never less than the longest occupancy. Extents that
differ in the last iteration (tails) are evaluated for it and for the others, so sums are exact.

Costs of instructions are those of the timeline (`families.trainium.codegen.timing.costs`), in
closed form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilesmith.families.trainium.codegen.selection.loop_nests.nests import match_nest
from tilesmith.families.trainium.simulator.estimation.chains import LoopChains
from tilesmith.families.trainium.simulator.estimation.estimate import (
    DMA,
    SCALAR,
    TENSOR,
    TRANSFERS,
    VECTOR,
    Array,
    StatementCosts,
)
from tilesmith.families.trainium.simulator.estimation.nest_costs import NestCost
from tilesmith.families.trainium.simulator.estimation.structure import Structure, Values
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.scalar import loads
from tilesmith.search_space.ir.program import Allocate, Block, If, Loop, LoopKind, Statement
from tilesmith.search_space.ir.program import Sequence as Statements

AHEAD = 0.75
"""Share of the first tiles' making that use of them overlaps with, at most."""

ENDS = 2
"""DMA starts that nothing hides: the first load's, the last store's."""

SHOWN = 0.68
"""Share of the span beyond the longest occupancy that shows: parts overlap more than in turns."""

ALIKE = 6
"""Exponent of the norm that combines span and occupancy: more than either where they are alike."""

SWEEPS, TURNED_SWEEPS = 2.0, 0.5
"""Sweeps over a tile in one place that hide the making of the next: the last two; less where tiles
are turned on the way, which all of a block's products wait for."""

AHEAD_IN_PSUM = 4
"""Tiles of sums in PSUM at once, as schedules have them."""

SCOPES = ("sbuf", "psum")


@dataclass(eq=False)
class Analysis(Structure):
    """A symbolic program, ready to be evaluated on batches."""

    def evaluate(
        self, tiles: Mapping[str, Any], n: int, settings: Sequence[Any] = ()
    ) -> tuple[StatementCosts, Array]:
        """Estimate for `n` configurations, and the bytes of SBUF and PSUM a partition that their
        tiles take in all their places, shape (2, n).

        Args:
            tiles: tile sizes, arrays of n integers.
            settings: those that the program leaves open: each one for all, or an array of n.
        """
        self.n, self.settings = n, settings
        self.memo: dict[tuple[Any, ...], StatementCosts] = {}
        self.pairs: dict[tuple[Any, ...], tuple[StatementCosts, StatementCosts]] = {}
        self.tiles = frozenset(tiles)
        whole = self.statement(self.program.body, dict(tiles))
        return replace(whole, span=self.shown(whole)), self.memory(tiles)

    def shown(self, whole: StatementCosts) -> Array:
        """ns that all takes: its span, and never less than the longest occupancy between the first
        load's start and the last store's; more where the two are alike."""
        least = whole.step + ENDS * self.core.dma_start_ns
        span = np.minimum(whole.span, least + SHOWN * (whole.span - least))
        peak = np.maximum(span, least)
        powers = (span / peak) ** ALIKE + (least / peak) ** ALIKE
        return np.asarray(peak * powers ** (1 / ALIKE))

    def memory(self, tiles: Mapping[str, Any]) -> Array:
        """Bytes of SBUF and PSUM a partition that tiles take in all their places, shape (2, n)."""
        taken = np.zeros((2, self.n))
        for buffer, depth in self.places:
            if buffer.scope in SCOPES and buffer.shape[1:]:
                places = np.maximum(self.number(depth), self.number(buffer.versions))
                size = size_of(buffer.dtype) * places
                for extent in buffer.shape[1:]:
                    first = dict.fromkeys(extent.variables(), 0)  # of a loop: the longest piece
                    size = size * self.value(extent, {**first, **tiles})
                taken[SCOPES.index(buffer.scope)] += size
        return taken

    # -- statements ---------------------------------------------------------------------------
    def statement(self, statement: Statement, values: Values) -> StatementCosts:
        """Estimate of a statement; remembered for the values of the loops it depends on."""
        names = self.variables(statement)
        key = (
            id(statement),
            *(_key(values[n]) for n in names if n in values and n not in self.tiles),
        )
        if key not in self.memo:
            self.memo[key] = self.fresh(statement, values)
        return self.memo[key]

    def fresh(self, statement: Statement, values: Values) -> StatementCosts:
        if id(statement) not in self.nests:
            self.nests[id(statement)] = match_nest(statement)
        nest = self.nests[id(statement)]
        if nest is not None:
            return self.nest(*nest, values)
        match statement:
            case Loop():
                return self.loop(statement, values)
            case Statements(statements):
                return self.total(list(statements), values)
            case Allocate(_, body):
                return self.statement(body, values)
            case If(_, then, otherwise):
                # Both branches cost alike wherever this occurs (first or last step of a reduction).
                return self.statement(then if otherwise is None else otherwise, values)
            case _:
                raise AssertionError(type(statement))

    def loop(self, loop: Loop, values: Values) -> StatementCosts:
        extent = self.value(loop.extent, values)
        usual = self.statement(loop.body, {**values, loop.variable: 0})
        last = usual
        if loop.variable in self.variables(loop.body) and np.any(extent > 1):
            last = self.statement(loop.body, {**values, loop.variable: extent - 1})
        many = np.maximum(extent - 1, 0)
        total = StatementCosts.zero(self.n)
        total.add(usual, many)
        total.add(last, extent > 0)
        total.span = np.where(extent > 1, usual.span, last.span) * (extent > 0)
        if self.split(loop.body)[0]:
            total.span = total.span - self.ahead(loop, values) * (extent > 0)
        step = ending = self.further(loop, usual, {**values, loop.variable: 0})
        if last is not usual:
            ending = self.further(loop, last, {**values, loop.variable: np.maximum(extent - 1, 0)})
        rest = step * np.maximum(many - 1, 0) + ending * (extent > 1)
        total.span = total.span + rest
        total.steady = total.span
        if self.split(loop.body)[0]:
            total.steady = rest + np.where(extent > 1, step, ending * (extent == 1))
        if loop.kind == "unroll":  # transfers under way at once: work begins on the first
            total.span = np.where(extent > 1, usual.span, last.span) * (extent > 0)
            total.steady = total.span
        if loop.kind == "interleaved":
            self.interleaved(total, loop, values)
        return total

    def interleaved(self, total: StatementCosts, loop: Loop, values: Values) -> None:
        """Chains under way at once, as many as their tiles have places, instead of one by one.

        What they wait for shows in full (see `shown`).
        """
        chains = LoopChains(self, self.statement, self.n, loop, values)
        least = total.step + ENDS * self.core.dma_start_ns
        beyond = np.maximum(chains.chain + chains.waiting - least, 0.0)
        total.span = np.minimum(chains.chain + chains.waiting, least) + beyond / SHOWN
        total.steady = total.span

    def further(self, loop: Loop, part: StatementCosts, values: Values) -> Array:
        """ns that one more iteration of a loop adds.

        Iterations that share no tile follow each other as fast as the engines allow. With d copies
        of the tiles made in the body, d iterations are under way at once. With one, the next
        tile's load follows the last sweep over the present one, and the first sweep follows the
        load: what is longer than these two sweeps shows.
        """
        allocations, _, users = self.split(loop.body)
        if not allocations:
            return part.step
        stages = self.number(loop.stages)
        if not np.any(stages > 1):
            return self.in_turns(loop, part, values)
        share = np.maximum(part.step, part.span / stages)
        if self.sweeps(users[0], values) is not None:
            share = np.maximum(share, self.halves(loop, values)[1].repeated)
        if np.all(stages > 1):
            return np.asarray(share)
        return np.where(stages > 1, share, self.in_turns(loop, part, values))

    def in_turns(self, loop: Loop, part: StatementCosts, values: Values) -> Array:
        """`further` where a loop's tiles have one place."""
        _, makers, users = self.split(loop.body)
        filling, used = self.halves(loop, values)
        count = self.sweeps(users[0], values)
        produced = np.any(filling.occupied[TENSOR] > 0) and not np.any(used.occupied[TENSOR] > 0)
        if produced and count is None:
            tiles = self.sweeps(makers[-1], values)
            return self.alone(part, filling, used, 1 if tiles is None else tiles)
        if produced:  # sums leave tile by tile while the next block's are made, or loaded for
            left = used.repeated / count
            rounds, copies = self.chains(makers[-1], values)
            loaded = filling.occupied[DMA] * np.minimum(1.0, copies / rounds)
            left = np.maximum(left - loaded, 0.0)
            return np.asarray(np.maximum(part.step, filling.repeated + left))
        sweep = used.repeated / (1 if count is None else count)
        several = 0.0 if count is None else np.asarray(count) > 1
        turned = (filling.occupied[TENSOR] > 0) * several
        hidden, span = np.where(turned, TURNED_SWEEPS, SWEEPS) * sweep, filling.span
        if count is None or np.any(count == 1):
            # one sweep frees a place bit by bit, as it was made
            pieces = np.maximum(filling.data[TRANSFERS] / len(makers), 1.0)
            once = True if count is None else count == 1
            hidden = np.where(once, hidden * (1 - 1 / pieces), hidden)
            span = np.where(once, np.minimum(span, self.together(makers, values)), span)
        bare: Array = np.maximum(0.0, span - hidden)
        chain = span - filling.occupied[DMA] - self.core.dma_start_ns
        bare = np.where(filling.occupied[TENSOR] > 0, np.maximum(bare, chain), bare)
        return np.asarray(np.maximum(part.step, used.repeated + bare))

    def halves(self, loop: Loop, values: Values) -> tuple[StatementCosts, StatementCosts]:
        """What makes a loop's tiles and what uses them; remembered as `statement` does."""
        names = self.variables(loop.body)
        known = (_key(values[n]) for n in names if n in values and n not in self.tiles)
        key = (id(loop), *known)
        if key not in self.pairs:
            _, makers, users = self.split(loop.body)
            self.pairs[key] = self.total(makers, values), self.total(users, values)
        return self.pairs[key]

    def together(self, makers: list[Statement], values: Values) -> Array:
        """ns until tiles are made that do not depend on each other: only their transfers queue."""
        parts = [self.statement(maker, values) for maker in makers]
        rest = [part.span - part.occupied[DMA] for part in parts]
        return np.asarray(np.max(rest, axis=0) + sum(part.occupied[DMA] for part in parts))

    def ahead(self, loop: Loop, values: Values) -> Array:
        """ns by which use begins before all of the first tiles are made, which come in parts."""
        first = {**values, loop.variable: 0}
        filling, used = self.halves(loop, first)
        count = self.pieces(self.split(loop.body)[2][0], first)
        return np.asarray(AHEAD * (1 - 1 / count) * np.minimum(filling.span, used.span))

    def pieces(self, statement: Statement, values: Values) -> Any:
        """In how many pieces a statement takes what it uses: the iterations of its outermost loop
        that has several."""
        if isinstance(statement, Allocate):
            return self.pieces(statement.body, values)
        if isinstance(statement, Statements):
            return self.pieces(statement.statements[0], values)
        if not isinstance(statement, Loop):
            return 1
        if nest := match_nest(statement):
            return self.rounds(*nest, values)
        extent = np.maximum(self.value(statement.extent, values), 1)
        if np.all(extent > 1):
            return extent
        deeper = self.pieces(statement.body, {**values, statement.variable: 0})
        return np.where(extent > 1, extent, deeper)

    def rounds(self, loops: tuple[Loop, ...], block: Block, values: Values) -> Any:
        """Matmuls that add to the same sums: each uses its own part of the operands."""
        if block.reducer is None or self.buffers[block.buffer].scope != "psum":
            return 1
        written = {name for index in block.write.indices for name in index.variables()}
        depth = next(iter(loads(block.value))).indices[0].variables()
        known = {**{loop.variable: 0 for loop in loops}, **values}
        count: Any = 1
        for loop in loops:
            if loop.variable not in written and loop.variable not in depth:
                count = count * np.maximum(self.value(loop.extent, known), 1)
        return count

    def alone(
        self, part: StatementCosts, filling: StatementCosts, used: StatementCosts, tiles: Any
    ) -> Array:
        """ns an iteration adds whose tiles have one place each: results are not written before the
        last are stored, nor inputs loaded before all is made. Products run ahead into PSUM, as far
        as `AHEAD_IN_PSUM` of their `tiles`."""
        carried = np.maximum(filling.occupied[VECTOR], filling.occupied[SCALAR])
        ahead = filling.occupied[TENSOR] * np.minimum(1.0, AHEAD_IN_PSUM / tiles)
        loads = filling.occupied[DMA] > 0
        behind = np.where(loads, filling.occupied[TENSOR], filling.span) - ahead
        loaded = np.where(loads, filling.span, 0.0)
        shown = used.span + np.maximum(carried, behind) + self.core.semaphore_ns
        return np.asarray(np.maximum(part.step, np.maximum(shown, loaded)))

    def total(self, statements: list[Statement], values: Values) -> StatementCosts:
        total, steady = StatementCosts.zero(self.n), np.zeros(self.n)
        for statement in statements:
            cost = self.statement(statement, values)
            total.add(cost)
            total.span = total.span + cost.span
            steady = steady + cost.repeated
        total.steady = np.minimum(steady, total.span)
        return total

    # -- nests --------------------------------------------------------------------------------
    def nest(self, loops: tuple[Loop, ...], block: Block, values: Values) -> StatementCosts:
        """One block in its loops; loops that extents depend on are run."""
        outer = self.outer(loops, block)
        if outer is not None:
            return self.loop(outer, values)
        sizes = {loop.variable: self.value(loop.extent, values) for loop in loops}
        apart = {loop.variable: sizes.pop(loop.variable) for loop in loops if loop.kind == "unroll"}
        known = (id(block), *(_key(size) for size in (*sizes.values(), *apart.values())))
        if known not in self.memo:
            self.memo[known] = self.on_engines(loops, block, sizes, apart, values)
        return self.memo[known]

    def outer(self, loops: tuple[Loop, ...], block: Block) -> Loop | None:
        """A nest's first loop that extents of others depend on, around the others; remembered for
        each of the loops that a block stands in."""
        key: tuple[int | str, ...] = (id(block), *(loop.variable for loop in loops))
        if key not in self.rebuilt:
            self.rebuilt[key] = None
            for position, loop in enumerate(loops):
                if any(loop.variable in other.extent.variables() for other in loops):
                    rest = _rebuild(loops[:position] + loops[position + 1 :], block)
                    self.rebuilt[key] = Loop(loop.variable, loop.extent, _kind(loop), rest)
                    break
        return self.rebuilt[key]

    def on_engines(
        self,
        loops: tuple[Loop, ...],
        block: Block,
        sizes: dict[str, Any],
        apart: dict[str, Any],
        values: Values,
    ) -> StatementCosts:
        """A rectangular nest, `apart` its unrolled loops, on the engines of each configuration."""
        engines = self.engines(block)
        ways = [engines] if isinstance(engines, str) else sorted(set(engines.tolist()))
        costs = [self.cost(loops, self.assigned(block, way), sizes, apart, values) for way in ways]
        for way, other in zip(ways[1:], costs[1:], strict=True):
            costs[0].replace(engines == way, other)
        return costs[0]

    def cost(
        self,
        loops: tuple[Loop, ...],
        block: Block,
        sizes: dict[str, Any],
        apart: dict[str, Any],
        values: Values,
    ) -> StatementCosts:
        """A rectangular nest on one engine; kept for other batches where no size is an array."""
        cost = NestCost(self.core, self.buffers, self.n, block, sizes, self.constants, self.begun)
        cost.instruction = self.instruction(block)
        if cost.stages():
            cost.turns = self.turns(block, loops, values)
        numbers = (*sizes.values(), *apart.values(), *cost.turns.values())
        if not all(isinstance(number, int | np.integer) for number in numbers):
            return cost.repeated(apart) if apart else cost.estimate()
        key = (id(block), *map(int, numbers))
        if key not in self.costs:
            cost.n = 1
            self.costs[key] = cost.repeated(apart) if apart else cost.estimate()
        return self.costs[key].times(self.n)


def _key(value: Any) -> Any:
    return value if isinstance(value, int) else value.tobytes()


def _kind(loop: Loop) -> LoopKind:
    return "unroll" if loop.kind == "unroll" else "serial"


def _rebuild(loops: tuple[Loop, ...], block: Block) -> Statement:
    statement: Statement = block
    for loop in reversed(loops):
        statement = Loop(loop.variable, loop.extent, loop.kind, statement, loop.stages)
    return statement
