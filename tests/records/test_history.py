"""A workload over versions and machines, on every kind of database."""

from __future__ import annotations

from tilesmith.records import Database, TuningRecord
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config

KEY = "matmul m=8 n=8 k=8"


def _trial(seconds: float | None, tile: int, **more: object) -> TuningRecord:
    result = MeasureResult("crash", "hardware", message="it died")
    if seconds is not None:
        result = MeasureResult("ok", "hardware", (seconds,))
    return TuningRecord(KEY, "cpu-1", Config.of(m_tile=tile), result, **more)  # type: ignore[arg-type]


def test_chapters_are_told_in_time_each_of_one_machine_and_set_of_versions(
    database: Database, versions: tuple, at
) -> None:
    now, then = versions
    database.add([
        _trial(3e-5, 1, toolchain=then, created_at=at(1)),
        _trial(2e-5, 2, toolchain=then, created_at=at(2), input_layout="NCHW16c"),
        _trial(None, 3, toolchain=then, created_at=at(3)),
        _trial(4e-5, 2, toolchain=now, created_at=at(4)),
        _trial(1e-5, 2, toolchain=now, created_at=at(5), threads=2),
        _trial(None, 2, toolchain=now, created_at=at(6), threads=3),
    ])  # fmt: skip
    first, second, third = database.history(KEY)
    assert (first.best.latency, first.best.stale, first.trials) == (2e-5, True, 3)
    assert (first.since, first.until) == (at(1), at(3))
    assert (second.best.latency, second.best.stale) == (4e-5, False), "none is overruled"
    assert third.best.record.threads == 2, "three threads never worked"
    assert [one.best.record.threads for one in database.history(KEY, threads=2)] == [2]
    assert database.history(KEY, "other") == [] == database.history("matmul m=1 n=1 k=1")


def test_bests_of_other_versions_are_asked_apart(database: Database, versions: tuple, at) -> None:
    now, then = versions
    database.add([
        _trial(1e-5, 1, toolchain=then, created_at=at(1)),
        _trial(2e-5, 2, toolchain=now, created_at=at(2)),
    ])  # fmt: skip
    for stale, latency in ((True, 1e-5), (False, 2e-5), (None, 2e-5)):
        (best,) = database.overview(stale=stale)
        assert best.latency == latency
