"""Programs as text, for people, golden files and `db show --program`.

program matmul(a: float32[512x512] in global, ...)
  parallel i.0 in 43:
    allocate c.register: float32[12x2x16] in register
    for k in 512:
      unroll i.1 in 12:
        vector j.2 in 16:
          c.register[i.1, j.1, j.2] += a[i.0*12 + i.1, k] * ...
"""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.search_space.expressions.scalar import REDUCTIONS, condition_text
from tilesmith.search_space.ir.program import (
    Allocate,
    Block,
    If,
    Intrinsic,
    Loop,
    Program,
    Sequence,
    Statement,
)

_WORD = {
    "serial": "for", "parallel": "parallel", "vector": "vector", "unroll": "unroll",
    "interleaved": "interleaved",
}  # fmt: skip


def print_program(program: Program) -> str:
    """The whole program, one statement a line."""
    parameters = ",\n        ".join(f"{b} ({b.role})" for b in program.parameters)
    lines = [f"program {program.name}({parameters})"]
    if program.prologue is not None:
        lines.append("  prologue:")
        lines += [f"    {line}" for line in _lines(program.prologue)]
    lines.append("  body:")
    lines += [f"    {line}" for line in _lines(program.body)]
    return "\n".join(lines) + "\n"


def _indent(statement: Statement) -> Iterator[str]:
    return (f"  {line}" for line in _lines(statement))


def _lines(statement: Statement) -> Iterator[str]:
    match statement:
        case Loop(variable, extent, kind, body, stages):
            pipelined = f" pipelined {stages}" if stages > 1 else ""
            yield f"{_WORD[kind]} {variable} in {extent}{pipelined}:"
            yield from _indent(body)
        case Sequence(statements):
            for inner in statements:
                yield from _lines(inner)
        case If(condition, then, otherwise):
            yield f"if {condition_text(condition)}:"
            yield from _indent(then)
            if otherwise is not None:
                yield "else:"
                yield from _indent(otherwise)
        case Allocate(buffer, body):
            yield f"allocate {buffer}"
            yield from _lines(body)
        case Intrinsic(name, body):
            yield f"intrinsic {name}:"
            yield from _indent(body)
        case Block():
            guard = f" if {condition_text(statement.guard)}" if statement.guard else ""
            engine = f"  @{statement.engine}" if statement.engine else ""
            sign = "=" if statement.reducer is None else REDUCTIONS[statement.reducer].sign
            yield f"{statement.write} {sign} {statement.value}{guard}{engine}"
