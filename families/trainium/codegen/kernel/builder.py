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
verifies the program, and fixes the order in which shared resources are granted;
`finish(schedule=True)` puts instructions into the order that ends first, too. A kernel written item
by item may instead be `pipelined`, or some of it `interleave`d.

Tiles come from an allocator (`sbuf`, `psum`, given back with `free`) or stand at an explicit
address. `buffers` rotates over several places: a tile may be filled while the one before it is
still read. Invariant: a tile handle is used only until its place is given to another (the verifier
checks).
"""

from collections.abc import Callable, Iterable
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any

from tilesmith.families.trainium.codegen.isa.core import DMA_QUEUES, FIRST_DMA_QUEUE
from tilesmith.families.trainium.codegen.isa.instructions import ACTIVATIONS, Opcode
from tilesmith.families.trainium.codegen.isa.lines import KernelError
from tilesmith.families.trainium.codegen.isa.memory import HbmView, Tile
from tilesmith.families.trainium.codegen.isa.numbers import whole
from tilesmith.families.trainium.codegen.kernel.collectives import CollectiveInstructions
from tilesmith.families.trainium.codegen.kernel.emitter import (
    Scalar,
    fill_of,
    immediate,
    number_of,
    operation,
    reduction,
    tile_or_none,
)
from tilesmith.families.trainium.codegen.kernel.kernel_memory import Buffers, no_tile
from tilesmith.families.trainium.codegen.kernel.special import SpecialInstructions

__all__ = ["Buffers", "Kernel", "pipelined"]

_ACTIVATION = {name: number for number, name in enumerate(ACTIVATIONS)}


class Kernel(SpecialInstructions, CollectiveInstructions):
    """See the module's docstring. Wrong uses raise `CodegenError`."""

    # -- data movement ------------------------------------------------------------------------
    def load(self, out: Tile, source: HbmView, queue: int | None = None) -> None:
        """DMA from HBM; both sides run over the same number of elements in row-major order."""
        self._dma(Opcode.LOAD, out, source, queue)

    def store(self, out: HbmView, source: Tile, queue: int | None = None) -> None:
        """DMA to HBM."""
        self._dma(Opcode.STORE, source, out, queue)

    def gather(self, out: Tile, source: HbmView, index: Tile, pitch: int, extent: int) -> None:
        """DMA of a row for each partition p: `out[p] = source + index[p] * pitch` elements.

        Args:
            source: the row of index 0, its first axis of step 0 over the partitions.
            index: [P, 1], whole numbers from 0 to `extent` - 1.
        """
        functions = (whole(pitch, "the pitch of rows", 0), whole(extent, "the count of rows", 1))
        self._dma(Opcode.GATHER, out, source, None, functions, self._access(index))

    def _dma(
        self,
        op: Opcode,
        tile: Tile,
        view: HbmView,
        queue: int | None,
        functions: tuple[int, int] = (0, 0),
        index: int = -1,
    ) -> None:
        if not isinstance(view, HbmView):
            raise KernelError(
                f"a {op.name.lower()} moves between HBM and a tile; a tensor of HBM is expected, "
                f"not a {type(view).__name__}"
            )
        if not isinstance(tile, Tile):
            raise KernelError(no_tile(tile))
        turn = 2 * view.tensor + (op == Opcode.STORE) if queue is None else whole(queue, "a queue")
        dims = (*view.dims, *[(1, 1)] * (2 - len(view.dims)))
        if dims[0][0] != tile.partitions:
            raise KernelError(
                f"a {op.name.lower()} of tensor '{view.name}': its first axis of {dims[0][0]} does "
                f"not match the {tile.partitions} partitions of tile '{tile.name}'"
            )
        hbm = self._hbm_access(view, dims)
        out, source = (hbm, self._access(tile)) if op == Opcode.STORE else (self._access(tile), hbm)
        queue = FIRST_DMA_QUEUE + turn % DMA_QUEUES
        self._append((int(op), queue, *functions, 0, out, source, index, -1, -1, 0, 0))

    # -- tensor engine ------------------------------------------------------------------------
    def matmul(self, out: Tile, stationary: Tile, moving: Tile, accumulate: bool = False) -> None:
        """`out[M, N] (+)= stationary[K, M].T @ moving[K, N]`; out in PSUM, the others in SBUF."""
        self._emit(Opcode.MATMUL, "tensor", out, stationary, moving, accumulate=accumulate)

    def matmul_double_row(
        self, out: Tile, stationary: Tile, moving: Tile, accumulate: bool = False
    ) -> None:
        """`out[M, N] (+)= sum over i of stationary[K, i, M].T @ moving[K, i, N]`, i = 0, 1: two
        values of fp8 in each row of the array, in the time of one (Trainium2 and later).
        """
        if self.core.fp8_k_max < 2 * self.core.rows:
            raise KernelError(
                f"target '{self.core.target.name}' multiplies fp8 as bf16: tensor.fp8_k_max is "
                f"{self.core.fp8_k_max}, {2 * self.core.rows} are needed for two values a row"
            )
        self._emit(
            Opcode.MATMUL, "tensor", out, stationary, moving, function=1, accumulate=accumulate
        )

    def transpose(self, out: Tile, data: Tile) -> None:
        """`out[F, P] = data[P, F].T`; out in PSUM."""
        self._emit(Opcode.TRANSPOSE, "tensor", out, data)

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
            Opcode.ACTIVATION, "scalar", out, data, tile_or_none(bias), tile_or_none(scale), sums,
            function=number_of(_ACTIVATION, function, "activation"),
            immediates=(immediate(bias), immediate(scale), 0.0),
        )  # fmt: skip

    def tensor_tensor(self, out: Tile, a: Tile, op: str, b: Tile, engine: str = "vector") -> None:
        """`out = a op b`."""
        self._emit(Opcode.TENSOR_TENSOR, engine, out, a, b, function=operation(op))

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
            Opcode.TENSOR_SCALAR, engine, out, a, tile_or_none(s0), tile_or_none(s1),
            function=operation(op0), function2=operation(op1),
            immediates=(immediate(s0), immediate(s1), 0.0),
        )  # fmt: skip

    def scalar_tensor_tensor(
        self, out: Tile, a: Tile, op0: str, s: Scalar, op1: str, b: Tile, engine: str = "vector"
    ) -> None:
        """`out = (a op0 s) op1 b`."""
        self._emit(
            Opcode.SCALAR_TENSOR_TENSOR, engine, out, a, b, tile_or_none(s),
            function=operation(op0), function2=operation(op1),
            immediates=(immediate(s), 0.0, 0.0),
        )  # fmt: skip

    def reduce(self, out: Tile, a: Tile, op: str, engine: str = "vector") -> None:
        """`out = reduce(a)` by add, max, min or multiply, over the innermost axes of `a`: `out` has
        as many elements a partition as those before."""
        if self.by_hand:
            _check_reduced(out, a)
        self._emit(Opcode.REDUCE, engine, out, a, function=reduction(op))

    def scan(self, out: Tile, a: Tile, op0: str, b: Tile, op1: str, initial: Scalar = 0.0) -> None:
        """`out[:, i] = (a[:, i] op0 out[:, i-1]) op1 b[:, i]`, starting from `initial`."""
        self._emit(
            Opcode.SCAN, "vector", out, a, b, tile_or_none(initial), function=operation(op0),
            function2=operation(op1), immediates=(immediate(initial), 0.0, 0.0),
        )  # fmt: skip

    def reciprocal(self, out: Tile, a: Tile, engine: str = "vector") -> None:
        """`out = 1 / a`."""
        self._emit(Opcode.RECIPROCAL, engine, out, a)

    def copy(self, out: Tile, a: Tile, engine: str = "vector") -> None:
        """`out = a`, converted to `out`'s dtype."""
        self._emit(Opcode.COPY, engine, out, a)

    def memset(self, out: Tile, value: float, engine: str = "vector") -> None:
        """`out = value`; whole numbers stay in the range of `out`'s dtype."""
        self._emit(Opcode.MEMSET, engine, out, immediates=(fill_of(out, value), 0.0, 0.0))


def _check_reduced(out: Tile, a: Tile) -> None:
    """Refuse a result that is not what is left of an input's outermost free axes."""
    if isinstance(out, Tile) and isinstance(a, Tile):
        left = {*accumulate((count for count, _ in a.dims), mul, initial=1)}
        wanted = prod(out.shape[1:])
        if wanted not in left:
            raise KernelError(
                f"reduce: out {out.shape} is not what is left of a {a.shape} without innermost "
                f"axes; split its axes so that {wanted} of them are left"
            )


def pipelined(
    items: Iterable[Any], *stages: Callable[[Any], Any], newest_first: bool = False
) -> None:
    """Put every item through the stages, each given what the one before returned; the last stage of
    an item stands next to the one before of the item behind it, and so on:

        load a, compute a, store a,    load a,
        load b, compute b, store b, -> compute a, load b,
        load c, compute c, store c     store a, compute b, load c, ...

    Engines take their instructions in order: written item by item, the first instructions of one
    would wait behind the last of the one in front. The oldest item goes first, unless said
    otherwise: what stands first must not wait for long, as what is behind it waits, too. Tiles that
    stages hand on need as many places as stages hold them.
    """
    values = list(items)
    order = list(enumerate(stages)) if newest_first else list(enumerate(stages))[::-1]
    for step in range(len(values) + len(stages) - 1):
        for turn, stage in order:
            place = step - turn
            if 0 <= place < len(values):
                values[place] = stage(values[place])
