"""Jobs with workers, on a real Ray of their own: the same trials, however many there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from trials import rows

import tilesmith as ts
from tilesmith.api import tune
from tilesmith.jobs import extras
from tilesmith.search_space.errors import DependencyError, InputError

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


def test_a_replay_needs_no_workers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a replay looks results up"):
        tune([ts.Workload.parse(WORKLOAD)], "trn1", tmp_path / "x.db", measure="replay", workers=2)


def test_without_ray_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"pip install 'tilesmith\[ray\]'"):
        tuned(tmp_path / "x.db", 2)


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(InputError, match=r"no Ray cluster answers at 'ray://127\.0\.0\.1:1'"):
        tuned(tmp_path / "x.db", "ray://127.0.0.1:1")
