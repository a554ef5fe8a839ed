"""Proofs about index ranges against counting every iteration."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesmith.search_space.expressions.expression import Expr, const, maximum, minimum, var
from tilesmith.search_space.ir.verification.bounds import Surroundings


@st.composite
def nests(draw: st.DrawFn) -> tuple[list[tuple[str, Expr]], Expr, tuple[Expr, ...]]:
    """Up to four loops with tails, a goal and perhaps a condition."""
    loops: list[tuple[str, Expr]] = []
    total, factor = const(0), 1
    extent = draw(st.integers(1, 30))
    for depth in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 6))
        outer, inner = f"o{depth}", f"i{depth}"
        loops += [
            (outer, const(-(-extent // size))),
            (inner, minimum(size, extent - var(outer) * size)),
        ]
        total = total + (var(outer) * size + var(inner)) * factor
        factor = draw(st.sampled_from((1, 2, -1, 3)))
        extent = draw(st.integers(1, 8))
    slack = draw(st.integers(-3, 60))
    goal = draw(
        st.sampled_from((
            slack - total, total + slack, slack - total // 3, total // 4 + slack,
            slack - total % 5, total % 3 - slack, minimum(total, slack), slack - maximum(total, 4),
            slack * 2 - (total // 4) * 2, (total // 3) * 3 + slack - total,
        ))
    )  # fmt: skip
    fact = draw(st.integers(-5, 25)) - total
    return loops, goal, draw(st.sampled_from(((), (fact,), (total - 3,))))


def _points(loops: list[tuple[str, Expr]]) -> list[dict[str, int]]:
    points: list[dict[str, int]] = [{}]
    for name, extent in loops:
        points = [
            {**point, name: i}
            for point in points
            for i in range(max(0, int(extent.evaluate(point))))
        ]
    return points


@given(nests())
def test_what_is_proved_holds_and_what_holds_is_found(
    nest: tuple[list[tuple[str, Expr]], Expr, tuple[Expr, ...]],
) -> None:
    loops, goal, facts = nest
    around = Surroundings()
    for name, extent in loops:
        around = around.inside(name, extent)
    around = around.knowing(facts)
    reached = [p for p in _points(loops) if all(f.evaluate(p) >= 0 for f in facts)]
    true = all(goal.evaluate(point) >= 0 for point in reached)
    if around.proves(goal):
        assert true
    assert around.holds(goal) == true or not reached


def test_symbols_are_at_least_one() -> None:
    f, i, j = var("f"), var("i"), var("j")
    around = Surroundings().inside("i", f).inside("j", minimum(f, 10 - i * f))
    assert around.proves(f - 1 - i)
    assert around.proves(9 - i * f - j)
    assert not around.proves(f - 2 - i)
    assert not around.holds(8 - i * f - j)


def test_what_is_known_of_a_remainder_is_used() -> None:
    around = Surroundings().inside("i", const(16)).knowing((6 - var("i") % 8,))
    assert around.proves(6 - var("i") % 8) and around.proves(9 - var("i") % 8)
    assert not around.proves(5 - var("i") % 8)


def test_large_nests_are_counted_at_their_corners() -> None:
    names = [f"v{n}" for n in range(6)]
    around = Surroundings()
    for name in names:
        around = around.inside(name, const(50))
    total = sum((var(name) for name in names), const(0))
    product = var("v0") * var("v1")
    assert around.holds(49 * 49 + total - product)
    assert not around.holds(49 * 49 - 1 + var("v2") - product)
    assert not around.holds(total // 7 - total + 6 * 49 - 50)


def test_counting_respects_empty_loops() -> None:
    around = Surroundings().inside("i", const(3)).inside("j", var("i"))
    values = [i - 1 - j for i, j in itertools.product(range(3), range(3)) if j < i]
    assert around.holds(var("i") - 1 - var("j")) == (min(values) >= 0)


def test_no_proof_is_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two facts lead to the same expressions by several ways."""
    tried: list[object] = []
    step = Surroundings._proved

    def counted(around: Surroundings, expression: Expr, facts: tuple[Expr, ...]) -> bool:
        tried.append((id(around), expression, facts))
        return step(around, expression, facts)

    monkeypatch.setattr(Surroundings, "_proved", counted)
    i, j, k = var("i"), var("j"), var("k")
    around = Surroundings()
    for name in ("i", "j", "k"):
        around = around.inside(name, minimum(4, 30 - var("n")))
    around = around.knowing((5 - i - j, 5 - j - k))
    goal = minimum(9 - i - j, 9 - j - k) - minimum(i, k) // 4
    assert not around.proves(goal - 20)
    assert not around.proves(goal - 20)
    assert len(tried) == len(set(tried))
