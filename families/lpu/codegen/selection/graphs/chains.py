"""From graphs of vectors to chains: what flows together, and what is written on the way.

    rows ──► passes of MXM, moves of SXM, rows picked ──► one expression of VXM ──► rows

is a chain. What a graph has beyond that is cut off, written to a temporary and read again: moving
vectors that have to be computed, more operations than VXM has ALUs a lane, more operands than there
are streams for, more passes than go in series. Nothing else flows both ways around a step, so that
paths within a chain are equally long: streams do not wait, rows do.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen.dataflow import (
    DTYPES,
    LANES,
    MOST_OPERATIONS,
    Chain,
    ChainBuilder,
    ChainValue,
    Compute,
    Dataflow,
    Operation,
    Rows,
    VectorTensor,
)
from tilesmith.families.lpu.codegen.selection.graphs.totals import (
    in_pairs,
    with_operands,
    with_sums,
)
from tilesmith.families.lpu.codegen.selection.graphs.vectors import (
    Applied,
    Moved,
    Number,
    Picked,
    SpreadNumber,
    Stored,
    Total,
    Vectors,
    nodes_of,
    operands_of,
)
from tilesmith.search_space.expressions.dtypes import to_numpy

SLICES, FEWEST_ROWS, MOST_ROWS = 8, 64, 4096
"""Slices that a cut of the lanes is spread over, rows of a block at least, and at most: those of a
bank."""

FEW_ROWS = 4
"""Rows that are blocks of their own: numbers that expressions take at once."""

MOST_MOVES = 2
"""Vectors that are moved at once at most, of different tensors, and units of each kind that a
hemisphere has for it."""

MOST_PICKED = 1
"""Rows of tables that are picked at once at most: tables and row numbers all lie on one side, each
on slices of its own."""

MOST_COPIES = 4
"""Of a tensor that one chain reads so often at once: two in either hemisphere."""

MOST_STREAMS = 24
"""Streams of one byte a lane that the operands of an expression come on at most: of the 32 of
either direction, results and weights need some."""


@dataclass
class Chains:
    """The chains and tensors of a program as they are made.

    Attributes:
        literals: contents of constant tensors that stand in no operand, (rows, `LANES`).
    """

    tensors: dict[str, VectorTensor] = field(default_factory=dict)
    literals: dict[str, NDArray[Any]] = field(default_factory=dict)
    chains: list[Chain] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)

    def dataflow(self, name: str) -> Dataflow:
        return Dataflow(name, self.tensors, tuple(self.chains))

    def temporary(self, name: str, rows: int, dtype: str, places: int = 0) -> VectorTensor:
        """A tensor of its own, named after what it holds; `places` of its rows are one cut of the
        lanes (0: all of them, blocked as the scheduler likes)."""
        self.names[name] += 1
        block = block_of(places, dtype) if places else 0
        tensor = VectorTensor(f"{name}.{self.names[name]}", rows, dtype, block=block)
        self.tensors[tensor.name] = tensor
        return tensor

    def literal(self, name: str, rows: NDArray[Any], dtype: str) -> str:
        """A constant tensor of these rows, shape (rows, up to `LANES`); one of equal content."""
        whole = np.zeros((len(rows), LANES), to_numpy(dtype))
        whole[:, : rows.shape[1]] = rows
        for known, content in self.literals.items():
            same = self.tensors[known].dtype == dtype and content.shape == whole.shape
            if same and np.array_equal(content, whole, equal_nan=dtype.startswith("float")):
                return known
        self.names[name] += 1
        literal = f"{name}.{self.names[name]}"
        self.tensors[literal] = VectorTensor(literal, len(whole), dtype, "constant")
        self.literals[literal] = whole
        return literal

    def number(self, value: float, dtype: str) -> str:
        """A constant row of one number, saturated to its type."""
        kind = to_numpy(dtype)
        if kind.kind in "iu":
            value = float(np.clip(value, np.iinfo(kind).min, np.iinfo(kind).max))
        return self.literal("number", np.full((1, LANES), value).astype(kind), dtype)

    def spread(self, number: Number, count: int, dtype: str = "") -> Stored:
        """A number as rows of its own."""
        if number.source is not None:
            tensor, row = number.source
            return Stored(tensor, np.full(count, row, np.int64), self.tensors[tensor].dtype)
        dtype = dtype or number.dtype
        return Stored(self.number(number.value, dtype), np.zeros(count, np.int64), dtype)

    def write(self, name: str, value: Vectors, rows: Rows) -> None:
        """Chains that compute a value and write it."""
        count, dtype = len(rows), self.tensors[rows.tensor].dtype
        if isinstance(value, Number):
            value = self.spread(value, count, dtype)
        if value.dtype != dtype:
            value = Applied("convert", (value,), dtype)
        value = self.cut(name, with_sums(value), count)
        assert all(len(n.numbers) == count for n in nodes_of(value) if isinstance(n, Stored)), name
        self.names[name] += 1
        builder = ChainBuilder(f"{name}#{self.names[name]}", count)
        builder.write(_Emission(self, builder).value(value), rows)
        for tensor, group in at_once(nodes_of(value)).items():
            if not self.apart(group):
                copies = 2 if len(group) <= 2 else MOST_COPIES
                before = self.tensors[tensor].copies
                self.tensors[tensor] = replace(self.tensors[tensor], copies=max(copies, before))
        self.chains.append(builder.chain())

    def stored(self, name: str, value: Vectors, count: int) -> Stored:
        """A value as rows to read: written to a temporary, unless it is such rows already."""
        if isinstance(value, Stored):
            return value
        tensor = self.temporary(name, count, value.dtype)
        self.write(name, value, Rows.of(tensor.name, 0, (count, 1)))
        return Stored(tensor.name, np.arange(count, dtype=np.int64), value.dtype)

    # -- cutting ------------------------------------------------------------------------------
    def cut(self, name: str, value: Vectors, count: int) -> Vectors:
        """A value as one chain can make it; what is too much for one is written before."""
        done: dict[int, Vectors] = {}
        for node in nodes_of(value):
            new = [done[id(o)] for o in operands_of(node)]
            if not isinstance(node, Applied):
                new = [self.stored(f"{name}.part", operand, count) for operand in new]
            done[id(node)] = self._fitting(name, with_operands(node, new), count)
        return done[id(value)]

    def _fitting(self, name: str, node: Vectors, count: int) -> Vectors:
        if isinstance(node, Total):
            while (first := self._first(node)) < len(node.passes):
                part = replace(node, passes=node.passes[:first])
                sums = self.stored(f"{name}.sums", part, count)
                node = replace(node, passes=node.passes[first:], sums=sums)
            node = in_pairs(node)
        while self._too_much(node):
            node = self._lighter(name, node, count)
        return node

    def _first(self, node: Total) -> int:
        """How many passes go in series: those whose rows lie apart."""
        most = min(node.series, len(node.passes))
        while most > 1 and not self._readable([replace(node, passes=node.passes[:most])]):
            most -= 1
        return most

    def _too_much(self, node: Vectors) -> bool:
        operations, streams = weight(node)
        if not isinstance(node, Applied) or not _parts(node):
            return False
        moves = [part for part in _together(node) if isinstance(part, Moved)]
        kinds = Counter(m.kind for m in moves)
        moved = {id(m.value): m.value for m in moves}.values()
        tensors = [value.tensor for value in moved if isinstance(value, Stored)]
        heavy = operations > MOST_OPERATIONS or streams > MOST_STREAMS
        heavy |= max(kinds.values(), default=0) > MOST_MOVES or len(moved) > MOST_MOVES
        heavy |= len(set(tensors)) < len(tensors)
        heavy |= sum(isinstance(part, Picked) for part in _together(node)) > MOST_PICKED
        return heavy or not self._readable(nodes_of(node))

    def _readable(self, nodes: Iterable[Vectors]) -> bool:
        """Whether all that is read at once can be: blocks of their own, or copies."""
        groups = at_once(nodes).values()
        return all(len(group) <= MOST_COPIES or self.apart(group) for group in groups)

    def apart(self, group: list[Stored]) -> bool:
        """Whether rows read at once lie in different blocks of their tensor."""
        block = self.tensors[group[0].tensor].block
        if not block:
            return len(group) == 1
        taken = [set(np.unique(node.numbers[node.numbers >= 0] // block)) for node in group]
        return sum(map(len, taken)) == len(set[Any]().union(*taken))

    def _lighter(self, name: str, node: Vectors, count: int) -> Vectors:
        """A graph with its heaviest part that fits written before."""
        heaviest = max(_parts(node), key=weight)
        done: dict[int, Vectors] = {id(heaviest): self.stored(f"{name}.part", heaviest, count)}
        for part in _together(node):
            if id(part) not in done:
                done[id(part)] = (
                    with_operands(part, [done[id(o)] for o in part.operands])
                    if isinstance(part, Applied)
                    else part
                )
        return done[id(node)]


def _together(node: Vectors) -> Iterator[Vectors]:
    """The functions of one expression and its operands, which are not looked into; operands
    first."""
    seen: set[int] = set()

    def visit(node: Vectors) -> Iterator[Vectors]:
        if id(node) in seen:
            return
        seen.add(id(node))
        for operand in node.operands if isinstance(node, Applied) else ():
            yield from visit(operand)
        yield node

    yield from visit(node)


def _parts(node: Vectors) -> list[Vectors]:
    """What may be cut off an expression."""
    return [n for n in _together(node) if n is not node and isinstance(n, Applied | Moved | Picked)]


def weight(node: Vectors) -> tuple[int, int]:
    """ALUs of an expression, and streams of its operands."""
    operations, streams = 0, 0
    for part in _together(node):
        match part:
            case Applied():
                operations += 1
            case Number():
                pass
            case Total(passes=passes):
                streams += DTYPES[part.dtype] + sum(DTYPES[p.moving.dtype] for p in passes)
            case Picked():
                streams += DTYPES[part.dtype] + DTYPES["int32"]
            case _:
                streams += DTYPES[part.dtype]
    return operations, streams


def at_once(nodes: Iterable[Vectors]) -> dict[str, list[Stored]]:
    """What is read at once, by tensor: the same rows once for all functions and once for all moves
    of lanes, but again for each other step that takes them."""
    operands: dict[str, list[Stored]] = {}
    known: set[tuple[type, str, bytes]] = set()
    for node in nodes:
        for operand in operands_of(node):
            if not isinstance(operand, Stored):
                continue
            group = operands.setdefault(operand.tensor, [])
            rows = type(node), operand.tensor, operand.numbers.tobytes()
            if not isinstance(node, Applied | Moved) or rows not in known:
                group.append(operand)
            known.add(rows)
            if operand.frame:
                border = replace(operand, tensor=operand.frame, numbers=operand.numbers * 0)
                operands.setdefault(operand.frame, []).append(border)
    return operands


def block_of(rows: int, dtype: str) -> int:
    """Rows of a block: a few blocks of many rows, so that parts of them are read at once."""
    if rows <= FEW_ROWS:
        return 1
    blocks = min(max(1, SLICES // DTYPES[dtype]), max(1, rows // FEWEST_ROWS))
    even = (n for n in range(blocks, 0, -1) if rows % n == 0)
    return min(MOST_ROWS, rows // next(even))


@dataclass
class _Emission:
    """Steps of one chain."""

    chains: Chains
    builder: ChainBuilder
    values: dict[int, ChainValue] = field(default_factory=dict)

    def value(self, node: Vectors) -> ChainValue:
        """The step that makes a node; made once."""
        if id(node) not in self.values:
            self.values[id(node)] = self._step(node)
        return self.values[id(node)]

    def _step(self, node: Vectors) -> ChainValue:
        match node:
            case Stored(tensor, numbers):
                return self.builder.read(Rows(tensor, numbers), node.frame)
            case Total(passes, sums=sums):
                total = None if sums is None else self.value(sums)
                for part in passes:
                    total = self.builder.product(
                        self.value(part.moving), part.weights, part.k, total, part.first
                    )
                assert total is not None, "a sum of nothing is a number"
                return total
            case Moved(kind, value, lanes):
                return self.builder.shuffle(kind, self.value(value), lanes)
            case Picked(table, index, rows, _, first):
                return self.builder.gather(table, self.value(index), rows, first)
            case Applied():
                return self._expression(node)
            case Number() | SpreadNumber():
                raise AssertionError("numbers are operands of functions")

    def _expression(self, node: Applied) -> ChainValue:
        inputs: list[ChainValue] = []
        operations: list[Operation] = []
        places: dict[int, int] = {}
        parts = [self._with_one_number(p) if isinstance(p, Applied) else p for p in _together(node)]
        leaves = {
            id(o): o
            for p in parts
            if isinstance(p, Applied)
            for o in p.operands
            if not isinstance(o, Applied | Number)
        }
        known: dict[tuple[object, ...], int] = {}
        for leaf in leaves.values():
            key: tuple[object, ...] = (id(leaf),)
            if isinstance(leaf, Stored):
                key = (leaf.tensor, leaf.frame, leaf.numbers.tobytes())
            if key not in known:
                known[key] = len(inputs)
                inputs.append(self.value(leaf))
            places[id(leaf)] = known[key]
        for original, part in zip(_together(node), parts, strict=True):
            if not isinstance(part, Applied):
                continue
            number = next((o for o in part.operands if isinstance(o, Number)), None)
            numbers = tuple(-1 if isinstance(o, Number) else places[id(o)] for o in part.operands)
            places[id(original)] = len(inputs) + len(operations)
            value, source = (None, None) if number is None else (number.value, number.source)
            operations.append(Operation(part.function, numbers, part.dtype, value, source))
        last = places[id(node)]
        return self.builder.add(Compute(tuple(inputs), tuple(operations), (last,)))

    def _with_one_number(self, node: Applied) -> Applied:
        """An ALU has one immediate: other numbers come as rows."""
        operands, immediate = list(node.operands), False
        for place, operand in enumerate(operands):
            if isinstance(operand, Number):
                if immediate:
                    operands[place] = self.chains.spread(operand, self.builder.count)
                immediate = True
        return replace(node, operands=tuple(operands))
