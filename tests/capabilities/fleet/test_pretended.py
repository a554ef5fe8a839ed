"""`python -m benchmarks.fleet`, small: pretended workers that straggle and die, a real database."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

pytest.importorskip("ray", reason="Ray is not installed")

from benchmarks.fleet import PARTS, Asked, pretended
from benchmarks.subjects.pretended import Fate

pytestmark = pytest.mark.extra

FATE = Fate(trial_s=0.002, dying=1 / 8, dies_s=0.1)


def trials(path: Path) -> list[tuple[str, ...]]:
    engine = create_engine(f"sqlite:///{path}")
    asked = text("SELECT series_id, config, samples FROM trials ORDER BY id")
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(asked)]
    engine.dispose()
    return found


def test_any_number_of_workers_finds_the_same_and_nothing_is_lost_or_twice(tmp_path: Path) -> None:
    asked = Asked(in_flight=6, fate=FATE)
    found = {}
    for workers in (1, 16):
        path = tmp_path / f"{workers}.db"
        figures = pretended(workers, 400, str(path), asked)
        assert figures.is_exact and figures.distinct == 400
        assert figures.died == round(workers / 8)
        assert set(PARTS) < set(figures.parts_ms)
        found[workers] = trials(path)
    assert found[1] == found[16]


def test_what_is_in_the_database_is_counted_by_sql(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    figures = pretended(4, 60, str(path), Asked(in_flight=2, fate=FATE))
    rows = trials(path)
    assert (figures.rows, figures.distinct) == (len(rows), len({row[:2] for row in rows}))
