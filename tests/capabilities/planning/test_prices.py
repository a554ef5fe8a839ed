"""Prices as data, and fronts against an exhaustive comparison."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesmith.capabilities.planning.sweeps.prices import load_prices, usd_per_million
from tilesmith.search_space.support.errors import InputError
from tilesmith.simulator.designs.fronts import front


def test_shipped_prices_say_where_and_when_they_are_from() -> None:
    found = load_prices()
    assert {"trn1.32xlarge", "inf2.48xlarge", "trn2.48xlarge"} <= set(found)
    assert all(price.source and price.date and price.trust for price in found.values())


def test_a_file_of_ones_own_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(
        '["trn1.32xlarge"]\nusd_per_hour = 10\n[mine]\nusd_per_hour = 2.5\ndate = 2026-01-01\n'
    )
    found = load_prices(file)
    assert found["trn1.32xlarge"].usd_per_hour == 10
    assert found["mine"].date == "2026-01-01"
    assert found["inf2.xlarge"] == load_prices()["inf2.xlarge"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[mine]\nusd_per_hour = 0\n", "above 0"),
        ("[mine]\nusd_per_hour = true\n", "above 0"),
        ("[mine]\nusd_per_hour = nan\n", "above 0"),
        (f"[mine]\nusd_per_hour = 1{'0' * 400}\n", "at most 1,000,000"),
        ('[mine]\nusd_per_hour = 1\nwho = "me"\n', "unknown key 'who'"),
        ("mine = 3\n", "'mine' is not a table"),
        ("[mine\n", "cannot be read"),
        ("a = " + "[" * 50_000, "cannot be read"),
    ],
)
def test_what_is_no_price_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        load_prices(file)


def test_a_million_tokens() -> None:
    assert usd_per_million(3.6, 1000.0) == pytest.approx(1.0)


POINTS = st.lists(
    st.tuples(*[st.one_of(st.integers(0, 4).map(float), st.just(float("inf")))] * 2), max_size=12
)


@given(POINTS)
def test_a_front_is_what_nobody_dominates(points: list[tuple[float, float]]) -> None:
    def dominated(a: tuple[float, float]) -> bool:
        return any(b != a and all(x <= y for x, y in zip(b, a, strict=True)) for b in points)

    finite = [n for n, p in enumerate(points) if max(p) < float("inf")]
    best = [n for n in finite if not dominated(points[n])]
    assert front(points) == [n for n in best if points[n] not in points[:n]]
