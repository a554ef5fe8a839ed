"""Integer index expressions: polynomials over loop variables and symbolic tile sizes.

One canonical form does the work of a simplifier: an `Expr` is a sum of monomials with integer
coefficients, over atoms that are variables, floor divisions, remainders, minima and maxima. Equal
polynomials are equal objects, so `(i*16 + j) - i*16 == j` needs no rules. The same expression is
printed, bounded (`ranges.py`), evaluated on integers, and evaluated on numpy arrays holding
thousands of configurations at once.

Invariants: frozen; terms sorted; no zero coefficient; division and remainder only by positive
values, rounding down (Python's `//` and `%`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from operator import mul
from typing import Any, Literal, Union

import numpy

from tilesmith.search_space.expressions.terms import collected, divided, multiplied

AtomKind = Literal["var", "floordiv", "mod", "min", "max", "element"]


@dataclass(frozen=True)
class Atom:
    """An indivisible factor: a variable (`name`) or an operation on two expressions.

    An `element` is the integer that tensor `name`, of one dimension, holds at index `left`, known
    only at run time. It is used as an index into an axis of `right` elements: counted from the end
    if negative, and kept within the axis.
    """

    kind: AtomKind
    name: str = ""
    left: "Expr | None" = None
    right: "Expr | None" = None

    @cached_property
    def sort_key(self) -> str:
        return str(self)

    @cached_property
    def hash_(self) -> int:
        return hash((self.kind, self.name, self.left, self.right))

    def __hash__(self) -> int:
        return self.hash_

    @property
    def operands(self) -> "tuple[Expr, Expr]":
        """What an operation is of: not for variables."""
        assert self.left is not None and self.right is not None
        return self.left, self.right

    def __str__(self) -> str:
        if self.kind == "var":
            return self.name
        if self.kind == "element":
            return f"{self.name}[{self.left}]"
        if self.kind in ("min", "max"):
            return f"{self.kind}({self.left}, {self.right})"
        operator = "//" if self.kind == "floordiv" else "%"
        return f"({self.left}) {operator} ({self.right})"


Monomial = tuple[Atom, ...]
ExprLike = Union["Expr", int]


@dataclass(frozen=True)
class Expr:
    """A canonical polynomial; build it with `var`, `const` and Python's operators."""

    terms: tuple[tuple[Monomial, int], ...]

    @cached_property
    def hash_(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self.hash_

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self.terms == other.terms)

    # -- arithmetic ---------------------------------------------------------------------------
    def __add__(self, other: ExprLike) -> "Expr":
        other = other if isinstance(other, Expr) else as_expr(other)
        if (number := other.constant) is not None:
            return self._plus(number)
        if (number := self.constant) is not None:
            return other._plus(number)
        return _of(collected(self.terms + other.terms))

    def __mul__(self, other: ExprLike) -> "Expr":
        other = other if isinstance(other, Expr) else as_expr(other)
        if (number := other.constant) is not None:
            return self._times(number)
        if (number := self.constant) is not None:
            return other._times(number)
        return _of(multiplied(self.terms, other.terms))

    def __neg__(self) -> "Expr":
        return self._times(-1)

    def __sub__(self, other: ExprLike) -> "Expr":
        other = other if isinstance(other, Expr) else as_expr(other)
        if (number := other.constant) is not None:
            return self._plus(-number)
        return self + other._times(-1)

    def _plus(self, number: int) -> "Expr":
        """A number more: it is the last term, so that the others stay as they are."""
        if not number:
            return self
        terms = self.terms
        if terms and not terms[-1][0]:
            number += terms[-1][1]
            terms = terms[:-1]
        return _of((*terms, ((), number)) if number else terms)

    def _times(self, number: int) -> "Expr":
        """As many: terms keep their order."""
        if number == 1 or not number:
            return self if number else ZERO
        return _of(tuple([(monomial, factor * number) for monomial, factor in self.terms]))

    def __rsub__(self, other: ExprLike) -> "Expr":
        return as_expr(other) - self

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: ExprLike) -> "Expr":
        return floordiv(self, as_expr(other))

    def __mod__(self, other: ExprLike) -> "Expr":
        return mod(self, as_expr(other))

    # -- questions ----------------------------------------------------------------------------
    @property
    def constant(self) -> int | None:
        """Its value if it is a number, else None."""
        terms = self.terms
        if len(terms) > 1:
            return None
        return (None if terms[0][0] else terms[0][1]) if terms else 0

    @property
    def offset(self) -> int:
        """The constant term."""
        return next((factor for monomial, factor in self.terms if not monomial), 0)

    def variables(self) -> frozenset[str]:
        """Names of all variables in it, those inside divisions and minima included."""
        return self._variables

    @cached_property
    def _variables(self) -> frozenset[str]:
        names: set[str] = set()
        for atom in self.atoms():
            names.add(atom.name) if atom.kind == "var" else names.update(
                atom.operands[0].variables() | atom.operands[1].variables()
            )
        return frozenset(names)

    def atoms(self) -> Iterator[Atom]:
        """The atoms at its top level."""
        return (atom for monomial, _ in self.terms for atom in monomial)

    def coefficient(self, name: str) -> "Expr | None":
        """The factor of variable `name`, or None where it is not linear in `name`.

        >>> str((var("i") * var("f") + var("j")).coefficient("i"))
        'f'
        """
        return self._coefficients.get(name, ZERO)

    @cached_property
    def _coefficients(self) -> "dict[str, Expr | None]":
        """`coefficient` of every variable in it."""
        rests: dict[str, list[tuple[Monomial, int]]] = {}
        bent: set[str] = set()
        for monomial, factor in self.terms:
            for place, atom in enumerate(monomial):
                rest = (*monomial[:place], *monomial[place + 1 :])
                if atom.kind != "var":
                    bent |= _atom_variables(atom)
                elif atom in rest:
                    bent.add(atom.name)
                else:
                    rests.setdefault(atom.name, []).append((rest, factor))
        coefficients: dict[str, Expr | None] = {
            name: _of(collected(rest)) for name, rest in rests.items()
        }
        return {**coefficients, **dict.fromkeys(bent, None)}

    # -- rewriting and evaluation -------------------------------------------------------------
    def substitute(self, values: Mapping[str, ExprLike]) -> "Expr":
        """Replace variables by expressions or numbers, simplifying on the way."""
        if self.variables().isdisjoint(values):
            return self
        return self.map_atoms(lambda atom: _substitute_atom(atom, values))

    def tensors(self) -> frozenset[str]:
        """Names of the tensors that indices are read from."""
        names: set[str] = set()
        for atom in self.atoms():
            if atom.kind != "var":
                left, right = atom.operands
                names |= left.tensors() | right.tensors()
                names |= {atom.name} if atom.kind == "element" else set()
        return frozenset(names)

    def map_atoms(self, change: "Callable[[Atom], Expr]") -> "Expr":
        """Return this polynomial with `change(atom)` in place of each atom at its top level; this
        very object if none changes."""
        products = (reduce(mul, map(change, m))._times(f) if m else const(f) for m, f in self.terms)
        mapped = total(products)
        return self if mapped.terms == self.terms else mapped

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Its value, for integers or for numpy arrays, which are broadcast."""
        total: Any = 0
        for monomial, factor in self.terms:
            product: Any = factor
            for atom in monomial:
                product = product * _evaluate_atom(atom, values)
            total = total + product
        return total

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        parts: list[str] = []
        for monomial, factor in self.terms:
            sign = "-" if factor < 0 else "+"
            names = [f"({a})" if a.kind in ("floordiv", "mod") else str(a) for a in monomial]
            if abs(factor) != 1 or not names:
                names.append(str(abs(factor)))
            parts.append(f"{sign} {'*'.join(names)}")
        text = " ".join(parts)
        return text[2:] if text.startswith("+ ") else "-" + text[2:]

    __repr__ = __str__


def total(summands: Iterable[Expr]) -> Expr:
    """Their sum, which is put in order once."""
    return _of(collected(term for summand in summands for term in summand.terms))


def _of(terms: tuple[tuple[Monomial, int], ...]) -> Expr:
    """`Expr(terms)`, in half the time: programs take millions, and a frozen class sets its fields
    one by one through `object`."""
    expression = object.__new__(Expr)
    expression.__dict__["terms"] = terms
    return expression


def _atom_variables(atom: Atom) -> frozenset[str]:
    if atom.kind == "var":
        return frozenset((atom.name,))
    left, right = atom.operands
    return left.variables() | right.variables()


def const(value: int) -> Expr:
    """A number."""
    return _of((((), value),)) if value else ZERO


@lru_cache(maxsize=1 << 14)
def var(name: str) -> Expr:
    """A loop variable or a symbolic tile size."""
    return Expr((((Atom("var", name),), 1),))


def element(tensor: str, index: ExprLike, extent: ExprLike) -> Expr:
    """An index read from a one-dimensional integer tensor; see `Atom`."""
    return Expr((((Atom("element", tensor, as_expr(index), as_expr(extent)),), 1),))


def as_expr(value: ExprLike) -> Expr:
    """Numbers become constants; expressions stay."""
    return value if isinstance(value, Expr) else const(int(value))


ZERO = Expr(())
ONE = const(1)


@lru_cache(maxsize=1 << 16)
def _operation(kind: AtomKind, left: Expr, right: Expr) -> Expr:
    """Kept, so that what is known of an atom (its text, its hash) is found out once."""
    return Expr((((Atom(kind, "", left, right),), 1),))


def quotient(value: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """Split `value` into `divisor * quotient + rest` with every divisible term in the quotient."""
    if len(divisor.terms) != 1:
        return ZERO, value
    whole, rest = divided(value.terms, divisor.terms[0])
    return _of(whole), _of(rest)


def floordiv(value: ExprLike, divisor: ExprLike) -> Expr:
    """`value // divisor`, with what divides taken out: `(16*i + j) // 16` is `i + j // 16`."""
    value, divisor = as_expr(value), as_expr(divisor)
    if divisor == ONE or not value.terms:
        return value
    if value.constant is not None and divisor.constant:
        return const(value.constant // divisor.constant)
    whole, rest = quotient(value, divisor)
    return whole + _operation("floordiv", rest, divisor) if rest.terms else whole


def mod(value: ExprLike, divisor: ExprLike) -> Expr:
    """Return `value % divisor`, simplified as `floordiv` does."""
    value, divisor = as_expr(value), as_expr(divisor)
    if divisor == ONE or not value.terms:
        return ZERO
    if value.constant is not None and divisor.constant:
        return const(value.constant % divisor.constant)
    _, rest = quotient(value, divisor)
    return _operation("mod", rest, divisor) if rest.terms else ZERO


def ceildiv(value: ExprLike, divisor: ExprLike) -> Expr:
    """`value / divisor` rounded up."""
    return floordiv(as_expr(value) + as_expr(divisor) - 1, divisor)


def minimum(left: ExprLike, right: ExprLike) -> Expr:
    """The smaller of two, folded where the sign of their difference is known."""
    return _minmax("min", as_expr(left), as_expr(right))


def maximum(left: ExprLike, right: ExprLike) -> Expr:
    """Return the larger of two expressions, simplified as `minimum` does."""
    return _minmax("max", as_expr(left), as_expr(right))


def _minmax(kind: Literal["min", "max"], left: Expr, right: Expr) -> Expr:
    difference = (left - right).constant
    if difference is not None:
        return left if (difference <= 0) == (kind == "min") else right
    return _operation(kind, left, right)


def apply(kind: AtomKind, left: Expr, right: Expr) -> Expr:
    """An operation by the name of its atom, simplified."""
    match kind:
        case "floordiv":
            return floordiv(left, right)
        case "mod":
            return mod(left, right)
        case "min":
            return minimum(left, right)
        case "max":
            return maximum(left, right)
    raise AssertionError(f"'{kind}' is no operation on two expressions")


def _substitute_atom(atom: Atom, values: Mapping[str, ExprLike]) -> Expr:
    if atom.kind == "var":
        return as_expr(values[atom.name]) if atom.name in values else var(atom.name)
    left, right = atom.operands
    if atom.kind == "element":
        return element(atom.name, left.substitute(values), right.substitute(values))
    return apply(atom.kind, left.substitute(values), right.substitute(values))


def _evaluate_atom(atom: Atom, values: Mapping[str, Any]) -> Any:
    if atom.kind == "var":
        return values[atom.name]
    left, right = (operand.evaluate(values) for operand in atom.operands)
    if atom.kind == "element":
        return _evaluate_element(values.get(atom.name), left, right)
    if atom.kind == "floordiv":
        return left // right
    if atom.kind == "mod":
        return left % right
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right) if atom.kind == "min" else max(left, right)
    return numpy.minimum(left, right) if atom.kind == "min" else numpy.maximum(left, right)


def _evaluate_element(tensor: Any, index: Any, extent: Any) -> Any:
    """The element, if `values` hold the tensor under its name, else zero (any place will do)."""
    if tensor is None:
        return index * 0
    element = tensor[index]
    return numpy.clip(numpy.where(element < 0, element + extent, element), 0, extent - 1)
