"""The tensor engine: sizes of the array, memories and dtypes of its operands, sums in PSUM.

Sources: A1 / A2 = NKI architecture guides for Trainium and Trainium2; ISA = NKI instruction
reference, `nc_matmul`.
"""

import numpy as np

from tilesmith.families.trainium.codegen.isa.footprints import extents
from tilesmith.families.trainium.codegen.isa.instructions import (
    DTYPES,
    FP8,
    InstructionStream,
    Opcode,
    Space,
)
from tilesmith.families.trainium.codegen.isa.verification.report import (
    Laws,
    Mask,
    column,
    partitions,
)
from tilesmith.families.trainium.codegen.timing.costs import values_a_row
from tilesmith.families.trainium.codegen.timing.engine_costs import elements
from tilesmith.search_space.expressions.dtypes import to_numpy

_FLOAT32 = DTYPES.index("float32")
_MULTIPLIED = [number for number, name in enumerate(DTYPES) if to_numpy(name).kind not in "iub"]


def products(stream: InstructionStream) -> Laws:
    """Laws of the tensor engine's instructions."""
    rows, core = stream.rows, stream.core
    matmul, transpose = rows["op"] == Opcode.MATMUL, rows["op"] == Opcode.TRANSPOSE
    either = matmul | transpose
    if not either.any():
        return
    k, other_k = partitions(stream, "in0"), partitions(stream, "in1")
    values = values_a_row(stream)
    m, n = elements(stream, "in0") // values, elements(stream, "in1") // values
    out_p, out_f = partitions(stream, "out"), elements(stream, "out")
    yield (
        either & (k > core.rows), "K = {} partitions exceeds the array's {} rows", k, core.rows
    )  # fmt: skip
    yield (
        either & (m > core.cols), "M = {} stationary columns exceeds the array's {}", m, core.cols
    )  # fmt: skip
    yield matmul & (n > core.moving_free), "N = {} moving columns exceeds {}", n, core.moving_free
    narrow = [np.isin(column(stream, operand, "dtype"), FP8) for operand in ("in0", "in1")]
    yield (
        (values == 2) & ~(narrow[0] & narrow[1]),
        "two values a row of the array must be of dtype float8",
    )
    yield (
        matmul & (k != other_k),
        "stationary has K = {} partitions and moving {}; they must be equal", k, other_k,
    )  # fmt: skip
    columns = np.where(matmul, n, k)
    wrong = either & ((out_p != m) | (out_f != columns))
    yield wrong, "out is {} x {}; {} x {} is computed", out_p, out_f, m, columns
    yield from _tensor_places(stream, either)
    yield from _dtypes(stream, matmul)


def _tensor_places(stream: InstructionStream, either: Mask) -> Laws:
    """Operands of the tensor engine in SBUF, results in one bank of PSUM."""
    for operand, space in (("out", Space.PSUM), ("in0", Space.SBUF), ("in1", Space.SBUF)):
        wrong = either & (column(stream, operand, "space", missing=int(space)) != space)
        yield wrong, "{} of the tensor engine must be in {}", operand, space.name
    low, high = (ends[stream.rows["out"]] for ends in extents(stream))
    bank = stream.core.bank_bytes
    yield (
        either & (low // bank != (high - 1) // bank),
        "out takes bytes {} to {} of PSUM and leaves its bank of {} bytes a partition",
        low, high, bank,
    )  # fmt: skip


def _dtypes(stream: InstructionStream, matmul: Mask) -> Laws:
    """Products are summed in fp32, and an operand in fp32 needs the other to be (ISA; others may be
    mixed, at the same speed).
    """
    out, stationary, moving = (column(stream, o, "dtype") for o in ("out", "in0", "in1"))
    names = np.array(DTYPES)
    law = "out is of {}; PSUM takes and sums products in float32"
    yield matmul & (out != _FLOAT32), law, names[out]
    for operand, kind in (("stationary", stationary), ("moving", moving)):
        law = "{} is of {}; the tensor engine multiplies floating-point numbers"
        yield matmul & ~np.isin(kind, _MULTIPLIED), law, operand, names[kind]
    yield (
        matmul & ((stationary == _FLOAT32) != (moving == _FLOAT32)),
        "stationary is of {} and moving of {}; where one is of float32 both must be",
        names[stationary], names[moving],
    )  # fmt: skip
