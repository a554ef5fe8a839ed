"""Formulas of numbers seen at several sizes: 119, 247, 559 at 7x17, 13x19, 13x43 is batch*sequence.

A model compiled at several sizes has the same nodes with other numbers in them. `fit` finds the
simplest formula that gives every one of them: a number, a product, a sum of at most two products
and a number, a quotient rounded down, or a product of what is known of neighbouring tensors.

Invariants: a formula gives every number it was found from; of those that do, the order of trying
is the order of simplicity, so that the same numbers have the same formula everywhere. Formulas
are guesses until they are checked at sizes they were not found from, which is the caller's part.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, combinations_with_replacement

from tilesmith.search_space.expressions.expression import ONE, Expr, const, floordiv, var

Point = Mapping[str, int]
"""A value of every size, by name."""

STEPS = 32
"""Strides that are expected where nothing else is known."""

_DIVISORS = range(2, 129)
"""Strides (and patches) of windows that are looked for."""

_DEGREE = 4
"""Most sizes in a product: batch * sequence * sequence, and one to spare."""


class Fitter:
    """Finds formulas of numbers seen at some points.

    Args:
        points: where the numbers were seen, in the order in which `fit` takes them.
        names: the sizes that vary.
        known: formulas that are checked already; they come first.

    Attributes:
        unsure: sizes of quotients of which the points leave several possible, and the largest
            divisor of each.
    """

    def __init__(
        self, points: Sequence[Point], names: Sequence[str], known: Iterable[Expr] = ()
    ) -> None:
        self.points = tuple(points)
        self.names = tuple(names)
        self.unsure: dict[str, int] = {}
        self._known: dict[tuple[int, ...], Expr] = {}
        self._products = list(self._with_values(_products(names)))
        for formula, numbers in self._with_values(dict.fromkeys(known)):
            self._known.setdefault(numbers, formula)

    def fit(self, values: Sequence[int], near: Iterable[Expr] = ()) -> Expr | None:
        """The simplest formula of `values`, one for each point; None where none is found.

        Args:
            near: formulas that it may be a product or a quotient of, such as extents of the
                tensors that a node reads and writes.
        """
        seen = tuple(values)
        if len(set(seen)) == 1:
            return const(seen[0])
        if seen not in self._known:
            formula = self._find(seen, list(self._with_values(dict.fromkeys(near))))
            if formula is None:
                return None
            self._known[seen] = formula
        return self._known[seen]

    def _with_values(self, formulas: Iterable[Expr]) -> Iterator[tuple[Expr, tuple[int, ...]]]:
        for formula in formulas:
            if formula.constant is None:
                yield formula, tuple(int(formula.evaluate(point)) for point in self.points)

    def _find(self, seen: tuple[int, ...], near: list[tuple[Expr, tuple[int, ...]]]) -> Expr | None:
        for base, numbers in (*self._products, *near):
            if (formula := _multiple(seen, base, numbers)) is not None:
                return formula
        for base, numbers in (*self._products, *near):
            if (formula := _line(seen, base, numbers)) is not None:
                return formula
        for terms in combinations([p for p in self._products if len(p[0].terms[0][0]) < 4], 2):
            if (formula := _plane(seen, terms)) is not None:
                return formula
        if (formula := _product_of(seen, near)) is not None:
            return formula
        for base, numbers in (*near, *self._products):
            ends = _quotient(seen, numbers)
            if ends is not None:
                divisor, low, high = ends
                if low < high:
                    for name in base.variables():
                        self.unsure[name] = max(divisor, self.unsure.get(name, 0))
                return floordiv(base + low, const(divisor))
        return None


def text_of(point: Point) -> str:
    """For messages: 'batch=2, sequence=17'."""
    return ", ".join(f"{name}={value}" for name, value in point.items())


def _products(names: Sequence[str]) -> list[Expr]:
    """Products of sizes, the short ones first."""
    products = []
    for degree in range(1, _DEGREE + 1):
        for chosen in combinations_with_replacement(names, degree):
            product = ONE
            for name in chosen:
                product = product * var(name)
            products.append(product)
    return products


def _multiple(seen: Sequence[int], base: Expr, numbers: Sequence[int]) -> Expr | None:
    if not numbers[0] or seen[0] % numbers[0]:
        return None
    factor = seen[0] // numbers[0]
    fits = all(value == factor * number for value, number in zip(seen, numbers, strict=True))
    return const(factor) * base if fits else None


def _line(seen: Sequence[int], base: Expr, numbers: Sequence[int]) -> Expr | None:
    """factor * base + offset; three points at least have to agree."""
    other = next((i for i, n in enumerate(numbers) if n != numbers[0]), 0)
    if len(seen) < 3 or not other:
        return None
    factor, rest = divmod(seen[other] - seen[0], numbers[other] - numbers[0])
    if rest:
        return None
    offset = seen[0] - factor * numbers[0]
    fits = all(v == factor * n + offset for v, n in zip(seen, numbers, strict=True))
    return const(factor) * base + offset if fits else None


def _plane(seen: Sequence[int], terms: Sequence[tuple[Expr, tuple[int, ...]]]) -> Expr | None:
    """a * one + b * two + offset; four points at least have to agree."""
    if len(seen) < 4:
        return None
    (one, x), (two, y) = terms
    first, second = (_differences(n) for n in (x, y))
    value = _differences(seen)
    for i, j in combinations(range(len(value)), 2):
        determinant = first[i] * second[j] - first[j] * second[i]
        if determinant:
            break
    else:
        return None
    a = Fraction(value[i] * second[j] - value[j] * second[i], determinant)
    b = Fraction(first[i] * value[j] - first[j] * value[i], determinant)
    if a.denominator != 1 or b.denominator != 1 or not a or not b:
        return None
    offset = seen[0] - int(a) * x[0] - int(b) * y[0]
    fits = all(v == int(a) * p + int(b) * q + offset for v, p, q in zip(seen, x, y, strict=True))
    return const(int(a)) * one + const(int(b)) * two + offset if fits else None


def _differences(numbers: Sequence[int]) -> list[int]:
    return [number - numbers[0] for number in numbers[1:]]


def _quotient(seen: Sequence[int], numbers: Sequence[int]) -> tuple[int, int, int] | None:
    """Divisor, and the least and greatest offset, of (base + offset) // divisor: extents behind
    windows that are moved in steps."""
    for divisor in _DIVISORS:
        low = max(v * divisor - n for v, n in zip(seen, numbers, strict=True))
        high = min(v * divisor + divisor - 1 - n for v, n in zip(seen, numbers, strict=True))
        if low <= high:
            return divisor, low, high
    return None


def _product_of(seen: Sequence[int], near: Sequence[tuple[Expr, tuple[int, ...]]]) -> Expr | None:
    """A multiple of a product of two to four of `near`."""
    for count in (2, 3, 4):
        for chosen in combinations_with_replacement(near[:8], count):
            product, numbers = ONE, [1] * len(seen)
            for formula, values in chosen:
                product = product * formula
                numbers = [n * v for n, v in zip(numbers, values, strict=True)]
            if (multiple := _multiple(seen, product, numbers)) is not None:
                return multiple
    return None
