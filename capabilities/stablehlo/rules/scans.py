"""Loops of known turns that go through rows become `Scan`.

    i, c, ys = while i < n: c = f(c, xs[i]); ys[i] = c; i += 1        before
    c, ys = Scan(c, xs) body=<c = f(c, x)>                            after

A body is translated once to learn which of its values count turns, then as the body of a scan;
again without rows of a state that turns out to be looked at otherwise (`turns.Turns.broken`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.stablehlo.bodies import body_of
from tilesmith.capabilities.stablehlo.builder import GraphBuilder, TensorValue
from tilesmith.capabilities.stablehlo.rules.indexing import written_behind
from tilesmith.capabilities.stablehlo.turns import Turns, WrittenRow
from tilesmith.compiler.graph.graph import Node
from tilesmith.search_space.expressions.dtypes import to_numpy

Values = Sequence[TensorValue]
Body = Callable[[Values], Values]


def scanned(
    b: GraphBuilder, initial: list[TensorValue], kept: list[bool], turns: int, body: Body
) -> list[TensorValue] | None:
    """What a loop ends with; None where it goes through no rows.

    Args:
        initial: what it starts from, whole.
        kept: which of that a turn hands on as it is.
        body: gives what a turn hands on for what it is given.
    """
    counted = _counters(b, initial, kept, turns, body)
    loop = _Scanned(b, initial, kept, counted, turns, body)
    barred: set[int] = set()
    while True:
        results = loop.translated(barred)
        if not isinstance(results, set):
            return results
        barred |= results


def _counters(
    b: GraphBuilder, initial: list[TensorValue], kept: list[bool], turns: int, body: Body
) -> dict[int, NDArray[Any]]:
    """By position, the values of what starts at a known number and grows by one."""
    counters = {}
    with b.scope():
        given = [
            value if stays else b.declare(b.name("carried"), value.dtype, value.shape)
            for value, stays in zip(initial, kept, strict=True)
        ]
        for position, result in enumerate(body(given)):
            first, start = b.single(initial[position]), initial[position]
            node = b.producer(result.name)
            if first is None or start.shape or not np.issubdtype(to_numpy(start.dtype), np.integer):
                continue
            if node is None or not node.is_onnx("Add") or given[position].name not in node.inputs:
                continue
            others = [name for name in node.inputs if name != given[position].name]
            step = b.single(b.value(others[0])) if others else None
            if step is not None:
                grown = int(first) + int(step) * np.arange(turns + 1, dtype=np.int64)
                counters[position] = grown.astype(to_numpy(start.dtype))
    return counters


@dataclass(frozen=True)
class _Scanned:
    """A loop; the fields are `scanned`'s.

    Attributes:
        counted: by the position of a counter, its values, the last after the loop.
    """

    b: GraphBuilder
    initial: list[TensorValue]
    kept: list[bool]
    counted: dict[int, NDArray[Any]]
    turns: int
    body: Body

    def translated(self, barred: set[int]) -> list[TensorValue] | set[int] | None:
        """What the loop ends with; positions of states that are no rows; or None for no scan.

        Args:
            barred: positions of states that are carried whole.
        """
        b = self.b
        outside = (b.nodes, b.written, b.turns)
        with b.scope() as nodes:
            turns = Turns(self.turns, {}, {}, outside, b.level)
            given = self._given(turns, barred)
            b.turns = [*outside[2], turns]
            try:
                results = [b.full(value) for value in self.body(given)]
            finally:
                b.turns = outside[2]
            names = [result.name for result in results]
            carried = [p for p in self._changing() if names[p] not in turns.written]
            live = [*(names[p] for p in carried), *(w.update.name for w in turns.written.values())]
            nodes[:] = _needed(nodes, live)
            becomes = {given[p].name: names[p] for p in self._changing()}
            broken = turns.broken(nodes, becomes, [names[p] for p in self._changing()])
            if broken:
                return {p for p in self._changing() if given[p].name in broken}
            if not turns.scanned and not turns.written:
                return None
            rows = self._rows(turns, given, nodes, [names[p] for p in carried])
            written = {p: turns.written[names[p]] for p in self._changing() if p not in carried}
            inputs = [*(given[p] for p in carried), *(b.value(name) for name in rows)]
            outputs = [*(results[p] for p in carried), *(w.update for w in written.values())]
            body, captures = body_of(b, "body", inputs, nodes, outputs)
        backwards = [int(self._backwards(p, w)) for p, w in written.items()]
        states = [self.initial[p] for p in carried]
        stacked = [(w.update.dtype, (self.turns, *w.update.shape)) for w in written.values()]
        ends = b.add_many(
            "Scan",
            [value.name for value in (*states, *(whole for whole, _ in rows.values()))],
            [*((value.dtype, value.shape) for value in states), *stacked],
            captures,
            body=body, num_scan_inputs=len(rows),
            scan_input_directions=tuple(int(back) for _, back in rows.values()),
            scan_output_directions=tuple(backwards),
        )  # fmt: skip
        return self._ends(carried, written, ends)

    def _changing(self) -> list[int]:
        return [p for p, stays in enumerate(self.kept) if not stays and p not in self.counted]

    def _given(self, turns: Turns, barred: set[int]) -> list[TensorValue]:
        """What a turn is given; rows may be read and written of states that are not barred."""
        given = []
        for position, (value, stays) in enumerate(zip(self.initial, self.kept, strict=True)):
            if not stays:
                start = value
                value = self.b.declare(self.b.name("carried"), start.dtype, start.shape)
                if position in self.counted:
                    turns.tables[value.name] = self.counted[position][:-1]
                elif position not in barred and start.shape:
                    turns.states[value.name] = start
            given.append(value)
        return given

    def _rows(
        self, turns: Turns, given: list[TensorValue], nodes: list[Node], results: list[str]
    ) -> dict[str, tuple[TensorValue, bool]]:
        """What is read by turn: rows, and counters that the body looks at; one at least."""
        used = {name for node in nodes for name in node.reads} | set(results)
        used |= {written.update.name for written in turns.written.values()}
        rows = {name: row for name, row in turns.scanned.items() if name in used}
        for position, values in self.counted.items():
            name = given[position].name
            if name in used or not rows:
                rows[name] = (self.b.constant(values[:-1]), False)
        if not rows:  # what counts the turns is no value of the loop's own
            turn = self.b.declare(self.b.name("turn"), "int64", ())
            rows[turn.name] = (self.b.constant(np.arange(self.turns)), False)
        return rows

    def _backwards(self, position: int, written: WrittenRow) -> bool:
        line = written.rows.line(self.initial[position].shape)
        return line is not None and line[2]

    def _ends(
        self, carried: list[int], written: dict[int, WrittenRow], outputs: Values
    ) -> list[TensorValue]:
        """All values after the loop."""
        ends = list(self.initial)
        for position, values in self.counted.items():
            ends[position] = self.b.constant(values[-1])
        for position, value in zip(carried, outputs, strict=False):
            ends[position] = value
        for (position, own), stacked in zip(written.items(), outputs[len(carried) :], strict=True):
            start = self.initial[position]
            ends[position] = written_behind(self.b, start, stacked, own.rows, self.turns)
        return ends


def _needed(nodes: list[Node], results: list[str]) -> list[Node]:
    """The nodes that results come from."""
    wanted, needed = set(results), []
    for node in reversed(nodes):
        if wanted.intersection(node.writes):
            needed.append(node)
            wanted.update(node.reads)
    return needed[::-1]
