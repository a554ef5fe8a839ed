"""Copies on chip that take the place of transfers a resident tensor spares.

A tensor that stays in SBUF between kernels need not go to memory and back. The kernels still expect
it in tiles of their own, so engines copy between those and the place where it stays.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.isa.core import ENGINES
from tilesmith.families.trainium.codegen.isa.instructions import DIMENSIONS, LOCK_SBUF, Ints, Opcode
from tilesmith.families.trainium.codegen.linking.draft import Draft, element_bytes
from tilesmith.families.trainium.codegen.linking.strides import refactored

COPY_ELEMENTS = 1024
"""Elements a partition of one copy that takes a transfer's place, about."""

COPIERS = ("gpsimd", "scalar", "vector")
"""Engines that can copy, least wanted by others first."""


@dataclass(frozen=True)
class EngineCopy:
    """A copy on an engine: accesses written and read."""

    engine: str
    out: int
    source: int


def copies(
    draft: Draft,
    row: int,
    partition: int,
    elements: Ints,
    resident: tuple[int, int, int],
    load: dict[str, int],
) -> list[EngineCopy]:
    """What copies between a transfer's tile and a resident, in pieces: whoever needs the first rows
    need not wait for the last, and engines share the work.

    Args:
        row: the transfer.
        partition, elements: where in the resident its elements are, in their order.
        resident: its allocation, the bytes of an element, elements of a partition.
        load: elements that each engine copies already; updated.
    """
    place, size, columns = resident
    rows, table = draft.rows, draft.accesses
    stores = rows["op"][row] == Opcode.STORE
    chip = int(rows["in0" if stores else "out"][row])
    counts, strides = table["count"][chip, 1:].tolist(), table["stride"][chip, 1:].tolist()
    axis = next((i for i, count in enumerate(counts) if count > 1), len(counts) - 1)
    inner = len(elements) // counts[axis]
    step = -(-counts[axis] // max(1, round(len(elements) / COPY_ELEMENTS)))
    identity: NDArray[np.int64] = np.arange(columns, dtype=np.int64)
    pieces = []
    for start in range(0, counts[axis], step):
        count = min(step, counts[axis] - start)
        mine = elements[start * inner : (start + count) * inner]
        dims = refactored(identity, mine)
        assert dims is not None, "a plan holds what one access can say, and so does a part of it"
        shape = [(count, strides[axis]), *zip(counts[axis + 1 :], strides[axis + 1 :], strict=True)]
        offset = int(table["offset"][chip]) + start * strides[axis] * size
        part, home = draft.add_accesses(
            [
                (chip, shape, offset, int(table["allocation"][chip])),
                (chip, dims, int(mine[0]) * size, place),
            ]
        )
        draft.accesses["partition"][home] = partition
        engine = min(COPIERS, key=lambda name: load[name])
        load[engine] += len(mine)
        pieces.append(EngineCopy(engine, *((home, part) if stores else (part, home))))
    return pieces


def merged(
    draft: Draft, pieces: Mapping[int, Sequence[EngineCopy]], residents: Collection[int]
) -> dict[int, list[EngineCopy]]:
    """The same with copies joined that are alike and a constant distance apart, on both sides.

    Those of loads: what is copied is there before the first, and nobody has read what the later
    ones fill, so the first takes the place of all. Those of stores, where they copy from another
    resident (`residents` are allocations), which stays as it is: the last does.
    """
    copies_of = {row: list(mine) for row, mine in pieces.items()}
    table, ops = draft.accesses, draft.rows["op"]
    run: list[int] = []
    for row in sorted(pieces):
        single = len(pieces[row]) == 1
        joins = single and (
            ops[row] == Opcode.LOAD or table["allocation"][pieces[row][0].source] in residents
        )
        like = joins and bool(run) and ops[row] == ops[run[0]]
        if like and _steps(draft, [pieces[r][0] for r in (*run, row)]) is not None:
            run.append(row)
            continue
        _join(draft, copies_of, run)
        run = [row] if joins else []
    _join(draft, copies_of, run)
    return copies_of


def _steps(draft: Draft, run: Sequence[EngineCopy]) -> tuple[int, int] | None:
    """Bytes from each copy of a run to the next, where written and where read; None if they differ
    or the copies do."""
    table, steps = draft.accesses, []
    for side in ("out", "source"):
        mine = np.array([getattr(piece, side) for piece in run])
        alike = all(
            (table[name][mine] == table[name][mine[0]]).all()
            for name in ("allocation", "partition", "dtype", "count", "stride")
        )
        apart = np.unique(np.diff(table["offset"][mine]))
        count = table["count"][mine[0], 1:]
        full = len(run) > 1 and (count > 1).sum() > DIMENSIONS - 3
        if not alike or len(apart) > 1 or full or len(run) * count.prod() > COPY_ELEMENTS:
            return None
        steps.append(int(apart[0]) if len(apart) else 0)
    return steps[0], steps[1]


def _join(draft: Draft, copies: dict[int, list[EngineCopy]], run: Sequence[int]) -> None:
    """Make one copy of those of a run of rows."""
    if len(run) < 2:
        return
    copied = [copies[row][0] for row in run]
    steps = _steps(draft, copied)
    assert steps is not None
    table, wide = draft.accesses, []
    for access, step in zip((copied[0].out, copied[0].source), steps, strict=True):
        size = element_bytes(draft, access)
        dims = zip(table["count"][access, 1:].tolist(), table["stride"][access, 1:].tolist(),
                   strict=True)  # fmt: skip
        shape = [(len(run), step // size), *(pair for pair in dims if pair[0] > 1)]
        offset, tile = int(table["offset"][access]), int(table["allocation"][access])
        wide.append((access, shape, offset, tile))
    out, source = (int(access) for access in draft.add_accesses(wide))
    for row in run:
        copies[row] = []
    place = run[0] if draft.rows["op"][run[0]] == Opcode.LOAD else run[-1]
    copies[place] = [EngineCopy(copied[0].engine, out, source)]


def put(
    draft: Draft,
    gone: Sequence[int],
    pieces: Mapping[int, Sequence[EngineCopy]],
    residents: Collection[int],
) -> None:
    """Drop rows, and put copies in the place of others."""
    pieces = merged(draft, pieces, residents)
    counts = np.ones(len(draft.owners), dtype=np.int64)
    counts[np.array(gone, dtype=np.int64)] = 0
    for row, copies in pieces.items():
        counts[row] = len(copies)
    firsts = draft.repeat(counts)
    rows = draft.rows
    for row, copies in pieces.items():
        for at, piece in enumerate(copies, int(firsts[row])):
            shared = draft.core.exclusive_sbuf and piece.engine != "scalar"
            rows["op"][at], rows["queue"][at] = Opcode.COPY, ENGINES.index(piece.engine)
            rows["out"][at], rows["in0"][at] = piece.out, piece.source
            rows["lock"][at] = LOCK_SBUF if shared else 0
