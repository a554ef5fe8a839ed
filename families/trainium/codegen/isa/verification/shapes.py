"""Shapes of operands that the vector, scalar and gpsimd engines and DMA work on: they fit each
other, and those of instructions with sizes of their own are of these sizes.
"""

import numpy as np

from tilesmith.families.trainium.codegen.isa.core import FIRST_DMA_QUEUE
from tilesmith.families.trainium.codegen.isa.instructions import (
    BN_STATS_ELEMENTS,
    GATHER_PARTITIONS,
    QUARTER,
    SEARCH_ELEMENTS,
    InstructionStream,
    Opcode,
)
from tilesmith.families.trainium.codegen.isa.verification.report import Laws, partitions
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


def shapes(stream: InstructionStream) -> Laws:
    """Laws of how operands fit each other."""
    yield from _elementwise(stream)
    yield from _special(stream)


def _elementwise(stream: InstructionStream) -> Laws:
    rows = stream.rows
    op = rows["op"]
    lanes = (op >= Opcode.ACTIVATION) & (op != Opcode.COLLECTIVE)
    simple = lanes & ~np.isin(op, _OWN_SHAPES)
    out_p, out_f = partitions(stream, "out"), elements(stream, "out")
    for operand in ("in0", "in1", "in2", "out2"):
        p, f = partitions(stream, operand), elements(stream, operand)
        present = rows[operand] >= 0
        law = "{} has {} partitions and out {}; they must be equal"
        yield lanes & present & (p != out_p), law, operand, p, out_p
        column = present & simple & np.isin(op, _COLUMNS.get(operand, ()))
        yield column & (f != 1), "{} must have one element a partition, not {}", operand, f
        law = "{} has {} elements a partition and out {}; they must be equal"
        yield present & simple & ~column & (f != out_f), law, operand, f, out_f
    size, other_p = elements(stream, "in0"), partitions(stream, "in0")
    wrong = (op == Opcode.REDUCE) & (size % np.maximum(out_f, 1) != 0)
    yield wrong, "{} elements a partition do not reduce to {}", size, out_f
    dma = (rows["queue"] >= FIRST_DMA_QUEUE) & (op != Opcode.COLLECTIVE)
    law = "moves {} x {} elements to {} x {}; they must be equal"
    yield dma & ((other_p != out_p) | (size != out_f)), law, other_p, size, out_p, out_f


def _special(stream: InstructionStream) -> Laws:
    """Instructions whose operands have sizes of their own."""
    op = stream.rows["op"]
    for kind, rules in _SIZES.items():
        for operand, low, high, multiple in rules:
            size = elements(stream, operand)
            wrong = (op == kind) & ((size < low) | (size > high) | (size % multiple != 0))
            expected = f"{low}" if low == high else f"{low} to {high}, a multiple of {multiple},"
            yield wrong, "{} has {} elements a partition; {} are expected", operand, size, expected
    indices, wanted = elements(stream, "in1"), elements(stream, "out")
    wrong = (op == Opcode.GATHER) & (indices != 1)
    yield wrong, "takes one index a partition, not {}", indices
    wrong = (op == Opcode.LOCAL_GATHER) & (indices * GATHER_PARTITIONS < wanted)
    yield wrong, "{} indices a partition gather {} elements; too few", indices, wanted
    rows = partitions(stream, "out")
    for kind, group in ((Opcode.SHUFFLE, QUARTER), (Opcode.LOCAL_GATHER, GATHER_PARTITIONS)):
        wrong = (op == kind) & (rows % group != 0)
        yield wrong, "{} partitions are no multiple of {}", rows, group
