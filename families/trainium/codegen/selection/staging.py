"""Staging: constants laid out in memory in the very order in which a kernel loads them.

    load sbuf[0:128, 256 f32] <- w[0, 128:1024 2:131072 128 f32]      256 rows of 512 bytes
    load sbuf[0:128, 256 f32] <- w.staged[0, 128:256 256 f32]         128 rows of 1 KiB

Weights are known when a model is compiled, so what a block of them brings to a partition can be one
contiguous run, whatever shape the weight has: DMA moves short rows at a fraction of its bandwidth.
Invariants: the same elements arrive at the same places; a tensor that would grow by more than
`GROWTH` (overlapping blocks) and beyond `SMALL` stays as it is.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.isa import instructions as isa
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.workloads.workload import Workload

GROWTH = 1.25
"""Of a constant, at most: what HBM pays for long rows."""

SMALL = 512 * 1024
"""Bytes that a constant may grow to, whatever its growth: a row of 4 KiB for 128 partitions."""

SUFFIX = ".staged"


@dataclass(frozen=True, eq=False)
class Staged:
    """A stream whose constants are staged.

    Attributes:
        blocks: for each staged tensor, by the name of the constant: element offset, counts and
            strides of each block in it, in the order they lie in the staged one.
    """

    stream: isa.InstructionStream
    blocks: Mapping[str, tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]]

    def arrange(self, constants: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The staged tensors, by their own names, from the constants by theirs."""
        staged = {}
        for name, blocks in self.blocks.items():
            flat = np.ascontiguousarray(constants[name]).reshape(-1)
            staged[name + SUFFIX] = np.concatenate([_gather(flat, *block) for block in blocks])
        return staged


def _gather(
    flat: NDArray[Any], offset: int, counts: tuple[int, ...], strides: tuple[int, ...]
) -> NDArray[Any]:
    last = offset + sum((c - 1) * s for c, s in zip(counts, strides, strict=True))
    assert offset >= 0 and last < flat.size, "a load reads behind its tensor"
    steps = tuple(s * flat.itemsize for s in strides)
    return np.lib.stride_tricks.as_strided(flat[offset:], counts, steps).reshape(-1)


def constants_of(program: Program, workload: Workload) -> frozenset[str]:
    """Parameters of a kernel that are known when a model is compiled."""
    prepared = (buffer.name for buffer in program.parameters if buffer.role == "prepared")
    return frozenset((*prepared, *workload.constants))


def stage(stream: isa.InstructionStream, constants: Collection[str]) -> Staged:
    """The same kernel with the tensors `constants` staged, as far as that is worth it."""
    table = {name: column.copy() for name, column in stream.accesses.items()}
    tensors, blocks = list(stream.tensors), {}
    loads = np.unique(stream.rows["in0"][stream.rows["op"] == isa.Opcode.LOAD])
    for number, tensor in enumerate(stream.tensors):
        mine = loads[(table["space"][loads] == isa.Space.HBM) & (table["tensor"][loads] == number)]
        if tensor.name not in constants or not len(mine) or _is_long(table, mine):
            continue
        taken = [_block(table, int(access)) for access in mine]
        order: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
        size = 0
        for block in taken:
            if block not in order:
                order[block] = size
                size += math.prod(block[1])
        nbytes = size * int(isa.DTYPE_BYTES[table["dtype"][mine[0]]])
        if size > GROWTH * tensor.elements and nbytes > SMALL:
            continue
        for access, block in zip(mine.tolist(), taken, strict=True):
            table["offset"][access] = order[block] * int(isa.DTYPE_BYTES[table["dtype"][access]])
            table["stride"][access] = _dense(block[1])
        tensors[number] = isa.HbmTensor(tensor.name + SUFFIX, (size,), tensor.dtype, tensor.role)
        blocks[tensor.name] = tuple(order)
    return Staged(replace(stream, tensors=tuple(tensors), accesses=table), blocks)


def _is_long(table: Mapping[str, isa.Ints], accesses: isa.Ints) -> bool:
    """Whether each of the accesses brings one contiguous run to a partition already."""
    return all(
        table["stride"][access].tolist()[1:] == _dense(tuple(table["count"][access].tolist()))[1:]
        for access in accesses
    )


def _block(
    table: Mapping[str, isa.Ints], access: int
) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Element offset, counts and strides of an access."""
    size = int(isa.DTYPE_BYTES[table["dtype"][access]])
    counts, strides = table["count"][access], table["stride"][access]
    return int(table["offset"][access]) // size, tuple(counts.tolist()), tuple(strides.tolist())


def _dense(counts: tuple[int, ...]) -> list[int]:
    """Strides of a dense block; 0 along axes of one element, as accesses have them."""
    strides, stride = [0] * len(counts), 1
    for axis in range(len(counts) - 1, -1, -1):
        if counts[axis] > 1 or axis == 0:
            strides[axis] = stride
        stride *= counts[axis]
    return strides
