"""Scalar expressions as elementwise instructions, and reductions along the free axes.

    x + 1, x * column        TENSOR_SCALAR (two in a row become one instruction)
    f(x * scale + bias)      ACTIVATION on the scalar engine
    x + y                    TENSOR_TENSOR on the vector engine
    max over the free axes   REDUCE, then combined with the running value

The loops of a nest are dealt to the partition axis of what is written and to free axes; a value
that no free loop changes is a column ([P, 1]) and becomes a scalar operand. A tensor read straight
from HBM is staged in SBUF, spread over partitions where no partition loop indexes it; the last few
stay there.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product

from codegen.accelerator.builder import Kernel
from codegen.accelerator.instructions import DIMENSIONS
from codegen.accelerator.memory import HbmView, Tile, dense
from codegen.accelerator.nests import Environment, Nest, NestAccess
from search_space.errors import CodegenError
from search_space.fusion import pointwise
from search_space.scalar import Call, Const, Load, Scalar

Dims = list[tuple[str, int]]
TileView = Callable[[NestAccess, Environment, str, Dims, int], Tile]

MAX_ELEMENTS = 2048
"""Elements a partition of one elementwise instruction; longer ones are cut so that engines
overlap.
"""

STAGED = 8
"""Pieces of one HBM tensor kept staged in SBUF."""

_BINARY = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "divide",
    "maximum": "max", "minimum": "min", "power": "pow", "greater_equal": "is_ge",
}  # fmt: skip
_REVERSED = {
    "add": "add", "multiply": "multiply", "max": "max", "min": "min",
    "subtract": "reverse_subtract", "divide": "reverse_divide",
}  # fmt: skip
_UNARY = {
    "exp": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh", "erf": "erf",
    "sigmoid": "sigmoid", "absolute": "abs", "silu": "silu", "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
}  # fmt: skip
_REDUCERS = {"sum": "add", "max": "max", "min": "min", "product": "multiply"}

Value = Tile | float


def simplify(value: Scalar) -> tuple[str, tuple[Scalar, ...]] | None:
    """(function, arguments) of a call; formulas that one activation computes become that."""
    if not isinstance(value, Call):
        return None
    first = value.arguments[0]
    inner = first.arguments[0] if isinstance(first, Call) else first
    for name, argument in (("silu", first), ("gelu", inner), ("gelu_tanh", inner)):
        if value == pointwise(name, argument):
            return name, (argument,)
    return value.function, value.arguments


def calls(value: Scalar) -> Counter[Scalar]:
    """How often each call occurs in an expression whose repeated parts are computed once."""
    found: Counter[Scalar] = Counter()

    def visit(part: Scalar) -> None:
        simple = simplify(part)
        if simple is None:
            return
        found[part] += 1
        if found[part] == 1:
            for argument in simple[1]:
                visit(argument)

    visit(value)
    return found


class Pointwise:
    """Emits elementwise nests into a kernel.

    Args:
        tile_view: the part of an allocated tile that an access touches.
        views: tensors in HBM by name.
    """

    def __init__(self, kernel: Kernel, tile_view: TileView, views: Mapping[str, HbmView]) -> None:
        self.kernel, self.tile_view, self.views = kernel, tile_view, views
        self.idle: list[Tile] = []
        self.lent: dict[int, Tile] = {}
        self.staged: dict[str, OrderedDict[tuple[object, ...], Tile]] = {}

    def emit(self, nest: Nest, env: Environment, sizes: dict[str, int], partition: str) -> None:
        """A nest of one block: a map, or a reduction with `partition` kept."""
        reduced = [n for n in sizes if n not in nest.write.strides and n != partition]
        kept = [n for n in sizes if n in nest.write.strides and n != partition]
        if nest.block.reducer is None and any(sizes[n] > 1 for n in reduced):
            raise CodegenError(f"stage '{nest.block.stage}' writes elements more than once")
        outside: Dims = []
        accumulates = nest.block.reducer is not None and isinstance(nest.block.value, Call)
        if accumulates and any(sizes[n] > 1 for n in kept):
            outside = [(n, sizes[n]) for n in reduced]
            reduced = []
        dims = [(n, sizes[n]) for n in kept + reduced if sizes[n] > 1]
        rows = sizes.get(partition, 1)
        for values in product(*(range(count) for _, count in outside)):
            inner = {**env, **dict(zip((n for n, _ in outside), values, strict=True))}
            for start, part in pieces(dims):
                _Emission(self, nest, {**inner, **start}, partition, part, rows).run()

    def temporary(self, like: Tile) -> Tile:
        """A dense fp32 tile of the shape of `like`; give it back with `release`.

        The place used longest ago is taken, of two at least, so that engines can overlap.
        """
        elements = 1
        for count, _ in like.dims:
            elements *= count
        idle = [t for t in self.idle if t.partitions >= like.partitions and _size(t) >= elements]
        if len(idle) < 2:
            tile = self.kernel.sbuf((like.partitions, elements), name="temporary")
        else:
            self.idle.remove(idle[0])
            tile = self.kernel.again(idle[0])
        self.lent[tile.allocation] = tile
        dims = dense([c for c, _ in like.dims])
        return replace(tile, partitions=like.partitions, dims=dims)

    def release(self, *values: Value) -> None:
        """Temporaries among `values` are not used any more."""
        for value in values:
            if isinstance(value, Tile) and value.allocation in self.lent:
                self.idle.append(self.lent.pop(value.allocation))

    def stage(
        self, access: NestAccess, env: Environment, partition: str, dims: Dims, rows: int
    ) -> Tile:
        """What an access reads from HBM, in SBUF; reused while it is still there."""
        view = self.views[access.buffer.name]
        offset = access.offset(env) + sum(
            step * env[name] for name, step in access.strides.items() if name in env
        )
        free = [(n, c) for n, c in dims if n in access.strides]
        pattern = tuple((c, access.strides[n]) for n, c in free)
        lead = (rows, access.strides.get(partition, 0))
        shape = (rows, *(c for _, c in free)) if free else (rows, 1)
        key = (offset, lead, pattern)
        kept = self.staged.setdefault(access.buffer.name, OrderedDict())
        if key not in kept:
            place = self._place(access, kept, shape)
            source = HbmView(
                view.name, view.tensor, view.dtype, offset, (lead, *(pattern or ((1, 1),)))
            )
            self.kernel.load(place, source)
            kept[key] = place
        kept.move_to_end(key)
        tile = kept[key]
        strides = dict(zip((n for n, _ in free), tile.dims, strict=False))
        spread = [(c, strides[n][1] if n in strides else 0) for n, c in dims]
        return replace(tile, dims=tuple(spread) or ((1, 1),))

    def _place(
        self,
        access: NestAccess,
        kept: OrderedDict[tuple[object, ...], Tile],
        shape: tuple[int, ...],
    ) -> Tile:
        """A place for a staged piece: a new one, or that of the piece used longest ago."""
        elements = math.prod(shape[1:])
        fitting = [
            key
            for key, tile in kept.items()
            if tile.partitions >= shape[0] and _size(tile) >= elements
        ]
        if len(kept) >= STAGED and fitting:
            old = self.kernel.again(kept.pop(fitting[0]))
            return replace(old, partitions=shape[0], dims=dense(shape[1:]))
        return self.kernel.sbuf(shape, access.buffer.dtype, f"{access.buffer.name}.staged")


def _size(tile: Tile) -> int:
    """Elements a partition."""
    return math.prod(count for count, _ in tile.dims)


def pieces(dims: Dims) -> Iterator[tuple[dict[str, int], Dims]]:
    """A nest's free loops cut into pieces of at most `MAX_ELEMENTS` and few enough axes.

    Each is (first value of the loops that were cut, loops and counts that remain); pieces of one
    loop are alike but for the last.
    """
    total = math.prod(count for _, count in dims)
    if len(dims) < DIMENSIONS and total <= MAX_ELEMENTS:
        yield {}, dims
        return
    (name, count), *rest = dims
    inner = total // count
    step = 1 if len(dims) >= DIMENSIONS else max(1, MAX_ELEMENTS // inner)
    step = -(-count // -(-count // step))
    for start in range(0, count, step):
        size = min(step, count - start)
        own = [(name, size)] if size > 1 else []
        for more, part in pieces(rest) if step == 1 else [({}, rest)]:
            yield {name: start, **more}, own + part


class _Emission:
    """One rectangular piece of a nest."""

    def __init__(
        self, owner: Pointwise, nest: Nest, env: Environment, partition: str, dims: Dims, rows: int
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
        if self.multiply_add(out, block.value):
            return
        whole = self.value(block.value)
        if isinstance(whole, float):
            raise CodegenError(f"stage '{block.stage}' reduces a number")
        operation = _REDUCERS[block.reducer]
        if len(kept) == len(self.dims):
            self.kernel.tensor_tensor(out, out, operation, whole, engine=self.vector)
            self.discard(whole)
            return
        partial = self.owner.temporary(out)
        self.kernel.reduce(partial, whole, operation, engine=self.vector)
        self.kernel.tensor_tensor(out, out, operation, partial, engine=self.vector)
        self.discard(whole, partial)

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

    @property
    def vector(self) -> str:
        """The engine for what scalar cannot do."""
        return self.engine if self.engine in ("vector", "gpsimd") else "vector"

    def view(self, access: NestAccess, dims: Dims) -> Tile:
        if access.buffer.scope in ("sbuf", "psum"):
            return self.owner.tile_view(access, self.env, self.partition, dims, self.rows)
        return self.owner.stage(access, self.env, self.partition, dims, self.rows)

    def read(self, found: Load) -> Tile:
        """A load as a tile; a column [P, 1] if no free loop changes it."""
        access = self.nest.reads[found]
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
            case Call():
                simple = simplify(value)
                assert simple is not None
                operands = [self.value(argument) for argument in simple[1]]
                self.call(out, simple[0], operands)
                self.discard(*operands)
            case _:
                found = self.value(value)
                if isinstance(found, float):
                    self.kernel.memset(out, found)
                elif self.column(found) and not self.column(out):
                    self.kernel.copy(out, self.spread(found, out), engine=self.copier)
                else:
                    self.kernel.copy(out, found, engine=self.copier)

    @property
    def copier(self) -> str:
        return self.engine if self.engine in ("vector", "scalar", "gpsimd") else "vector"

    def spread(self, column: Tile, like: Tile) -> Tile:
        return replace(column, dims=tuple((count, 0) for count, _ in like.dims))

    def call(self, out: Tile, function: str, operands: list[Value]) -> None:
        """One function of tiles and numbers into `out`."""
        kernel = self.kernel
        if function in _UNARY:
            (x,) = operands
            assert isinstance(x, Tile)
            kernel.activation(out, _UNARY[function], self.fit(x, out))
        elif function == "reciprocal":
            assert isinstance(operands[0], Tile)
            kernel.reciprocal(out, self.fit(operands[0], out), engine=self.vector)
        elif function == "negate":
            assert isinstance(operands[0], Tile)
            kernel.tensor_scalar(out, self.fit(operands[0], out), "multiply", -1.0)
        elif function in _BINARY:
            self.binary(out, _BINARY[function], operands)
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
            if op == "is_ge":  # a >= b is 1 - (b > a)
                wide = self.fit(b, out)
                self.kernel.tensor_scalar(out, wide, "is_gt", a, "reverse_subtract", 1.0)
                return
            if op not in _REVERSED:
                raise CodegenError(f"'{op}' of a number and a tile has no instruction")
            self.kernel.tensor_scalar(out, self.fit(b, out), _REVERSED[op], a, engine=self.copier)
        else:
            assert isinstance(a, Tile) and isinstance(b, Tile)
            self.kernel.tensor_tensor(out, a, op, b, engine=self.vector)

    def where(self, out: Tile, operands: list[Value]) -> None:
        """flag * (a - b) + b, the flag being 0 or 1."""
        flag, a, b = operands
        assert isinstance(flag, Tile)
        if isinstance(a, float) and isinstance(b, float):
            self.kernel.tensor_scalar(out, self.fit(flag, out), "multiply", a - b, "add", b)
            return
        difference = self.owner.temporary(out)
        self.binary(difference, "subtract", [a, b])
        self.kernel.tensor_tensor(difference, difference, "multiply", self.fit(flag, out))
        self.binary(out, "add", [difference, b])
        self.owner.release(difference)
