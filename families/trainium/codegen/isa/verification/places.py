"""Where operands stand: inside their memory, within reach of their engine, on partitions that it
begins at, and side by side where an instruction reads them together.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilesmith.families.trainium.codegen.isa.core import ENGINES, FIRST_DMA_QUEUE
from tilesmith.families.trainium.codegen.isa.footprints import extents
from tilesmith.families.trainium.codegen.isa.instructions import (
    DTYPE_BYTES,
    DTYPES,
    OPERANDS,
    QUARTER,
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


def verify_places(stream: InstructionStream) -> None:
    """Check every operand's place.

    Raises:
        VerificationError: naming the instruction, the limit and the value that breaks it.
    """
    _memories(stream)
    _gathered(stream)
    _reach(stream)
    _starts(stream)
    _together(stream)


def _users(stream: InstructionStream, access_wrong: Mask) -> Iterator[tuple[str, Mask]]:
    """For each operand column: the rows whose access there is wrong."""
    for operand in OPERANDS:
        index = stream.rows[operand]
        yield (
            operand,
            np.where(index >= 0, access_wrong[index], False)
            if len(access_wrong)
            else (np.zeros(len(index), dtype=bool)),
        )


def _memories(stream: InstructionStream) -> None:
    table, core = stream.accesses, stream.core
    low, high = extents(stream)
    space = table["space"]
    tensor_bytes = np.array(
        [t.elements * DTYPE_BYTES[DTYPES.index(t.dtype)] for t in stream.tensors] or [0],
        dtype=np.int64,
    )
    sizes = np.array([0, core.sbuf_bytes, core.psum_bytes])
    names = ("HBM", "SBUF", "PSUM")
    limit = np.where(space == Space.HBM, tensor_bytes[table["tensor"]], sizes[space])
    too_far = (high > limit) | (low < 0)
    partitions = np.array([2**62, core.sbuf_partitions, core.psum_partitions])[space]
    too_low = table["partition"] + table["count"][:, 0] > partitions
    for operand, wrong in _users(stream, too_far):
        index = stream.rows[operand]
        fail(stream, wrong, lambda r, i=index, o=operand: (  # type: ignore[misc]
            f"{o} ends at byte {high[i[r]]} of a partition of {names[space[i[r]]]}, which has "
            f"{limit[i[r]]}" if space[i[r]] else
            f"{o} ends at byte {high[i[r]]} of a tensor of {limit[i[r]]} bytes"
        ))  # fmt: skip
    for operand, wrong in _users(stream, too_low):
        index = stream.rows[operand]
        fail(stream, wrong, lambda r, i=index, o=operand: (  # type: ignore[misc]
            f"{o} ends at partition {table['partition'][i[r]] + table['count'][i[r], 0]}; "
            f"{names[space[i[r]]]} has {partitions[i[r]]}"
        ))  # fmt: skip


def _gathered(stream: InstructionStream) -> None:
    """All rows that a gather may read are in their tensor."""
    gathers = stream.rows["op"] == Opcode.GATHER
    if not gathers.any():
        return
    source, rows = stream.rows["in0"], stream.accesses["count"][:, 0]
    steps = np.where(rows > 1, stream.accesses["stride"][:, 0], 0)
    fail(
        stream,
        gathers & (steps[source] != 0),
        lambda _: (
            "in0 is the row of index 0 for every partition, so its first axis has step 0 "
            "(row.broadcast(partitions))"
        ),
    )
    _, high = extents(stream)
    size = np.array([tensor.elements for tensor in stream.tensors], dtype=np.int64)
    tensor = stream.accesses["tensor"][source]
    width = DTYPE_BYTES[stream.accesses["dtype"][source]]
    pitch, extent = stream.rows["function"], stream.rows["function2"]
    last = high[source] + (extent - 1) * pitch * width
    fail(
        stream,
        gathers & (last > size[tensor] * width),
        lambda r: (
            f"of {extent[r]} rows of {pitch[r]} elements the last ends at byte {last[r]} of a "
            f"tensor of {size[tensor[r]] * width[r]} bytes"
        ),
    )


def _reach(stream: InstructionStream) -> None:
    """GpSimd has no way to PSUM on any NeuronCore (ISA: tensor_copy, tensor_scalar)."""
    mine = stream.rows["queue"] == ENGINES.index("gpsimd")
    for operand in OPERANDS:
        fail(
            stream,
            mine & (column(stream, operand, "space") == Space.PSUM),
            lambda _, o=operand: f"{o} is in PSUM, which gpsimd cannot reach on any NeuronCore",  # type: ignore[misc]
        )


def _starts(stream: InstructionStream) -> None:
    """Compute engines reach partitions by quarters: 128 from 0 on, 64 from 64, 32 from 32 and 96
    (ISA: nc_stream_shuffle; A1: data access). DMA begins anywhere.
    """
    computing = stream.rows["queue"] < FIRST_DMA_QUEUE
    for operand in OPERANDS:
        start, count = column(stream, operand, "partition", 0), partitions(stream, operand)
        on_chip = computing & (column(stream, operand, "space") > Space.HBM)
        fail(
            stream,
            on_chip & (start % QUARTER != 0),
            lambda r, o=operand, s=start: (  # type: ignore[misc]
                f"{o} begins at partition {s[r]}; compute engines begin at multiples of {QUARTER}"
            ),
        )
        limit = start & -start  # the largest power of two that divides it
        fail(
            stream,
            on_chip & (start > 0) & (count > limit),
            lambda r, o=operand, s=start, c=count, m=limit: (  # type: ignore[misc]
                f"{o} takes {c[r]} partitions from {s[r]} on, where compute engines reach {m[r]}"
            ),
        )


def _together(stream: InstructionStream) -> None:
    """Operands that a compute engine reads from one memory begin at one partition: a lane pairs
    what it reads from a partition, as a row of the tensor engine's array does. A1 (cross-partition
    connectivity) knows moves to another quarter or half from source to result only.
    """
    computing = stream.rows["queue"] < FIRST_DMA_QUEUE
    own = np.isin(stream.rows["op"], (Opcode.COPY_PREDICATED,))  # its last operand is the result
    start, space = column(stream, "in0", "partition"), column(stream, "in0", "space")
    for operand in ("in1", "in2"):
        other = column(stream, operand, "partition")
        beside = computing & (column(stream, operand, "space") == space) & (space > Space.HBM)
        if operand == "in2":
            beside &= ~own
        fail(
            stream,
            beside & (other != start),
            lambda r, o=operand, p=other: (  # type: ignore[misc]
                f"{o} begins at partition {p[r]} and in0 at {start[r]}; what an instruction reads "
                "from one memory begins at one partition"
            ),
        )
