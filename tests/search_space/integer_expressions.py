"""Random index expressions, each with the Python function it stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from tilesmith.search_space.expressions.expression import Expr, const, maximum, minimum, var

NAMES = ("i", "j", "k", "n")
Values = dict[str, int]


@dataclass(frozen=True)
class Pair:
    """An expression and the Python function it stands for."""

    expression: Expr
    function: Callable[[Values], int]


def _leaf() -> st.SearchStrategy[Pair]:
    names = st.sampled_from(NAMES).map(lambda n: Pair(var(n), lambda v: v[n]))
    return names | st.integers(-20, 20).map(lambda c: Pair(const(c), lambda _: c))


def _grow(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    two = st.tuples(inner, inner)
    scaled = st.tuples(inner, st.integers(-6, 6))
    divided = st.tuples(inner, st.integers(1, 9))
    return st.one_of(
        two.map(lambda p: Pair(p[0].expression + p[1].expression,
                               lambda v: p[0].function(v) + p[1].function(v))),
        two.map(lambda p: Pair(p[0].expression - p[1].expression,
                               lambda v: p[0].function(v) - p[1].function(v))),
        scaled.map(lambda p: Pair(p[0].expression * p[1], lambda v: p[0].function(v) * p[1])),
        divided.map(lambda p: Pair(p[0].expression // p[1], lambda v: p[0].function(v) // p[1])),
        divided.map(lambda p: Pair(p[0].expression % p[1], lambda v: p[0].function(v) % p[1])),
        two.map(lambda p: Pair(minimum(p[0].expression, p[1].expression),
                               lambda v: min(p[0].function(v), p[1].function(v)))),
        two.map(lambda p: Pair(maximum(p[0].expression, p[1].expression),
                               lambda v: max(p[0].function(v), p[1].function(v)))),
    )  # fmt: skip


pairs = st.recursive(_leaf(), _grow, max_leaves=8)
environments = st.fixed_dictionaries({name: st.integers(0, 40) for name in NAMES})
