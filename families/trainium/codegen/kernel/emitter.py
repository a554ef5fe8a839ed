"""What every instruction of a hand-written kernel goes through: appended, put into order, finished.

`StreamEmitter` is the part of `builder.Kernel` below the instructions themselves: rows are
appended with their operands' accesses and the memory ports they hold, may be rearranged, and
become a stream.

An engine may be given as several, "scalar|gpsimd": the first that can do it, unless the instruction
is interleaved with others, where whichever is free takes it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilesmith.families.trainium.codegen.isa import instructions as isa
from tilesmith.families.trainium.codegen.isa.core import ENGINES, Core
from tilesmith.families.trainium.codegen.isa.fabric import CoreFabric
from tilesmith.families.trainium.codegen.isa.lines import KernelError, Line, caller, line_text
from tilesmith.families.trainium.codegen.isa.memory import Tile
from tilesmith.families.trainium.codegen.isa.numbers import whole
from tilesmith.families.trainium.codegen.isa.verification import (
    Promised,
    verify_dataflow,
    verify_operands,
    verify_synchronisation,
)
from tilesmith.families.trainium.codegen.kernel.kernel_memory import KernelMemory, Key
from tilesmith.families.trainium.codegen.timing.dependences import with_semaphores
from tilesmith.families.trainium.codegen.timing.ordering import ending, in_grant_order
from tilesmith.families.trainium.codegen.timing.scheduling import INTERLEAVING, schedules, shortest
from tilesmith.families.trainium.codegen.timing.ways import Choices
from tilesmith.search_space.expressions.dtypes import nearest, to_numpy

Scalar = float | Tile

WINDOW = 2048
"""Instructions that are interleaved together; a longer stretch is, piece by piece."""

OPERAND_COLUMNS = [isa.INSTRUCTION_COLUMNS.index(name) for name in isa.OPERANDS]

_OPERATION = {name: number for number, name in enumerate(isa.OPERATIONS)}


class StreamEmitter(KernelMemory):
    """Rows of a stream that is being written. Wrong uses raise `CodegenError`."""

    def __init__(self, name: str, core: Core, fabric: CoreFabric | None = None) -> None:
        super().__init__(name, core)
        self._fabric = fabric
        self._groups: dict[tuple[int, ...], int] = {}
        self._rows: list[tuple[int, ...]] = []
        self._immediates: list[tuple[float, float, float]] = []
        self._choices: list[tuple[tuple[int, int], ...]] = []
        self._lines: list[Line | None] = []

    # -- order --------------------------------------------------------------------------------
    @property
    def length(self) -> int:
        """Instructions so far."""
        return len(self._rows)

    def interleave(self, start: int) -> None:
        """Put the instructions from number `start` on into the order in which engines seldom wait,
        each on the engine that is free first where it may run on several.

        Independent chains, such as the iterations of a loop, then hide each other's latencies; how
        far they overlap is up to the copies of their tiles.
        """
        start = whole(start, "the instruction that interleaving begins with", 0)
        for first in range(start, self.length, WINDOW):
            rows = range(first, min(first + WINDOW, self.length))
            if len(rows) > 2:
                shorter = shortest(self.draft(rows), self._open(rows), INTERLEAVING)
                order = (shorter.rows + first).tolist()
                for row, queue, lock in zip(order, shorter.queue, shorter.lock, strict=True):
                    self._settle(row, int(queue), int(lock))
                self._arrange(first, order)

    def _arrange(self, start: int, order: Sequence[int]) -> None:
        """Put the instructions from number `start` on into another order (of their numbers)."""
        stop = start + len(order)
        self._rows[start:stop] = [self._rows[i] for i in order]
        self._immediates[start:stop] = [self._immediates[i] for i in order]
        self._choices[start:stop] = [self._choices[i] for i in order]
        if self.by_hand:
            self._lines[start:stop] = [self._lines[i] for i in order]

    def _open(self, rows: range) -> Choices:
        """Engines that some instructions may run on beside the first named."""
        open_rows = [
            (row - rows.start, engine, lock)
            for row in rows
            for engine, lock in self._choices[row][1:]
        ]
        return Choices(*np.array(open_rows, dtype=np.int64).reshape(-1, 3).T)

    def _settle(self, row: int, queue: int, lock: int) -> None:
        """Let instruction `row` run on one of the engines it may run on."""
        if self._choices[row]:
            columns = list(self._rows[row])
            columns[isa.INSTRUCTION_COLUMNS.index("queue")] = queue
            columns[isa.INSTRUCTION_COLUMNS.index("lock")] = lock
            self._rows[row] = tuple(columns)
            self._choices[row] = ()

    def merge(self, start: int, middle: int) -> None:
        """Merge instructions `start`..`middle` evenly with those after, keeping either's order.

        The two parts must not depend on each other.
        """
        one, two = range(start, middle), range(middle, len(self._rows))
        places = [(i + 0.5) / len(one) for i in range(len(one))]
        places += [(i + 0.5) / len(two) for i in range(len(two))]
        order = sorted(range(len(places)), key=lambda i: (places[i], i))
        self._arrange(start, [start + i for i in order])

    # -- inside -------------------------------------------------------------------------------
    def _emit(
        self,
        op: isa.Opcode,
        engine: str,
        *operands: Tile | None,
        function: int = 0,
        function2: int = 0,
        accumulate: int = 0,
        immediates: tuple[float, float, float] = (0.0, 0.0, 0.0),
    ) -> None:
        slots = [self._access(tile) if tile is not None else -1 for tile in operands]
        slots += [-1] * (5 - len(slots))
        if self.by_hand:
            self._check_present(op, slots)
            function, function2, accumulate = (
                whole(value, f"a number of {op.name.lower()}")
                for value in (function, function2, accumulate)
            )
        able = [name for name in str(engine).split("|") if name in isa.ENGINES_OF[op]]
        if any(tile is not None and tile.space == isa.Space.PSUM for tile in operands):
            able = [name for name in able if name != "gpsimd"] or able  # it cannot reach PSUM
        if not able:
            raise KernelError(
                f"{op.name.lower()} does not run on engine '{engine}'; "
                f"one of {', '.join(isa.ENGINES_OF[op])} is expected"
            )
        ways = [(ENGINES.index(name), self._lock(name, operands)) for name in able]
        queue, lock = ways[0]
        row = (int(op), queue, function, function2, int(accumulate), *slots, lock, 0)
        self._append(row, immediates, tuple(ways) if len(ways) > 1 else ())

    def _check_present(self, op: isa.Opcode, slots: Sequence[int]) -> None:
        """Refuse an instruction that lacks an operand."""
        for name, slot in zip(isa.OPERANDS, slots, strict=True):
            if slot < 0 and name in isa.NEEDED.get(op, ("out", "in0")):
                raise KernelError(f"{op.name.lower()} needs a tile as its operand {name}, not None")

    def _append(
        self,
        row: tuple[int, ...],
        immediates: tuple[float, float, float] = (0.0, 0.0, 0.0),
        choices: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self._rows.append(row)
        self._immediates.append(immediates)
        self._choices.append(choices)
        if self.by_hand:
            self._lines.append(caller(3))

    def _lock(self, engine: str, operands: Sequence[Tile | None]) -> int:
        """Ports the instruction holds while it issues, of those that two engines share."""
        spaces = {tile.space for tile in operands if tile is not None}
        lock = 0
        if self.core.exclusive_sbuf and engine in ("vector", "gpsimd") and isa.Space.SBUF in spaces:
            lock |= isa.LOCK_SBUF
        if self.core.exclusive_psum and engine in ("vector", "scalar") and isa.Space.PSUM in spaces:
            lock |= isa.LOCK_PSUM
        return lock

    def draft(self, written: range | None = None) -> isa.InstructionStream:
        """The stream as written, or some rows of it, without semaphores and unverified."""
        part = slice(0, self.length) if written is None else slice(written.start, written.stop)
        rows = np.array(self._rows[part], dtype=np.int64).reshape(-1, len(isa.INSTRUCTION_COLUMNS))
        columns = {
            name: np.ascontiguousarray(rows[:, i]) for i, name in enumerate(isa.INSTRUCTION_COLUMNS)
        }
        columns["position"] = np.arange(len(rows), dtype=np.int64)
        keys = self._keys
        if written is not None:
            used, place = np.unique(rows[:, OPERAND_COLUMNS], return_inverse=True)
            none = int(len(used) > 0 and used[0] < 0)
            for name, number in zip(isa.OPERANDS, place.reshape(len(rows), -1).T, strict=True):
                columns[name] = np.ascontiguousarray(number - none)
            keys = [keys[i] for i in used[none:].tolist()]
        return isa.InstructionStream(
            name=self.name,
            core=self.core,
            tensors=tuple(self._tensors),
            allocations=tuple(self._allocations),
            rows=columns,
            immediates=np.array(self._immediates[part], dtype=np.float64).reshape(-1, 3),
            accesses=_table(keys),
            wait_start=np.zeros(len(rows) + 1, dtype=np.int64),
            waits=np.zeros(0, dtype=np.int64),
            groups=tuple(self._groups),
        )

    def _told(self) -> tuple[str, ...]:
        """The lines that instructions were written in, each looked up once."""
        known: dict[tuple[int, int] | None, str] = {}
        lines = []
        for line in self._lines:
            key = None if line is None else (id(line[0]), line[1])
            if key not in known:
                known[key] = line_text(line)
            lines.append(known[key])
        return tuple(lines)

    def finish(
        self, promised: Promised | None = None, schedule: bool = False
    ) -> isa.InstructionStream:
        """Derive semaphores, verify, and fix the grant order.

        Args:
            promised: which elements of an output the kernel is to store; None: all.
            schedule: let instructions change places, and copies their engines, by the rule of list
                scheduling (`timing.scheduling`) that ends first on the nominal machine; if none
                ends before the order as written, that stays.

        Raises:
            VerificationError: the program breaks a limit of the target, reads what nothing wrote,
                or uses a tile after its place was given to another; the message names instruction
                and limit.
        """
        draft = replace(self.draft(), lines=self._told())
        verify_operands(draft)
        verify_dataflow(draft, promised=promised)
        stream = with_semaphores(draft)
        if schedule:
            stream = min((stream, *schedules(draft)), key=ending)
        verify_synchronisation(stream)
        return in_grant_order(stream)


def _table(keys: Sequence[Key]) -> dict[str, isa.Ints]:
    """Accesses as columns."""
    flat = [(*key[:6], *key[6], *key[7]) for key in keys]
    table = np.array(flat, dtype=np.int64).reshape(
        -1, len(isa.ACCESS_COLUMNS) + 1 + 2 * isa.DIMENSIONS
    )
    first = len(isa.ACCESS_COLUMNS) + 1
    columns = {
        name: np.ascontiguousarray(table[:, i])
        for i, name in enumerate((*isa.ACCESS_COLUMNS, "allocation"))
    }
    columns["count"] = np.ascontiguousarray(table[:, first : first + isa.DIMENSIONS])
    columns["stride"] = np.ascontiguousarray(table[:, first + isa.DIMENSIONS :])
    return columns


def number_of(table: dict[str, int], name: str, what: str) -> int:
    if not isinstance(name, str) or name not in table:
        raise KernelError(f"unknown {what} '{name}'; one of {', '.join(table)} is expected")
    return table[name]


def operation(name: str) -> int:
    return number_of(_OPERATION, name, "operation")


def reduction(name: str) -> int:
    return number_of({known: _OPERATION[known] for known in isa.REDUCTIONS}, name, "reduction")


def tile_or_none(value: Scalar) -> Tile | None:
    return value if isinstance(value, Tile) else None


def number(value: object) -> float:
    """A number that an instruction holds."""
    if isinstance(value, Tile):
        raise KernelError("a number is expected here, not a tile")
    return immediate(value)  # type: ignore[arg-type]


def fill_of(out: Tile, value: object) -> float:
    """A number that elements of a tile become; what is no tile is refused where it is emitted."""
    if not isinstance(out, Tile):
        return number(value)
    constant, kind = number(value), to_numpy(out.dtype)
    if math.isnan(constant) and kind.kind in "iu":
        raise KernelError(f"tile '{out.name}' is of {out.dtype}, which holds no NaN")
    return float(nearest(constant, kind))


def immediate(value: Scalar) -> float:
    if isinstance(value, Tile):
        return 0.0
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise KernelError(
            f"a scalar is a number or a tile of one element a partition, not {value!r}"
        ) from None
