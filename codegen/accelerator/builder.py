"""`Kernel`: write an instruction stream by hand, as a kernel engineer would in NKI.

    kernel = Kernel("scale", Core.of(load_target("trn1")))
    x, y = kernel.input("x", (128, 512)), kernel.output("y", (128, 512))
    tile = kernel.sbuf((128, 512))
    kernel.load(tile, x)
    kernel.tensor_scalar(tile, tile, "multiply", 2.0)
    kernel.store(y, tile)
    stream = kernel.finish()

Each method appends one instruction; engines run their instructions in this order, and overlap where
data allows. Nothing is synchronised by hand: `finish` derives the semaphores from the data,
verifies the program, and fixes the order in which shared resources are granted.

Tiles come from an allocator (`sbuf`, `psum`, given back with `free`) or stand at an explicit
address. `buffers` rotates over several places: a tile may be filled while the one before it is
still read. Invariant: a tile handle is used only until its place is given to another (the verifier
checks).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from codegen.accelerator.core import DMA_QUEUES, ENGINES, FIRST_DMA_QUEUE, Core
from codegen.accelerator.instructions import (
    ACCESS_COLUMNS,
    ACTIVATIONS,
    DIMENSIONS,
    ENGINES_OF,
    INSTRUCTION_COLUMNS,
    LOCK_PSUM,
    LOCK_SBUF,
    OPERATIONS,
    InstructionStream,
    Op,
    Space,
)
from codegen.accelerator.kernel_memory import Buffers, KernelMemory
from codegen.accelerator.memory import HbmView, Tile
from search_space.errors import CodegenError

__all__ = ["Buffers", "Kernel"]

Scalar = float | Tile
_ACTIVATION = {name: number for number, name in enumerate(ACTIVATIONS)}
_OPERATION = {name: number for number, name in enumerate(OPERATIONS)}


class Kernel(KernelMemory):
    """See the module's docstring. Wrong uses raise `CodegenError`."""

    def __init__(self, name: str, core: Core) -> None:
        super().__init__(name, core)
        self._rows: list[tuple[int, ...]] = []
        self._immediates: list[tuple[float, float, float]] = []

    # -- data movement ------------------------------------------------------------------------
    def load(self, out: Tile, source: HbmView, queue: int | None = None) -> None:
        """DMA from HBM; both sides run over the same number of elements in row-major order."""
        self._dma(Op.LOAD, out, source, queue)

    def store(self, out: HbmView, source: Tile, queue: int | None = None) -> None:
        """DMA to HBM."""
        self._dma(Op.STORE, source, out, queue)

    def gather(self, out: Tile, source: HbmView, index: Tile, pitch: int, extent: int) -> None:
        """DMA of a row for each partition p: `out[p] = source + index[p] * pitch` elements.

        Args:
            source: the row of index 0, its first axis of step 0 over the partitions.
            index: [P, 1], whole numbers from 0 to `extent` - 1.
        """
        self._dma(Op.GATHER, out, source, None, (pitch, extent), self._access(index))

    def _dma(
        self,
        op: Op,
        tile: Tile,
        view: HbmView,
        queue: int | None,
        functions: tuple[int, int] = (0, 0),
        index: int = -1,
    ) -> None:
        turn = 2 * view.tensor + (op == Op.STORE) if queue is None else queue
        dims = (*view.dims, *[(1, 1)] * (2 - len(view.dims)))
        if dims[0][0] != tile.partitions:
            raise CodegenError(
                f"a {op.name.lower()} of tensor '{view.name}': its first axis of {dims[0][0]} does "
                f"not match the {tile.partitions} partitions of tile '{tile.name}'"
            )
        hbm = self._hbm_access(view, dims)
        out, source = (hbm, self._access(tile)) if op == Op.STORE else (self._access(tile), hbm)
        queue = FIRST_DMA_QUEUE + turn % DMA_QUEUES
        self._rows.append((int(op), queue, *functions, 0, out, source, index, -1, -1, 0, 0))
        self._immediates.append((0.0, 0.0, 0.0))

    # -- tensor engine ------------------------------------------------------------------------
    def matmul(self, out: Tile, stationary: Tile, moving: Tile, accumulate: bool = False) -> None:
        """`out[M, N] (+)= stationary[K, M].T @ moving[K, N]`; out in PSUM, the others in SBUF."""
        self._emit(Op.MATMUL, "tensor", out, stationary, moving, accumulate=accumulate)

    def transpose(self, out: Tile, data: Tile) -> None:
        """`out[F, P] = data[P, F].T`; out in PSUM."""
        self._emit(Op.TRANSPOSE, "tensor", out, data)

    # -- elementwise --------------------------------------------------------------------------
    def activation(
        self,
        out: Tile,
        function: str,
        data: Tile,
        bias: Scalar = 0.0,
        scale: Scalar = 1.0,
        sums: Tile | None = None,
    ) -> None:
        """`out = function(data * scale + bias)`; `sums[P, 1]` takes the sums over the free axes."""
        self._emit(
            Op.ACTIVATION, "scalar", out, data, _tile_or_none(bias), _tile_or_none(scale), sums,
            function=_number(_ACTIVATION, function, "activation"),
            immediates=(_immediate(bias), _immediate(scale), 0.0),
        )  # fmt: skip

    def tensor_tensor(self, out: Tile, a: Tile, op: str, b: Tile, engine: str = "vector") -> None:
        """`out = a op b`."""
        self._emit(Op.TENSOR_TENSOR, engine, out, a, b, function=_operation(op))

    def tensor_scalar(
        self,
        out: Tile,
        a: Tile,
        op0: str,
        s0: Scalar,
        op1: str = "bypass",
        s1: Scalar = 0.0,
        engine: str = "vector",
    ) -> None:
        """`out = (a op0 s0) op1 s1`."""
        self._emit(
            Op.TENSOR_SCALAR, engine, out, a, _tile_or_none(s0), _tile_or_none(s1),
            function=_operation(op0), function2=_operation(op1),
            immediates=(_immediate(s0), _immediate(s1), 0.0),
        )  # fmt: skip

    def scalar_tensor_tensor(
        self, out: Tile, a: Tile, op0: str, s: Scalar, op1: str, b: Tile, engine: str = "vector"
    ) -> None:
        """`out = (a op0 s) op1 b`."""
        self._emit(
            Op.SCALAR_TENSOR_TENSOR, engine, out, a, b, _tile_or_none(s),
            function=_operation(op0), function2=_operation(op1),
            immediates=(_immediate(s), 0.0, 0.0),
        )  # fmt: skip

    def reduce(self, out: Tile, a: Tile, op: str, engine: str = "vector") -> None:
        """`out = reduce(a)` by add, max, min or multiply, over the axes that `out` lacks."""
        self._emit(Op.REDUCE, engine, out, a, function=_operation(op))

    def scan(self, out: Tile, a: Tile, op0: str, b: Tile, op1: str, initial: Scalar = 0.0) -> None:
        """`out[:, i] = (a[:, i] op0 out[:, i-1]) op1 b[:, i]`, starting from `initial`."""
        self._emit(
            Op.SCAN, "vector", out, a, b, _tile_or_none(initial), function=_operation(op0),
            function2=_operation(op1), immediates=(_immediate(initial), 0.0, 0.0),
        )  # fmt: skip

    def reciprocal(self, out: Tile, a: Tile, engine: str = "vector") -> None:
        """`out = 1 / a`."""
        self._emit(Op.RECIPROCAL, engine, out, a)

    def copy(self, out: Tile, a: Tile, engine: str = "vector") -> None:
        """`out = a`, converted to `out`'s dtype."""
        self._emit(Op.COPY, engine, out, a)

    def memset(self, out: Tile, value: float, engine: str = "vector") -> None:
        """`out = value`."""
        self._emit(Op.MEMSET, engine, out, immediates=(value, 0.0, 0.0))

    def select(self, out: Tile, a: Tile, base: int, channel: int, step: int, fill: float) -> None:
        """`out[p, f] = a[p, f] if base + channel*p + step*f >= 0 else fill` (masks, on gpsimd)."""
        _dense_tile(out)
        self._emit(
            Op.SELECT, "gpsimd", out, a, function=base, function2=channel,
            accumulate=step, immediates=(fill, 0.0, 0.0),
        )  # fmt: skip

    # -- order --------------------------------------------------------------------------------
    @property
    def length(self) -> int:
        """Instructions so far."""
        return len(self._rows)

    def arrange(self, start: int, order: Sequence[int]) -> None:
        """Put the instructions from number `start` on into another order (of their numbers)."""
        stop = start + len(order)
        self._rows[start:stop] = [self._rows[i] for i in order]
        self._immediates[start:stop] = [self._immediates[i] for i in order]

    def merge(self, start: int, middle: int) -> None:
        """Merge instructions `start`..`middle` evenly with those after, keeping either's order.

        The two parts must not depend on each other.
        """
        one, two = range(start, middle), range(middle, len(self._rows))
        places = [(i + 0.5) / len(one) for i in range(len(one))]
        places += [(i + 0.5) / len(two) for i in range(len(two))]
        order = sorted(range(len(places)), key=lambda i: (places[i], i))
        self._rows[start:] = [self._rows[start + i] for i in order]
        self._immediates[start:] = [self._immediates[start + i] for i in order]

    # -- inside -------------------------------------------------------------------------------
    def _emit(
        self,
        op: Op,
        engine: str,
        *operands: Tile | None,
        function: int = 0,
        function2: int = 0,
        accumulate: int = 0,
        immediates: tuple[float, float, float] = (0.0, 0.0, 0.0),
    ) -> None:
        if engine not in ENGINES_OF[op]:
            raise CodegenError(
                f"{op.name.lower()} does not run on engine '{engine}'; "
                f"one of {', '.join(ENGINES_OF[op])} is expected"
            )
        slots = [self._access(tile) if tile is not None else -1 for tile in operands]
        slots += [-1] * (5 - len(slots))
        lock = self._lock(engine, operands)
        self._rows.append(
            (int(op), ENGINES.index(engine), function, function2, int(accumulate), *slots, lock, 0)
        )
        self._immediates.append(immediates)

    def _lock(self, engine: str, operands: Sequence[Tile | None]) -> int:
        """Ports the instruction holds while it issues, of those that two engines share."""
        spaces = {tile.space for tile in operands if tile is not None}
        lock = 0
        if self.core.exclusive_sbuf and engine in ("vector", "gpsimd") and Space.SBUF in spaces:
            lock |= LOCK_SBUF
        if self.core.exclusive_psum and engine in ("vector", "scalar") and Space.PSUM in spaces:
            lock |= LOCK_PSUM
        return lock

    def draft(self) -> InstructionStream:
        """The stream as written, without semaphores and unverified."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, len(INSTRUCTION_COLUMNS))
        columns = {
            name: np.ascontiguousarray(rows[:, i]) for i, name in enumerate(INSTRUCTION_COLUMNS)
        }
        columns["position"] = np.arange(len(rows), dtype=np.int64)
        keys = list(self._accesses)
        names = (*ACCESS_COLUMNS, "allocation", "count", "stride")
        accesses = {
            name: np.array([key[i] for key in keys], dtype=np.int64) for i, name in enumerate(names)
        }
        for name in ("count", "stride"):
            accesses[name] = accesses[name].reshape(-1, DIMENSIONS)
        return InstructionStream(
            name=self.name,
            core=self.core,
            tensors=tuple(self._tensors),
            allocations=tuple(self._allocations),
            rows=columns,
            immediates=np.array(self._immediates, dtype=np.float64).reshape(-1, 3),
            accesses=accesses,
            wait_start=np.zeros(len(rows) + 1, dtype=np.int64),
            waits=np.zeros(0, dtype=np.int64),
        )

    def finish(self) -> InstructionStream:
        """Derive semaphores, verify, and fix the grant order.

        Raises:
            VerificationError: the program breaks a limit of the target, or a tile is used after its
                place was given to another; the message names instruction and limit.
        """
        from codegen.accelerator.dependences import with_semaphores
        from codegen.accelerator.ordering import in_grant_order
        from codegen.accelerator.synchronisation import verify
        from codegen.accelerator.verifier import verify_shapes

        draft = self.draft()
        verify_shapes(draft)
        stream = with_semaphores(draft)
        verify(stream)
        return in_grant_order(stream)


def _number(table: dict[str, int], name: str, what: str) -> int:
    if name not in table:
        raise CodegenError(f"unknown {what} '{name}'; one of {', '.join(table)} is expected")
    return table[name]


def _operation(name: str) -> int:
    return _number(_OPERATION, name, "operation")


def _tile_or_none(value: Scalar) -> Tile | None:
    return value if isinstance(value, Tile) else None


def _immediate(value: Scalar) -> float:
    return 0.0 if isinstance(value, Tile) else float(value)


def _dense_tile(tile: Tile) -> None:
    if len(tile.dims) != 1:
        raise CodegenError(f"select writes a tile of one free axis, not {len(tile.dims)}")
