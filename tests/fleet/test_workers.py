"""Jobs with workers, on a real Ray of their own: the same trials, however many there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from trials import rows

import tilesmith as ts
from tilesmith.api import tune
from tilesmith.search_space.errors import InputError

WORKLOAD = "matmul m=64 n=64 k=64"


def tuned(path: Path, workers: str | int | None) -> list[str]:
    tune(
        [ts.Workload.parse(WORKLOAD)],
        "trn1",
        path,
        trials=40,
        measure="simulator",
        in_flight=2,
        workers=workers,
    )
    return rows(path)


def test_workers_make_the_same_trials(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    assert tuned(tmp_path / "two.db", 2) == tuned(tmp_path / "none.db", None)


@pytest.mark.parametrize("workers", ["0", "-1", "two", "ray://host", "http://host:1"])
def test_what_workers_cannot_be_is_said(tmp_path: Path, workers: str) -> None:
    with pytest.raises(InputError, match=rf"workers = '{workers}' is not understood"):
        tuned(tmp_path / "x.db", workers)
    assert not (tmp_path / "x.db").exists()
