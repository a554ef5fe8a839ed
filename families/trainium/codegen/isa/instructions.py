"""The instruction set of Trainium-like cores, and a program of it as arrays.

    LOAD / STORE            DMA between HBM and SBUF (rows are the contiguous runs in HBM)
    GATHER                  out[p, f] = tensor[index[p]*pitch + f], DMA with indices in SBUF
    MATMUL                  psum[M, N] (+)= stationary[K, M].T @ moving[K, N]        tensor
                            (function 1: of fp8 [K, 2, M] and [K, 2, N], both summed)
    TRANSPOSE               psum[F, P] = sbuf[P, F].T, a pass against an identity    tensor
    ACTIVATION              out = f(in * scale + bias), optionally its row sums      scalar
    TENSOR_TENSOR           out = a op b                                             vector, gpsimd
    TENSOR_SCALAR           out = (a op0 s0) op1 s1                          vector, scalar, gpsimd
    TENSOR_SCALAR_REDUCE    out = a op0 s, and its rows reduced                      vector
    SCALAR_TENSOR_TENSOR    out = (a op0 s) op1 b                                    vector, gpsimd
    REDUCE                  out[P, 1] = reduce(in[P, ...])                           vector, gpsimd
    SCAN                    out[:, i] = (a[:, i] op0 out[:, i-1]) op1 b[:, i]        vector
    RECIPROCAL, COPY, MEMSET                                                 vector (some others)
    SELECT                  out = in where base + p*channel + f*step >= 0, else fill gpsimd
    IOTA                    out = base + p*channel + f*step                          gpsimd
    LOCAL_GATHER            out[p, i] = in[p, index i of p's 16 partitions]          gpsimd
    COPY_PREDICATED         out = in where predicate is not 0, else as it was        vector
    SELECT_REDUCE           out = in where predicate is not 0, else fill; row maxima vector
    RANGE_SELECT            out = in where low[p] <= start + f < high[p], else fill  vector
    BN_STATS                out[P, 6]: statistics of even, then of odd elements      vector
    BN_AGGR                 out[P, 2]: mean and variance from such statistics        vector
    MAX8                    out[P, 8]: the largest, descending                       vector
    FIND_INDEX8             out[P, 8]: where each of eight values stands first       vector
    MATCH_REPLACE8          out = in, the first place of each of eight values = fill vector
    SHUFFLE                 out[32 q + i] = in[32 q + mask[i]] in every quarter q    vector
    COLLECTIVE              between cores, HBM to HBM: an all-reduce, a send, ...    cc

A scalar operand is a number or a [P, 1] tile. Every operand is an access: memory, address and up to
four strided dimensions (partition first). The program is a structure of arrays, so that a hundred
thousand instructions are one pass of a compiled loop; `stream[i]` gives a frozen view of one.

Invariants: rows stand in the order in which shared resources are granted; each queue executes its
rows in this order; `waits` name earlier rows only.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.schedules.building_blocks import machine

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Opcode(IntEnum):
    """Operation codes."""

    LOAD = 0
    STORE = 1
    MATMUL = 2
    TRANSPOSE = 3
    ACTIVATION = 4
    TENSOR_TENSOR = 5
    TENSOR_SCALAR = 6
    SCALAR_TENSOR_TENSOR = 7
    REDUCE = 8
    SCAN = 9
    RECIPROCAL = 10
    COPY = 11
    MEMSET = 12
    SELECT = 13
    GATHER = 14
    TENSOR_SCALAR_REDUCE = 15
    IOTA = 16
    LOCAL_GATHER = 17
    COPY_PREDICATED = 18
    SELECT_REDUCE = 19
    RANGE_SELECT = 20
    BN_STATS = 21
    BN_AGGR = 22
    MAX8 = 23
    FIND_INDEX8 = 24
    MATCH_REPLACE8 = 25
    SHUFFLE = 26
    COLLECTIVE = 27


class Space(IntEnum):
    """Memories."""

    HBM = 0
    SBUF = 1
    PSUM = 2


ACTIVATIONS = (
    "copy", "exp", "relu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh", "erf", "square", "sqrt",
    "rsqrt", "abs", "log", "softplus", "sin", "reciprocal", "sign",
)  # fmt: skip

OPERATIONS = (
    "bypass", "add", "subtract", "multiply", "divide", "max", "min", "pow", "reverse_subtract",
    "reverse_divide", "is_ge", "is_gt", "is_le", "is_lt", "is_equal",
)  # fmt: skip

REDUCTIONS = ("add", "max", "min", "multiply")
"""Operations that elements, or the parts of several cores, are reduced by."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "receive")
"""What a COLLECTIVE does, by its `function`; `function2` is its group of cores, a row of the
stream's `groups`, `accumulate` the operation that sums (`OPERATIONS`). Immediates are the ns it
takes once all of its cores have come to it, and those for which it takes the core's DMA engines. A
send and a receive name (from, to)."""

DTYPES = machine.DTYPES
FP8 = (DTYPES.index("float8_e4m3"), DTYPES.index("float8_e5m2"))

DTYPE_BYTES = np.array([4, 2, 2, 1, 1, 4, 8, 1, 1, 1], dtype=np.int64)

ENGINES_OF: dict[Opcode, tuple[str, ...]] = {
    Opcode.LOAD: ("dma",),
    Opcode.STORE: ("dma",),
    Opcode.MATMUL: ("tensor",),
    Opcode.TRANSPOSE: ("tensor",),
    Opcode.ACTIVATION: ("scalar",),
    Opcode.TENSOR_TENSOR: ("vector", "gpsimd"),
    Opcode.TENSOR_SCALAR: ("vector", "scalar", "gpsimd"),
    Opcode.SCALAR_TENSOR_TENSOR: ("vector", "gpsimd"),
    Opcode.REDUCE: ("vector", "gpsimd"),
    Opcode.SCAN: ("vector",),
    Opcode.RECIPROCAL: ("vector", "gpsimd"),
    Opcode.COPY: ("vector", "scalar", "gpsimd"),
    Opcode.MEMSET: ("vector", "gpsimd"),
    Opcode.SELECT: ("gpsimd",),
    Opcode.GATHER: ("dma",),
    Opcode.TENSOR_SCALAR_REDUCE: ("vector",),
    Opcode.IOTA: ("gpsimd",),
    Opcode.LOCAL_GATHER: ("gpsimd",),
    Opcode.COPY_PREDICATED: ("vector",),
    Opcode.SELECT_REDUCE: ("vector",),
    Opcode.RANGE_SELECT: ("vector",),
    Opcode.BN_STATS: ("vector",),
    Opcode.BN_AGGR: ("vector",),
    Opcode.MAX8: ("vector",),
    Opcode.FIND_INDEX8: ("vector",),
    Opcode.MATCH_REPLACE8: ("vector",),
    Opcode.SHUFFLE: ("vector",),
    Opcode.COLLECTIVE: ("cc",),
}

OPERANDS = ("out", "in0", "in1", "in2", "out2")
"""Operand columns. MATMUL: out, stationary, moving. ACTIVATION: out, in, bias, scale, row sums.
GATHER: out, rows of a tensor (step 0 from one to the next), their indices.
TENSOR_SCALAR: out, in, s0, s1. SCALAR_TENSOR_TENSOR: out, a, b, s. SCAN: out, a, b, initial.
RANGE_SELECT: out, in, low, high, maxima. COPY_PREDICATED: out, in, predicate, out again (it keeps
elements). Those with a second result have it in out2."""

_BOTH = ("out", "in0", "in1")
NEEDED: dict[Opcode, tuple[str, ...]] = {
    Opcode.MATMUL: _BOTH,
    Opcode.TENSOR_TENSOR: _BOTH,
    Opcode.SCALAR_TENSOR_TENSOR: _BOTH,
    Opcode.SCAN: _BOTH,
    Opcode.MEMSET: ("out",),
    Opcode.GATHER: _BOTH,
    Opcode.TENSOR_SCALAR_REDUCE: ("out", "in0", "out2"),
    Opcode.IOTA: ("out",),
    Opcode.LOCAL_GATHER: _BOTH,
    Opcode.COPY_PREDICATED: (*_BOTH, "in2"),
    Opcode.SELECT_REDUCE: _BOTH,
    Opcode.RANGE_SELECT: (*_BOTH, "in2"),
    Opcode.FIND_INDEX8: _BOTH,
    Opcode.MATCH_REPLACE8: _BOTH,
    Opcode.COLLECTIVE: (),
}
"""Operands that an instruction cannot lack, where they are others than its result and one input:
what it takes beside them are scalars, for which it may hold numbers, and second results."""

DIMENSIONS = 5
"""Of an access: the partition, then up to four free dimensions, outermost first."""

INSTRUCTION_COLUMNS = (
    "op", "queue", "function", "function2", "accumulate", *OPERANDS, "lock", "position",
)  # fmt: skip
ACCESS_COLUMNS = ("space", "tensor", "dtype", "partition", "offset")

QUARTER = 32
"""Partitions that a shuffle moves among."""

SHUFFLE_DIGITS = 12
"""Entries of a shuffle's mask in each of `function`, `function2` and `accumulate`, base 32."""

BN_STATS_ELEMENTS = 512
SEARCH_ELEMENTS = (8, 16384)
"""Elements a partition: of `bn_stats` at most, of what is searched (ISA)."""

GATHER_PARTITIONS = 16
"""Partitions that share their indices in a local gather (ISA)."""

LOCK_SBUF, LOCK_PSUM = 1, 2
"""Bits of `lock`: the port of SBUF shared by vector and gpsimd; of PSUM, by vector and scalar."""


@dataclass(frozen=True)
class HbmTensor:
    """A tensor in HBM, row-major. `role`: "input", "output" or "temporary" (a spill); `line`: where
    a kernel's author declared it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    line: str = field(default="", compare=False)

    @property
    def elements(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class Allocation:
    """A tile's place: memory, first byte in each partition, bytes, partitions, and its name."""

    name: str
    space: Space
    partition: int
    partitions: int
    offset: int
    bytes: int


@dataclass(frozen=True)
class AccessPattern:
    """One operand: see the module's docstring. `dims` are (count, stride in elements) pairs.

    `offset` is in bytes: within the tensor (HBM) or within each partition (SBUF, PSUM).
    """

    space: Space
    tensor: int
    dtype: str
    partition: int
    offset: int
    dims: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(count for count, _ in self.dims)


@dataclass(frozen=True)
class Instruction:
    """A view of one row of a stream."""

    index: int
    op: Opcode
    queue: int
    function: int
    function2: int
    accumulate: int
    immediates: tuple[float, ...]
    operands: dict[str, AccessPattern]
    waits: tuple[int, ...]
    lock: int


def shuffle_mask(instruction: Instruction) -> list[int]:
    """The partition, within its quarter, that each partition of a shuffle's result comes from."""
    codes = (instruction.function, instruction.function2, instruction.accumulate)
    digits = [code // QUARTER**place % QUARTER for code in codes for place in range(SHUFFLE_DIGITS)]
    return digits[:QUARTER]


class Issue(NamedTuple):
    """What decides when rows may start, as compiled loops read it (see `InstructionStream`)."""

    queue: Ints
    lock: Ints
    wait_start: Ints
    waits: Ints


@dataclass(frozen=True, eq=False)
class InstructionStream:
    """A program for one core. Built by `builder.Kernel`; see the module's docstring.

    Attributes:
        rows: instruction columns by name (`INSTRUCTION_COLUMNS`), each int64 of shape (n,); operand
            columns hold rows of `accesses`, or -1.
        immediates: float64, shape (n, 3).
        accesses: access columns by name (`ACCESS_COLUMNS`), plus "allocation" (row of `allocations`
            or -1), each int64 of shape (a,); "count" and "stride" are of shape (a, 5).
        wait_start, waits: row i waits for rows waits[wait_start[i]:wait_start[i + 1]].
        groups: cores of the mesh that take part in a collective together, in their order.
        lines: where in the code of a kernel's author each row was written, by its `position`;
            empty for kernels that nobody wrote by hand.
    """

    name: str
    core: Core
    tensors: tuple[HbmTensor, ...]
    allocations: tuple[Allocation, ...]
    rows: dict[str, Ints]
    immediates: Floats
    accesses: dict[str, Ints]
    wait_start: Ints
    waits: Ints
    notes: tuple[str, ...] = field(default=())
    groups: tuple[tuple[int, ...], ...] = ()
    lines: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows["op"])

    def __getitem__(self, index: int) -> Instruction:
        rows = self.rows
        operands = {
            name: self.access(int(rows[name][index])) for name in OPERANDS if rows[name][index] >= 0
        }
        waits = self.waits[self.wait_start[index] : self.wait_start[index + 1]]
        return Instruction(
            index=index,
            op=Opcode(int(rows["op"][index])),
            queue=int(rows["queue"][index]),
            function=int(rows["function"][index]),
            function2=int(rows["function2"][index]),
            accumulate=int(rows["accumulate"][index]),
            immediates=tuple(float(x) for x in self.immediates[index]),
            operands=operands,
            waits=tuple(int(w) for w in waits),
            lock=int(rows["lock"][index]),
        )

    def __iter__(self) -> Iterator[Instruction]:
        return (self[index] for index in range(len(self)))

    def access(self, row: int) -> AccessPattern:
        """One access as a value."""
        table = self.accesses
        dims = zip(table["count"][row].tolist(), table["stride"][row].tolist(), strict=True)
        return AccessPattern(
            space=Space(int(table["space"][row])),
            tensor=int(table["tensor"][row]),
            dtype=DTYPES[int(table["dtype"][row])],
            partition=int(table["partition"][row]),
            offset=int(table["offset"][row]),
            dims=_trim(tuple(dims)),
        )

    def picked(self, mine: Ints, columns: tuple[str, ...] = INSTRUCTION_COLUMNS) -> Self:
        """Rows `mine` alone, for what is reckoned row by row of some columns; who waits for whom is
        not kept."""
        rows = {name: self.rows[name][mine] for name in columns}
        part = replace(self, rows=rows, immediates=self.immediates[mine])
        for known in ("access_elements", "access_steps"):  # of the same accesses
            part.__dict__[known] = getattr(self, known)
        return part

    @property
    def issue(self) -> Issue:
        """Queues, ports and semaphores as one table."""
        return Issue(self.rows["queue"], self.rows["lock"], self.wait_start, self.waits)

    @cached_property
    def access_elements(self) -> Ints:
        """Elements a partition of each access."""
        free = self.accesses["count"][:, 1:]
        total = free[:, 0].copy()
        for axis in range(1, free.shape[1]):
            total *= free[:, axis]
        return total

    @cached_property
    def access_steps(self) -> Ints:
        """Elements from one to the next along the innermost axis of each access (0: only one)."""
        table = self.accesses
        steps = np.zeros(len(table["space"]), dtype=np.int64)
        for axis in range(1, DIMENSIONS):
            steps = np.where(table["count"][:, axis] > 1, table["stride"][:, axis], steps)
        return steps

    @cached_property
    def semaphores(self) -> Ints:
        """The count of each row in its queue, from 1: what its queue's semaphore shows when it is
        done.
        """
        counts = np.zeros(len(self), dtype=np.int64)
        for queue in np.unique(self.rows["queue"]):
            mine = self.rows["queue"] == queue
            counts[mine] = np.arange(1, int(mine.sum()) + 1)
        return counts


def _trim(dims: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Partition and free dimensions, without the padding (count 1, stride 0) between them."""
    free = [d for d in dims[1:] if d != (1, 0)] or [(1, 1)]
    return (dims[0], *free)
