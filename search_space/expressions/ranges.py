"""What values an index expression takes while its loop variables stay within bounds.

Bounds may be symbolic (`f - 1` for a tile size `f`), and so are the ends found. Each variable is
set to the end that makes the expression largest or smallest: exact where a variable occurs once,
otherwise never too tight. Divisions and remainders that the bounds decide disappear:
`(16*i + j) // 16` with `j <= 15` is `i`. Proofs that need more than this are in `bounds.py`.
"""

from collections.abc import Mapping

from tilesmith.search_space.expressions import expression
from tilesmith.search_space.expressions.expression import (
    ZERO,
    Atom,
    Expr,
    ExprLike,
    Monomial,
    apply,
    as_expr,
    const,
    var,
)  # fmt: skip

Bounds = Mapping[str, Expr]
"""Inclusive upper bound of each loop variable (their lower bound is zero)."""

WholeRange = tuple[int, int]
"""The least and the greatest of whole numbers."""


def upper(value: Expr, bounds: Bounds) -> Expr:
    """An upper bound; variables without bounds stay in it."""
    return _extreme(value, bounds, largest=True)


def lower(value: Expr, bounds: Bounds) -> Expr:
    """Return a lower bound of a value, as `upper` returns an upper one."""
    return _extreme(value, bounds, largest=False)


def nonnegative(value: Expr) -> bool:
    """Whether it is provably >= 0 when every variable in it is >= 1 (as tile sizes are)."""
    negative = sum(factor for monomial, factor in value.terms if factor < 0)
    if negative == 0:
        return all(_positive(monomial) for monomial, _ in value.terms)
    positive = sum(factor for monomial, factor in value.terms if factor > 0 and _positive(monomial))
    only_offset = all(not monomial for monomial, factor in value.terms if factor < 0)
    return only_offset and positive + negative >= 0


def within(value: Expr, bounds: Bounds) -> Expr:
    """Return the value with the divisions and remainders simplified that `bounds` decide.

    >>> str(within(var("i") % 16, {"i": const(15)}))
    'i'
    """
    if all(atom.kind not in ("floordiv", "mod") for atom in value.atoms()):
        return value
    return value.map_atoms(lambda atom: _atom_within(atom, bounds))


def floordiv(value: ExprLike, divisor: ExprLike, bounds: Bounds) -> Expr:
    """`value // divisor` of a value within bounds."""
    value, divisor = as_expr(value), as_expr(divisor)
    whole, rest = expression.quotient(value, divisor)
    return whole if _divides_off(rest, divisor, bounds) else expression.floordiv(value, divisor)


def mod(value: ExprLike, divisor: ExprLike, bounds: Bounds) -> Expr:
    """Return `value % divisor`, simplified by `bounds`."""
    value, divisor = as_expr(value), as_expr(divisor)
    _, rest = expression.quotient(value, divisor)
    return rest if _divides_off(rest, divisor, bounds) else expression.mod(value, divisor)


def _divides_off(rest: Expr, divisor: Expr, bounds: Bounds) -> bool:
    """Whether `0 <= rest < divisor` can be proved."""
    slack = divisor - 1 - upper(rest, bounds)
    return nonnegative(lower(rest, bounds)) and nonnegative(slack)


def _atom_within(atom: Atom, bounds: Bounds) -> Expr:
    if atom.kind not in ("floordiv", "mod"):
        return Expr((((atom,), 1),))
    left, right = atom.operands
    return (floordiv if atom.kind == "floordiv" else mod)(within(left, bounds), right, bounds)


def _positive(monomial: Monomial) -> bool:
    return all(atom.kind == "var" or _atom_nonnegative(atom) for atom in monomial)


def _atom_nonnegative(atom: Atom) -> bool:
    left, right = atom.operands
    if atom.kind == "max":
        return nonnegative(left) or nonnegative(right)
    if atom.kind in ("mod", "element"):
        return True
    return nonnegative(left) and nonnegative(right)


def _extreme(value: Expr, bounds: Bounds, largest: bool) -> Expr:
    products = []
    for monomial, factor in value.terms:
        up = (factor > 0) == largest
        product = const(factor)
        for atom in monomial:
            product = product * _extreme_atom(atom, bounds, up)
        products.append(product)
    return expression.total(products)


def _extreme_atom(atom: Atom, bounds: Bounds, up: bool) -> Expr:
    if atom.kind == "var":
        if atom.name not in bounds:
            return var(atom.name)
        return bounds[atom.name] if up else ZERO
    left, right = atom.operands
    if atom.kind == "floordiv":
        return expression.floordiv(_extreme(left, bounds, up), right)
    if atom.kind in ("mod", "element"):
        return right - 1 if up else ZERO
    return apply(atom.kind, _extreme(left, bounds, up), _extreme(right, bounds, up))
