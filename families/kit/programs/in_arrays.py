"""What a bound program means, nest by nest in numpy: what every write leaves behind.

    for i, for k: c[i] += a[i, k] * b[k]        one step: c[i] += sum over k of a[:, :] * b[:]

It is fast enough for whole kernels. The meaning is the interpreter's; the order of a reduction is
numpy's, and numbers are double precision within a nest. Whoever executes a program made of this one
is told after each nest, so that both can be compared while they run.

Invariant: knows nothing of instructions; loops and statements are run in the program's order.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.expressions.dtypes import epsilon, to_numpy
from tilesmith.search_space.expressions.scalar import (
    REDUCERS,
    REDUCTIONS,
    Call,
    Condition,
    Const,
    Index,
    Load,
    Scalar,
    loads,
)
from tilesmith.search_space.ir.program import (
    Allocate,
    Block,
    Buffer,
    If,
    Intrinsic,
    Loop,
    Program,
    Sequence,
    Statement,
)
from tilesmith.search_space.operator_parts.formula import apply
from tilesmith.search_space.support.errors import JobError

Array = NDArray[Any]
Variables = dict[str, Any]

POINTS = 30_000_000
"""Points that a program may have in all; those of products are a sixtieth each."""

_PRODUCT = 60

TOLERANCE, ROUNDINGS = 1e-3, 5
"""Relative to the larger of an element and the root mean square of what a nest writes: sums in
another order, and a few roundings of a narrow type."""


def _combining(reducer: str) -> Any:
    """The function of numpy that a reducer combines by."""
    return getattr(np, REDUCTIONS[reducer].function)


@dataclass(frozen=True, eq=False)
class Written:
    """What a nest left behind.

    Attributes:
        block: what it computes.
        places: an index array for each axis of the buffer, of one shape.
        values: what stands there now.
    """

    block: Block
    places: tuple[Array, ...]
    values: Array


Told = Callable[[Statement, Mapping[str, int], Written], None]
Before = Callable[[tuple[int, tuple[tuple[str, int], ...]], Mapping[str, Array]], None]
"""Told of a nest that is about to be done (its statement's id, the loops around it), and memory."""


def nest_of(statement: Statement) -> tuple[tuple[Loop, ...], Block] | None:
    """The loops and the block of a perfect nest, or None."""
    loops: list[Loop] = []
    while True:
        match statement:
            case Loop():
                loops.append(statement)
                statement = statement.body
            case Intrinsic(_, body):
                statement = body
            case Block():
                return tuple(loops), statement
            case _:
                return None


def run(
    program: Program,
    arrays: Mapping[str, Array],
    is_nest: Callable[[Statement], bool],
    observe: Told,
    before: Before | None = None,
) -> dict[str, Array]:
    """The body of a bound program.

    Args:
        arrays: what parameters but the output hold, in their physical shapes; not changed.
        is_nest: whether a statement is done at once and told of.

    Returns:
        Every parameter by name.

    Raises:
        JobError: it has too many points.
    """
    machine = _Machine(is_nest, observe, before)
    for buffer in (*program.parameters, *program.literals):
        machine.begin(buffer, arrays)
    with np.errstate(all="ignore"):
        machine.run(program.body, {})
    return {b.name: machine.arrays[b.name] for b in program.parameters}


@dataclass
class _Machine:
    is_nest: Callable[[Statement], bool]
    observe: Told
    before: Before | None = None
    arrays: dict[str, Array] = field(default_factory=dict)
    numbers: dict[str, Array] = field(default_factory=dict)
    points: int = 0

    def begin(self, buffer: Buffer, arrays: Mapping[str, Array] | None = None) -> None:
        """A buffer comes into being; no numbers where nobody gave any."""
        shape = tuple(extent.constant or 0 for extent in buffer.shape)
        kind = to_numpy(buffer.dtype)
        if buffer.values is not None:
            array = np.array(buffer.values).reshape(shape)
        elif arrays is not None and buffer.name in arrays and buffer.role != "output":
            array = np.asarray(arrays[buffer.name]).reshape(shape)
        else:
            array = np.zeros(shape, kind) if kind.kind in "iub" else np.full(shape, np.nan, kind)
        self.arrays[buffer.name] = array
        if len(shape) == 1 and array.dtype.kind == "i":
            self.numbers[buffer.name] = array

    def run(self, statement: Statement, around: Variables) -> None:
        nest = nest_of(statement)
        if nest is not None and (isinstance(statement, Block) or self.is_nest(statement)):
            self.nest(statement, nest, around)
            return
        match statement:
            case Loop(variable, extent, _, body):
                for value in range(int(self.index(extent, around))):
                    self.run(body, {**around, variable: value})
            case Sequence(statements):
                for inner in statements:
                    self.run(inner, around)
            case If(condition, then, otherwise):
                chosen = then if self.holds(condition, around) else otherwise
                if chosen is not None:
                    self.run(chosen, around)
            case Allocate(buffer, body):
                self.begin(buffer)
                self.run(body, around)
            case Intrinsic(_, body):
                self.run(body, around)

    # -- nests --------------------------------------------------------------------------------
    def nest(
        self, statement: Statement, nest: tuple[tuple[Loop, ...], Block], around: Variables
    ) -> None:
        loops, block = nest
        if self.before is not None:
            self.before((id(statement), tuple(sorted(around.items()))), self.arrays)
        parts: list[tuple[tuple[Array, ...], Array]] = []
        self.boxes(loops, block, around, (), parts)
        if not parts:
            return
        axes = len(parts[0][0])
        places = tuple(
            np.concatenate([where[axis].reshape(-1) for where, _ in parts]) for axis in range(axes)
        )
        values = self.arrays[block.buffer][places]
        self.observe(statement, dict(around), Written(block, places, values))

    def boxes(
        self,
        loops: tuple[Loop, ...],
        block: Block,
        around: Variables,
        free: tuple[tuple[str, int], ...],
        parts: list[tuple[tuple[Array, ...], Array]],
    ) -> None:
        """Loops that the extents of others depend on are run; the others are axes."""
        if not loops:
            self.box(free, block, around, parts)
            return
        (loop, *rest) = loops
        extent = int(self.index(loop.extent, around))
        if any(loop.variable in inner.extent.variables() for inner in rest):
            for value in range(extent):
                self.boxes(tuple(rest), block, {**around, loop.variable: value}, free, parts)
        elif extent > 0:
            self.boxes(tuple(rest), block, around, (*free, (loop.variable, extent)), parts)

    def box(
        self,
        free: tuple[tuple[str, int], ...],
        block: Block,
        around: Variables,
        parts: list[tuple[tuple[Array, ...], Array]],
    ) -> None:
        rank = len(free)
        axes = {
            name: np.arange(extent).reshape([-1 if at == axis else 1 for at in range(rank)])
            for axis, (name, extent) in enumerate(free)
        }
        variables = {**around, **axes}
        shape = tuple(extent for _, extent in free)
        written = {name for index in block.indices for name in index.variables()}
        reduced = tuple(a for a, (name, _) in enumerate(free) if name not in written)
        product = None if block.guard else self.product(block, variables, free)
        self.points += math.prod(shape) // (1 if product is None else _PRODUCT)
        if self.points > POINTS:
            raise JobError(
                "the program has too many points to be evaluated beside its instructions"
            )
        value = self.value(block.value, variables) if product is None else product
        kept = tuple(1 if axis in reduced else extent for axis, extent in enumerate(shape))
        keep = None
        if block.guard:
            keep = np.broadcast_to(self.mask(block.guard, variables), shape)
        if block.reducer is not None and product is None:
            value = np.broadcast_to(value, shape)
            if keep is not None:
                value = np.where(keep, value, REDUCERS[block.reducer])
            wide = value if value.dtype.kind in "iu" else value.astype(np.float64)
            value = _combining(block.reducer).reduce(wide, axis=reduced, keepdims=True)
        elif block.reducer is None:
            kept = shape  # what is written more than once keeps the last
        places = tuple(
            np.broadcast_to(self.index(index, variables), kept) for index in block.indices
        )
        value = np.broadcast_to(value, kept)
        if keep is not None:
            chosen = keep.any(axis=reduced, keepdims=True) if block.reducer is not None else keep
            places, value = tuple(place[chosen] for place in places), value[chosen]
        self.store(block, places, value)
        parts.append((places, value))

    def product(
        self, block: Block, variables: Variables, free: tuple[tuple[str, int], ...]
    ) -> Array | None:
        """A sum of products of two operands, without all of its products at once; else None."""
        value, rank = block.value, len(free)
        if block.reducer != "sum" or not isinstance(value, Call) or value.function != "multiply":
            return None
        if not rank or not all(isinstance(part, Load) for part in value.arguments):
            return None
        written = {name for index in block.indices for name in index.variables()}
        read = {n for part in loads(value) for index in part.indices for n in index.variables()}
        times = math.prod(extent for n, extent in free if n not in written and n not in read)
        kept = [axis for axis, (name, _) in enumerate(free) if name in written and name in read]
        terms: list[Any] = []
        for part in loads(value):
            operand = self.load(part, variables).astype(np.float64)
            operand = operand.reshape((1,) * (rank - operand.ndim) + operand.shape)
            mine = [axis for axis in range(rank) if operand.shape[axis] > 1]
            terms += [operand.reshape([operand.shape[axis] for axis in mine]), mine]
        present = {axis for mine in terms[1::2] for axis in mine}
        out = [axis for axis in kept if axis in present]
        operand = np.einsum(*terms, out, optimize=True)
        return np.asarray(operand * times).reshape(
            [free[axis][1] if axis in out else 1 for axis in range(rank)]
        )

    def store(self, block: Block, places: tuple[Array, ...], value: Array) -> None:
        array = self.arrays[block.buffer]
        if block.reducer is not None:
            old = array[places]
            old = old if old.dtype.kind in "iu" else old.astype(np.float64)
            value = _combining(block.reducer)(old, value)
        if array.dtype.kind in "iu" and value.dtype.kind == "f":
            limits = np.iinfo(array.dtype)
            value = np.clip(np.nan_to_num(value), limits.min, limits.max)
        array[places] = value.astype(array.dtype)

    # -- values -------------------------------------------------------------------------------
    def value(self, value: Scalar, variables: Variables) -> Any:
        match value:
            case Const(number):
                return np.int64(number) if isinstance(number, int) else np.float64(number)
            case Load():
                return self.load(value, variables)
            case Call(function, arguments):
                return np.asarray(apply(function, [self.value(a, variables) for a in arguments]))
            case Index(expression):
                return np.asarray(self.index(expression, variables))
            case _:
                chosen = self.mask(value.condition, variables)
                then, otherwise = (self.value(v, variables) for v in (value.then, value.otherwise))
                return np.where(chosen, then, otherwise)

    def load(self, access: Load, variables: Variables) -> Array:
        """Elements, double precision; a place outside (which nothing chooses) is the nearest."""
        array = self.arrays[access.buffer]
        places = tuple(
            np.clip(self.index(index, variables), 0, extent - 1)
            for index, extent in zip(access.indices, array.shape, strict=True)
        )
        elements = np.asarray(array[places])
        return elements.astype(np.int64 if elements.dtype.kind in "iu" else np.float64)

    def mask(self, condition: Condition, variables: Variables) -> Any:
        mask: Any = np.bool_(True)
        for expression in condition:
            mask = mask & (np.asarray(self.index(expression, variables)) >= 0)
        return mask

    def holds(self, condition: Condition, variables: Variables) -> bool:
        return bool(self.mask(condition, variables))

    def index(self, expression: Any, variables: Variables) -> Any:
        return expression.evaluate({**self.numbers, **variables})


def differs(computed: Array, wanted: Array) -> NDArray[np.bool_]:
    """Which elements of what a machine computed are not what they should be; where that is no
    number they may be anything."""
    kind = np.asarray(computed).dtype
    ours, theirs = np.asarray(computed, np.float64), np.asarray(wanted, np.float64)
    if kind.kind in "iub":
        return np.abs(ours - theirs) > (1.0 if kind.itemsize == 1 else 0.0)
    most = max(TOLERANCE, ROUNDINGS * epsilon(kind))
    finite = np.isfinite(theirs)
    scale = float(np.sqrt(np.mean(theirs[finite] ** 2))) if finite.any() else 0.0
    with np.errstate(all="ignore"):
        close = np.abs(ours - theirs) <= most * np.maximum(np.abs(theirs), scale)
    return np.asarray(~(close | (ours == theirs) | np.isnan(theirs)))
