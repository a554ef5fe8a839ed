"""From a verified program to instructions: loops unrolled, tiles placed, expressions taken apart.

Every statement of a program is one of the machine's instructions (`machine.INTRINSICS`) already;
what is left to find out is where its rows lie. A pointwise one becomes an operation for each
function in it, the result's row holding what comes between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tilesmith.codegen.programs.structures import lowered
from tilesmith.search_space.expressions.scalar import Call, Const, Load, Scalar
from tilesmith.search_space.hardware.memory import Allocator
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.intrinsics import Match, match
from tilesmith.search_space.ir.program import (
    Allocate,
    Buffer,
    If,
    Intrinsic,
    Loop,
    Program,
    Sequence,
    Statement,
)
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import CodegenError
from tilesmith.search_space.workloads.workload import Workload

from .instructions import FUNCTIONS, ROW, Op, Stream
from .machine import LOOM

Row = tuple[int, float]
"""An operand: the address of its first word, or -1 and a number."""


def generate(program: Program, target: Target) -> Stream:
    """The instructions of a bound program.

    Raises:
        VerificationError: the program breaks a rule of the loop IR or a limit of the target.
        CodegenError: an instruction's words do not lie one behind the other.
    """
    verify(program, target)
    writer = _Writer(Allocator("pad", LOOM.memories(target)["pad"]))
    for buffer in program.parameters:
        writer.buffers[buffer.name] = buffer
    writer.write(program.body, {})
    names = tuple(buffer.name for buffer in program.parameters)
    numbers = {"": -1, **{name: number for number, name in enumerate(names)}}
    table = np.array([(*row, numbers[tensor]) for *row, tensor in writer.rows], ROW)
    return Stream(names, table)


def stream_of(workload: Workload, target: Target, config: Config) -> Stream:
    """The instructions of a configuration; errors as `generate` and `lowered`."""
    return generate(lowered(workload, target, config), target)


@dataclass
class _Writer:
    """Instructions so far, where tiles stand, and how statements read as instructions."""

    pad: Allocator
    buffers: dict[str, Buffer] = field(default_factory=dict)
    places: dict[Buffer, int] = field(default_factory=dict)
    known: dict[int, Match] = field(default_factory=dict)
    rows: list[tuple[int, int, int, int, int, float, str]] = field(default_factory=list)

    def write(self, statement: Statement, at: Mapping[str, int]) -> None:
        """Everything a statement does, where loops around it stand at `at`."""
        match statement:
            case Loop(variable=variable, extent=extent, body=body):
                for number in range(extent.evaluate(at)):
                    self.write(body, {**at, variable: number})
            case Sequence(statements):
                for inner in statements:
                    self.write(inner, at)
            case If(condition, then, otherwise):
                chosen = then if all(e.evaluate(at) >= 0 for e in condition) else otherwise
                if chosen is not None:
                    self.write(chosen, at)
            case Allocate(buffer, body):
                self.buffers[buffer.name] = buffer
                if buffer not in self.places:
                    words = prod(extent.constant or 0 for extent in buffer.shape)
                    self.places[buffer] = self.pad.take(4 * words, buffer.name) // 4
                self.write(body, at)
            case Intrinsic(name=name, body=Loop(body=Loop()) as outer):  # a tile: row by row
                for number in range(outer.extent.evaluate(at)):
                    self.write(Intrinsic(name, outer.body), {**at, outer.variable: number})
            case Intrinsic(name=name, body=Loop() as row):
                spec = LOOM.intrinsic(name)
                assert spec is not None, "the verifier knows it"
                if id(row) not in self.known:
                    self.known[id(row)] = match(spec, statement, self.buffers)
                self.row(self.known[id(row)], name, row, at)

    def row(self, found: Match, name: str, loop: Loop, at: Mapping[str, int]) -> None:
        """One instruction, or for a map as many as it has functions."""
        count, block = loop.extent.evaluate(at), found.block
        rows = {
            access: self.address(access, at, loop.variable, steps=operand != "scalar")
            for operand, access in found.operands
        }
        out, *operands = (rows[access] for _, access in found.operands)
        if name == "map":
            copied = self.value(block.value, out, count, rows)
            if copied[0] != out:  # no function in it
                self.rows.append((Op.MULTIPLY, count, out, copied[0], -1, 1.0, ""))
            return
        a, b = [*operands, -1, -1][:2]
        moved = {"load": found.operands[-1][1].buffer, "store": block.buffer}
        value = block.value.value if isinstance(block.value, Const) else 0.0
        self.rows.append((Op[name.upper()], count, out, a, b, value, moved.get(name, "")))

    def value(self, value: Scalar, out: int, count: int, rows: Mapping[Load, int]) -> Row:
        """Compute an expression into the row `out`; an operand is where it is."""
        if isinstance(value, Const):
            return -1, value.value
        if isinstance(value, Load):
            return rows[value], 0.0
        assert isinstance(value, Call), "schedules refuse what is none"
        first, second = (self.value(v, out, count, rows) for v in value.arguments)
        self.rows.append((FUNCTIONS[value.function], count, out, *first[:1], *second, ""))
        return out, 0.0

    def address(self, access: Load, at: Mapping[str, int], variable: str, steps: bool) -> int:
        """The first word of an access, which has to lie in a row along the loop."""
        buffer, offset, stride = self.buffers[access.buffer], 0, 0
        for index, extent in zip(access.indices, buffer.shape, strict=True):
            here, there = (index.evaluate({**at, variable: i}) for i in (0, 1))
            size = extent.constant or 0
            offset, stride = offset * size + here, stride * size + there - here
        if stride != int(steps):
            raise CodegenError(f"{access} is no row along loop '{variable}'")
        return offset + self.places.get(buffer, 0)
