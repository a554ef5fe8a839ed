"""One rectangular piece of a nest as elementwise instructions.

    x + 1, x * column        TENSOR_SCALAR
    f(x * scale + bias)      ACTIVATION on the scalar engine
    x + y                    TENSOR_TENSOR on the vector engine
    (x + column) * y         SCALAR_TENSOR_TENSOR there
    max over the free axes   REDUCE, then combined with the running value

A value that no free loop changes is a column ([P, 1]) and becomes a scalar operand. Invariant:
every temporary taken from the owner (`Temporaries`) is given back when the piece is done.
"""

from dataclasses import replace
from typing import Protocol

from tilesmith.families.trainium.codegen.isa.memory import Tile
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.codegen.selection.loop_nests.nests import (
    Environment,
    NestAccess,
    PlannedNest,
)
from tilesmith.families.trainium.codegen.selection.loop_nests.patterns import (
    BINARY,
    MIRRORED,
    REVERSED,
    affine_argument,
    calls,
    combination,
    squared,
)
from tilesmith.families.trainium.schedules.building_blocks.activations import UNARY, simplify
from tilesmith.search_space.expressions.scalar import Call, Const, Load, Scalar
from tilesmith.search_space.support.errors import CodegenError

Dims = list[tuple[str, int]]

_REDUCERS = {"sum": "add", "max": "max", "min": "min", "product": "multiply"}

Value = Tile | float

_ONE, _ZERO = Const(1.0), Const(0.0)

ROUNDING = 1.5 * 2.0**23
"""Added and taken away again, it rounds an fp32 number below 2^22 to a whole one (to even)."""


class Temporaries(Protocol):
    """What a piece needs of its owner: operands as tiles, and tiles for values in between."""

    kernel: Kernel

    def tile_view(
        self, access: NestAccess, env: Environment, partition: str, dims: Dims, rows: int, /
    ) -> Tile: ...

    def stage(
        self, access: NestAccess, env: Environment, partition: str, dims: Dims, rows: int, /
    ) -> Tile: ...

    def fulfil(self, out: Tile, whole: bool) -> bool: ...

    def temporary(self, like: Tile, /) -> Tile: ...

    def release(self, *values: Value) -> None: ...


class Emission:
    """One rectangular piece of a nest."""

    def __init__(
        self,
        owner: Temporaries,
        nest: PlannedNest,
        env: Environment,
        partition: str,
        dims: Dims,
        rows: int,
    ) -> None:
        self.owner, self.kernel, self.nest = owner, owner.kernel, nest
        self.env, self.partition, self.dims, self.rows = env, partition, dims, rows
        self.engine = nest.block.engine or "vector"
        self.occurrences = calls(nest.block.value)
        self.shared: dict[Scalar, Tile] = {}

    def run(self) -> None:
        self.emit()
        for tile in self.shared.values():
            self.owner.release(tile)

    def emit(self) -> None:
        block = self.nest.block
        kept = [(n, c) for n, c in self.dims if n in self.nest.write.strides]
        out = self.view(self.nest.write, kept)
        if block.reducer is None:
            self.into(out, block.value)
            return
        fresh = self.owner.fulfil(out, whole=len(kept) < len(self.dims))
        if not fresh and self.multiply_add(out, block.value):
            return
        operation = _REDUCERS[block.reducer]
        if len(kept) == len(self.dims):
            whole = self.reduced(block.value)
            self.kernel.tensor_tensor(out, out, operation, whole, engine=self.vector)
            self.discard(whole)
            return
        partial = out if fresh else self.owner.temporary(out)
        if kept or block.reducer != "sum" or not self.activated_sum(partial, block.value):
            whole = self.reduced(block.value)
            self.kernel.reduce(partial, whole, operation, engine=self.vector)
            self.discard(whole)
        if not fresh:
            self.kernel.tensor_tensor(out, out, operation, partial, engine=self.vector)
            self.discard(partial)

    def reduced(self, value: Scalar) -> Tile:
        """What is reduced, as a tile."""
        whole = self.value(value)
        if isinstance(whole, float):
            raise CodegenError(f"stage '{self.nest.block.stage}' reduces a number")
        return whole

    def multiply_add(self, out: Tile, value: Scalar) -> bool:
        """`out += tile * column` in one instruction, where that is the reduction."""
        if self.nest.block.reducer != "sum" or not isinstance(value, Call):
            return False
        if value.function != "multiply" or not all(isinstance(a, Load) for a in value.arguments):
            return False
        a, b = (self.value(argument) for argument in value.arguments)
        assert isinstance(a, Tile) and isinstance(b, Tile)
        if self.column(a) and not self.column(b):
            a, b = b, a
        if not self.column(b) or self.column(a):
            return False
        self.kernel.scalar_tensor_tensor(out, a, "multiply", b, "add", out, engine=self.vector)
        return True

    def activated_sum(self, out: Tile, value: Scalar) -> bool:
        """Row sums of a function of tiles in one activation, where that is the reduction; of tiles
        as they are only where the scalar engine alone is to do it."""
        if not self.is_full(value):
            return False
        if (factor := squared(value)) is not None and self.is_full(factor):
            function, argument, scale, bias = "square", *self.centred(factor)
        elif (affine := affine_argument(value, self.is_column, self.occurrences)) is not None:
            function, argument, scale, bias = affine
        elif (simple := simplify(value)) is not None and simple[0] in UNARY:
            function, argument, scale, bias = UNARY[simple[0]], simple[1][0], _ONE, _ZERO
        elif self.engine == "scalar":
            function, argument, scale, bias = "copy", value, _ONE, _ZERO
        else:
            return False
        tile, by, plus = (self.value(part) for part in (argument, scale, bias))
        assert isinstance(tile, Tile)
        each = self.owner.temporary(tile)
        self.kernel.activation(each, function, tile, bias=plus, scale=by, sums=out)
        self.discard(tile, by, plus, each)
        return True

    def centred(self, factor: Scalar) -> tuple[Scalar, Scalar, Scalar]:
        """(argument, scale, bias) of what is squared: `x - column` is the square of its negative,
        which takes the column as it is."""
        if isinstance(factor, Call) and factor.function == "subtract":
            x, column = factor.arguments
            if self.is_column(column) and self.is_full(x):
                return x, Const(-1.0), column
        return factor, _ONE, _ZERO

    @property
    def vector(self) -> str:
        """The engine for what scalar cannot do."""
        return self._among("vector", "gpsimd")

    def view(self, access: NestAccess, dims: Dims) -> Tile:
        if access.buffer.scope in ("sbuf", "psum"):
            return self.owner.tile_view(access, self.env, self.partition, dims, self.rows)
        return self.owner.stage(access, self.env, self.partition, dims, self.rows)

    def read(self, load: Load) -> Tile:
        """A load as a tile; a column [P, 1] if no free loop changes it."""
        access = self.nest.reads[load]
        if not any(n in access.strides for n, _ in self.dims):
            return self.view(access, [])
        return self.view(access, self.dims)

    def column(self, tile: Tile) -> bool:
        """Whether a tile has one element a partition while the nest has more."""
        return bool(self.dims) and all(count == 1 for count, _ in tile.dims)

    def value(self, value: Scalar) -> Value:
        """A number, or a tile holding the value."""
        match value:
            case Const(number):
                return float(number)
            case Load():
                return self.read(value)
            case Call():
                return self.computed(value)
            case _:
                raise CodegenError(f"{value} chooses by position; no instruction does")

    def computed(self, value: Call) -> Tile:
        """A call's value in a temporary; one that occurs again is kept until the end."""
        if value in self.shared:
            return self.shared[value]
        simple = simplify(value)
        assert simple is not None
        function, arguments = simple
        out = self.activated(None, value) or self.combined(None, value)
        if out is None:
            operands = [self.value(argument) for argument in arguments]
            if all(isinstance(o, float) for o in operands):
                raise CodegenError(f"{value} is a number; fold it before code generation")
            out = self.owner.temporary(self.shape(operands))
            self.call(out, function, operands)
            self.discard(*operands)
        if self.occurrences[value] > 1:
            self.shared[value] = out
        return out

    def discard(self, *values: Value) -> None:
        """Give back temporaries that are not needed again."""
        kept = {tile.allocation for tile in self.shared.values()}
        self.owner.release(
            *(v for v in values if not isinstance(v, Tile) or v.allocation not in kept)
        )

    def shape(self, operands: list[Value]) -> Tile:
        """The operand that gives the result its shape: a full one if there is any."""
        tiles = [o for o in operands if isinstance(o, Tile)]
        full = [t for t in tiles if not self.column(t)]
        return (full or tiles)[0]

    def into(self, out: Tile, value: Scalar) -> None:
        """`out = value`."""
        match value:
            case Call() if self.activated(out, value) or self.combined(out, value):
                pass
            case Call():
                simple = simplify(value)
                assert simple is not None
                operands = [self.value(argument) for argument in simple[1]]
                self.call(out, simple[0], operands)
                self.discard(*operands)
            case _:
                self.fill(out, self.value(value))

    @property
    def copier(self) -> str:
        return self._among("vector", "scalar", "gpsimd")

    def _among(self, *able: str) -> str:
        """Those of the stage's engines that are able to do it, or the vector engine."""
        return "|".join(name for name in self.engine.split("|") if name in able) or "vector"

    def spread(self, column: Tile, like: Tile) -> Tile:
        return replace(column, dims=tuple((count, 0) for count, _ in like.dims))

    def is_column(self, value: Scalar) -> bool:
        """Whether a value is a number, or read from one element a partition."""
        if isinstance(value, Load):
            strides = self.nest.reads[value].strides
            return bool(self.dims) and not any(name in strides for name, _ in self.dims)
        return isinstance(value, Const)

    def activated(self, out: Tile | None, value: Call) -> Tile | None:
        """`f(tile * scale + bias)` in one instruction, into `out` or a temporary.

        None, and nothing emitted, where the value has another form.
        """
        affine = affine_argument(value, self.is_column, self.occurrences)
        if affine is None:
            return None
        function, argument, scale, bias = affine
        tile, by, plus = (self.value(part) for part in (argument, scale, bias))
        if isinstance(tile, float):
            raise CodegenError(f"{value} is a number; fold it before code generation")
        out = out or self.owner.temporary(tile)
        self.kernel.activation(out, function, self.fit(tile, out), bias=plus, scale=by)
        self.discard(tile, by, plus)
        return out

    def is_full(self, value: Scalar) -> bool:
        """Whether a value changes along free loops."""
        if isinstance(value, Call):
            return any(self.is_full(argument) for argument in value.arguments)
        return isinstance(value, Load) and bool(self.dims) and not self.is_column(value)

    def combined(self, out: Tile | None, value: Call) -> Tile | None:
        """`(tile op column) op other` in one instruction, into `out` or a temporary.

        None, and nothing emitted, where the value has another form.
        """
        pair = combination(value, self.is_column, self.is_full, self.occurrences)
        if pair is None:
            return None
        tile, scalar, other = (self.value(v) for v in (pair.tile, pair.scalar, pair.other))
        assert isinstance(tile, Tile)
        out = out or self.owner.temporary(tile)
        if isinstance(other, Tile) and self.is_full(pair.other):
            self.kernel.scalar_tensor_tensor(
                out, tile, pair.first, scalar, pair.second, other, engine=self.vector
            )
        else:
            self.kernel.tensor_scalar(
                out, tile, pair.first, scalar, pair.second, other, engine=self.copier
            )
        self.discard(tile, other)
        return out

    def call(self, out: Tile, function: str, operands: list[Value]) -> None:
        """One function of tiles and numbers into `out`."""
        kernel = self.kernel
        if function in UNARY:
            (x,) = operands
            assert isinstance(x, Tile)
            kernel.activation(out, UNARY[function], self.fit(x, out))
        elif function == "reciprocal":
            assert isinstance(operands[0], Tile)
            kernel.reciprocal(out, self.fit(operands[0], out), engine=self.vector)
        elif function == "negate":
            assert isinstance(operands[0], Tile)
            kernel.tensor_scalar(out, self.fit(operands[0], out), "multiply", -1.0)
        elif function in BINARY:
            self.binary(out, BINARY[function], operands)
        elif function == "round":
            assert isinstance(operands[0], Tile)
            x = self.fit(operands[0], out)
            kernel.tensor_scalar(out, x, "add", ROUNDING, "subtract", ROUNDING)
        elif function == "where":
            self.where(out, operands)
        else:
            raise CodegenError(f"no instruction computes '{function}'")

    def fit(self, tile: Tile, out: Tile) -> Tile:
        """A column read as wide as `out`."""
        return self.spread(tile, out) if self.column(tile) and not self.column(out) else tile

    def binary(self, out: Tile, op: str, operands: list[Value]) -> None:
        a, b = operands
        scalar_b = isinstance(b, float) or (self.column(b) and not self.column(out))
        scalar_a = isinstance(a, float) or (self.column(a) and not self.column(out))
        if isinstance(a, Tile) and scalar_b:
            self.kernel.tensor_scalar(out, self.fit(a, out), op, b, engine=self.copier)
        elif isinstance(b, Tile) and scalar_a:
            if op in MIRRORED:
                self.kernel.tensor_scalar(out, self.fit(b, out), MIRRORED[op], a)
                return
            if op not in REVERSED:
                raise CodegenError(f"'{op}' of a number and a tile has no instruction")
            self.kernel.tensor_scalar(out, self.fit(b, out), REVERSED[op], a, engine=self.copier)
        else:
            assert isinstance(a, Tile) and isinstance(b, Tile)
            self.kernel.tensor_tensor(out, a, op, b, engine=self.vector)

    def where(self, out: Tile, operands: list[Value]) -> None:
        """b, and over it a where the flag is not 0; arithmetic would lose a beside a huge b."""
        flag, a, b = operands
        if not isinstance(flag, Tile):
            self.fill(out, a if flag else b)
            return
        taken = a if isinstance(a, Tile) else self.owner.temporary(out)
        if not isinstance(a, Tile):
            self.fill(taken, a)
        in_place = out.allocation in (flag.allocation, taken.allocation)
        result = self.owner.temporary(out) if in_place else out
        self.fill(result, b)
        self.kernel.copy_predicated(result, self.fit(taken, out), self.fit(flag, out))
        if in_place:
            self.fill(out, result)
            self.owner.release(result)
        if not isinstance(a, Tile):
            self.owner.release(taken)

    def fill(self, out: Tile, value: Value) -> None:
        """`out = value`, a number, a column or a tile as large."""
        if isinstance(value, float):
            self.kernel.memset(out, value)
        else:
            self.kernel.copy(out, self.fit(value, out), engine=self.copier)
