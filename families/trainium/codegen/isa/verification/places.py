"""Where operands stand: inside their memory, within reach of their engine, on partitions that it
begins at, and side by side where an instruction reads them together.
"""

import numpy as np

from tilesmith.families.trainium.codegen.isa import instructions as isa
from tilesmith.families.trainium.codegen.isa.core import ENGINES, FIRST_DMA_QUEUE
from tilesmith.families.trainium.codegen.isa.footprints import extents
from tilesmith.families.trainium.codegen.isa.verification.report import (
    Laws,
    column,
    partitions,
    users,
)


def places(stream: isa.InstructionStream) -> Laws:
    """Laws of every operand's place."""
    yield from _memories(stream)
    yield from _gathered(stream)
    yield from _reach(stream)
    yield from _starts(stream)
    yield from _together(stream)


def _memories(stream: isa.InstructionStream) -> Laws:
    table, core = stream.accesses, stream.core
    low, high = extents(stream)
    space = table["space"]
    if not len(space):
        return
    tensor_bytes = np.array(
        [t.elements * isa.DTYPE_BYTES[isa.DTYPES.index(t.dtype)] for t in stream.tensors] or [0],
        dtype=np.int64,
    )
    sizes = np.array([0, core.sbuf_bytes, core.psum_bytes])
    names = np.array(["HBM", "SBUF", "PSUM"])[space]
    limit = np.where(space == isa.Space.HBM, tensor_bytes[table["tensor"]], sizes[space])
    too_far = (high > limit) | (low < 0)
    most = np.array([2**62, core.sbuf_partitions, core.psum_partitions])[space]
    last = table["partition"] + table["count"][:, 0]
    end = "{} ends at byte {} of a "
    for operand, wrong in users(stream, too_far):
        index = stream.rows[operand]
        on_chip, at, size = space[index] > 0, high[index], limit[index]
        yield wrong & ~on_chip, end + "tensor of {} bytes", operand, at, size
        yield wrong, end + "partition of {}, which has {}", operand, at, names[index], size
    for operand, wrong in users(stream, last > most):
        index = stream.rows[operand]
        yield (
            wrong, "{} ends at partition {}; {} has {}", operand, last[index], names[index],
            most[index],
        )  # fmt: skip


def _gathered(stream: isa.InstructionStream) -> Laws:
    """All rows that a gather may read are in their tensor."""
    gathers = stream.rows["op"] == isa.Opcode.GATHER
    if not gathers.any():
        return
    source, rows = stream.rows["in0"], stream.accesses["count"][:, 0]
    steps = np.where(rows > 1, stream.accesses["stride"][:, 0], 0)
    yield (
        gathers & (steps[source] != 0),
        "in0 is the row of index 0 for every partition, so its first axis has step 0 "
        "(row.broadcast(partitions))",
    )
    _, high = extents(stream)
    size = np.array([tensor.elements for tensor in stream.tensors], dtype=np.int64)
    width = isa.DTYPE_BYTES[stream.accesses["dtype"][source]]
    room = size[stream.accesses["tensor"][source]] * width
    pitch, extent = stream.rows["function"], stream.rows["function2"]
    last = high[source] + (extent - 1) * pitch * width
    law = "of {} rows of {} elements the last ends at byte {} of a tensor of {} bytes"
    yield gathers & (last > room), law, extent, pitch, last, room


def _reach(stream: isa.InstructionStream) -> Laws:
    """GpSimd has no way to PSUM on any NeuronCore (ISA: tensor_copy, tensor_scalar)."""
    mine = stream.rows["queue"] == ENGINES.index("gpsimd")
    law = "{} is in PSUM, which gpsimd cannot reach on any NeuronCore"
    for operand in isa.OPERANDS:
        yield mine & (column(stream, operand, "space") == isa.Space.PSUM), law, operand


def _starts(stream: isa.InstructionStream) -> Laws:
    """Compute engines reach partitions by quarters: 128 from 0 on, 64 from 64, 32 from 32 and 96
    (ISA: nc_stream_shuffle; A1: data access). DMA begins anywhere.
    """
    computing = stream.rows["queue"] < FIRST_DMA_QUEUE
    quarters = "{} begins at partition {}; compute engines begin at multiples of {}"
    reach = "{} takes {} partitions from {} on, where compute engines reach {}"
    for operand in isa.OPERANDS:
        start, count = column(stream, operand, "partition", 0), partitions(stream, operand)
        on_chip = computing & (column(stream, operand, "space") > isa.Space.HBM)
        yield on_chip & (start % isa.QUARTER != 0), quarters, operand, start, isa.QUARTER
        limit = start & -start  # the largest power of two that divides it
        yield on_chip & (start > 0) & (count > limit), reach, operand, count, start, limit


def _together(stream: isa.InstructionStream) -> Laws:
    """Operands that a compute engine reads from one memory begin at one partition: a lane pairs
    what it reads from a partition, as a row of the tensor engine's array does. A1 (cross-partition
    connectivity) knows moves to another quarter or half from source to result only.
    """
    computing = stream.rows["queue"] < FIRST_DMA_QUEUE
    own = np.isin(
        stream.rows["op"], (isa.Opcode.COPY_PREDICATED,)
    )  # its last operand is the result
    start, space = column(stream, "in0", "partition"), column(stream, "in0", "space")
    for operand in ("in1", "in2"):
        other = column(stream, operand, "partition")
        beside = computing & (column(stream, operand, "space") == space) & (space > isa.Space.HBM)
        if operand == "in2":
            beside &= ~own
        yield (
            beside & (other != start),
            "{} begins at partition {} and in0 at {}; what an instruction reads from one memory "
            "begins at one partition",
            operand, other, start,
        )  # fmt: skip
