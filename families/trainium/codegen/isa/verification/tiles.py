"""Tiles: accesses stay inside theirs, and no two share bytes while both are in use."""

import numpy as np

from tilesmith.families.trainium.codegen.isa import instructions as isa
from tilesmith.families.trainium.codegen.isa.footprints import extents
from tilesmith.families.trainium.codegen.isa.verification.report import Laws, breach, users


def tiles(stream: isa.InstructionStream) -> Laws:
    """Laws of tiles.

    Raises:
        VerificationError: naming the instruction, the tile and what it meets.
    """
    yield from _inside(stream)
    first, last = lifetimes(stream)
    active: list[int] = []
    for tile in np.argsort(first, kind="stable")[: int((last >= 0).sum())].tolist():
        active = [other for other in active if last[other] >= first[tile]]
        for other in active:
            if share(stream.allocations[tile], stream.allocations[other]):
                raise breach(
                    stream,
                    int(first[tile]),
                    f"{_place(stream, tile)} overlaps {_place(stream, other)}, which is in use "
                    f"until instruction {last[other]}",
                )
        active.append(tile)


def lifetimes(stream: isa.InstructionStream) -> tuple[isa.Ints, isa.Ints]:
    """First and last row that uses each tile (past the end and -1: none does)."""
    first = np.full(len(stream.allocations), len(stream), dtype=np.int64)
    last = np.full(len(stream.allocations), -1, dtype=np.int64)
    for operand in isa.OPERANDS:
        rows = np.flatnonzero(stream.rows[operand] >= 0)
        tile = stream.accesses["allocation"][stream.rows[operand][rows]]
        rows, tile = rows[tile >= 0], tile[tile >= 0]
        np.minimum.at(first, tile, rows)
        np.maximum.at(last, tile, rows)
    return first, last


def share(one: isa.Allocation, two: isa.Allocation) -> bool:
    """Whether two places have bytes in common."""
    return (
        one.space == two.space
        and one.offset < two.offset + two.bytes
        and two.offset < one.offset + one.bytes
        and one.partition < two.partition + two.partitions
        and two.partition < one.partition + one.partitions
    )


def _inside(stream: isa.InstructionStream) -> Laws:
    """Accesses on chip lie in their tile."""
    table, tiles = stream.accesses, stream.allocations
    if not tiles:
        return
    places = np.array([(t.partition, t.partitions, t.offset, t.bytes) for t in tiles])
    partition, partitions, offset, size = places[table["allocation"]].T
    low, high = extents(stream)
    begins = table["partition"]
    outside = (begins < partition) | (begins + table["count"][:, 0] > partition + partitions)
    outside |= (low < offset) | (high > offset + size)
    outside &= table["allocation"] >= 0
    for operand, wrong in users(stream, outside) if outside.any() else ():
        tile = table["allocation"][stream.rows[operand]]
        names = np.array([_place(stream, number) for number in range(len(tiles))])
        yield wrong, "{} leaves {}", operand, names[tile]


def _place(stream: isa.InstructionStream, tile: int) -> str:
    allocation = stream.allocations[tile]
    stop = allocation.offset + allocation.bytes
    return (
        f"tile '{allocation.name}' (bytes {allocation.offset} to {stop} of {allocation.space.name})"
    )
