"""Instructions of a loom: rows of a table, each done before the next begins.

    LOAD   pad[out + i] = tensor[a + i]            FILL  pad[out + i] = value
    STORE  tensor[out + i] = pad[a + i]            MACC  pad[out + i] += pad[a] * pad[b + i]
    ADD SUBTRACT MULTIPLY MAXIMUM MINIMUM          pad[out + i] = f(pad[a + i], pad[b + i])

for i < count; addresses are words. Where `b` is -1 an operation takes `value` in its place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum, auto

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.hardware.target import Target


class Op(IntEnum):
    """What an instruction does."""

    LOAD = 0
    STORE = auto()
    FILL = auto()
    MACC = auto()
    ADD = auto()
    SUBTRACT = auto()
    MULTIPLY = auto()
    MAXIMUM = auto()
    MINIMUM = auto()


FUNCTIONS = {op.name.lower(): op for op in Op if op >= Op.ADD}
"""Functions of the loop IR that the unit has."""

ROW = np.dtype(
    [("op", "i4"), ("count", "i4"), ("out", "i8"), ("a", "i8"), ("b", "i8"), ("value", "f4"),
     ("tensor", "i4")]
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Stream:
    """A kernel's instructions.

    Attributes:
        tensors: names of the operands in memory, the output last.
        table: of dtype `ROW`; `tensor` numbers the operand that is loaded or stored.
    """

    tensors: tuple[str, ...]
    table: NDArray[np.void]

    def to_bytes(self) -> bytes:
        """One line of JSON, then the table."""
        return json.dumps(self.tensors).encode() + b"\n" + self.table.tobytes()

    @classmethod
    def from_bytes(cls, code: bytes) -> Stream:
        head, _, body = code.partition(b"\n")
        return cls(tuple(json.loads(head)), np.frombuffer(body, ROW))


def cycles(table: NDArray[np.void], target: Target) -> NDArray[np.int64]:
    """Cycles of each instruction, shape (n,)."""
    moves = table["op"] <= Op.STORE
    facts = [[target.integer(f"{unit}.{name}") for unit in ("memory", "row")]
             for name in ("start", "per_cycle")]  # fmt: skip
    start, rate = (np.where(moves, *fact) for fact in facts)
    return np.asarray(start - (-table["count"].astype(np.int64) // rate))
