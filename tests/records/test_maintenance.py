"""Checking, measuring again and pruning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import text

from tilesmith.records.upkeep.maintenance import Pruning
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config


def rng():
    return np.random.default_rng(0)


def again(latency):
    """A measuring function: every record now takes `latency` seconds (None: it crashes)."""
    ok = latency is not None

    def measure(records):
        result = MeasureResult("ok" if ok else "crash", "hardware", (latency,) if ok else ())
        return [
            replace(record, result=result, toolchain=None, host="", created_at=None, id=None)
            for record in records
        ]

    return measure


def test_verify_reports_drift_and_writes_only_when_healing(database, key, target, make_record):
    database.add([make_record(1, 1e-3), make_record(2, 2e-3)])
    (drift,) = database.verify(again(1.5e-3), rng())
    assert drift.best.latency == 1e-3 and drift.ratio == 1.5
    assert drift.exceeds(0.4) and not drift.exceeds(0.6)
    assert database.stats()["trials"] == 2
    database.verify(again(3e-3), rng(), heal=True)
    assert database.best(key, target).record.config == Config.of(tile=2)
    (drift,) = database.verify(again(None), rng(), heal=True)
    assert drift.ratio is None and drift.exceeds(10.0)
    assert database.best(key, target).latency == 3e-3
    assert [r.config for r in database.quarantined(key, target)] == [Config.of(tile=2)]


def test_healing_a_stale_record_makes_it_fresh(database, key, target, make_record, versions):
    _, old = versions
    database.add([make_record(1, 1e-3, toolchain=old)])
    assert database.best(key, target).stale
    (drift,) = database.verify(again(1.1e-3), rng(), heal=True)
    assert drift.best.stale
    best = database.best(key, target)
    assert not best.stale and best.latency == 1.1e-3


def test_verify_takes_stale_records_first_then_a_seeded_sample(database, make_record, versions):
    _, old = versions
    keys = [f"matmul m={m} n=8 k=8" for m in range(1, 9)]
    database.add(
        make_record(1, workload=key, toolchain=old if key == keys[5] else None) for key in keys
    )
    samples = [
        [d.best.record.workload_key for d in database.verify(again(1e-3), rng(), count=3)]
        for _ in range(2)
    ]
    assert samples[0] == samples[1] and len(set(samples[0])) == 3
    assert samples[0][0] == keys[5]
    assert len(database.verify(again(1e-3), rng(), count=None)) == 8
    assert database.verify(again(1e-3), rng(), target="trn1") == []


def test_check_finds_broken_invariants(database, make_record):
    database.add([make_record(1), make_record(2), make_record(2, status="crash")])
    assert database.check() == []
    with database.writing() as connection:
        connection.execute(text("UPDATE trials SET latest = TRUE"))
    assert database.check() == ["1 configurations have no last word, or several"]
    with database.writing() as connection:
        connection.execute(text("UPDATE trials SET latest = FALSE WHERE id = 2"))
        connection.execute(text("UPDATE trials SET latency_s = 1.0 WHERE status = 'crash'"))
    assert database.check() == ["1 trials have a latency but failed, or none but are ok"]


def test_check_finds_references_to_nothing(sqlite, make_record):
    sqlite.add([make_record(1)])
    with sqlite._engine.connect() as connection:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
        connection.exec_driver_sql("DELETE FROM toolchains")
    assert any("points to nothing in 'toolchains'" in fault for fault in sqlite.check())


@pytest.fixture
def full(database, make_record, at, versions):
    """Two series of ten, a crash, a trial measured twice, and stale ones of two workloads."""
    _, old = versions
    database.add(
        make_record(tile, tile * 1e-3, measured_by=by, created_at=at(tile))
        for by in ("hardware", "simulator")
        for tile in range(1, 11)
    )
    database.add([make_record(11, status="crash", created_at=at(1))])
    database.add([make_record(10, 11e-3, created_at=at(30))])
    database.add(
        make_record(1, 5e-4, workload=key, toolchain=old, created_at=at(0))
        for key in ("matmul m=64 n=64 k=64", "matmul m=1 n=1 k=1")
    )
    assert database.rows() == 24
    return database


def kept(database):
    return sorted(
        (r.workload_key, r.result.measured_by, r.config["tile"], r.latency)
        for r in database.query(limit=None)
    )


def test_prune_keeps_the_fastest_and_the_quarantine(full, key, target):
    before = full.best(key, target)
    assert full.prune(Pruning(keep=2)) == 24 - 2 - 2 - 1 - 2
    assert full.best(key, target) == before
    assert len(full.quarantined()) == 1 and full.check() == []
    assert [r.config["tile"] for r in full.top(key, target, measured_by="simulator")] == [1, 2]


def test_prune_removes_stale_trials_only_where_there_are_fresh_ones(full, target):
    assert full.prune(Pruning(stale=True)) == 1
    assert full.best("matmul m=1 n=1 k=1", target).stale
    assert full.rows() == 23


def test_prune_removes_what_was_measured_again(full):
    assert full.prune(Pruning(superseded=True)) == 1
    assert ("matmul m=64 n=64 k=64", "hardware", 10, 10e-3) not in kept(full)
    assert ("matmul m=64 n=64 k=64", "hardware", 10, 11e-3) in kept(full)


def test_prune_by_age_spares_the_fastest_of_each_series(full, key, target, at):
    removed = full.prune(Pruning(before=at(6)))
    assert removed == 4 + 4
    assert full.best(key, target).latency == 1e-3 and len(full.quarantined()) == 1
    assert full.check() == []


def test_pruning_a_workload_away_leaves_no_row_behind(database, make_record, versions):
    _, old = versions
    database.add([make_record(1, toolchain=old)])
    database.add([make_record(2)])
    database.prune(Pruning(stale=True))
    with database.reading() as connection:
        for table in ("series", "toolchains"):
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar() == 1
    assert database.check() == []


def test_pruning_gives_space_back(sqlite, make_record):
    sqlite.add(make_record(tile, status="wrong", message="x" * 1000) for tile in range(500))
    before = sqlite.stats()["bytes"]
    assert sqlite.prune(Pruning(keep=1)) == 500
    assert sqlite.stats()["bytes"] < before / 3
