"""What a loop's body reads beside what is to be moved there.

    entry of a carried tensor    the exit's value of the iteration before, at first what begins it
    a row of a tensor outside    that row of what lies outside
    a tensor of the body         what its kernel wrote in this iteration

So a move from or to another place, and a tensor written over before it is read, are told from a
kernel that is wrong. Invariant: values are those that kernels were seen to write; no place and no
move has a part in what is expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Body, Graph, Node

Array = NDArray[Any]
Outside = Callable[[str], Array | None]
"""The value of a tensor outside of the loop, where it is known."""


@dataclass
class MovedValues:
    """Values of one loop while it runs.

    Attributes:
        node: that the loop is of.
        body: what it runs.
        graph: of the body, with schedules.
        outside: what lies outside of it.
        written, before: what kernels wrote in this iteration, and in the one before.
        rows: what each iteration wrote, by tensor.
    """

    node: Node
    body: Body
    graph: Graph
    outside: Outside
    written: dict[str, Array] = field(default_factory=dict)
    before: dict[str, Array] = field(default_factory=dict)
    rows: dict[str, list[Array]] = field(default_factory=dict)

    def next(self) -> None:
        """An iteration is over."""
        for row in self.body.writes:
            value = self._of(row.inside, self.written)
            if value is not None:
                self.rows.setdefault(row.inside, []).append(value)
        self.before, self.written = self.written, {}

    def expected(self, name: str, iteration: int) -> Array | None:
        """What a tensor of the body has to be when it is read; None where that is not known."""
        here = self._of(name, self.written)
        if here is not None:
            return here
        for carried in self.body.carried:
            if carried.entry != name:
                continue
            if iteration > 0:
                return self._of(carried.exit, self.before)
            return self._input(carried.initial) if carried.initial >= 0 else None
        for row in self.body.reads:
            if row.inside == name:
                whole = self._input(row.outside)
                return None if whole is None else _part(whole, row.start + row.step * iteration)
        return None

    def apart(self) -> tuple[str, int, Array, Array] | None:
        """The first row outside that is not what an iteration wrote: tensor, iteration, what stands
        there and what should."""
        for row in self.body.writes:
            name = self.node.outputs[row.outside]
            whole = self.outside(name) if row.step else None
            for iteration, wanted in enumerate(self.rows.get(row.inside, ())):
                number = row.start + row.step * iteration
                part = None if whole is None else _part(whole, number, wanted.size)
                if part is not None and not same(part, wanted):
                    return name, iteration, part, wanted
        return None

    def _of(self, name: str, values: Mapping[str, Array]) -> Array | None:
        """A tensor's value, or that of the one which it is a view of."""
        while name not in values:
            producer = self.graph.producers.get(name)
            if producer is None or producer.kind != "view":
                return None
            name = producer.inputs[0]
        return values[name]

    def _input(self, number: int) -> Array | None:
        return self.outside(self.node.inputs[number])


def body_of(graphs: Sequence[Graph], graph: Graph) -> tuple[Node, Body] | None:
    """The control node and the body that a graph with schedules was made of."""
    names = {info.name for info in graph.inputs}
    for outer in graphs:
        for node in outer.nodes:
            for body in node.bodies:
                if body.graph is graph or names == {info.name for info in body.graph.inputs}:
                    return node, body
    return None


def same(row: Array, wanted: Array) -> bool:
    """Whether values are the same, bit by bit, whatever their shapes."""
    return row.reshape(-1).tobytes() == wanted.reshape(-1).tobytes()


def _part(whole: Array, number: int, size: int = 0) -> Array | None:
    """A part of a tensor, parts being its rows, or of a size each; None beyond its ends."""
    size = size or whole.size // max(1, whole.shape[0] if whole.ndim else 1)
    flat = whole.reshape(-1)
    if not 0 <= number * size <= flat.size - size:
        return None
    return np.asarray(flat[number * size : (number + 1) * size])
