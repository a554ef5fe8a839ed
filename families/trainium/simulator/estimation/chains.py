"""What an interleaved loop takes: chains of instructions under way at once, as tiles have places.

Engines take whichever instruction is ready, so a loop of chains (heads of an attention, blocks of
rows) is as long as its busiest engine allows, or as the places of one tile do. A tile's *life* is
from when it has to be begun, so that who reads it first need not wait, to when its last reader is
done; as many lives are at once as it has places.

    chain    one chain alone: every statement begins when what it reads is there
    waiting  the longest of (n / d - 1) lives, over all tiles, made n times in d places
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilesmith.families.trainium.simulator.estimation.estimate import Array, StatementCosts
from tilesmith.families.trainium.simulator.estimation.structure import Structure, Values
from tilesmith.search_space.ir.program import Allocate, Loop, Sequence, Statement

Judge = Callable[[Statement, Values], StatementCosts]
"""What a statement takes by itself, for a batch."""


@dataclass
class _Tile:
    """What is known of a tile: ns, each of shape (n,).

    Attributes:
        writing: what writes it takes; ready: when that is done; first, last: when its readers begin
            and are done.
    """

    writing: Any = 0.0
    ready: Any = 0.0
    first: Any = np.inf
    last: Any = 0.0

    @property
    def life(self) -> Any:
        return self.writing + np.maximum(self.last - np.minimum(self.first, self.last), 0.0)


class LoopChains:
    """The chains of one interleaved loop, for a batch of `n` configurations.

    Attributes:
        chain, waiting: see the module's docstring; ns, shape (n,).
    """

    def __init__(
        self, structure: Structure, judge: Judge, n: int, loop: Loop, values: Values
    ) -> None:
        self.structure = structure
        self.judge = judge
        self.chain: Array = np.zeros(n)
        self.waiting: Array = np.zeros(n)
        self.tiles: dict[str, _Tile] = {}
        self.loop(loop, values, 1)

    def loop(self, loop: Loop, values: Values, count: Any) -> None:
        """One iteration of a loop run `count` times; who is outside waits for the others, too."""
        extent = np.maximum(self.structure.value(loop.extent, values), 1)
        inside = {**values, loop.variable: 0}
        outer = set(self.tiles)
        self.body(loop.body, inside, count * extent)
        more = (extent - 1) * self.judge(loop.body, inside).step
        _, read, written = self.structure.accesses(loop)
        for name in outer & (read | written):
            tile = self.tiles[name]
            if name in read:
                tile.last = tile.last + more
            if name in written:
                tile.writing, tile.ready = tile.writing + more, tile.ready + more

    def body(self, statement: Statement, values: Values, count: Any) -> None:
        """Statements run `count` times; the lives of the tiles they make count as waiting."""
        if isinstance(statement, Allocate):
            buffer = statement.buffer
            tile = self.tiles[buffer.name] = _Tile()
            self.body(statement.body, values, count)
            places = self.structure.number(buffer.versions)
            turns = np.maximum(count / places - 1, 0)
            self.waiting = np.maximum(self.waiting, turns * tile.life)
        elif isinstance(statement, Sequence):
            for part in statement.statements:
                self.body(part, values, count)
        elif isinstance(statement, Loop) and self.structure.accesses(statement)[0]:
            self.loop(statement, values, count)
        else:
            self.leaf(statement, values)

    def leaf(self, statement: Statement, values: Values) -> None:
        """Instructions that begin when all is there that they read."""
        _, read, written = self.structure.accesses(statement)
        span = self.judge(statement, values).span
        start = np.zeros_like(self.chain)
        for name in read & set(self.tiles):
            start = np.maximum(start, self.tiles[name].ready)
        finish = start + span
        for name in read & set(self.tiles):
            tile = self.tiles[name]
            tile.first, tile.last = np.minimum(tile.first, start), np.maximum(tile.last, finish)
        for name in written & set(self.tiles):
            tile = self.tiles[name]
            tile.writing, tile.ready = tile.writing + span, np.maximum(tile.ready, finish)
        self.chain = np.maximum(self.chain, finish)
