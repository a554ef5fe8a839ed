"""Repeats: tiles that hold what another tile of the program holds already are that tile.

    transpose p <- x, copy t <- p (kernel a)       before: three products of one x turn it each
    transpose q <- x, copy u <- q (kernel b)
    matmul ... <- u                                after: u is t, q and what made it are gone

Kernels know nothing of each other, so several that read one tensor prepare it alike, and many fill
tiles with the same constants. Two tiles hold the same if the same instructions made them of the
same: their `_Numbering` is equal. Considered are tiles that are complete before anyone reads them,
in whose place no later tile counts on what they left; who reads the later one reads the earlier,
and what nobody reads any more is not made. Invariant: values are the same; the earlier tile is
alive for longer, so a large one is shared only with kernels that follow soon.
"""

from collections.abc import Sequence

import numpy as np

from tilesmith.families.trainium.codegen.isa.instructions import OPERANDS, Opcode, Space
from tilesmith.families.trainium.codegen.linking.addresses import Resident, byte_groups
from tilesmith.families.trainium.codegen.linking.draft import Draft
from tilesmith.families.trainium.codegen.linking.spreading import stands_alone

SMALL, NEAR = 512, 8
"""Bytes a partition up to which a tile is shared with any kernel, and how many kernels further on a
larger one is."""

Value = tuple[object, ...]
"""What tells what a tile or tensor holds."""

_PARAMETERS = ("op", "function", "function2", "accumulate")
_REGION = ("dtype", "partition")


def without_repeats(draft: Draft, residents: Sequence[Resident]) -> None:
    """Let readers of a tile read an earlier one that holds the same, in place."""
    numbering = _Numbering(draft, {resident.allocation for resident in residents})
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    shared: dict[int, int] = {}
    gone: list[int] = []
    for tile in numbering.complete:
        here = draft.allocations[tile]
        rows = [row for row, _ in numbering.users[tile]]
        value = numbering.values[tile]
        home = first.setdefault(value, tile)
        begun, ended = (int(draft.owners[row]) for row in (rows[0], rows[-1]))
        near = here.bytes <= SMALL or begun <= last.get(home, begun) + NEAR
        if home == tile or here.space != Space.SBUF or not near or not numbering.is_free(tile):
            first[value], last[tile] = tile, ended
            continue
        shared[tile] = home
        last[home] = max(last[home], ended)
        gone += numbering.writers[tile]
    _redirect(draft, shared)
    draft.drop(np.array(gone, dtype=np.int64))
    _drop_unread(draft)


class _Numbering:
    """What the tiles of a draft hold.

    Attributes:
        users: (row, operand) pairs of each tile, in the order of rows.
        writers: rows that write each tile.
        complete: tiles that are complete before others read them, in the order they are begun.
        values: a number for what each of these holds.
    """

    def __init__(self, draft: Draft, residents: set[int]) -> None:
        self.draft, self.residents = draft, residents
        self.users = {tile: sorted(users) for tile, users in draft.users().items()}
        self.stored = self._stored()
        self.columns = {name: draft.rows[name].tolist() for name in draft.rows}
        table = draft.accesses
        self.owner, self.tensor, self.offset = (
            table[name].tolist() for name in ("allocation", "tensor", "offset")
        )
        shapes = [*(table[name][:, None] for name in _REGION), table["count"], table["stride"]]
        self.shapes = np.unique(np.hstack(shapes), axis=0, return_inverse=True)[1].tolist()
        self.immediates = draft.immediates.tolist()
        groups = (g.tiles for part in byte_groups(draft, residents) for g in part)
        self.together = {tile: tiles for tiles in groups for tile in tiles}
        self.alone: dict[tuple[int, ...], bool] = {}
        self.writers: dict[int, list[int]] = {}
        self.numbers: dict[Value, int] = {}
        self.values: dict[int, int] = {}
        self.complete: list[int] = []
        for tile in sorted(set(self.users) - residents, key=lambda t: self.users[t][0]):
            writers = sorted({r for r, operand in self.users[tile] if operand in ("out", "out2")})
            readers = {r for r, _ in self.users[tile]} - set(writers)
            self.writers[tile] = writers
            single = all(self.columns["out2"][row] < 0 for row in writers)
            if readers and writers and single and writers[-1] < min(readers):
                value = self._value(tile, writers)
                self.values[tile] = self.numbers.setdefault(value, len(self.numbers))
                self.complete.append(tile)

    def is_free(self, tile: int) -> bool:
        """Whether all tiles that share bytes with this one in its kernel stand for themselves."""
        together = self.together[tile]
        if together not in self.alone:
            self.alone[together] = len(together) == 1 or all(
                stands_alone(self.draft, other, self.users[other]) for other in together
            )
        return self.alone[together]

    def _stored(self) -> set[int]:
        """Tensors in HBM that the program writes."""
        draft = self.draft
        out = draft.rows["out"][np.isin(draft.rows["op"], (Opcode.STORE, Opcode.COLLECTIVE))]
        out = out[out >= 0]
        return set(draft.accesses["tensor"][out].tolist())

    def _value(self, tile: int, writers: Sequence[int]) -> Value:
        here = self.draft.allocations[tile]
        instructions = tuple(self._instruction(row, tile) for row in writers)
        return (
            here.space,
            here.bytes,
            here.offset % 64 if here.space == Space.PSUM else 0,
            instructions,
        )

    def _instruction(self, row: int, tile: int) -> Value:
        parameters = tuple(self.columns[name][row] for name in _PARAMETERS)
        operands = tuple(self._operand(self.columns[name][row], tile) for name in OPERANDS)
        return parameters, tuple(self.immediates[row]), operands

    def _operand(self, access: int, tile: int) -> Value:
        """What an operand is: whose bytes, and which of them."""
        if access < 0:
            return ()
        owner, tensor = self.owner[access], self.tensor[access]
        offset, shape = self.offset[access], self.shapes[access]
        if owner < 0:
            return ("unknown", access) if tensor in self.stored else (tensor, offset, shape)
        offset -= self.draft.allocations[owner].offset
        if owner == tile:
            return "self", offset, shape
        held = ("holds", self.values[owner]) if owner in self.values else ("tile", owner)
        return held, offset, shape


def _redirect(draft: Draft, shared: dict[int, int]) -> None:
    """Let all accesses to tiles go to those that hold the same."""
    table, known = draft.accesses, draft.allocations
    home, distance = np.arange(len(known)), np.zeros(len(known), dtype=np.int64)
    for tile, other in shared.items():
        home[tile], distance[tile] = other, known[other].offset - known[tile].offset
    owner = table["allocation"]
    chip = owner >= 0
    table["offset"] = table["offset"] + np.where(chip, distance[owner], 0)
    table["allocation"] = np.where(chip, home[owner], owner)


def _drop_unread(draft: Draft) -> None:
    """Drop what fills tiles in PSUM that nobody reads any more."""
    gone = [
        row
        for tile, users in draft.users().items()
        if draft.allocations[tile].space == Space.PSUM
        and all(operand == "out" for _, operand in users)
        for row, _ in users
    ]
    draft.drop(np.array(gone, dtype=np.int64))
