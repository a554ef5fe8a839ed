"""Copies that an operator begins with, which are nothing where its output is its input.

    for i: y[i] = x[i]        a caller who gives one memory for both wants no copy
    ... y[indices[c]] = u[c]

A scatter changes some elements of a tensor. Where that may be done in place, the same address is
given for both; the same code serves either.
"""

from tilesmith.search_space.expressions.scalar import Load
from tilesmith.search_space.ir.program import Buffer, Program, Statement, blocks


def copied_whole(statement: Statement, program: Program) -> tuple[Buffer, Buffer] | None:
    """(source, target) of a statement that does nothing but copy one parameter into another, each
    element to its own place; else None."""
    parameters = {buffer.name: buffer for buffer in program.parameters}
    copies: set[tuple[str, str]] = set()
    for block in blocks(statement):
        value = block.value
        if block.reducer is not None or not isinstance(value, Load):
            return None
        if value.indices != block.indices:
            return None
        copies.add((value.buffer, block.buffer))
    if len(copies) != 1:
        return None
    source, target = (parameters.get(name) for name in copies.pop())
    if source is None or target is None or (source.shape, source.dtype) != (
        target.shape, target.dtype
    ):  # fmt: skip
        return None
    return source, target
