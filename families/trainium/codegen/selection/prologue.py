"""Compile-time stages of a program, run in numpy: what packs an accelerator's weights.

A program's prologue fills its prepared buffers from constant operands, once, when a model is
compiled. It copies and permutes (weights into the order that long DMA rows want), so every block is
one gather over all its loops at once. Loops whose extent depends on another loop of the nest are
iterated. Invariant: agrees with `search_space.ir.interpreter` on every prologue (tested), some
thousand times as fast.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.trainium.codegen.selection.loop_nests.nests import (
    compile_expression,
    integer,
    match_nest,
)
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.expressions.scalar import Call, Condition, Const, Load, Scalar, Select
from tilesmith.search_space.ir.program import Block, Buffer, If, Loop, Program, Sequence, Statement
from tilesmith.search_space.support.errors import CodegenError

Array = NDArray[Any]
Values = dict[str, Any]

_FUNCTIONS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "negate": np.negative,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


def prepare(program: Program, constants: Mapping[str, Array]) -> dict[str, Array]:
    """Run the prologue of a bound program.

    Args:
        constants: constant operands by name, in their logical shapes.

    Returns:
        The prepared buffers by name, in their physical shapes.

    Raises:
        CodegenError: a stage that numpy is not told how to do here.
    """
    if program.prologue is None:
        return {}
    arrays: dict[str, Array] = {}
    for buffer in program.parameters:
        if buffer.name in constants:
            arrays[buffer.name] = constants[buffer.name].reshape(_shape(buffer))
        elif buffer.role == "prepared":
            arrays[buffer.name] = np.zeros(_shape(buffer), dtype=to_numpy(buffer.dtype))
    with np.errstate(all="ignore"):
        _Gather(arrays).run(program.prologue, {})
    return {b.name: arrays[b.name] for b in program.parameters if b.role == "prepared"}


def _shape(buffer: Buffer) -> tuple[int, ...]:
    return tuple(integer(extent, f"the shape of '{buffer.name}'") for extent in buffer.shape)


class _Gather:
    """Runs statements; variables are numbers outside a nest and open grids inside one."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = arrays

    def run(self, statement: Statement, values: Values) -> None:
        nest = match_nest(statement)
        if nest is not None:
            self.nest(*nest, values)
            return
        match statement:
            case Sequence(statements):
                for inner in statements:
                    self.run(inner, values)
            case Loop(variable, extent, _, body):
                for value in range(int(compile_expression(extent)(values))):
                    self.run(body, {**values, variable: value})
            case If(condition, then, otherwise):
                if self.holds(condition, values):
                    self.run(then, values)
                elif otherwise is not None:
                    self.run(otherwise, values)
            case _:
                raise CodegenError("a compile-time stage with a temporary buffer is not supported")

    def nest(self, loops: tuple[Loop, ...], block: Block, values: Values) -> None:
        """One block over all its loops; dependent ones are iterated, outermost first."""
        for position, loop in enumerate(loops):
            if any(loop.variable in other.extent.variables() for other in loops):
                rest = loops[:position] + loops[position + 1 :]
                for value in range(int(compile_expression(loop.extent)(values))):
                    self.nest(rest, block, {**values, loop.variable: value})
                return
        sizes = [int(compile_expression(loop.extent)(values)) for loop in loops]
        if 0 in sizes:
            return
        grids = np.ogrid[tuple(slice(0, size) for size in sizes)] if sizes else ()
        named = dict(zip((loop.variable for loop in loops), grids, strict=True))
        self.block(block, {**values, **named}, tuple(sizes))

    def block(self, block: Block, values: Values, sizes: tuple[int, ...]) -> None:
        value = np.broadcast_to(self.value(block.value, values), sizes)
        out = self.arrays[block.buffer]
        place = self.place(block.write, values, sizes)
        if block.guard:
            keep = np.broadcast_to(self.holds(block.guard, values), sizes)
            place, value = tuple(index[keep] for index in place), value[keep]
        if block.reducer is None:
            out[place] = value
        elif block.reducer == "sum":
            np.add.at(out, place, value.astype(out.dtype))
        else:
            raise CodegenError(f"a compile-time stage reduces by '{block.reducer}'")

    def value(self, value: Scalar, values: Values) -> Any:
        match value:
            case Const(number):
                return number
            case Load():
                return self.arrays[value.buffer][self.place(value, values, ())]
            case Select(condition, then, otherwise):
                return self.select(condition, then, otherwise, values)
            case Call(function, arguments) if function in _FUNCTIONS:
                return _FUNCTIONS[function](*(self.value(a, values) for a in arguments))
            case Call(function, _):
                raise CodegenError(f"a compile-time stage computes '{function}'")

    def select(self, condition: Condition, then: Scalar, otherwise: Scalar, values: Values) -> Any:
        """Loads of the branch not taken may be out of range: indices are clipped before."""
        keep = self.holds(condition, values)
        return np.where(keep, self.value(then, values), self.value(otherwise, values))

    def place(self, access: Load, values: Values, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        shape = self.arrays[access.buffer].shape
        indices = []
        for index, extent in zip(access.indices, shape, strict=True):
            at = np.clip(compile_expression(index, True)(values), 0, extent - 1)
            indices.append(np.broadcast_to(at, sizes) if sizes else at)
        return tuple(indices)

    def holds(self, condition: Condition, values: Values) -> Any:
        keep: Any = True
        for expression in condition:
            keep = keep & (np.asarray(compile_expression(expression, True)(values)) >= 0)
        return keep
