"""Results that an instruction writes: each byte once, and none that it still has to read.

An engine takes the elements of a partition one after the other, in the order of its operands'
axes, and writes each result as it goes (A1: the free axis is streamed). So an instruction may
write where it reads, as long as every element is read before its place is written:

    copy t <- t                    may: element i is read, then written
    copy t[:, :-1] <- t[:, 1:]     may: what is written was read one element before
    copy t[:, 1:] <- t[:, :-1]     may not: element 1 is written before it is read
    reduce t[:, :1] <- t           may: the sum is written when all is read

Scalars of one element a partition are read before the first element. Sources: A1 = NKI
architecture guide for Trainium.
"""

import numpy as np

from tilesmith.families.trainium.codegen.isa import instructions as isa
from tilesmith.families.trainium.codegen.isa.footprints import extents
from tilesmith.families.trainium.codegen.isa.verification.report import Laws, Mask, column, users

_AT_THE_END = (isa.Opcode.BN_STATS, isa.Opcode.BN_AGGR, isa.Opcode.MAX8, isa.Opcode.FIND_INDEX8)
"""Instructions that write when all is read."""


def results(stream: isa.InstructionStream) -> Laws:
    """Laws of what instructions write beside itself and beside what they read."""
    table = stream.accesses
    again = ((table["count"] > 1) & (table["stride"] == 0)).any(axis=1)
    for operand, wrong in users(stream, again):
        if operand.startswith("out"):
            law = "{} is broadcast: the same element would be written several times"
            yield wrong, law, operand
    low, high = extents(stream)
    for operand in ("out2", "in0", "in1", "in2"):
        meets = _suspects(stream, operand, low, high)
        pairs = {
            (int(stream.rows["op"][r]), int(stream.rows["out"][r]), int(stream.rows[operand][r]))
            for r in np.flatnonzero(meets)
        }
        clashing = {pair for pair in pairs if _clash(stream, operand, *pair)}
        law = (
            "out takes the place of elements of {} before they are read; elements are read and "
            "written one after the other"
        )
        if operand == "out2":
            law = "out and out2 share elements; each result needs a place of its own"
        yield _among(stream, operand, meets, clashing), law, operand


def _suspects(stream: isa.InstructionStream, operand: str, low: isa.Ints, high: isa.Ints) -> Mask:
    """Rows whose result and `operand` may have bytes on chip in common and are not the same."""
    out, other = stream.rows["out"], stream.rows[operand]
    there = (out >= 0) & (other >= 0) & ~np.isin(stream.rows["op"], _AT_THE_END)
    meets = there & ((out != other) | (operand == "out2"))
    if not meets.any():
        return np.zeros(len(stream), dtype=bool)
    space, tile = (column(stream, "out", name) for name in ("space", "allocation"))
    meets &= (space == column(stream, operand, "space")) & (space != isa.Space.HBM)
    meets &= tile == column(stream, operand, "allocation")
    meets &= (low[out] < high[other]) & (low[other] < high[out])
    first, count = stream.accesses["partition"], stream.accesses["count"][:, 0]
    last = first + count
    meets &= (first[out] < last[other]) & (first[other] < last[out])
    suspects: Mask = meets & ((stream.access_elements[other] > 1) | (operand == "out2"))
    return suspects


def _clash(stream: isa.InstructionStream, operand: str, op: int, out: int, other: int) -> bool:
    """Whether bytes of a result are written before they are read, or twice."""
    written, read = _places(stream, out), _places(stream, other)
    if operand == "out2":
        return bool(np.isin(written, read).any())
    elements = max(len(read), len(written))
    when_written = (np.arange(len(written)) + 1) * elements // len(written) - 1
    if op == isa.Opcode.LOCAL_GATHER:
        when_written = np.zeros(len(written), dtype=np.int64)  # any element may be read last
    first = int(min(written.min(), read.min()))
    size = int(max(written.max(), read.max())) - first + 1
    earliest = np.full(size, elements, dtype=np.int64)
    np.minimum.at(earliest, written - first, when_written[:, None])
    return bool((earliest[read - first] < np.arange(len(read))[:, None]).any())


def _places(stream: isa.InstructionStream, access: int) -> isa.Ints:
    """The bytes of each element of an access in its partition, in order, [elements, bytes]."""
    table = stream.accesses
    size = int(isa.DTYPE_BYTES[table["dtype"][access]])
    places = np.full(1, table["offset"][access], dtype=np.int64)
    axes = zip(table["count"][access, 1:], table["stride"][access, 1:], strict=True)
    for count, stride in axes:
        places = (places[:, None] + np.arange(count) * stride * size).reshape(-1)
    return places[:, None] + np.arange(size)


def _among(
    stream: isa.InstructionStream, operand: str, meets: Mask, wrong: set[tuple[int, int, int]]
) -> Mask:
    """Rows of `meets` whose operation and accesses are in `wrong`."""
    mask = np.zeros(len(stream), dtype=bool)
    for row in np.flatnonzero(meets) if wrong else ():
        key = (stream.rows["op"][row], stream.rows["out"][row], stream.rows[operand][row])
        mask[row] = tuple(map(int, key)) in wrong
    return mask
