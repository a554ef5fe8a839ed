"""What equals is made once: tiles that the same instructions fill from the same inputs.

    t[i, j] = transpose(load(x[j]))           for each i again: once for all of them

`nl.load` and functions that return tiles say what is wanted, not when it is made, and AWS's
compiler makes equal tiles once (profiles count one transpose for as many as the source has). What
`nl.matmul` turns for itself it makes every time, and `nisa.dma_copy` is one transfer each.
Invariant: a tile is shared only if nothing is written to it after it is first read.
"""

from collections import defaultdict
from typing import Any, NamedTuple

from tilesmith.families.trainium.nki.lowering import BlockOperation, HbmPart, Part, TileBlock
from tilesmith.families.trainium.nki.notation.tensors import SBUF
from tilesmith.families.trainium.nki.notation.tracing import OUT


class _Span(NamedTuple):
    """When a block is written last, and read first."""

    written: int
    read: int


def made_once(ops: list[BlockOperation]) -> list[BlockOperation]:
    """The operations without those that fill a tile with what another tile holds already."""
    spans = _spans(ops)
    numbers = _Numbers(spans)
    for op in ops:
        for name, part in [*op.parts()]:
            if name not in OUT:
                op.operands[name] = part._replace(block=numbers.shared(part.block))
        numbers.count(op)
    return _needed(ops, spans, numbers) if numbers.instead else ops


def _spans(ops: list[BlockOperation]) -> dict[int, _Span]:
    """Of every block, by its identity."""
    written: dict[int, int] = defaultdict(lambda: -1)
    read: dict[int, int] = defaultdict(lambda: len(ops))
    for at, op in enumerate(ops):
        for name, part in op.parts():
            if name in OUT:
                written[id(part.block)] = at
            if name not in OUT or op.method == "copy_predicated":
                read[id(part.block)] = min(read[id(part.block)], at)
    return {key: _Span(written[key], read[key]) for key in {*written, *read}}


class _Numbers:
    """Numbers of what blocks hold: equal numbers, equal elements.

    Attributes:
        instead: the block that is read in place of another, by the latter's identity.
    """

    def __init__(self, spans: dict[int, _Span]) -> None:
        self.instead: dict[int, TileBlock] = {}
        self._spans = spans
        self._writes: dict[int, list[Any]] = defaultdict(list)
        self._values: dict[Any, int] = {}
        self._settled: dict[int, int] = {}
        self._holders: dict[int, TileBlock] = {}

    def shared(self, block: TileBlock) -> TileBlock:
        """The block to read where `block` is read."""
        key = id(block)
        if self._constant(key) and key not in self._settled:
            array = block.array
            held = (array.space, array.dtype, block.partitions, array.free, array.fill)
            number = self._value((*held, *self._writes.pop(key, ())))
            self._settled[key] = number
            if array.space == SBUF and array.fill is None:
                holder = self._holders.setdefault(number, block)
                if holder is not block:
                    self.instead[key] = holder
        return self.instead.get(key, block)

    def count(self, op: BlockOperation) -> None:
        """Note what an operation writes."""
        inputs = [(name, self._input(name, value, op)) for name, value in op.operands.items()]
        alone = op.operands.pop("alone", op.method == "load" and "once" not in op.operands)
        op.operands.pop("once", None)
        key: Any = self._value(object()) if alone else (op.method, *inputs)
        for name, part in op.parts():
            if name in OUT:
                self._writes[id(part.block)].append((key, name, part[1:]))
                if not self._constant(id(part.block)):
                    self._settled[id(part.block)] = self._value(object())

    def _constant(self, key: int) -> bool:
        return self._spans[key].written < self._spans[key].read

    def _input(self, name: str, value: Any, op: BlockOperation) -> Any:
        if isinstance(value, Part):
            if name in OUT:
                return value[1:]
            known = self._settled.get(id(value.block))
            return (self._value(object()) if known is None else known, *value[1:])
        if isinstance(value, HbmPart):
            constant = value.array.role == "input"
            return (id(value.array) if constant else self._value(object()), *value[1:])
        return value

    def _value(self, key: Any) -> int:
        return self._values.setdefault(key, len(self._values))


def _needed(
    ops: list[BlockOperation], spans: dict[int, _Span], numbers: _Numbers
) -> list[BlockOperation]:
    """Without what filled only blocks that other blocks are read in place of."""
    never = {key for key, span in spans.items() if span.read >= len(ops)}
    needed: set[int] = never - numbers.instead.keys()
    kept = []
    for op in reversed(ops):
        written = {id(part.block) for part in op.written()}
        if written and not written & needed:
            continue
        needed |= {id(part.block) for name, part in op.parts() if name not in OUT}
        kept.append(op)
    return kept[::-1]
