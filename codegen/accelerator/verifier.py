"""Every rule an instruction stream must keep; each broken one is an error naming instruction and
limit.

`verify_shapes`: operands inside their memory, a matmul inside K, M and N limits and one PSUM bank,
operand shapes that fit each other, operands in memories their engine can reach, and tiles that do
not share bytes while both are in use. `verify`: nothing is read before it was written; every data
dependence is covered by a semaphore (directly or through other waits); engines that exclude each
other on a memory hold its port. A stream that passes both computes the same on any timing of the
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from codegen.accelerator.compiled import Ints, compiled
from codegen.accelerator.core import FIRST_DMA_QUEUE, QUEUES
from codegen.accelerator.costs import elements
from codegen.accelerator.dependences import (
    dependences,
    extents,
    footprints,
    operand_tables,
)
from codegen.accelerator.instructions import (
    DTYPE_BYTES,
    LOCK_PSUM,
    LOCK_SBUF,
    OPERANDS,
    InstructionStream,
    Op,
    Space,
)
from codegen.accelerator.text import instruction_text
from search_space.errors import VerificationError

Mask = np.ndarray
Explain = Callable[[int], str]


def _fail(stream: InstructionStream, wrong: Mask, explain: Explain) -> None:
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
    _elementwise(stream)
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
    _, high = extents(stream)
    space = table["space"]
    tensor_bytes = np.array(
        [t.elements * DTYPE_BYTES[_dtype_number(t.dtype)] for t in stream.tensors] or [0],
        dtype=np.int64,
    )
    sizes = np.array([0, core.sbuf_bytes, core.psum_bytes])
    names = ("HBM", "SBUF", "PSUM")
    limit = np.where(space == Space.HBM, tensor_bytes[table["tensor"]], sizes[space])
    too_far = (high > limit) | (table["offset"] < 0)
    partitions = np.array([2**62, core.sbuf_partitions, core.psum_partitions])[space]
    too_low = table["partition"] + table["count"][:, 0] > partitions
    for operand, wrong in _users(stream, too_far):
        index = stream.rows[operand]
        _fail(stream, wrong, lambda r, i=index, o=operand: (  # type: ignore[misc]
            f"{o} ends at byte {high[i[r]]} of a partition of {names[space[i[r]]]}, which has "
            f"{limit[i[r]]}" if space[i[r]] else
            f"{o} ends at byte {high[i[r]]} of a tensor of {limit[i[r]]} bytes"
        ))  # fmt: skip
    for operand, wrong in _users(stream, too_low):
        index = stream.rows[operand]
        _fail(stream, wrong, lambda r, i=index, o=operand: (  # type: ignore[misc]
            f"{o} ends at partition {table['partition'][i[r]] + table['count'][i[r], 0]}; "
            f"{names[space[i[r]]]} has {partitions[i[r]]}"
        ))  # fmt: skip


def _dtype_number(name: str) -> int:
    from codegen.accelerator.instructions import DTYPES

    return DTYPES.index(name)


def _column(stream: InstructionStream, operand: str, name: str, missing: int = -1) -> Ints:
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
    m, n = elements(stream, "in0"), elements(stream, "in1")
    out_p, out_f = _partitions(stream, "out"), elements(stream, "out")
    either = matmul | transpose
    _fail(
        stream,
        either & (k > core.rows),
        lambda r: f"K = {k[r]} partitions exceeds the array's {core.rows} rows",
    )
    _fail(
        stream,
        either & (m > core.cols),
        lambda r: f"M = {m[r]} stationary columns exceeds the array's {core.cols}",
    )
    _fail(
        stream,
        matmul & (n > core.moving_free),
        lambda r: f"N = {n[r]} moving columns exceeds {core.moving_free}",
    )
    _fail(
        stream,
        matmul & (k != other_k),
        lambda r: (
            f"stationary has K = {k[r]} partitions and moving {other_k[r]}; they must be equal"
        ),
    )
    wrong = matmul & ((out_p != m) | (out_f != n)) | transpose & ((out_p != m) | (out_f != k))
    _fail(
        stream,
        wrong,
        lambda r: (
            f"out is {out_p[r]} x {out_f[r]}; {m[r]} x {n[r] if matmul[r] else k[r]} is computed"
        ),
    )
    for operand, space in (("out", Space.PSUM), ("in0", Space.SBUF), ("in1", Space.SBUF)):
        found = _column(stream, operand, "space", missing=int(space))
        _fail(
            stream,
            either & (found != space),
            lambda r, o=operand, s=space: (  # type: ignore[misc]
                f"{o} of the tensor engine must be in {s.name}"
            ),
        )
    low, high = extents(stream)
    bank = core.bank_bytes
    crosses = (low // bank != (high - 1) // bank)[rows["out"]]
    _fail(
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
    simple = (op >= Op.ACTIVATION) & (op != Op.REDUCE)
    out_p, out_f = _partitions(stream, "out"), elements(stream, "out")
    for operand in ("in0", "in1", "in2", "out2"):
        p, f = _partitions(stream, operand), elements(stream, operand)
        present = rows[operand] >= 0
        _fail(
            stream,
            (op >= Op.ACTIVATION) & present & (p != out_p),
            lambda r, o=operand, q=p: (  # type: ignore[misc]
                f"{o} has {q[r]} partitions and out {out_p[r]}; they must be equal"
            ),
        )
        column = present & simple & _takes_column(op, operand)
        _fail(
            stream,
            column & (f != 1),
            lambda r, o=operand, e=f: (  # type: ignore[misc]
                f"{o} must have one element a partition, not {e[r]}"
            ),
        )
        _fail(
            stream,
            present & simple & ~column & (f != out_f),
            lambda r, o=operand, e=f: (  # type: ignore[misc]
                f"{o} has {e[r]} elements a partition and out {out_f[r]}; they must be equal"
            ),
        )
    size = elements(stream, "in0")
    _fail(
        stream,
        (op == Op.REDUCE) & (size % np.maximum(out_f, 1) != 0),
        lambda r: f"{size[r]} elements a partition do not reduce to {out_f[r]}",
    )
    dma = rows["queue"] >= FIRST_DMA_QUEUE
    other_p = _partitions(stream, "in0")
    _fail(
        stream,
        dma & ((other_p != out_p) | (size != out_f)),
        lambda r: (
            f"moves {other_p[r]} x {size[r]} elements to {out_p[r]} x {out_f[r]}; "
            "they must be equal"
        ),
    )


def _takes_column(op: Ints, operand: str) -> Mask:
    """Rows whose `operand` is a [P, 1] scalar."""
    if operand == "in1":
        return np.isin(op, (Op.ACTIVATION, Op.TENSOR_SCALAR))
    if operand == "in2":
        return np.isin(op, (Op.ACTIVATION, Op.TENSOR_SCALAR, Op.SCALAR_TENSOR_TENSOR, Op.SCAN))
    return (op == Op.ACTIVATION) if operand == "out2" else np.zeros(len(op), dtype=bool)


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
                _fail(
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


@compiled
def _uncovered(
    n: int,
    queues: int,
    queue: Ints,
    count: Ints,
    wait_start: Ints,
    waits: Ints,
    need_start: Ints,
    needs: Ints,
    clock: Ints,
    previous: Ints,
) -> int:
    """The first place in `needs` that no semaphore covers, or -1.

    `clock[i * queues + q]`: how many instructions of queue q are known to be done when i starts.
    """
    for i in range(n):
        p = previous[i]
        for q in range(queues):
            clock[i * queues + q] = 0
            if p >= 0:
                clock[i * queues + q] = clock[p * queues + q]
        for w in range(wait_start[i], wait_start[i + 1]):
            d = waits[w]
            if d >= i:
                return int(need_start[i])
            for q in range(queues):
                here = i * queues + q
                clock[here] = max(clock[here], clock[d * queues + q])
            mine = i * queues + queue[d]
            clock[mine] = max(clock[mine], count[d])
        for w in range(need_start[i], need_start[i + 1]):
            d = needs[w]
            if clock[i * queues + queue[d]] < count[d]:
                return w
    return -1


def verify(stream: InstructionStream) -> None:
    """Check synchronisation: reads of what was never written, missing semaphores, exclusive ports.

    Raises:
        VerificationError: naming the instruction and what it should have waited for.
    """
    _written_first(stream)
    _ports(stream)
    need_start, needs = dependences(stream, prune=False)
    n = len(stream)
    previous = np.full(n, -1, dtype=np.int64)
    for number in np.unique(stream.rows["queue"]):
        mine = np.flatnonzero(stream.rows["queue"] == number)
        previous[mine[1:]] = mine[:-1]
    bad = _uncovered(
        n, QUEUES, stream.rows["queue"], stream.semaphores, stream.wait_start, stream.waits,
        need_start, needs, np.zeros(n * QUEUES, dtype=np.int64), previous,
    )  # fmt: skip
    if bad >= 0:
        row = int(np.searchsorted(need_start, bad, side="right")) - 1
        other = int(needs[bad])
        wrong = np.arange(n) == row
        _fail(
            stream,
            wrong,
            lambda _: (
                f"touches what instruction {other} ({instruction_text(stream, other)}) may not "
                "have finished with; a semaphore is missing"
            ),
        )


def _written_first(stream: InstructionStream) -> None:
    """Every on-chip operand was written before, at least in part of each of its granules."""
    feet = footprints(stream)
    reads, writes = operand_tables(stream)
    written = np.zeros((feet.groups, feet.cells), dtype=bool)
    known: set[int] = set()
    for row in range(len(stream)):
        for access in reads[row]:
            if access < 0 or feet.tensor[access] >= 0 or int(access) in known:
                continue
            box = written[
                feet.group[access] : feet.group_stop[access], feet.first[access] : feet.stop[access]
            ]
            if not box.any():
                _fail(
                    stream,
                    np.arange(len(stream)) == row,
                    lambda r, a=int(access): (  # type: ignore[misc]
                        f"reads {stream.access(a).space.name} at byte {stream.access(a).offset}, "
                        "which nothing has written"
                    ),
                )
            known.add(int(access))
        for access in writes[row]:
            if access >= 0 and feet.tensor[access] < 0 and int(access) not in known:
                written[
                    feet.group[access] : feet.group_stop[access],
                    feet.first[access] : feet.stop[access],
                ] = True
                known.add(int(access))


def _ports(stream: InstructionStream) -> None:
    """Engines that exclude each other on a memory hold its port when they touch it."""
    core, rows = stream.core, stream.rows
    touches = {space: np.zeros(len(stream), dtype=bool) for space in (Space.SBUF, Space.PSUM)}
    for operand in OPERANDS:
        found = _column(stream, operand, "space")
        for space, mask in touches.items():
            mask |= found == space
    pairs = (
        (core.exclusive_sbuf, Space.SBUF, (1, 3), LOCK_SBUF, "vector and gpsimd"),
        (core.exclusive_psum, Space.PSUM, (1, 2), LOCK_PSUM, "vector and scalar"),
    )
    for exclusive, space, engines, bit, names in pairs:
        if exclusive:
            wrong = touches[space] & np.isin(rows["queue"], engines) & ((rows["lock"] & bit) == 0)
            _fail(
                stream,
                wrong,
                lambda _, s=space, e=names: (  # type: ignore[misc]
                    f"uses {s.name} without holding its port, which {e} exclude each other from"
                ),
            )
