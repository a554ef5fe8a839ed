"""Residency: tensors that stay in SBUF between the kernels that write and read them.

    store t <- y (kernel a), load x <- t (kernel b)        before
    kernel a writes, kernel b reads t's own place in SBUF  after, where tiles agree
    copy t' <- y,            copy x <- t'                  after, where they do not

A tensor of rows (a matrix's rows, an image's channels) stays with row r in partition r mod 128. A
store or load that keeps rows where they are is not needed any more: the tile it moves *becomes*
part of the resident (every access to it is readdressed), or, where the tile is laid out differently
(a convolution's padded image) or changed after, an on-chip copy takes its place. Loads that move
rows to other partitions remain, and so does the store for their sake.

Invariants: a resident's elements are written once, before they are read; values are the same; what
`external` reads is stored as before.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilesmith.families.trainium.codegen.isa.instructions import Allocation, Ints, Opcode, Space
from tilesmith.families.trainium.codegen.linking.addresses import Resident, tile_bytes
from tilesmith.families.trainium.codegen.linking.aliases import without_aliases
from tilesmith.families.trainium.codegen.linking.draft import Draft, Range, element_bytes
from tilesmith.families.trainium.codegen.linking.spared import COPIERS, EngineCopy, copies, put
from tilesmith.families.trainium.codegen.linking.strides import refactored, visited
from tilesmith.families.trainium.schedules.building_blocks.machine import ALIGNMENT


@dataclass(frozen=True)
class Policy:
    """How far residency goes.

    Attributes:
        share: of SBUF that a kernel's tiles and the residents beside it may take together.
        copies: whether copies on chip may take the place of transfers.
    """

    share: float = 1.0
    copies: bool = True

    def less(self) -> "Policy | None":
        """A policy under which fewer tensors stay; None: no tensor."""
        return replace(self, share=self.share - 0.1) if self.share > 0.15 else None


@dataclass
class _Plan:
    """What becomes of one tensor's transfers.

    Attributes:
        tiles: tiles that become part of it, each with its table (element of the tile -> element
            of the resident's partition, -1: none).
        copies: transfers that become copies: (row, partition, resident elements in their order).
        dropped: transfers that are not needed any more.
    """

    tensor: int
    size: int
    columns: int
    first: int
    last: int
    tiles: dict[int, Ints] = field(default_factory=dict)
    copies: list[tuple[int, int, Ints]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    saved: int = 0
    kept: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes in each partition."""
        return -(-self.columns * self.size // ALIGNMENT) * ALIGNMENT


def keep_on_chip(draft: Draft, external: Sequence[Range], policy: Policy) -> tuple[Resident, ...]:
    """Make tensors resident, those that save most for their place first. Changes the draft."""
    outside = {
        number
        for number, place in enumerate(draft.ranges)
        if any(place.meets(other) for other in external)
    }
    planner = _Planner(draft, policy)
    transfers = {
        tensor: (stores, loads, tensor in outside)
        for tensor, (stores, loads) in draft.transfers().items()
    }
    plans = [planner.plan(tensor, *moved) for tensor, moved in transfers.items()]
    wanted = [plan for plan in plans if plan is not None]
    wanted.sort(key=lambda plan: -plan.saved / (plan.nbytes * (plan.last - plan.first + 1)))
    room = policy.share * draft.core.sbuf_bytes - tile_bytes(draft)
    load = dict.fromkeys(COPIERS, 0)
    residents: list[Resident] = []
    gone: list[int] = []
    pieces: dict[int, list[EngineCopy]] = {}
    for first_look in wanted:
        plan: _Plan | None = first_look
        if planner.fixed & first_look.tiles.keys():  # part of another resident since: look again
            plan = planner.plan(first_look.tensor, *transfers[first_look.tensor])
        if plan is None or (room[plan.first : plan.last + 1] < plan.nbytes).any():
            continue
        room[plan.first : plan.last + 1] -= plan.nbytes
        residents.append(_apply(draft, plan, load, pieces))
        planner.fixed |= {*plan.tiles, residents[-1].allocation}
        gone += plan.dropped
    put(draft, gone, pieces, {resident.allocation for resident in residents})
    return without_aliases(draft, residents)


def drop_resident_transfers(draft: Draft, tensors: Collection[int]) -> None:
    """Drop the transfers of `tensors` that residency would spare: what a kernel costs among
    neighbours that keep them on chip. The rest computes nothing and is good for timing only."""
    planner = _Planner(draft, Policy())
    gone: list[int] = []
    for tensor, (stores, loads) in draft.transfers().items():
        if tensor in tensors and planner.measure(tensor, stores or loads, loads):
            gone += [row for row in (*stores, *loads) if planner.mapping(row) is not None]
    draft.drop(np.array(gone, dtype=np.int64))


class _Planner:
    """Finds out what can become of one tensor.

    `fixed` tiles are residents or part of one already. Rows are not dropped while it is in use, and
    a transfer that became a copy has its tile where it had it: so the users of the other tiles stay
    the same.
    """

    def __init__(self, draft: Draft, policy: Policy) -> None:
        self.draft, self.policy = draft, policy
        self.users = draft.users()
        self.fixed: set[int] = set()
        self.pitch = self.size = 0

    def plan(
        self, tensor: int, stores: list[int], loads: list[int], external: bool
    ) -> _Plan | None:
        """The plan for a tensor; None if it cannot stay."""
        owners = self.draft.owners
        if not stores or not loads or owners[stores].max() >= owners[loads].min():
            return None
        if not self.measure(tensor, stores, loads):
            return None
        placed = {row: self.mapping(row) for row in (*stores, *loads)}
        if any(placed[row] is None for row in stores) or not self._whole(tensor, stores):
            return None
        columns = max(int(place[1].max()) + 1 for place in placed.values() if place is not None)
        plan = _Plan(
            tensor, self.size, columns, int(owners[stores].min()), int(owners[loads].max())
        )
        staying = [row for row in loads if self._read(plan, row, placed)]
        plan.kept = external or len(staying) < len(loads)
        if staying and self._write(plan, stores, placed):
            plan.saved += sum(self._bytes(row) for row in staying)
            plan.saved += 0 if plan.kept else sum(self._bytes(row) for row in stores)
            return plan
        return None

    # -- geometry -----------------------------------------------------------------------------
    def _access(self, row: int, hbm: bool) -> int:
        rows = self.draft.rows
        store = rows["op"][row] == Opcode.STORE
        return int(rows["out" if store == hbm else "in0"][row])

    def _bytes(self, row: int) -> int:
        access = self._access(row, hbm=True)
        return int(self.draft.accesses["count"][access].prod()) * self.size

    def measure(self, tensor: int, stores: list[int], loads: list[int]) -> bool:
        """Element size and the distance of rows: what steps from partition to partition."""
        table = self.draft.accesses
        accesses = np.array([self._access(row, hbm=True) for row in (*stores, *loads)])
        chip = np.array([self._access(row, hbm=False) for row in (*stores, *loads)])
        dtypes = np.unique(table["dtype"][np.concatenate([accesses, chip])])
        if len(dtypes) != 1:
            return False
        self.size = element_bytes(self.draft, int(accesses[0]))
        mine = accesses[: len(stores)]
        steps = np.unique(table["stride"][mine, 0][table["count"][mine, 0] > 1])
        total = self.draft.ranges[tensor].nbytes // self.size
        self.pitch = int(steps[0]) if len(steps) == 1 else total if not len(steps) else 0
        return self.pitch > 0 and total % self.pitch == 0

    def mapping(self, row: int) -> tuple[int, Ints] | None:
        """(partition, resident elements of a partition in the transfer's order), or None where
        the transfer moves rows to other partitions."""
        table, hbm, chip = self.draft.accesses, self._access(row, True), self._access(row, False)
        count, stride = table["count"][hbm], table["stride"][hbm]
        element = int(table["offset"][hbm]) // self.size + visited(count[1:], stride[1:])
        partitions = self.draft.core.sbuf_partitions
        rows = element // self.pitch
        home = rows % partitions
        first = int(home[0])
        if (home != first).any() or first != int(table["partition"][chip]):
            return None
        if count[0] > 1 and (stride[0] != self.pitch or first + count[0] > partitions):
            return None
        return first, rows // partitions * self.pitch + element % self.pitch

    def _whole(self, tensor: int, stores: list[int]) -> bool:
        """Whether the stores write every element of the tensor once."""
        table = self.draft.accesses
        accesses = np.array([self._access(row, hbm=True) for row in stores])
        written = int(table["count"][accesses].prod(axis=1).sum())
        return written * self.size == self.draft.ranges[tensor].nbytes

    # -- tiles --------------------------------------------------------------------------------
    def _read(self, plan: _Plan, row: int, placed: Mapping[int, tuple[int, Ints] | None]) -> bool:
        """Let a load's tile be part of the resident, or copy it from there."""
        place = placed[row]
        if place is None:
            return False
        tile = int(self.draft.accesses["allocation"][self._access(row, hbm=False)])
        if tile in plan.tiles or self._joins(plan, tile, placed, written=False):
            plan.dropped.append(row)
            return True
        if self.policy.copies:
            plan.copies.append((row, *place))
        return self.policy.copies

    def _write(
        self,
        plan: _Plan,
        stores: list[int],
        placed: Mapping[int, tuple[int, Ints] | None],
    ) -> bool:
        """Let every stored tile be part of the resident, or copy it there."""
        for row in stores:
            place = placed[row]
            assert place is not None
            tile = int(self.draft.accesses["allocation"][self._access(row, hbm=False)])
            if tile in plan.tiles or self._joins(plan, tile, placed, written=True):
                if not plan.kept:
                    plan.dropped.append(row)
            elif self.policy.copies and not plan.kept:
                plan.copies.append((row, *place))
            else:
                return False
        return True

    def _joins(
        self,
        plan: _Plan,
        tile: int,
        placed: Mapping[int, tuple[int, Ints] | None],
        written: bool,
    ) -> bool:
        """Whether a tile can be part of the resident; then it is, in the plan."""
        if tile in self.fixed:
            return False
        table = self._table(tile, placed)
        if table is None:
            return False
        for row, operand in self.users[tile]:
            access = int(self.draft.rows[operand][row])
            if row in placed and operand == "out" and not written:
                continue
            writes = operand in ("out", "out2")
            if (writes and not written) or refactored(table, self._elements(tile, access)) is None:
                return False
            if writes and row in placed:
                return False
        if written and not self._final(tile, placed):
            return False
        plan.tiles[tile] = table
        return True

    def _table(self, tile: int, placed: Mapping[int, tuple[int, Ints] | None]) -> Ints | None:
        """Resident element of each element of a tile; None where its transfers disagree."""
        size = self.draft.allocations[tile].bytes // self.size
        table = np.full(size, -1, dtype=np.int64)
        for row, operand in self.users[tile]:
            place = placed.get(row)
            if row in placed and operand in ("out", "in0"):
                if place is None:
                    return None
                at = self._elements(tile, int(self.draft.rows[operand][row]))
                if ((table[at] >= 0) & (table[at] != place[1])).any():
                    return None
                table[at] = place[1]
        return table

    def _elements(self, tile: int, access: int) -> Ints:
        """Elements of a tile's partition that an access touches, in its order."""
        table = self.draft.accesses
        start = int(table["offset"][access]) - self.draft.allocations[tile].offset
        count, stride = table["count"][access, 1:], table["stride"][access, 1:]
        return start // self.size + visited(count, stride)

    def _final(self, tile: int, placed: Mapping[int, tuple[int, Ints] | None]) -> bool:
        """Whether nothing is written to a tile's elements after they were stored."""
        stored = np.zeros(self.draft.allocations[tile].bytes // self.size, dtype=bool)
        for row, operand in sorted(self.users[tile]):
            at = self._elements(tile, int(self.draft.rows[operand][row]))
            if operand in ("out", "out2") and stored[at].any():
                return False
            if row in placed and operand == "in0":
                stored[at] = True
        return True


def _apply(
    draft: Draft, plan: _Plan, load: dict[str, int], pieces: dict[int, list[EngineCopy]]
) -> Resident:
    """Carry a plan out: a place for the resident, readdressed tiles, dropped transfers; what takes
    the place of transfers goes to `pieces`, by row."""
    name = draft.tensors[plan.tensor].name
    place = len(draft.allocations)
    partitions = draft.core.sbuf_partitions
    draft.allocations.append(Allocation(name, Space.SBUF, 0, partitions, 0, plan.nbytes))
    _readdress(draft, plan, place, pieces)
    for row, partition, elements in plan.copies:
        pieces[row] = copies(
            draft, row, partition, elements, (place, plan.size, plan.columns), load
        )
    return Resident(
        plan.tensor, name, place, plan.nbytes, plan.first, plan.last, plan.saved, plan.kept
    )


def _readdress(draft: Draft, plan: _Plan, place: int, pieces: dict[int, list[EngineCopy]]) -> None:
    """Let all accesses to the plan's tiles go to the resident."""
    owner = draft.accesses["allocation"]
    changed: dict[int, tuple[int, list[tuple[int, int]], int, int]] = {}
    for access in np.flatnonzero(np.isin(owner, list(plan.tiles))).tolist():
        tile = int(owner[access])
        start = int(draft.accesses["offset"][access]) - draft.allocations[tile].offset
        at = start // plan.size + visited(
            draft.accesses["count"][access, 1:], draft.accesses["stride"][access, 1:]
        )
        dims = refactored(plan.tiles[tile], at)
        if dims is not None:
            offset = int(plan.tiles[tile][at[0]]) * plan.size
            changed[access] = (access, dims, offset, place)
    _redirect(draft, changed, pieces)


def _redirect(
    draft: Draft,
    changed: Mapping[int, tuple[int, list[tuple[int, int]], int, int]],
    pieces: dict[int, list[EngineCopy]],
) -> None:
    fresh = draft.add_accesses(list(changed.values())) if changed else np.zeros(0, dtype=np.int64)
    table = np.arange(len(draft.accesses["space"]), dtype=np.int64)
    table[list(changed)] = fresh
    for operand in ("out", "in0", "in1", "in2", "out2"):
        index = draft.rows[operand]
        draft.rows[operand] = np.where(index >= 0, table[index], index)
    for row, several in pieces.items():
        pieces[row] = [
            replace(piece, out=int(table[piece.out]), source=int(table[piece.source]))
            for piece in several
        ]
