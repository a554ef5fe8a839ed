"""Aliases: residents that are another resident's bytes over again are no tensors of their own.

    copy heads[0:128, 384] <- x[0:128, 384]         before: x as heads, row for row
    (heads is x)                                    after

Where every copy into a resident comes from the same places of one other resident, a constant
distance apart, readers go there and the copies vanish. Splitting features into heads is such a
copy, as is joining them, and a slice along the columns of a tensor of rows. Invariant: a resident's
elements are written once, before they are read, so they are still there.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilesmith.families.trainium.codegen.isa.instructions import Opcode
from tilesmith.families.trainium.codegen.linking.addresses import Resident
from tilesmith.families.trainium.codegen.linking.draft import Draft, element_bytes
from tilesmith.families.trainium.codegen.linking.strides import visited


def without_aliases(draft: Draft, residents: Sequence[Resident]) -> tuple[Resident, ...]:
    """The residents that are left when those that repeat others are dropped from the draft."""
    left = {resident.allocation: resident for resident in residents}
    gone: list[int] = []
    for alias in sorted(residents, key=lambda r: (r.first, r.allocation)):
        writers = _writers(draft, alias.allocation)
        source = _source(draft, writers)
        if source is None or source[0] not in left:
            continue
        home, distance = source
        mine = draft.accesses["allocation"] == alias.allocation
        draft.accesses["allocation"] = np.where(mine, home, draft.accesses["allocation"])
        draft.accesses["offset"] = draft.accesses["offset"] + np.where(mine, distance, 0)
        gone += writers
        old = left[home]
        last, saved = max(old.last, alias.last), old.saved + alias.saved
        left[home] = replace(old, last=last, saved=saved)
        del left[alias.allocation]
    draft.drop(np.array(gone, dtype=np.int64))
    return tuple(left.values())


def _writers(draft: Draft, allocation: int) -> list[int]:
    """Rows that write a tile."""
    owner = np.append(draft.accesses["allocation"], -1)
    rows = draft.rows
    into: np.ndarray = (owner[rows["out"]] == allocation) | (owner[rows["out2"]] == allocation)
    return np.flatnonzero(into).tolist()


def _source(draft: Draft, writers: Sequence[int]) -> tuple[int, int] | None:
    """The tile that all `writers` copy from, and how many bytes further its elements stand there;
    None unless they do nothing else."""
    table, rows = draft.accesses, draft.rows
    sources: set[tuple[int, int]] = set()
    for row in writers:
        out, source = int(rows["out"][row]), int(rows["in0"][row])
        alike = (table[name][out] == table[name][source] for name in ("dtype", "partition"))
        if rows["op"][row] != Opcode.COPY or not all(alike):
            return None
        if table["count"][out, 0] != table["count"][source, 0]:
            return None
        apart = np.unique(_elements(draft, source) - _elements(draft, out))
        sources |= {(int(table["allocation"][source]), int(step)) for step in apart}
    if len(sources) != 1:
        return None
    ((home, elements),) = sources
    return home, elements * element_bytes(draft, int(rows["out"][writers[0]]))


def _elements(draft: Draft, access: int) -> np.ndarray:
    """Elements of a partition that an access touches, in its order."""
    table = draft.accesses
    start = int(table["offset"][access]) // element_bytes(draft, access)
    return start + visited(table["count"][access, 1:], table["stride"][access, 1:])
