"""What accesses touch of their area, a tile or a tensor in HBM: runs of bytes, evenly spaced.

Bytes of an area are numbered row by row (a tile's partitions one after the other), and axes without
a gap between them are one run:

    128 partitions of a tile of [128, 512] float32, all of each     one run of 262144 bytes
    its columns 0 to 256                                            128 runs of 1024, 2048 apart
"""

from dataclasses import dataclass

import numpy as np

from tilesmith.families.trainium.codegen.isa import instructions as isa


@dataclass(frozen=True)
class Areas:
    """What each access of a stream touches, all int64.

    Attributes:
        size: bytes of each area: tiles first, then tensors.
        area, offset, run: of each access its area, first byte, and bytes in a row from there.
        count, stride: shape (accesses, axes); how many such runs, and how far apart they begin.
        gathered: the access that stands for all rows a gather may read, by row of the stream.
    """

    size: isa.Ints
    area: isa.Ints
    offset: isa.Ints
    run: isa.Ints
    count: isa.Ints
    stride: isa.Ints
    gathered: dict[int, int]

    def unit(self, accesses: isa.Ints) -> isa.Ints:
        """The largest block in bytes that each of `accesses` leaves whole."""
        steps = np.where(self.count[accesses] > 1, self.stride[accesses], 0)
        whole = np.gcd(self.offset[accesses], self.run[accesses])
        return np.gcd(whole, np.gcd.reduce(steps, axis=1))


def areas(stream: isa.InstructionStream) -> Areas:
    """What every access of a stream touches; those that stand for gathered rows follow its own."""
    rows, tiles = stream.rows, stream.allocations
    gathers = np.flatnonzero(rows["op"] == isa.Opcode.GATHER)
    own = len(stream.accesses["space"])
    picked = np.concatenate([np.arange(own), rows["in0"][gathers]])
    table = {name: entries[picked] for name, entries in stream.accesses.items()}
    table["count"][own:, 0] = rows["function2"][gathers]
    table["stride"][own:, 0] = rows["function"][gathers]
    pitch = np.array([tile.bytes for tile in tiles] or [0], dtype=np.int64)
    origin = np.array([(t.partition, t.offset) for t in tiles] or [(0, 0)], dtype=np.int64)
    chip, tile = table["space"] != isa.Space.HBM, table["allocation"]
    row = np.where(chip, pitch[tile], 0)
    stride = table["stride"] * isa.DTYPE_BYTES[table["dtype"]][:, None]
    stride[:, 0] = np.where(chip, row, stride[:, 0])
    inside = (table["partition"] - origin[tile, 0]) * row + table["offset"] - origin[tile, 1]
    offset, run, count, stride = _joined(
        np.where(chip, inside, table["offset"]),
        isa.DTYPE_BYTES[table["dtype"]],
        table["count"],
        stride,
    )
    sizes = [t.bytes * t.partitions for t in tiles]
    sizes += [t.elements * int(isa.DTYPE_BYTES[isa.DTYPES.index(t.dtype)]) for t in stream.tensors]
    return Areas(
        np.array(sizes, dtype=np.int64),
        np.where(chip, tile, len(tiles) + table["tensor"]),
        offset,
        run,
        count,
        stride,
        dict(zip(gathers.tolist(), range(own, len(picked)), strict=True)),
    )


def _joined(
    offset: isa.Ints, run: isa.Ints, count: isa.Ints, stride: isa.Ints
) -> tuple[isa.Ints, isa.Ints, isa.Ints, isa.Ints]:
    """The same bytes, strides ascending, axes that continue or overlap a run made part of it."""
    offset = offset + np.where(stride < 0, (count - 1) * stride, 0).sum(axis=1)
    count = np.where(stride == 0, 1, count)
    stride = np.where(count > 1, np.abs(stride), np.iinfo(np.int64).max)
    order = np.argsort(stride, axis=1, kind="stable")
    count, stride = np.take_along_axis(count, order, 1), np.take_along_axis(stride, order, 1)
    for axis in range(count.shape[1]):
        joins = (count[:, axis] > 1) & (stride[:, axis] <= run)
        run = np.where(joins, run + (count[:, axis] - 1) * np.where(joins, stride[:, axis], 0), run)
        count[:, axis] = np.where(joins, 1, count[:, axis])
    return offset, run, count, np.where(count > 1, stride, 0)
