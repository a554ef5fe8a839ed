"""Polynomials as terms in order: sums and quotients, whatever their factors are.

A term is a monomial, a tuple of factors sorted by their keys, and its coefficient. Invariants of
what is returned: terms are sorted, the number last; none is there twice; no coefficient is zero.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import Protocol, TypeVar


class _Factor(Protocol):
    """What monomials are made of."""

    @property
    def sort_key(self) -> str:
        """Orders the factors of a monomial."""
        ...


F = TypeVar("F", bound=_Factor)
Terms = tuple[tuple[tuple[F, ...], int], ...]

_by_key = attrgetter("sort_key")


def collected(terms: Iterable[tuple[tuple[F, ...], int]]) -> Terms[F]:
    """The sum of terms in any order: 2*i + 1 + 3*i is 5*i + 1."""
    total: dict[tuple[F, ...], int] = {}
    for monomial, factor in terms:
        total[monomial] = total.get(monomial, 0) + factor
    kept = [(monomial, factor) for monomial, factor in total.items() if factor]
    if len(kept) > 1:
        kept.sort(key=_monomial_key)
    return tuple(kept)


def multiplied(left: Terms[F], right: Terms[F]) -> Terms[F]:
    """The product of two sums."""
    return collected((tuple(sorted(a + b, key=_by_key)), x * y) for a, x in left for b, y in right)


def divided(terms: Terms[F], divisor: tuple[tuple[F, ...], int]) -> tuple[Terms[F], Terms[F]]:
    """The quotient of the terms that one term divides, and the terms that it does not."""
    whole: list[tuple[tuple[F, ...], int]] = []
    rest: list[tuple[tuple[F, ...], int]] = []
    pattern, number = divisor
    for monomial, factor in terms:
        remaining = list(monomial)
        divisible = factor % number == 0
        for atom in pattern:
            if divisible and atom in remaining:
                remaining.remove(atom)
            else:
                divisible = False
        if divisible:
            whole.append((tuple(remaining), factor // number))
        else:
            rest.append((monomial, factor))
    return collected(whole), collected(rest)


def _monomial_key(term: tuple[tuple[_Factor, ...], int]) -> tuple[bool, tuple[str, ...]]:
    return (not term[0], tuple(map(_by_key, term[0])))
