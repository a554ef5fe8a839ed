"""What a loop of known turns reads and writes by its counter: rows, one for each turn.

StableHLO has no scan: a loop cuts row `i` out of a tensor and puts row `i` into another. A place
that depends on counters alone is known for every turn before the loop runs, so what is read there
is read before the loop, for all turns at once, and what is written there is written behind it.

Invariants: a place is by turn only if it follows from counters and constants; a state is written by
rows only if nothing else looks at it, and no row is written twice, or read after it was written.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.stablehlo.builder import GraphBuilder, Shape, TensorValue
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.compiler.host.nodes import HostFunction
from tilesmith.search_space.support.errors import JobError

Table = NDArray[Any]

_POINTWISE = having("pointwise")
"""Operators that places are computed by, each element for itself."""

_PLACES = 256
"""Elements up to which a tensor is followed from turn to turn."""


@dataclass(frozen=True)
class TurnWindows:
    """Windows of a tensor, another one each turn.

    Attributes:
        starts: by axis, where windows begin: numbers [turns, *batch], or a value of the loop's
            surroundings, the same in all turns.
        batch: extents that the windows of one turn are counted by.
        sizes: of a window.
    """

    starts: dict[int, Table | TensorValue]
    batch: Shape
    sizes: Shape

    @property
    def vary(self) -> bool:
        """Whether windows of any two turns differ."""
        tables = (start for start in self.starts.values() if isinstance(start, np.ndarray))
        return any(bool((table != table[:1]).any()) for table in tables)

    def line(self, shape: Shape) -> tuple[int, int, bool] | None:
        """Where each turn has the next element of one axis, all there is of the others: the axis,
        the lowest of the places, and whether turns go down."""
        if self.batch or len(self.starts) != 1:
            return None
        ((axis, start),) = self.starts.items()
        whole = all(self.sizes[a] == extent for a, extent in enumerate(shape) if a != axis)
        if not isinstance(start, np.ndarray) or self.sizes[axis] != 1 or not whole:
            return None
        steps = np.diff(start.astype(np.int64))
        if len(steps) and abs(steps[0]) == 1 and (steps == steps[0]).all():
            return axis, int(start.min()), bool(steps[0] < 0)
        return None

    def elements(self, shape: Shape, turns: int) -> Table:
        """[turns, any number]: the elements of a tensor that windows cover, as far as they differ
        from turn to turn."""
        axes = [axis for axis in self.starts if isinstance(self.starts[axis], np.ndarray)]
        places = np.zeros((turns, *self.batch, *(1 for _ in axes)), np.int64)
        for number, axis in enumerate(axes):
            own = np.asarray(self.starts[axis]).astype(np.int64)
            ahead = np.arange(self.sizes[axis])
            ahead = ahead.reshape(-1, *(1 for _ in axes[number + 1 :]))
            own = own.reshape(*own.shape, *(1 for _ in axes))
            places = places * shape[axis] + own + ahead
        return places.reshape(turns, -1)


@dataclass(frozen=True)
class WrittenRow:
    """A state after a row of it was written: which state, where, and what."""

    state: str
    rows: TurnWindows
    update: TensorValue


@dataclass
class Turns:
    """A loop of known turns while its body is translated.

    Attributes:
        count: how often the body runs.
        tables: by the name of a counter, its value in each turn.
        states: by the name of what is carried and may be written by rows, what it starts from.
        scanned: by a row's name, all rows [turns, ...], and whether the last comes first.
        seen: windows of states that are read.
        written: by the name of what comes of it.
        level: how deep its body lies.
    """

    count: int
    tables: dict[str, Table]
    states: dict[str, TensorValue]
    outside: "tuple[list[Node], Any, list[Turns]]"
    level: int
    scanned: dict[str, tuple[TensorValue, bool]] = field(default_factory=dict)
    seen: list[tuple[str, TurnWindows]] = field(default_factory=list)
    written: dict[str, WrittenRow] = field(default_factory=dict)

    @contextmanager
    def around(self, b: GraphBuilder) -> Iterator[None]:
        """Nodes written inside the block are put before the loop."""
        inside = (b.nodes, b.written, b.turns)
        b.nodes, b.written, b.turns = self.outside
        try:
            yield
        finally:
            b.nodes, b.written, b.turns = inside

    def is_outside(self, b: GraphBuilder, value: TensorValue) -> bool:
        return value.name in b.constants or b.levels[value.name] < self.level

    def table(self, b: GraphBuilder, value: TensorValue) -> Table | None:
        """[turns or 1, *own]: the value in each turn; None if it does not follow from counters."""
        known = self.tables.get(value.name)
        if known is not None:
            return known
        if value.name in b.constants:
            return b.constants[value.name][None]
        if value.name in self.scanned:
            return self._read(b, *self.scanned[value.name])
        node = b.producer(value.name)
        if node is None or b.levels[value.name] < self.level or math.prod(value.own) > _PLACES:
            return None
        known = self._computed(b, node, value)
        if known is not None:
            self.tables[value.name] = known
        return known

    def _read(self, b: GraphBuilder, whole: TensorValue, backwards: bool) -> Table | None:
        """Rows of a constant."""
        rows = b.known(whole)
        if rows is None or math.prod(rows.shape[1:]) > _PLACES:
            return None
        return rows[::-1] if backwards else rows

    def _computed(self, b: GraphBuilder, node: Node, value: TensorValue) -> Table | None:
        shaped = node.operator in ("Reshape", "Expand")
        names = node.inputs[:1] if shaped else node.inputs
        if not (shaped or node.operator == "Concat" or node.operator in _POINTWISE):
            return None
        given = [self.table(b, b.value(name)) for name in names]
        tables = [table for table in given if table is not None]
        if len(tables) < len(given) or node.captures:
            return None
        turns = max(len(table) for table in tables)
        rank = len(value.own)
        if node.operator == "Reshape":
            return tables[0].reshape(turns, *value.own)
        if node.operator == "Concat":
            whole = [np.broadcast_to(table, (turns, *table.shape[1:])) for table in tables]
            return np.concatenate(whole, int(node.attribute("axis")) % rank + 1)
        spread = [t.reshape(len(t), *(1,) * (rank + 1 - t.ndim), *t.shape[1:]) for t in tables]
        if node.operator == "Expand":
            return np.broadcast_to(spread[0], (turns, *value.own))
        try:
            results = HostFunction.of(node, b.opsets).run(dict(zip(names, spread, strict=True)))
        except JobError:
            return None
        return np.broadcast_to(results[value.name], (turns, *value.own))

    def rows(
        self, b: GraphBuilder, starts: dict[int, TensorValue], batch: Shape, sizes: Shape
    ) -> TurnWindows | None:
        """Windows that are known by turn, or the same in all; None where some are neither."""
        places: dict[int, Table | TensorValue] = {}
        for axis, start in starts.items():
            table = self.table(b, start)
            if table is not None:
                lead = (1,) * (len(batch) + 1 - table.ndim)
                table = table.reshape(len(table), *lead, *table.shape[1:])
                places[axis] = np.broadcast_to(table, (self.count, *batch))
                continue
            same = self._before(b, start)
            if same is None:
                return None
            places[axis] = same
        return TurnWindows(places, batch, sizes)

    def _before(self, b: GraphBuilder, value: TensorValue) -> TensorValue | None:
        """A value that is the same in all turns, computed before the loop; None for another."""
        if self.is_outside(b, value):
            return value
        node = b.producer(value.name)
        if node is None or node.operator not in (*_POINTWISE, "Reshape"):
            return None
        given = [self._before(b, b.value(name)) for name in node.inputs]
        names = [each.name for each in given if each is not None]
        if len(names) < len(given):
            return None
        with self.around(b):
            computed = b.add(node.operator, names, value.dtype, value.own, **dict(node.attributes))
        return replace(computed, shape=value.shape)

    def broken(self, nodes: list[Node], becomes: dict[str, str], results: list[str]) -> set[str]:
        """States that cannot be written by rows, or of which rows cannot be read.

        Args:
            nodes: of the body.
            becomes: by state, the name of what it becomes.
            results: the names of all that the body gives.
        """
        read = {name for node in nodes for name in node.reads}
        read |= {written.update.name for written in self.written.values()}
        broken = set()
        for name, initial in self.states.items():
            own = [token for token, written in self.written.items() if written.state == name]
            seen = [rows for state, rows in self.seen if state == name]
            if not own and not seen:
                continue
            alone = own == [becomes[name]] and results.count(own[0]) == 1
            looked_at = name in results or read.intersection((name, *own))
            if alone and not looked_at:
                alone = self._in_turn(self.written[own[0]].rows, seen, initial.shape)
            if looked_at or not alone:
                broken.add(name)
        return broken

    def _in_turn(self, written: TurnWindows, read: list[TurnWindows], shape: Shape) -> bool:
        """Whether nothing is written twice, nor read after it was written."""
        tabled = all(isinstance(start, np.ndarray) for start in written.starts.values())
        places = written.elements(shape, self.count)
        order, first = np.unique(places, return_index=True)
        if len(order) < places.size or (read and not tabled):
            return False
        for rows in read:
            if (rows.starts.keys(), rows.sizes) != (written.starts.keys(), written.sizes):
                return False
            own = rows.elements(shape, self.count)
            at = np.minimum(np.searchsorted(order, own), len(order) - 1)
            turn = np.arange(self.count)[:, None]
            if ((order[at] == own) & (first[at] // places.shape[1] < turn)).any():
                return False
        return True
