"""Copies on chip that take the place of transfers a resident tensor spares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codegen.accelerator.core import ENGINES
from codegen.accelerator.draft import Draft
from codegen.accelerator.instructions import LOCK_SBUF, Ints, Op
from codegen.accelerator.strides import refactored

COPY_ELEMENTS = 1024
"""Elements a partition of one copy that takes a transfer's place, about."""

COPIERS = ("gpsimd", "scalar", "vector")
"""Engines that can copy, least wanted by others first."""


@dataclass(frozen=True)
class Piece:
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
) -> list[Piece]:
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
    stores = rows["op"][row] == Op.STORE
    chip = int(rows["in0" if stores else "out"][row])
    counts, strides = table["count"][chip, 1:].tolist(), table["stride"][chip, 1:].tolist()
    axis = next((i for i, count in enumerate(counts) if count > 1), len(counts) - 1)
    inner = len(elements) // counts[axis]
    step = -(-counts[axis] // max(1, round(len(elements) / COPY_ELEMENTS)))
    identity: NDArray[np.int64] = np.arange(columns, dtype=np.int64)
    found = []
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
        found.append(Piece(engine, *((home, part) if stores else (part, home))))
    return found


def put(draft: Draft, gone: Sequence[int], pieces: Mapping[int, Sequence[Piece]]) -> None:
    """Drop rows, and put copies in the place of others."""
    counts = np.ones(len(draft.owners), dtype=np.int64)
    counts[np.array(gone, dtype=np.int64)] = 0
    for row, found in pieces.items():
        counts[row] = len(found)
    firsts = draft.repeat(counts)
    rows = draft.rows
    for row, found in pieces.items():
        for at, piece in enumerate(found, int(firsts[row])):
            shared = draft.core.exclusive_sbuf and piece.engine != "scalar"
            rows["op"][at], rows["queue"][at] = Op.COPY, ENGINES.index(piece.engine)
            rows["out"][at], rows["in0"][at] = piece.out, piece.source
            rows["lock"][at] = LOCK_SBUF if shared else 0
