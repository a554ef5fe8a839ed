"""Shapes of operands that the vector, scalar and gpsimd engines and DMA work on: they fit each
other, and those of instructions with sizes of their own are of these sizes.
"""

from __future__ import annotations

import numpy as np

from tilesmith.families.trainium.codegen.isa.core import FIRST_DMA_QUEUE
from tilesmith.families.trainium.codegen.isa.instructions import (
    BN_STATS_ELEMENTS,
    GATHER_PARTITIONS,
    QUARTER,
    SEARCH_ELEMENTS,
    InstructionStream,
    Ints,
    Opcode,
)
from tilesmith.families.trainium.codegen.isa.verification.report import Mask, fail, partitions
from tilesmith.families.trainium.codegen.timing.engine_costs import elements

_ANY = 2**62
_SIZES: dict[Opcode, tuple[tuple[str, int, int, int], ...]] = {
    Opcode.BN_STATS: (("out", 6, 6, 1), ("in0", 1, BN_STATS_ELEMENTS, 1)),
    Opcode.BN_AGGR: (("out", 2, 2, 1), ("in0", 3, _ANY, 3)),
    Opcode.MAX8: (("out", 8, 8, 1), ("in0", *SEARCH_ELEMENTS, 1)),
    Opcode.FIND_INDEX8: (("out", 8, 8, 1), ("in1", 8, 8, 1), ("in0", *SEARCH_ELEMENTS, 1)),
    Opcode.MATCH_REPLACE8: (("in1", 8, 8, 1), ("in0", 1, SEARCH_ELEMENTS[1], 1)),
}
"""(operand, least, most, multiple) elements a partition."""

_OWN_SHAPES = (
    Opcode.REDUCE, Opcode.GATHER, Opcode.LOCAL_GATHER, Opcode.BN_STATS, Opcode.BN_AGGR,
    Opcode.MAX8, Opcode.FIND_INDEX8,
    Opcode.MATCH_REPLACE8,
)  # fmt: skip
_COLUMNS = {
    "in1": (Opcode.ACTIVATION, Opcode.TENSOR_SCALAR, Opcode.TENSOR_SCALAR_REDUCE,
    Opcode.RANGE_SELECT),
    "in2": (
        Opcode.ACTIVATION, Opcode.TENSOR_SCALAR, Opcode.SCALAR_TENSOR_TENSOR, Opcode.SCAN,
        Opcode.RANGE_SELECT,
    ),
    "out2": (Opcode.ACTIVATION, Opcode.TENSOR_SCALAR_REDUCE, Opcode.SELECT_REDUCE,
    Opcode.RANGE_SELECT),
}  # fmt: skip
"""Instructions whose operand is a [P, 1] scalar."""


def verify_shapes(stream: InstructionStream) -> None:
    """Check that operands fit each other.

    Raises:
        VerificationError: naming the instruction, the limit and the value that breaks it.
    """
    _elementwise(stream)
    _special(stream)


def _elementwise(stream: InstructionStream) -> None:
    rows = stream.rows
    op = rows["op"]
    lanes = (op >= Opcode.ACTIVATION) & (op != Opcode.COLLECTIVE)
    simple = lanes & ~np.isin(op, _OWN_SHAPES)
    out_p, out_f = partitions(stream, "out"), elements(stream, "out")
    for operand in ("in0", "in1", "in2", "out2"):
        p, f = partitions(stream, operand), elements(stream, operand)
        present = rows[operand] >= 0
        fail(
            stream,
            lanes & present & (p != out_p),
            lambda r, o=operand, q=p: (  # type: ignore[misc]
                f"{o} has {q[r]} partitions and out {out_p[r]}; they must be equal"
            ),
        )
        column = present & simple & _takescolumn(op, operand)
        fail(
            stream,
            column & (f != 1),
            lambda r, o=operand, e=f: (  # type: ignore[misc]
                f"{o} must have one element a partition, not {e[r]}"
            ),
        )
        fail(
            stream,
            present & simple & ~column & (f != out_f),
            lambda r, o=operand, e=f: (  # type: ignore[misc]
                f"{o} has {e[r]} elements a partition and out {out_f[r]}; they must be equal"
            ),
        )
    size = elements(stream, "in0")
    fail(
        stream,
        (op == Opcode.REDUCE) & (size % np.maximum(out_f, 1) != 0),
        lambda r: f"{size[r]} elements a partition do not reduce to {out_f[r]}",
    )
    dma = (rows["queue"] >= FIRST_DMA_QUEUE) & (op != Opcode.COLLECTIVE)
    other_p = partitions(stream, "in0")
    fail(
        stream,
        dma & ((other_p != out_p) | (size != out_f)),
        lambda r: (
            f"moves {other_p[r]} x {size[r]} elements to {out_p[r]} x {out_f[r]}; "
            "they must be equal"
        ),
    )


def _takescolumn(op: Ints, operand: str) -> Mask:
    """Rows whose `operand` is a [P, 1] scalar."""
    return np.isin(op, _COLUMNS.get(operand, ()))


def _special(stream: InstructionStream) -> None:
    """Instructions whose operands have sizes of their own."""
    op = stream.rows["op"]
    for kind, rules in _SIZES.items():
        for operand, low, high, multiple in rules:
            size = elements(stream, operand)
            wrong = (op == kind) & ((size < low) | (size > high) | (size % multiple != 0))
            fail(
                stream,
                wrong,
                lambda r, o=operand, s=size, a=low, b=high, m=multiple: (  # type: ignore[misc]
                    f"{o} has {s[r]} elements a partition; "
                    + (f"{a}" if a == b else f"{a} to {b}, a multiple of {m},")
                    + " are expected"
                ),
            )
    indices, wanted = elements(stream, "in1"), elements(stream, "out")
    fail(
        stream,
        (op == Opcode.GATHER) & (indices != 1),
        lambda r: f"takes one index a partition, not {indices[r]}",
    )
    fail(
        stream,
        (op == Opcode.LOCAL_GATHER) & (indices * GATHER_PARTITIONS < wanted),
        lambda r: f"{indices[r]} indices a partition gather {wanted[r]} elements; too few",
    )
    rows = partitions(stream, "out")
    for kind, group in ((Opcode.SHUFFLE, QUARTER), (Opcode.LOCAL_GATHER, GATHER_PARTITIONS)):
        fail(
            stream,
            (op == kind) & (rows % group != 0),
            lambda r, g=group: f"{rows[r]} partitions are no multiple of {g}",  # type: ignore[misc]
        )
