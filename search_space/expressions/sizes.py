"""`Size`: a number that is known only when a kernel runs, and what is written of such numbers.

    Size("batch", 1, 64)                      # 1 to 64, both included
    matmul m=[batch*sequence] n=768 k=768     # a workload whose m is a product of two sizes

An extent is a number, or a formula over names of sizes (`expression.Expr`), in brackets where it
stands in a workload's text: sums, products, `//`, `%`, `min(a,b)` and `max(a,b)`, without blanks.

Invariants: a size is at least 1; an extent has one text, `parse_extent(extent_text(e)) == e`.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilesmith.search_space.expressions.expression import (
    Atom,
    Expr,
    ExprLike,
    apply,
    as_expr,
    const,
    floordiv,
    maximum,
    minimum,
    mod,
    var,
)
from tilesmith.search_space.support.errors import WorkloadError

MOST = 1 << 31
"""Largest size there may be."""


class Axes(tuple["int | tuple[int, int]", ...]):
    """The extents of a tensor's axes, one each; two extents are not read as the ends of a range."""


_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_PART = re.compile(r"\[[^\[\]]*\]|[^x\[\]]+")


@dataclass(frozen=True)
class Size:
    """A number from `low` to `high`, both included, that varies from run to run.

    Raises:
        WorkloadError: the name is no identifier, or the range is empty or begins below 1.
    """

    name: str
    low: int
    high: int

    def __post_init__(self) -> None:
        if not is_size_name(self.name):
            raise WorkloadError(
                f"'{self.name}' is no name of a size; letters, digits and _ are allowed, "
                "but for 'min' and 'max'"
            )
        if not 1 <= self.low <= self.high <= MOST:
            raise WorkloadError(
                f"size '{self.name}' cannot be {self.low} to {self.high}; a range from at least 1 "
                f"to at most {MOST} is allowed"
            )

    def __str__(self) -> str:
        return f"{self.name}={self.low}..{self.high}"


def is_size_name(text: str) -> bool:
    """Whether a size may be called so."""
    return _NAME.fullmatch(text) is not None and text not in ("min", "max")


# -- text -------------------------------------------------------------------------------------
def extent_text(extent: ExprLike) -> str:
    """How an extent is written in a workload: '12', or '[batch*sequence]'."""
    extent = as_expr(extent)
    if extent.constant is not None:
        return str(extent.constant)
    return f"[{str(extent).replace(' ', '')}]"


def parse_extent(text: str) -> Expr:
    """Read an extent, with or without its brackets.

    Raises:
        WorkloadError: it is no number or formula of sizes.
    """
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        extent = _of_tree(ast.parse(inner, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        extent = None
    if extent is None:
        raise WorkloadError(
            f"'{text}' is no extent; numbers, sizes, + - * // %, min(a,b) and max(a,b) are allowed"
        )
    return extent


def extent_parts(text: str) -> list[str]:
    """The parts of a shape's text, '[batch]x12' as '[batch]' and '12'; `ValueError` if it is none.

    An 'x' inside brackets is part of a name.
    """
    parts = _PART.findall(text)
    if "x".join(parts) != text:
        raise ValueError(text)
    return parts


def _of_tree(node: ast.AST) -> Expr | None:
    match node:
        case ast.Constant(value) if type(value) is int and abs(value) <= MOST * MOST:
            return const(value)
        case ast.Name(name) if is_size_name(name):
            return var(name)
        case ast.UnaryOp(ast.USub(), operand):
            inner = _of_tree(operand)
            return None if inner is None else -inner
        case ast.BinOp(left, operator, right):
            return _operation(type(operator), _of_tree(left), _of_tree(right))
        case ast.Call(ast.Name("min" | "max" as name), [left, right], []):
            return _operation(name, _of_tree(left), _of_tree(right))
    return None


def _operation(kind: Any, left: Expr | None, right: Expr | None) -> Expr | None:
    if left is None or right is None:
        return None
    if kind in (ast.FloorDiv, ast.Mod) and right.constant is not None and right.constant < 1:
        return None
    operations = {
        ast.Add: lambda: left + right,
        ast.Sub: lambda: left - right,
        ast.Mult: lambda: left * right,
        ast.FloorDiv: lambda: floordiv(left, right),
        ast.Mod: lambda: mod(left, right),
        "min": lambda: minimum(left, right),
        "max": lambda: maximum(left, right),
    }
    return operations[kind]() if kind in operations else None


# -- values -----------------------------------------------------------------------------------
def limits(extent: ExprLike, sizes: Iterable[Size]) -> tuple[int, int]:
    """(least, greatest) of an extent while the sizes stay in their ranges; never too tight.

    Raises:
        WorkloadError: a size of it has no range.
    """
    ranges = {size.name: (size.low, size.high) for size in sizes}
    return _limits(as_expr(extent), ranges)


def _limits(extent: Expr, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    low = high = 0
    for monomial, factor in extent.terms:
        ends = (factor, factor)
        for atom in monomial:
            ends = _product(ends, _atom_limits(atom, ranges))
        low, high = low + ends[0], high + ends[1]
    return low, high


def _product(one: tuple[int, int], two: tuple[int, int]) -> tuple[int, int]:
    corners = [a * b for a in one for b in two]
    return min(corners), max(corners)


def _atom_limits(atom: Atom, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    if atom.kind == "var":
        if atom.name not in ranges:
            raise WorkloadError(f"size '{atom.name}' has no range")
        return ranges[atom.name]
    left, right = (_limits(operand, ranges) for operand in atom.operands)
    if atom.kind == "mod":
        return left if left[0] >= 0 and left[1] < right[0] else (0, right[1] - 1)
    if atom.kind == "floordiv":
        divisors = [max(1, end) for end in right]
        corners = [a // b for a in left for b in divisors]
        return min(corners), max(corners)
    ends = [apply(atom.kind, const(a), const(b)) for a, b in zip(left, right, strict=True)]
    return ends[0].constant or 0, ends[1].constant or 0


def samples(sizes: Sequence[Size], tiles: Iterable[int] = ()) -> Iterator[dict[str, int]]:
    """Values of all sizes where code for ranges is most likely wrong: the ends, small numbers,
    primes, and multiples of `tiles` with their neighbours, all sizes at once and apart."""
    wanted = [1, 2, 3, 5, 7, 13, 17, 31, 37]
    for tile in tiles:
        wanted += [tile - 1, tile, tile + 1, 2 * tile + 1]
    lists = [
        sorted({size.low, size.high, *(v for v in wanted if size.low <= v <= size.high)})
        for size in sizes
    ]
    for step in range(max(map(len, lists), default=0)):
        yield {
            s.name: v[(step * (2 * i + 1) + i) % len(v)]
            for i, (s, v) in enumerate(zip(sizes, lists, strict=True))
        }
