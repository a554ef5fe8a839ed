"""What selection knows at a point of its walk: buffers in sight, tensors, and what flows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen import dataflow
from tilesmith.families.lpu.codegen.selection.graphs.chains import MOST_ROWS, Chains, block_of
from tilesmith.families.lpu.codegen.selection.graphs.expressions import Algebra
from tilesmith.families.lpu.codegen.selection.graphs.spreading import on_the_way, spread_rows
from tilesmith.families.lpu.codegen.selection.graphs.vectors import (
    Number,
    SpreadNumber,
    Stored,
    Vectors,
)
from tilesmith.families.lpu.codegen.selection.layout.accesses import places_of, rows_of, shape_of
from tilesmith.families.lpu.schedules.building_blocks.machine import FLOWING
from tilesmith.search_space.ir.program import Buffer
from tilesmith.search_space.support.errors import CodegenError

MOST_MATRICES = 2
"""Of which one chain writes parts, and yet each is a block of its own."""


WIDE_ROWS, ONE_BLOCK = 160, 96
"""Rows up to which chains wait longer for rows before them than for units; and those that are not
worth being cut for a reader that follows."""

FOLLOWED = 32
"""Rows that a reader follows at, between these two."""


@dataclass(frozen=True, eq=False)
class Flow:
    """A graph, and the rows of its buffer that its vectors are, in order."""

    value: Vectors
    numbers: dataflow.Ints


@dataclass
class State:
    """See the module's docstring.

    Attributes:
        names: tensors of buffers in memory, by buffer.
        flowing: graphs of buffers that flow, by buffer and chunk of the lanes.
        written: rows of tensors that hold something.
        series: passes of MXM in one chain.
        readers: statements that read a buffer, where it is more than one: what flows to several is
            written once.
        numbers: what is known of constant buffers: rows of one number are immediates.
        later: constant buffers whose rows are one number each, known when programs are linked.
        scattered: tensors whose rows are loaded as weights from here and there, or of which one
            chain writes parts of many matrices: a block each would want slices of its own.
    """

    chains: Chains
    algebra: Algebra = field(default_factory=Algebra)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    flowing: dict[tuple[str, int], Flow] = field(default_factory=dict)
    written: dict[str, set[int]] = field(default_factory=dict)
    series: int = 1
    readers: dict[str, int] = field(default_factory=dict)
    scattered: set[str] = field(default_factory=set)
    numbers: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    later: frozenset[str] = frozenset()

    def declare(self, buffer: Buffer, role: dataflow.Role) -> None:
        """A buffer of the caller's: its tensor has its name."""
        self._typed(buffer)
        self.buffers[buffer.name], self.names[buffer.name] = buffer, buffer.name
        self.chains.tensors[buffer.name] = dataflow.VectorTensor(
            buffer.name,
            rows_of(buffer),
            buffer.dtype,
            role,
            block_of(places_of(buffer), buffer.dtype),
        )

    def allocate(self, buffer: Buffer) -> None:
        """A buffer comes into being: rows of its own each time, for memory is used again."""
        self._typed(buffer)
        self.buffers[buffer.name] = buffer
        if buffer.scope in FLOWING:
            for key in [key for key in self.flowing if key[0] == buffer.name]:
                del self.flowing[key]
        else:
            cut = places_of(buffer) if rows_of(buffer) > places_of(buffer) else 0
            tensor = self.chains.temporary(buffer.name, rows_of(buffer), buffer.dtype, cut)
            if not cut and buffer.dtype == "float32" and ONE_BLOCK < tensor.rows <= WIDE_ROWS:
                self.chains.tensors[tensor.name] = replace(tensor, block=FOLLOWED)
            self.names[buffer.name] = tensor.name

    def _typed(self, buffer: Buffer) -> None:
        if buffer.dtype not in dataflow.DTYPES:
            known = ", ".join(dataflow.DTYPES)
            raise CodegenError(f"buffer '{buffer.name}' is of {buffer.dtype}; rows are of {known}")

    def read(self, buffer: Buffer, numbers: dataflow.Ints, frame: str = "") -> Vectors:
        """Rows of a buffer, or what flows there, which goes on where it is taken up in its order.

        A row number below zero is row 0 of `frame`, or zeros.
        """
        if buffer.scope not in FLOWING:
            return Stored(self.names[buffer.name], numbers, buffer.dtype, frame)
        key = self.key(buffer, numbers)
        if key not in self.flowing:
            raise CodegenError(f"buffer '{buffer.name}' is read before anything flows in it")
        flow = self.flowing[key]
        if isinstance(flow.value, SpreadNumber):
            flowing = on_the_way(flow.value, _positions(flow.numbers, numbers))
            if flowing is not None:
                return flowing
            spread = spread_rows(self.chains, buffer.name, flow.value)
            flow = self.flowing[key] = Flow(spread, flow.numbers)
        shared = self.readers.get(buffer.name, 1) > 1 and not isinstance(flow.value, Number)
        if np.array_equal(numbers, flow.numbers) and not shared:
            return flow.value
        whole = self.chains.stored(buffer.name, flow.value, len(flow.numbers))
        self.flowing[key] = Flow(whole, flow.numbers)
        if np.array_equal(numbers, flow.numbers):
            return whole
        places = np.full(rows_of(buffer), -1, np.int64)
        places[flow.numbers] = whole.numbers
        picked = np.where(numbers < 0, -1, places[np.maximum(numbers, 0)])
        return Stored(whole.tensor, picked, whole.dtype, frame)

    def turns(self, buffer: Buffer, numbers: dataflow.Ints) -> dataflow.Ints | None:
        """Of rows that are on their way to all lanes, which of sixteen each is (`spreading`)."""
        if buffer.scope not in FLOWING:
            return None
        flow = self.flowing.get(self.key(buffer, numbers))
        if flow is None or not isinstance(flow.value, SpreadNumber):
            return None
        return _positions(flow.numbers, numbers) % dataflow.SUPERLANE

    def number(self, buffer: Buffer, rows: dataflow.Ints) -> Vectors | None:
        """The number that rows of a constant buffer hold on all lanes, if it is known."""
        if (rows < 0).any():
            return None
        if buffer.name in self.later and (rows == rows[0]).all():
            return self.algebra.held(self.names[buffer.name], int(rows[0]), buffer.dtype)
        if buffer.name not in self.numbers:
            return None
        held = self.numbers[buffer.name][rows[:1]].reshape(-1)
        if (rows != rows[0]).any() or (held != held[0]).any():
            return None
        return self.algebra.number(float(held[0]), buffer.dtype)

    def key(self, buffer: Buffer, numbers: dataflow.Ints) -> tuple[str, int]:
        """Where rows of a buffer flow: it, and which part of the lanes."""
        chunks = np.unique(numbers[numbers >= 0] // places_of(buffer))
        if len(chunks) > 1:
            raise CodegenError(f"several rows a place of '{buffer.name}' flow at once")
        return buffer.name, int(chunks[0]) if len(chunks) else 0

    def write(self, stage: str, buffer: Buffer, numbers: dataflow.Ints, value: Vectors) -> None:
        """Vectors into rows of a buffer; what is written into a flowing one, flows there alone."""
        if buffer.scope in FLOWING:
            if value.dtype != buffer.dtype:
                value = self.algebra.converted(value, buffer.dtype)
            self.flowing[self.key(buffer, numbers)] = Flow(value, numbers)
            return
        tensor, shape = self.names[buffer.name], shape_of(buffer)
        if len(shape) > 2 and len(np.unique(numbers // shape[-2])) > MOST_MATRICES:
            self.scattered.add(tensor)
        self.written.setdefault(tensor, set()).update(numbers.tolist())
        self.chains.write(stage, value, dataflow.Rows(tensor, numbers))

    def weights(self, buffer: Buffer, numbers: dataflow.Ints) -> str:
        """The tensor of a buffer that planes are loaded from: a block is a matrix, or 320 columns
        of one."""
        name = self.names[buffer.name]
        columns = shape_of(buffer)[-2] if len(shape_of(buffer)) > 1 else 1
        block = dataflow.LANES if columns % dataflow.LANES == 0 else min(columns, MOST_ROWS)
        if len(np.unique(numbers // block)) > 1 or name in self.scattered:
            self.scattered.add(name)  # rows of a matrix that are no neighbours
            block = min(rows_of(buffer), MOST_ROWS)
        self.chains.tensors[name] = replace(self.chains.tensors[name], block=block)
        return name

    def copied(self, tensor: str) -> None:
        """Ask for a tensor to be readable twice at once."""
        self.chains.tensors[tensor] = replace(self.chains.tensors[tensor], copies=2)


def _positions(flowing: dataflow.Ints, wanted: dataflow.Ints) -> dataflow.Ints:
    """Where rows stand among those that flow."""
    order = np.argsort(flowing, kind="stable")
    return order[np.searchsorted(flowing, wanted, sorter=order)]
