"""Index arithmetic in LLVM: polynomials over loop variables become addresses.

Variables of unrolled loops are plain integers while code is emitted, those of real loops are LLVM
values. An access is compiled once into (constant, coefficients, rest), so that each of its
thousands of unrolled instances costs a few additions in Python, and the part that only depends on
real loops is emitted once for each scope.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilesmith.codegen.llvm.text.builder import Builder
from tilesmith.codegen.llvm.text.ir import INDEX, Value
from tilesmith.search_space.expressions.expression import ONE, Atom, Expr, Monomial, const
from tilesmith.search_space.expressions.scalar import Load
from tilesmith.search_space.expressions.sizes import Size, limits
from tilesmith.search_space.ir.program import Buffer
from tilesmith.search_space.support.errors import CodegenError

Index = Any
"""An integer, or an LLVM value."""


@dataclass(frozen=True)
class CompiledIndex:
    """constant + sum(coefficient * variable) + sum(number * monomial)."""

    constant: int
    linear: tuple[tuple[str, int], ...]
    rest: tuple[tuple[Monomial, int], ...]


@dataclass(frozen=True)
class CompiledAccess:
    """Offset of an access in elements, and how it moves with the vector lane.

    `stride` is None where the offset is not linear in the lane.
    """

    buffer: str
    offset: CompiledIndex
    stride: int | None


@lru_cache(maxsize=1 << 14)
def compile_index(expression: Expr) -> CompiledIndex:
    """Sort the terms of an index expression. Kept: what is unrolled asks again for every copy."""
    linear: list[tuple[str, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for monomial, number in expression.terms:
        if len(monomial) == 1 and monomial[0].kind == "var":
            linear.append((monomial[0].name, number))
        elif monomial:
            rest.append((monomial, number))
    return CompiledIndex(expression.offset, tuple(linear), tuple(rest))


def strides(buffer: Buffer) -> list[Expr]:
    """Row-major strides in elements; formulas where extents vary."""
    steps: list[Expr] = []
    step = ONE
    for extent in reversed(buffer.shape):
        steps.append(step)
        step = step * extent
    return steps[::-1]


def elements(buffer: Buffer, sizes: tuple[Size, ...] = ()) -> int:
    """Number of elements of a buffer, at most.

    Args:
        sizes: the ranges of those that its shape varies with.
    """
    product = 1
    for extent in buffer.shape:
        product *= limits(extent, sizes)[1] if extent.constant is None else extent.constant
    return product


def compile_access(access: Load, buffer: Buffer, lane: str | None) -> CompiledAccess:
    """Compile an access; `lane` is the variable of the vector loop around it."""
    offset = const(0)
    for index, step in zip(access.indices, strides(buffer), strict=True):
        offset = offset + index * step
    stride: int | None = 0
    if lane is not None and lane in offset.variables():
        factor = offset.coefficient(lane)
        stride = factor.constant if factor is not None else None
    return CompiledAccess(buffer.name, compile_index(offset), stride)


class IndexEmitter:
    """Emits index arithmetic into `builder`; `environment` maps variables to integers or values.

    `read` loads an element of an integer tensor as a 64-bit value (who knows the memory sets it).
    `varying`: strides are known at run time only, and what sums have in common is computed once.
    """

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.environment: dict[str, Index] = {}
        self.read: Callable[[str, Index], Value] | None = None
        self.varying = False
        self._scopes: list[dict[object, Value]] = [{}]

    def push(self) -> None:
        """Open a scope: values made in it are forgotten when it closes."""
        self._scopes.append({})

    def pop(self) -> None:
        self._scopes.pop()

    def remembered(self, key: object) -> Value | None:
        """A value remembered in an open scope."""
        for scope in reversed(self._scopes):
            if key in scope:
                return scope[key]
        return None

    def remember(self, key: object, value: Value) -> Value:
        self._scopes[-1][key] = value
        return value

    def split(self, index: CompiledIndex) -> tuple[int, tuple[tuple[Value, int], ...]]:
        """(integer part, runtime terms) of an index here and now."""
        total, environment = index.constant, self.environment
        runtime: list[tuple[Value, int]] = []
        for name, factor in index.linear:
            value = environment[name] if name in environment else self._variable(name)
            if isinstance(value, int):
                total += factor * value
            else:
                runtime.append((value, factor))
        if not index.rest:
            return total, tuple(runtime)
        for monomial, factor in index.rest:
            number, values = factor, []
            for atom in monomial:
                part = self._atom(atom)
                if isinstance(part, int):
                    number *= part
                else:
                    values.append(part)
            if values:
                runtime.append((self._product(tuple(values)), number))
            else:
                total += number
        return total, tuple((v, n) for v, n in runtime if n)

    def integer(self, expression: Expr) -> Index:
        """An index expression as integer or LLVM value."""
        number, runtime = self.split(compile_index(expression))
        if not runtime:
            return number
        value = self.sum(runtime)
        if not number:
            return value
        key = (value, number)
        known = self.remembered(key)
        return known if known else self.remember(key, self.builder.add(value, INDEX(number)))

    def value(self, expression: Expr) -> Value:
        """Return what `integer` returns, always as an LLVM value."""
        result = self.integer(expression)
        return INDEX(result) if isinstance(result, int) else result

    def sum(self, runtime: tuple[tuple[Value, int], ...]) -> Value:
        """sum(factor * value), remembered in this scope."""
        known = self.remembered(runtime)
        if known is not None:
            return known
        if self.varying and len(runtime) > 1:
            value, factor = runtime[-1]
            term = value if factor == 1 else self.sum(runtime[-1:])
            common = self.sum(runtime[:-1])
            return self.remember(runtime, self.builder.add(common, term, flags="nsw"))
        total: Value | None = None
        for value, factor in runtime:
            term = value if factor == 1 else self.builder.mul(value, INDEX(factor), flags="nsw")
            total = term if total is None else self.builder.add(total, term, flags="nsw")
        assert total is not None
        return self.remember(runtime, total)

    def _variable(self, name: str) -> Index:
        if name not in self.environment:
            raise CodegenError(f"variable '{name}' is not bound by any loop around its use")
        return self.environment[name]

    def _product(self, values: tuple[Value, ...]) -> Value:
        known = self.remembered(values)
        if known is not None:
            return known
        total = values[0]
        for value in values[1:]:
            total = self.builder.mul(total, value, flags="nsw")
        return self.remember(values, total)

    def _atom(self, atom: Atom) -> Index:
        if atom.kind == "var":
            return self._variable(atom.name)
        left, right = (self.integer(operand) for operand in atom.operands)
        if atom.kind == "element":
            return self._element(atom.name, left, right)
        if isinstance(left, int) and isinstance(right, int):
            return _fold(atom.kind, left, right)
        left = INDEX(left) if isinstance(left, int) else left
        right = INDEX(right) if isinstance(right, int) else right
        key = (atom.kind, left, right)
        known = self.remembered(key)
        return (
            known if known is not None else self.remember(key, self._emit(atom.kind, left, right))
        )

    def _element(self, tensor: str, index: Index, extent: Index) -> Index:
        """An index from a tensor, once for each scope: from the end if negative, kept in range."""
        key = ("element", tensor, index)
        known = self.remembered(key)
        if known is not None:
            return known
        builder, fixed = self.builder, isinstance(extent, int)
        whole = INDEX(extent) if fixed else extent
        last = INDEX(extent - 1) if fixed else builder.add(extent, INDEX(-1))
        assert self.read is not None
        element = self.read(tensor, index)
        negative = builder.icmp_signed("<", element, INDEX(0))
        element = builder.select(negative, builder.add(element, whole), element)
        for sign, limit in (("<", INDEX(0)), (">", last)):
            element = builder.select(builder.icmp_signed(sign, element, limit), limit, element)
        return self.remember(key, element)

    def _emit(self, kind: str, left: Value, right: Value) -> Value:
        """Floor division and remainder are exact for the non-negative indices a kernel has."""
        builder = self.builder
        if kind == "floordiv":
            return self._floor(left, right)
        if kind == "mod":
            quotient = self._floor(left, right)
            return builder.sub(left, builder.mul(quotient, right))
        smaller = builder.icmp_signed("<" if kind == "min" else ">", left, right)
        return builder.select(smaller, left, right)

    def _floor(self, left: Value, right: Value) -> Value:
        """left / right rounded down, for a positive right; sdiv truncates: correct below zero."""
        builder = self.builder
        quotient = builder.sdiv(left, right)
        remainder = builder.srem(left, right)
        negative = builder.icmp_signed("<", remainder, INDEX(0))
        return builder.sub(quotient, builder.convert("zext", negative, INDEX))


def _fold(kind: str, left: int, right: int) -> int:
    match kind:
        case "floordiv":
            return left // right
        case "mod":
            return left % right
        case "min":
            return min(left, right)
        case _:
            return max(left, right)
