"""The tensor engine: sizes of the array, memories and dtypes of its operands, sums in PSUM.

Sources: A1 / A2 = NKI architecture guides for Trainium and Trainium2; ISA = NKI instruction
reference, `nc_matmul`.
"""

from __future__ import annotations

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
    Mask,
    column,
    fail,
    partitions,
)
from tilesmith.families.trainium.codegen.timing.costs import values_a_row
from tilesmith.families.trainium.codegen.timing.engine_costs import elements
from tilesmith.search_space.expressions.dtypes import to_numpy

_FLOAT32 = DTYPES.index("float32")
_MULTIPLIED = [number for number, name in enumerate(DTYPES) if to_numpy(name).kind not in "iub"]


def verify_products(stream: InstructionStream) -> None:
    """Check the tensor engine's instructions.

    Raises:
        VerificationError: naming the instruction, the limit and the value that breaks it.
    """
    rows, core = stream.rows, stream.core
    matmul, transpose = rows["op"] == Opcode.MATMUL, rows["op"] == Opcode.TRANSPOSE
    if not (matmul | transpose).any():
        return
    k, other_k = partitions(stream, "in0"), partitions(stream, "in1")
    values = values_a_row(stream)
    m, n = elements(stream, "in0") // values, elements(stream, "in1") // values
    out_p, out_f = partitions(stream, "out"), elements(stream, "out")
    either = matmul | transpose
    fail(
        stream,
        either & (k > core.rows),
        lambda r: f"K = {k[r]} partitions exceeds the array's {core.rows} rows",
    )
    fail(
        stream,
        either & (m > core.cols),
        lambda r: f"M = {m[r]} stationary columns exceeds the array's {core.cols}",
    )
    fail(
        stream,
        matmul & (n > core.moving_free),
        lambda r: f"N = {n[r]} moving columns exceeds {core.moving_free}",
    )
    narrow = np.isin(column(stream, "in0", "dtype"), FP8) & np.isin(
        column(stream, "in1", "dtype"), FP8
    )
    fail(
        stream,
        (values == 2) & ~narrow,
        lambda _: "two values a row of the array must be of dtype float8",
    )
    fail(
        stream,
        matmul & (k != other_k),
        lambda r: (
            f"stationary has K = {k[r]} partitions and moving {other_k[r]}; they must be equal"
        ),
    )
    wrong = matmul & ((out_p != m) | (out_f != n)) | transpose & ((out_p != m) | (out_f != k))
    fail(
        stream,
        wrong,
        lambda r: (
            f"out is {out_p[r]} x {out_f[r]}; {m[r]} x {n[r] if matmul[r] else k[r]} is computed"
        ),
    )
    _tensor_places(stream, either)
    _dtypes(stream, matmul)


def _tensor_places(stream: InstructionStream, either: Mask) -> None:
    """Operands of the tensor engine in SBUF, results in one bank of PSUM."""
    for operand, space in (("out", Space.PSUM), ("in0", Space.SBUF), ("in1", Space.SBUF)):
        spaces = column(stream, operand, "space", missing=int(space))
        fail(
            stream,
            either & (spaces != space),
            lambda r, o=operand, s=space: (  # type: ignore[misc]
                f"{o} of the tensor engine must be in {s.name}"
            ),
        )
    low, high = extents(stream)
    bank, rows = stream.core.bank_bytes, stream.rows
    crosses = (low // bank != (high - 1) // bank)[rows["out"]]
    fail(
        stream,
        either & crosses,
        lambda r: (
            f"out takes bytes {low[rows['out'][r]]} to {high[rows['out'][r]]} of PSUM and leaves "
            f"its bank of {bank} bytes a partition"
        ),
    )


def _dtypes(stream: InstructionStream, matmul: Mask) -> None:
    """Products are summed in fp32, and an operand in fp32 needs the other to be (ISA; others may be
    mixed, at the same speed).
    """
    out, stationary, moving = (column(stream, o, "dtype") for o in ("out", "in0", "in1"))
    fail(
        stream,
        matmul & (out != _FLOAT32),
        lambda r: f"out is of {DTYPES[out[r]]}; PSUM takes and sums products in float32",
    )
    for operand, kind in (("stationary", stationary), ("moving", moving)):
        fail(
            stream,
            matmul & ~np.isin(kind, _MULTIPLIED),
            lambda r, o=operand, k=kind: (  # type: ignore[misc]
                f"{o} is of {DTYPES[k[r]]}; the tensor engine multiplies floating-point numbers"
            ),
        )
    fail(
        stream,
        matmul & ((stationary == _FLOAT32) != (moving == _FLOAT32)),
        lambda r: (
            f"stationary is of {DTYPES[stationary[r]]} and moving of {DTYPES[moving[r]]}; where "
            "one is of float32 both must be"
        ),
    )
