"""Issue cycles of the instructions that run on the vector, scalar and gpsimd engines.

Cycles are `max(min_ii, N * factor / lanes)` for N elements a partition (gpsimd: `start + N *
factor`), all rows of a stream at once. Sources are those of the target files: ISA = NKI instruction
reference 2.26, A1 / A2 = NKI architecture guides for Trainium and Trainium2.

- `factor`, cycles an element (ISA): two inputs 2, or 1 where one of them comes from PSUM, or in
  bf16 for add, subtract and multiply of adjacent elements; scans 2; `bn_aggr` 13/3; sums and
  maxima of bf16, and bf16 zeros, 1/2.
- A reduction of the result beside it costs another `min_ii` (ISA; none in `range_select`).
- Reading or writing elements more than 16 bytes apart halves the rate (A1).
- `lanes`, elements a cycle: 1, but for the vector engine's performance mode on Trainium2 (A2):
  copies and tensor-scalar operations on adjacent elements in SBUF run at the target's
  `vector.per_lane_bf16` or `per_lane_other`, in bf16 apart from each other or with PSUM at half of
  that, as do tensor-tensor operations in bf16 in SBUF. fp16 counts as bf16 here, not above.
"""

import numpy as np

from tilesmith.families.trainium.codegen.isa import instructions as isa
from tilesmith.families.trainium.codegen.isa.core import ENGINES, Core

Mask = np.ndarray
TENSOR, VECTOR, SCALAR, GPSIMD = range(len(ENGINES))

TWO_INPUTS = (
    isa.Opcode.TENSOR_TENSOR,
    isa.Opcode.SCALAR_TENSOR_TENSOR,
    isa.Opcode.COPY_PREDICATED,
    isa.Opcode.SELECT_REDUCE,
)
AGGREGATION = 13 / 3
"""Cycles an element of `bn_aggr` (ISA)."""

FULL_RATE_BYTES = 16
"""Innermost steps up to this run at full rate (A1)."""


def elements(stream: isa.InstructionStream, operand: str) -> isa.Ints:
    """Elements a partition of an operand of each row (0 where the row has none)."""
    index = stream.rows[operand]
    free = stream.access_elements
    return np.where(index >= 0, free[index], 0) if len(free) else np.zeros_like(index)


def dtype_of(stream: isa.InstructionStream, operand: str) -> isa.Ints:
    """Number of an operand's dtype in each row (-1: no such operand)."""
    index = stream.rows[operand]
    return np.where(index >= 0, stream.accesses["dtype"][index], -1)


def engine_cycles(stream: isa.InstructionStream, core: Core) -> isa.Floats:
    """Issue cycles of every row, as if it ran on its compute engine; the tensor engine's rows and
    DMA's mean nothing.
    """
    rows, number = stream.rows, core.target.number
    op, queue = rows["op"], rows["queue"]
    size = np.maximum(elements(stream, "out"), elements(stream, "in0")).astype(np.float64)
    longest = np.where(rows["out"] >= 0, isa.DTYPE_BYTES[dtype_of(stream, "out")], 0)
    size = np.where(longest > 4, 2 * size, size)  # as pairs of four bytes
    size = np.where(op == isa.Opcode.LOCAL_GATHER, _gathered(stream), size)
    bf16, apart = _all_of(stream, "bfloat16"), _apart(stream)
    half = _all_of(stream, "bfloat16", "float16")
    spaces = [_space(stream, operand) == isa.Space.PSUM for operand in ("in0", "in1", "out")]
    factor = np.ones(len(stream))
    factor[np.isin(op, TWO_INPUTS)] = number("vector.tensor_tensor_factor")
    factor[_single_rate(stream, bf16, apart, spaces)] = 1.0
    factor[op == isa.Opcode.SCAN] = number("vector.scan_factor")
    factor[op == isa.Opcode.RECIPROCAL] = number("vector.reciprocal_factor")
    factor[op == isa.Opcode.BN_AGGR] = AGGREGATION
    factor[_double_rate(stream, bf16)] = number("vector.bf16_reduce_factor")
    factor[apart] *= 2.0
    size = size * factor
    size = np.where(queue == VECTOR, size / _lanes(stream, core, half, spaces), size)
    minimum = np.array([*core.minimums, 0.0])[np.minimum(queue, len(ENGINES))]
    cycles = np.where(queue == GPSIMD, minimum + size, np.maximum(minimum, size))
    written_too = (rows["out2"] >= 0) & (op != isa.Opcode.RANGE_SELECT)
    return cycles + np.where(written_too, minimum, 0.0)


def _space(stream: isa.InstructionStream, operand: str) -> isa.Ints:
    index = stream.rows[operand]
    return np.where(index >= 0, stream.accesses["space"][index], -1)


def _single_rate(stream: isa.InstructionStream, bf16: Mask, apart: Mask, psum: list[Mask]) -> Mask:
    """Rows of two inputs that take one cycle an element."""
    op, function, function2 = (stream.rows[name] for name in ("op", "function", "function2"))
    add, subtract, multiply = map(isa.OPERATIONS.index, ("add", "subtract", "multiply"))
    mixed = psum[0] != psum[1]
    simple = np.isin(function, (add, subtract, multiply)) & ~psum[0] & ~psum[1] & ~apart
    pair = (op == isa.Opcode.TENSOR_TENSOR) & (mixed | bf16 & simple)
    chain = (op == isa.Opcode.SCALAR_TENSOR_TENSOR) & bf16 & (function == subtract)
    predicated = (op == isa.Opcode.COPY_PREDICATED) & mixed
    single: Mask = pair | chain & (function2 == multiply) | predicated
    return single


def _double_rate(stream: isa.InstructionStream, bf16: Mask) -> Mask:
    """Sums and maxima from bf16 to bf16, and bf16 zeros."""
    op, function = stream.rows["op"], stream.rows["function"]
    quick = (function == isa.OPERATIONS.index("add")) | (function == isa.OPERATIONS.index("max"))
    narrow = dtype_of(stream, "out") == isa.DTYPES.index("bfloat16")
    zero = (op == isa.Opcode.MEMSET) & (stream.immediates[:, 0] == 0.0)
    double: Mask = bf16 & narrow & ((op == isa.Opcode.REDUCE) & quick | zero)
    return double


def _lanes(stream: isa.InstructionStream, core: Core, half: Mask, psum: list[Mask]) -> isa.Floats:
    """Elements a cycle and partition of the vector engine (its performance mode)."""
    op, number = stream.rows["op"], core.target.number
    bf16, other = number("vector.per_lane_bf16"), number("vector.per_lane_other")
    lanes = np.ones(len(stream))
    if bf16 == other == 1:
        return lanes
    copies = (op == isa.Opcode.COPY) | (op == isa.Opcode.TENSOR_SCALAR)
    chip, adjacent = ~(psum[0] | psum[2]), ~_strided(stream)
    lanes[copies & ~half & chip & adjacent] = other
    lanes[copies & half & (chip | adjacent)] = max(bf16 / 2, 1.0)
    lanes[copies & half & chip & adjacent] = bf16
    lanes[(op == isa.Opcode.TENSOR_TENSOR) & half & ~psum[0] & ~psum[1]] = max(bf16 / 2, 1.0)
    return lanes


def _any_operand(stream: isa.InstructionStream, wrong: Mask) -> Mask:
    """Rows of which any tile operand's access is in `wrong`."""
    mask = np.zeros(len(stream), dtype=bool)
    for operand in ("out", "in0", "in1") if wrong.any() else ():
        index = stream.rows[operand]
        mask |= (index >= 0) & wrong[index]
    return mask


def _apart(stream: isa.InstructionStream) -> Mask:
    """Rows that read or write elements more than `FULL_RATE_BYTES` apart."""
    steps = np.abs(stream.access_steps) * isa.DTYPE_BYTES[stream.accesses["dtype"]]
    return _any_operand(stream, steps > FULL_RATE_BYTES)


def _strided(stream: isa.InstructionStream) -> Mask:
    """Rows that read or write elements that are not adjacent."""
    steps = stream.access_steps
    return _any_operand(stream, (steps != 0) & (steps != 1))


def _all_of(stream: isa.InstructionStream, *names: str) -> Mask:
    """Whether all tensor operands are of dtypes `names`."""
    wanted = [isa.DTYPES.index(name) for name in names]
    mask = np.ones(len(stream), dtype=bool)
    for operand in ("out", "in0", "in1"):
        other = ~np.isin(dtype_of(stream, operand), (-1, *wanted))
        mask &= ~(other & (elements(stream, operand) > 1))
    return mask


def _gathered(stream: isa.InstructionStream) -> isa.Floats:
    """Elements of `local_gather` times the cycles of each: (28 + 4 e) / 4 e for rows of e = 1. (ISA
    divides by that, which would make scattered elements cheaper than adjacent ones.)
    """
    return elements(stream, "out").astype(np.float64) * ((28 + 4) / 4)
