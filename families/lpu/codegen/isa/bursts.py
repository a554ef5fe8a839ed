"""A scheduled program: instructions in bursts, each with its queue and its first cycle.

A burst is one instruction issued `count` times, every `interval` cycles (Repeat n,d): it stands for
so many vectors. All of a program's bursts are one table (`BURST`); what the units between streams
do (VXM, MXM, SXM, links) is said by `units`, which the column `unit` numbers.

    READ        a word of a MEM slice onto a stream        queue: the slice
    WRITE       a token into a word                        queue: the slice
    GATHER      a word chosen by a token's number          queue: the slice; unit: the index
    LOAD        LW: tokens into a plane's load buffer      `step`: rows (columns of the matrix)
    INSTALL     IW: the load buffer becomes the array
    MOVE        ABC: a moving vector meets the array
    ACCUMULATE  ACC: its sums, with what is added to them, onto streams
    ALU         one operation of VXM                       `step`: which of the unit's operations
    SHUFFLE     SXM
    TRANSPOSE   SXM, a transposer for each byte        `step`: which byte
    SEND, RECEIVE         links

Addresses are words of a bank: word i of a burst is `address + i * step`, a row of a tensor (of a
gather, all words from `address` on are rows from `row` on). Operands are taken from
the cell beside the slice in the cycle of issue (ALUs: in the cycle their unit begins, `began`); a
token goes on to the next position unless one that takes it is the `last`.

Invariants: the table is in no particular order; equal programs have equal bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, auto
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import Operation

if TYPE_CHECKING:

    class Table(np.ndarray[Any, np.dtype[np.void]]):
        """An array of `BURST`, whose columns are integers. numpy types a column as an array of
        anything, for which mypy tries each overload of each operator."""

        @overload  # type: ignore[override, no-overload-impl]
        def __getitem__(self, column: str) -> NDArray[np.int64]: ...
        @overload
        def __getitem__(self, row: int | np.integer[Any]) -> np.void: ...
        @overload
        def __getitem__(self, rows: NDArray[Any] | slice | list[int]) -> "Table": ...
else:
    Table = np.ndarray


class BurstOp(IntEnum):
    """What a burst's instruction does."""

    READ = 0
    WRITE = auto()
    GATHER = auto()
    LOAD = auto()
    INSTALL = auto()
    MOVE = auto()
    ACCUMULATE = auto()
    ALU = auto()
    SHUFFLE = auto()
    TRANSPOSE = auto()
    SEND = auto()
    RECEIVE = auto()


MEMORY_OPS = (BurstOp.READ, BurstOp.WRITE, BurstOp.GATHER)

BURST = np.dtype(
    [
        ("op", "<i2"), ("queue", "<i2"), ("cycle", "<i8"), ("count", "<i4"), ("interval", "<i4"),
        ("chain", "<i4"), ("bank", "<i2"), ("address", "<i4"), ("step", "<i4"),
        ("stream", "<i2"), ("east", "<i1"), ("last", "<i1"), ("unit", "<i4"),
        ("tensor", "<i4"), ("row", "<i4"), ("pitch", "<i4"), ("byte", "<i1"),
    ]
)  # fmt: skip
"""Columns. `stream`, `east`, `last`: of MEM's token; `tensor`, `row`, `pitch`, `byte`: what words
of MEM are meant to be, rows `row + i * pitch` of a tensor; `chain`: whose instruction it is."""


@dataclass(frozen=True)
class StreamGroup:
    """Streams that carry a value, the least significant byte first.

    Attributes:
        last: of an operand: the tokens do not travel on.
    """

    east: bool
    streams: tuple[int, ...]
    dtype: str
    last: bool = False


@dataclass(frozen=True)
class Unit:
    """What a unit between streams takes, gives and does.

    Attributes:
        place: its position.
        inputs, outputs: in the order of the operation's. MOVE: the moving vector, ACCUMULATE: what
            is added (or nothing) and the sums, LOAD: one group for each stream that rows come on.
        plane: of MXM, the (first) plane; -1 elsewhere. Planes 2 h and 2 h + 1 together are the
            float16 unit of hemisphere h.
        first, k: lanes that count in a product: from `first` to before `k`.
        dtype: of a product's operands.
        operations, results: VXM's expression, and the operation that each output is.
        lanes: SXM's movement.
        kind: of a shuffle.
        link: of a send or receive.
    """

    place: int
    inputs: tuple[StreamGroup, ...] = ()
    outputs: tuple[StreamGroup, ...] = ()
    plane: int = -1
    k: int = 0
    dtype: str = ""
    operations: tuple[Operation, ...] = ()
    results: tuple[int, ...] = ()
    lanes: tuple[int, ...] = ()
    kind: str = ""
    link: int = -1
    first: int = 0


@dataclass(frozen=True)
class Region:
    """Where a copy of a block of a tensor lies: rows `first` to `first + rows`.

    Attributes:
        homes: (slice, bank, address) by stripe and byte plane: row first + r is word
            `address + r // stripes` of those of stripe `r % stripes`.
        zeros: its words are zeros before the first cycle.
    """

    tensor: str
    first: int
    rows: int
    homes: tuple[tuple[tuple[int, int, int], ...], ...]
    zeros: bool = False


@dataclass(frozen=True)
class TensorPlace:
    """A tensor of a program, as the host sees it: `DTYPES` rows of 320 elements; `parts`: as
    `dataflow.Tensor` has them."""

    name: str
    rows: int
    dtype: str
    role: str
    parts: int = 1


@dataclass(frozen=True, eq=False)
class BurstSchedule:
    """A program for one chip.

    Attributes:
        table: bursts, of dtype `BURST`.
        regions: where blocks lie, copies included. Those of "input", "constant" and "state" tensors
            are filled before the first cycle, those of "output" and "state" read after the last.
        chains: names, numbered by the column `chain`.
        order: where each chain stands in program order; empty: as they are numbered.
    """

    name: str
    chip: Chip
    table: Table
    units: tuple[Unit, ...]
    places: tuple[TensorPlace, ...]
    regions: tuple[Region, ...]
    chains: tuple[str, ...]
    order: tuple[int, ...] = ()

    @cached_property
    def cycles(self) -> int:
        """From the first cycle to the end of the last instruction in the last tile."""
        table = self.table
        if not len(table):
            return 0
        issued = table["cycle"] + (table["count"].astype(np.int64) - 1) * table["interval"]
        ends = [0]
        for op in np.unique(table["op"]):
            mine = table["op"] == op
            ends.append(int(issued[mine].max()) + latency(self.chip, BurstOp(op)))
        return max(ends) + self.chip.tiles

    @property
    def seconds(self) -> float:
        return self.cycles / (self.chip.ghz * 1e9)

    def __iter__(self) -> Iterator[dict[str, int]]:
        names = BURST.names or ()
        return (dict(zip(names, row, strict=True)) for row in self.table.tolist())


_LATENCIES = {
    BurstOp.READ: "read", BurstOp.WRITE: "write", BurstOp.GATHER: "gather", BurstOp.MOVE: "product",
    BurstOp.ACCUMULATE: "accumulate", BurstOp.ALU: "alu", BurstOp.SHUFFLE: "shuffle",
    BurstOp.TRANSPOSE: "transpose", BurstOp.SEND: "link",
}  # fmt: skip


def latency(chip: Chip, op: BurstOp) -> int:
    """Cycles from an instruction's issue to its result (d_func)."""
    if op == BurstOp.INSTALL:
        return chip.install
    return chip.delay(_LATENCIES[op]) if op in _LATENCIES else 1


def depths(inputs: int, operations: tuple[Operation, ...]) -> list[int]:
    """How many ALUs stand between the inputs and each operation, which is 0 for the first."""
    depths: list[int] = []
    for operation in operations:
        before = [depths[o - inputs] + 1 for o in operation.operands if o >= inputs]
        depths.append(max(before, default=0))
    return depths
