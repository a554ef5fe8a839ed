"""The interpreter: what a bound program means, point by point, in plain Python.

It is slow and literal on purpose: the independent meaning of the loop IR that lowering and code
generators are tested against. Every loop kind runs its iterations in order, an intrinsic runs its
body, multiple buffering changes nothing. Values are double precision until they are stored.

It is stricter than hardware: memory nobody has written reads as NaN (or as the least integer), and
an index outside its buffer raises instead of reaching a neighbour.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions import scalar
from tilesmith.search_space.expressions.dtypes import nearest, to_numpy
from tilesmith.search_space.ir import program as ir
from tilesmith.search_space.support.errors import VerificationError


def _maximum(a: Any, b: Any) -> Any:
    return a if a >= b or a != a else b


def _minimum(a: Any, b: Any) -> Any:
    return a if a <= b or a != a else b


def _convert(dtype: str, value: Any) -> Any:
    """A number as one of another element type."""
    if dtype == "bool":
        return float(value != 0)
    if "int" not in dtype:
        return float(to_numpy(dtype).type(value))
    bits = int(dtype.rpartition("int")[2])
    least = 0 if dtype.startswith("u") else -(1 << (bits - 1))
    most = least + (1 << bits) - 1
    if isinstance(value, float):
        return 0 if math.isnan(value) else int(min(max(value, least), most))
    return (int(value) - least) % (1 << bits) + least


def _ordinal(value: Any) -> int:
    """By the bits of a floating number; a whole number as it is."""
    if not isinstance(value, float):
        return int(value)
    bits = int((np.float32(value) + np.float32(0)).view(np.int32))
    return bits ^ (0x7FFFFFFF if bits < 0 else 0)


def _divide(a: Any, b: Any) -> Any:
    """Whole numbers are cut towards zero, and 0 where the divisor is."""
    if not any(isinstance(v, int) and not isinstance(v, bool) for v in (a, b)):
        return np.divide(a, b)
    a, b = int(a), int(b)
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _shifted(a: Any, b: Any, left: bool) -> Any:
    """Moved by bits; what is moved further than there are bits leaves its sign to the right."""
    a, b = int(a), int(b)
    if not 0 <= b < 64:
        return -1 if a < 0 and not left else 0
    return a << b if left else a >> b


def _wrapped(value: int, dtype: np.dtype[Any]) -> int:
    """A whole number as an element holds it: as many of its bits as there are."""
    if dtype.kind not in "iu":
        return value
    bits = 8 * dtype.itemsize
    low = value % (1 << bits)
    return low - (1 << bits) if dtype.kind == "i" and low >> (bits - 1) else low


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": _divide,
    "maximum": _maximum,
    "minimum": _minimum,
    "power": np.power,
    "negate": lambda a: -a,
    "absolute": abs,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "reciprocal": lambda a: np.divide(1.0, a),
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "erf": lambda a: math.erf(float(a)),
    "sigmoid": lambda a: 1.0 / (1.0 + np.exp(-a)),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "greater_equal": lambda a, b: float(a >= b),
    "greater": lambda a, b: float(a > b),
    "less": lambda a, b: float(a < b),
    "less_equal": lambda a, b: float(a <= b),
    "equal": lambda a, b: float(a == b),
    "is_nan": lambda a: float(a != a),
    "is_inf": lambda a: float(math.isinf(a)),
    "and": lambda a, b: float(a != 0 and b != 0),
    "or": lambda a, b: float(a != 0 or b != 0),
    "xor": lambda a, b: float((a != 0) != (b != 0)),
    "not": lambda a: float(a == 0),
    "modulo": lambda a, b: a % b if b else 0,
    **{name: partial(_convert, dtype) for name, dtype in scalar.CONVERSIONS.items()},
    "ordinal": _ordinal,
    **{n: getattr(np, n) for n in ("sinh", "cosh")},
    **{n: getattr(np, f"arc{n[1:]}") for n in ("asin", "acos", "atan")},
    **{n: getattr(np, f"arc{n[1:]}") for n in ("asinh", "acosh", "atanh")},
    "bit_and": lambda a, b: int(a) & int(b),
    "bit_or": lambda a, b: int(a) | int(b),
    "bit_xor": lambda a, b: int(a) ^ int(b),
    "bit_not": lambda a: ~int(a),
    "shift_left": lambda a, b: _shifted(a, b, left=True),
    "shift_right": lambda a, b: _shifted(a, b, left=False),
    "where": lambda flag, a, b: a if flag != 0 else b,
}


def interpret(program: ir.Program, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Run a bound program, prologue first.

    Args:
        program: with every symbol bound.
        arrays: inputs by parameter name, in their physical shapes. They are not changed.

    Returns:
        Every parameter by name, the prepared buffers and the output filled in.

    Raises:
        VerificationError: an index leaves its buffer, a variable or buffer is unknown, or an input
            is missing or of another shape.
    """
    machine = _Machine()
    for buffer in (*program.parameters, *program.literals):
        machine.arrays[buffer.name] = _provide(buffer, arrays)
        if len(buffer.shape) == 1 and machine.arrays[buffer.name].dtype.kind == "i":
            machine.variables[buffer.name] = machine.arrays[buffer.name]
    with np.errstate(all="ignore"):
        for statement in (program.prologue, program.body):
            if statement is not None:
                machine.run(statement)
    return {b.name: machine.arrays[b.name] for b in program.parameters}


def _shape(buffer: ir.Buffer) -> tuple[int, ...]:
    for extent in buffer.shape:
        if extent.constant is None:
            raise VerificationError(
                f"buffer '{buffer.name}' has the symbolic extent {extent}; bind the program first"
            )
    return tuple(extent.constant or 0 for extent in buffer.shape)


def _fresh(buffer: ir.Buffer) -> NDArray[Any]:
    """Memory nobody has written."""
    kind = to_numpy(buffer.dtype)
    if kind.kind in "iub":
        return np.full(_shape(buffer), np.iinfo(kind).min if kind.kind == "i" else 0, dtype=kind)
    return np.full(_shape(buffer), np.nan, dtype=kind)


def _provide(buffer: ir.Buffer, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    shape = _shape(buffer)
    if buffer.values is not None:
        return np.array(buffer.values).reshape(shape)
    if buffer.role != "input":
        return _fresh(buffer)
    if buffer.name not in arrays:
        raise VerificationError(f"no array was given for the input '{buffer.name}'")
    if arrays[buffer.name].shape != shape:
        raise VerificationError(
            f"input '{buffer.name}' has the physical shape {shape}, not {arrays[buffer.name].shape}"
        )
    return arrays[buffer.name]


@dataclass
class _Machine:
    """Variables (and tensors of indices, which index expressions may read) and memory."""

    variables: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def run(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Loop(variable, extent, _, body):
                for iteration in range(self._index(extent)):
                    self.variables[variable] = iteration
                    self.run(body)
                self.variables.pop(variable, None)
            case ir.Sequence(statements):
                for inner in statements:
                    self.run(inner)
            case ir.If(condition, then, otherwise):
                if self._holds(condition):
                    self.run(then)
                elif otherwise is not None:
                    self.run(otherwise)
            case ir.Allocate(buffer, body):
                self.arrays[buffer.name] = _fresh(buffer)
                self.run(body)
                del self.arrays[buffer.name]
            case ir.Intrinsic(_, body):
                self.run(body)
            case ir.Block():
                self._block(statement)

    def _block(self, block: ir.Block) -> None:
        if not self._holds(block.guard):
            return
        value = self._value(block.value)
        array, place = self._place(block.write)
        if block.reducer is not None:
            value = _FUNCTIONS[scalar.REDUCTIONS[block.reducer].function](
                array[place].item(), value
            )
        if isinstance(value, float) and math.isinf(value):
            value = nearest(value, array.dtype)
        array[place] = _wrapped(value, array.dtype) if isinstance(value, int) else value

    def _value(self, value: scalar.Scalar) -> Any:
        match value:
            case scalar.Const(number):
                return number
            case scalar.Load():
                array, place = self._place(value)
                return array[place].item()
            case scalar.Call(function, arguments):
                return _FUNCTIONS[function](*(self._value(argument) for argument in arguments))
            case scalar.Select(condition, then, otherwise):
                return self._value(then if self._holds(condition) else otherwise)
            case scalar.Index(expression):
                return self._index(expression)

    def _place(self, access: scalar.Load) -> tuple[NDArray[Any], tuple[int, ...]]:
        if access.buffer not in self.arrays:
            raise VerificationError(f"buffer '{access.buffer}' is used outside its allocation")
        array = self.arrays[access.buffer]
        place = tuple(self._index(index) for index in access.indices)
        inside = len(place) == array.ndim and all(
            0 <= index < extent for index, extent in zip(place, array.shape, strict=True)
        )
        if not inside:
            raise VerificationError(
                f"{access} is {list(place)}, outside the shape {array.shape}, at {self.variables}"
            )
        return array, place

    def _holds(self, condition: scalar.Condition) -> bool:
        return all(self._index(expression) >= 0 for expression in condition)

    def _index(self, expression: Any) -> int:
        try:
            return int(expression.evaluate(self.variables))
        except KeyError as error:
            raise VerificationError(
                f"variable {error} in '{expression}' is bound by no loop around it"
            ) from error
