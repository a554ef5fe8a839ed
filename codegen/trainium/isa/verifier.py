"""Every rule the operands of an instruction stream must keep; each broken one is an error naming
instruction and limit.

Operands are inside their memory, a matmul inside K, M and N limits and one PSUM bank, operand
shapes fit each other, operands are in memories their engine can reach, and tiles do not share bytes
while both are in use. What concerns time is in `synchronisation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tilesmith.codegen.compiled import Ints
from tilesmith.codegen.trainium.isa.core import ENGINES, FIRST_DMA_QUEUE
from tilesmith.codegen.trainium.isa.footprints import extents
from tilesmith.codegen.trainium.isa.instructions import (
    BN_STATS_ELEMENTS,
    DTYPE_BYTES,
    DTYPES,
    FP8,
    GATHER_PARTITIONS,
    OPERANDS,
    QUARTER,
    SEARCH_ELEMENTS,
    InstructionStream,
    Op,
    Space,
)
from tilesmith.codegen.trainium.isa.text import instruction_text
from tilesmith.codegen.trainium.timing.costs import values_a_row
from tilesmith.codegen.trainium.timing.engine_costs import elements
from tilesmith.search_space.errors import VerificationError

_ANY = 2**62
_SIZES: dict[Op, tuple[tuple[str, int, int, int], ...]] = {
    Op.BN_STATS: (("out", 6, 6, 1), ("in0", 1, BN_STATS_ELEMENTS, 1)),
    Op.BN_AGGR: (("out", 2, 2, 1), ("in0", 3, _ANY, 3)),
    Op.MAX8: (("out", 8, 8, 1), ("in0", *SEARCH_ELEMENTS, 1)),
    Op.FIND_INDEX8: (("out", 8, 8, 1), ("in1", 8, 8, 1), ("in0", *SEARCH_ELEMENTS, 1)),
    Op.MATCH_REPLACE8: (("in1", 8, 8, 1), ("in0", 1, SEARCH_ELEMENTS[1], 1)),
}
"""(operand, least, most, multiple) elements a partition."""

_OWN_SHAPES = (
    Op.REDUCE, Op.GATHER, Op.LOCAL_GATHER, Op.BN_STATS, Op.BN_AGGR, Op.MAX8, Op.FIND_INDEX8,
    Op.MATCH_REPLACE8,
)  # fmt: skip
_COLUMNS = {
    "in1": (Op.ACTIVATION, Op.TENSOR_SCALAR, Op.TENSOR_SCALAR_REDUCE, Op.RANGE_SELECT),
    "in2": (
        Op.ACTIVATION, Op.TENSOR_SCALAR, Op.SCALAR_TENSOR_TENSOR, Op.SCAN, Op.RANGE_SELECT,
    ),
    "out2": (Op.ACTIVATION, Op.TENSOR_SCALAR_REDUCE, Op.SELECT_REDUCE, Op.RANGE_SELECT),
}  # fmt: skip
"""Instructions whose operand is a [P, 1] scalar."""

Mask = np.ndarray
Explain = Callable[[int], str]


def fail(stream: InstructionStream, wrong: Mask, explain: Explain) -> None:
    """Raise for the first row of `wrong`."""
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise VerificationError(
            f"kernel '{stream.name}', instruction {row} "
            f"({instruction_text(stream, row)}): {explain(row)}"
        )


def verify_shapes(stream: InstructionStream) -> None:
    """Check operands against memories and limits, in the order the kernel was written.

    Raises:
        VerificationError: naming the instruction, the limit and the value that breaks it.
    """
    _tensor_engine(stream)
    _memories(stream)
    _reach(stream)
    _starts(stream)
    _elementwise(stream)
    _special(stream)
    _live_ranges(stream)


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


def column(stream: InstructionStream, operand: str, name: str, missing: int = -1) -> Ints:
    index = stream.rows[operand]
    values = stream.accesses[name]
    if not len(values):
        return np.full(len(index), missing, dtype=np.int64)
    return np.where(index >= 0, values[index], missing)


def _partitions(stream: InstructionStream, operand: str) -> Ints:
    index = stream.rows[operand]
    counts = stream.accesses["count"]
    return np.where(index >= 0, counts[index, 0], 0) if len(counts) else np.zeros_like(index)


def _tensor_engine(stream: InstructionStream) -> None:
    rows, core = stream.rows, stream.core
    matmul, transpose = rows["op"] == Op.MATMUL, rows["op"] == Op.TRANSPOSE
    if not (matmul | transpose).any():
        return
    k, other_k = _partitions(stream, "in0"), _partitions(stream, "in1")
    values = values_a_row(stream)
    m, n = elements(stream, "in0") // values, elements(stream, "in1") // values
    out_p, out_f = _partitions(stream, "out"), elements(stream, "out")
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


def _tensor_places(stream: InstructionStream, either: Mask) -> None:
    """Operands of the tensor engine in SBUF, results in one bank of PSUM."""
    for operand, space in (("out", Space.PSUM), ("in0", Space.SBUF), ("in1", Space.SBUF)):
        found = column(stream, operand, "space", missing=int(space))
        fail(
            stream,
            either & (found != space),
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


def _elementwise(stream: InstructionStream) -> None:
    rows = stream.rows
    op = rows["op"]
    simple = (op >= Op.ACTIVATION) & ~np.isin(op, _OWN_SHAPES)
    out_p, out_f = _partitions(stream, "out"), elements(stream, "out")
    for operand in ("in0", "in1", "in2", "out2"):
        p, f = _partitions(stream, operand), elements(stream, operand)
        present = rows[operand] >= 0
        fail(
            stream,
            (op >= Op.ACTIVATION) & present & (p != out_p),
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
        (op == Op.REDUCE) & (size % np.maximum(out_f, 1) != 0),
        lambda r: f"{size[r]} elements a partition do not reduce to {out_f[r]}",
    )
    dma = rows["queue"] >= FIRST_DMA_QUEUE
    other_p = _partitions(stream, "in0")
    fail(
        stream,
        dma & ((other_p != out_p) | (size != out_f)),
        lambda r: (
            f"moves {other_p[r]} x {size[r]} elements to {out_p[r]} x {out_f[r]}; "
            "they must be equal"
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
    (ISA: nc_stream_shuffle). DMA begins anywhere.
    """
    computing = stream.rows["queue"] < FIRST_DMA_QUEUE
    for operand in OPERANDS:
        start, count = column(stream, operand, "partition", 0), _partitions(stream, operand)
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
        (op == Op.LOCAL_GATHER) & (indices * GATHER_PARTITIONS < wanted),
        lambda r: f"{indices[r]} indices a partition gather {wanted[r]} elements; too few",
    )
    rows = _partitions(stream, "out")
    for kind, group in ((Op.SHUFFLE, QUARTER), (Op.LOCAL_GATHER, GATHER_PARTITIONS)):
        fail(
            stream,
            (op == kind) & (rows % group != 0),
            lambda r, g=group: f"{rows[r]} partitions are no multiple of {g}",  # type: ignore[misc]
        )


def _live_ranges(stream: InstructionStream) -> None:
    """No two tiles share bytes of a partition while both are in use."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    owner = stream.accesses["allocation"]
    for operand in OPERANDS:
        index = stream.rows[operand]
        for row in np.flatnonzero(index >= 0):
            tile = int(owner[index[row]])
            if tile >= 0:
                first[tile] = min(first.get(tile, int(row)), int(row))
                last[tile] = max(last.get(tile, int(row)), int(row))
    active: list[int] = []
    for tile in sorted(first, key=lambda t: first[t]):
        active = [other for other in active if last[other] >= first[tile]]
        for other in active:
            if _share(stream, tile, other):
                fail(
                    stream,
                    np.arange(len(stream)) == first[tile],
                    lambda _, t=tile, o=other: (  # type: ignore[misc]
                        f"{_place(stream, t)} overlaps {_place(stream, o)}, which is in use "
                        f"until instruction {last[o]}"
                    ),
                )
        active.append(tile)


def _place(stream: InstructionStream, tile: int) -> str:
    found = stream.allocations[tile]
    stop = found.offset + found.bytes
    return f"tile '{found.name}' (bytes {found.offset} to {stop} of {found.space.name})"


def _share(stream: InstructionStream, one: int, two: int) -> bool:
    a, b = stream.allocations[one], stream.allocations[two]
    return (
        a.space == b.space
        and a.offset < b.offset + b.bytes
        and b.offset < a.offset + a.bytes
        and a.partition < b.partition + b.partitions
        and b.partition < a.partition + a.partitions
    )
