"""Instruction streams as bytes and back: what an artifact stores of a kernel.

One line of JSON (names, tensors, allocations, array sizes), then the arrays as little-endian
64-bit numbers. Semaphores are not stored: linking derives them anew for the whole program.
Invariants: the same stream gives the same bytes; reading trusts nothing: whatever does not fit is
refused, and every number that is used as an index is checked.
"""

import json
from typing import Any

import numpy as np

from tilesmith.families.trainium.codegen.isa import instructions as isa
from tilesmith.families.trainium.codegen.isa.core import QUEUES, Core
from tilesmith.search_space.support.errors import ModelError

_ACCESS = (*isa.ACCESS_COLUMNS, "allocation")


def to_bytes(stream: isa.InstructionStream) -> bytes:
    """A stream as bytes."""
    head = {
        "name": stream.name,
        "rows": len(stream),
        "accesses": len(stream.accesses["space"]),
        "tensors": [[t.name, list(t.shape), t.dtype, t.role] for t in stream.tensors],
        **({"groups": [list(group) for group in stream.groups]} if stream.groups else {}),
        "allocations": [
            [a.name, int(a.space), a.partition, a.partitions, a.offset, a.bytes]
            for a in stream.allocations
        ],
    }
    table = stream.accesses
    parts = [stream.rows[name].astype("<i8").tobytes() for name in isa.INSTRUCTION_COLUMNS]
    parts.append(stream.immediates.astype("<f8").tobytes())
    parts += [table[name].astype("<i8").tobytes() for name in (*_ACCESS, "count", "stride")]
    return json.dumps(head).encode() + b"\n" + b"".join(parts)


def from_bytes(content: bytes, core: Core) -> isa.InstructionStream:
    """The stream that `to_bytes` wrote, without semaphores.

    Raises:
        ModelError: the bytes are damaged.
    """
    try:
        line, _, binary = content.partition(b"\n")
        stream = _read(json.loads(line), binary, core)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelError(f"the code of a kernel is damaged ({error})") from error
    _check(stream)
    return stream


def _read(head: Any, binary: bytes, core: Core) -> isa.InstructionStream:
    n, a = int(head["rows"]), int(head["accesses"])
    columns, last = len(isa.INSTRUCTION_COLUMNS), len(_ACCESS)
    words = n * (columns + 3) + a * (last + 2 * isa.DIMENSIONS)
    if n < 0 or a < 0 or len(binary) != 8 * words:
        raise ValueError(f"{len(binary)} bytes of arrays where {8 * words} are declared")
    whole = np.frombuffer(binary, dtype="<i8").astype(np.int64)
    rows = whole[: n * columns].reshape(columns, n).copy()
    floats = np.frombuffer(binary, dtype="<f8", count=3 * n, offset=8 * n * columns)
    rest = whole[n * (columns + 3) :]
    accesses = {name: rest[i * a : (i + 1) * a].copy() for i, name in enumerate(_ACCESS)}
    wide = rest[last * a :].reshape(2, a, isa.DIMENSIONS).copy()
    return isa.InstructionStream(
        name=str(head["name"]),
        core=core,
        tensors=tuple(
            isa.HbmTensor(str(name), tuple(int(e) for e in shape), _dtype(dtype), str(role))
            for name, shape, dtype, role in head["tensors"]
        ),
        allocations=tuple(
            isa.Allocation(
                str(name), isa.Space(space), int(first), int(count), int(offset), int(size)
            )
            for name, space, first, count, offset, size in head["allocations"]
        ),
        rows=dict(zip(isa.INSTRUCTION_COLUMNS, rows, strict=True)),
        immediates=floats.astype(np.float64).reshape(n, 3),
        accesses={**accesses, "count": wide[0], "stride": wide[1]},
        wait_start=np.zeros(n + 1, dtype=np.int64),
        waits=np.zeros(0, dtype=np.int64),
        groups=tuple(tuple(int(core) for core in group) for group in head.get("groups", ())),
    )


def _dtype(name: str) -> str:
    if name not in isa.DTYPES:
        raise ValueError(f"unknown dtype {name!r}")
    return name


def _check(stream: isa.InstructionStream) -> None:
    """Numbers that are used as indices are in range."""
    rows, table = stream.rows, stream.accesses
    n = len(table["space"])
    collective = rows["op"] == isa.Opcode.COLLECTIVE
    ranges = {
        "an operation code": (rows["op"], 0, len(isa.Opcode)),
        "a queue": (rows["queue"], 0, QUEUES),
        "a memory": (table["space"], 0, len(isa.Space)),
        "a dtype": (table["dtype"], 0, len(isa.DTYPES)),
        "a tensor": (table["tensor"], -1, len(stream.tensors)),
        "an allocation": (table["allocation"], -1, len(stream.allocations)),
        "an offset": (table["offset"], 0, 1 << 40),
        "a partition": (table["partition"], 0, 1 << 16),
        "a count": (table["count"], 1, 1 << 40),
        **{f"operand {name}": (rows[name], -1, n) for name in isa.OPERANDS},
        "an activation": (
            rows["function"][rows["op"] == isa.Opcode.ACTIVATION],
            0,
            len(isa.ACTIVATIONS),
        ),
        "a collective": (rows["function"][collective], 0, len(isa.COLLECTIVES)),
        "a group": (rows["function2"][collective], 0, len(stream.groups)),
        "a sum": (rows["accumulate"][collective], 0, len(isa.OPERATIONS)),
    }
    for what, (column, low, high) in ranges.items():
        if len(column) and (column.min() < low or column.max() >= high):
            raise ModelError(f"the code of a kernel is damaged: {what} is out of range")
    hbm = table["space"] == isa.Space.HBM
    if ((table["tensor"] < 0) & hbm).any() or ((table["allocation"] < 0) & ~hbm).any():
        raise ModelError("the code of a kernel is damaged: an access names no memory")
