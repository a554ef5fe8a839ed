"""Compile-time stages of a program, run in numpy: what lays out weights.

A program's prologue fills its prepared buffers from constant operands, once, when a model is
compiled. Every nest is done at once over all its loops. Invariant: agrees with
`search_space.ir.interpreter` (tested), some thousand times as fast.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen.selection.layout.accesses import LoopGrid, shape_of
from tilesmith.search_space.expressions.dtypes import is_floating, to_numpy
from tilesmith.search_space.expressions.scalar import Call, Const, Load, Scalar, Select
from tilesmith.search_space.ir.program import Block, If, Loop, Program, Sequence, Statement
from tilesmith.search_space.support.errors import CodegenError

Array = NDArray[Any]

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "negate": np.negative, "maximum": np.maximum, "minimum": np.minimum, "floor": np.floor,
    "round": np.rint, "sqrt": np.sqrt, "reciprocal": np.reciprocal,
}  # fmt: skip


def prepare(program: Program, constants: Mapping[str, Array]) -> dict[str, Array]:
    """Run the prologue of a bound program.

    Args:
        constants: constant operands by name.

    Returns:
        The prepared buffers by name, in their physical shapes.

    Raises:
        CodegenError: a stage that numpy is not told how to do here.
    """
    arrays: dict[str, Array] = {}
    for buffer in program.parameters:
        if buffer.name in constants:
            arrays[buffer.name] = constants[buffer.name].reshape(shape_of(buffer))
        elif buffer.role == "prepared":
            arrays[buffer.name] = np.zeros(shape_of(buffer), to_numpy(buffer.dtype))
    if program.prologue is not None:
        with np.errstate(all="ignore"):
            _run(program.prologue, arrays, {})
    return {b.name: arrays[b.name] for b in program.parameters if b.role == "prepared"}


def _run(statement: Statement, arrays: dict[str, Array], around: dict[str, int]) -> None:
    loops: list[Loop] = []
    inner = statement
    while isinstance(inner, Loop):
        loops.append(inner)
        inner = inner.body
    match inner:
        case Block():
            _nest(loops, inner, arrays, around)
        case _ if loops:
            for value in range(int(loops[0].extent.evaluate(around))):
                _run(loops[0].body, arrays, {**around, loops[0].variable: value})
        case Sequence(statements):
            for part in statements:
                _run(part, arrays, around)
        case If(condition, then, otherwise):
            chosen = then if all(e.evaluate(around) >= 0 for e in condition) else otherwise
            if chosen is not None:
                _run(chosen, arrays, around)
        case _:
            raise CodegenError(f"a prologue has no {type(inner).__name__}")


def _nest(
    loops: list[Loop], block: Block, arrays: dict[str, Array], around: dict[str, int]
) -> None:
    grid = LoopGrid.of(loops, around)
    if not grid.count:
        return
    target = arrays[block.buffer]
    kept = np.broadcast_to(grid.holds(block.guard), (grid.count,))
    places = tuple(grid.numbers(index)[kept] for index in block.indices) or (np.zeros(1, int),)
    value = np.broadcast_to(_value(block.value, arrays, grid), (grid.count,))[kept]
    if block.reducer is None:
        target[places] = value
    elif block.reducer == "sum":
        np.add.at(target, places, value.astype(target.dtype))
    else:
        raise CodegenError(f"stage '{block.stage}' reduces by '{block.reducer}' at compile time")


def _value(value: Scalar, arrays: dict[str, Array], grid: LoopGrid) -> Any:
    match value:
        case Const(number):
            return number
        case Load(name, indices):
            array = arrays[name]
            places = tuple(
                np.clip(grid.evaluate(index), 0, extent - 1)
                for index, extent in zip(indices, array.shape, strict=False)
            )
            element = array[places or (0,)]
            return element.astype(np.float64) if is_floating(str(element.dtype)) else element
        case Select(condition, then, otherwise):
            return np.where(
                grid.holds(condition), _value(then, arrays, grid), _value(otherwise, arrays, grid)
            )
        case Call(name, arguments) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(a, arrays, grid) for a in arguments))
        case Call("to_int32", (argument,)):
            return np.trunc(_value(argument, arrays, grid)).astype(np.int32)
        case Call("to_float32", (argument,)):
            return np.asarray(_value(argument, arrays, grid)).astype(np.float32)
        case _:
            raise CodegenError(f"'{value}' is not computed at compile time")
