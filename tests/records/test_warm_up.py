"""What a job learns from at its start: all of a little, a bounded and stable sample of much."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.records import Database
from tilesmith.records.learning import warm_up
from tilesmith.records.learning.warm_up import shares
from tilesmith.records.trials.record import config_digest


def _filled(database, make_record, count=60, seed=3):
    rng = np.random.default_rng(seed)
    records = [
        make_record(i, float(latency), status="compile" if i % 7 == 3 else "ok")
        for i, latency in enumerate(rng.lognormal(-9, 1, count))
    ]
    database.add(records)
    return records


def test_few_trials_are_all_known_oldest_first(database, make_record, key, target):
    records = _filled(database, make_record)
    database.add([make_record(5, 1e-9)])
    known = database.known(key, target, 1)
    assert [r.config["tile"] for r in known] == [*(i for i in range(60) if i != 5), 5]
    assert [r.result.status for r in known[:3]] == [r.result.status for r in records[:3]]
    assert (
        database.known(key, target, 2) == [] and database.known("matmul m=1 n=1 k=1", target) == []
    )


def test_of_many_the_fastest_and_those_of_lowest_digest(
    database, make_record, key, target, monkeypatch
):
    monkeypatch.setattr(warm_up.sample, "__defaults__", (20,))
    records = _filled(database, make_record)
    known = {r.config.key for r in database.known(key, target, 1)}
    working = sorted((r for r in records if r.latency is not None), key=lambda r: r.latency)
    digests = sorted(records, key=lambda r: config_digest(r.config))
    assert known == {r.config.key for r in (*working[:10], *digests[:10])}
    assert any(r.latency is None for r in database.known(key, target, 1)), "failures, too"


def test_a_resumed_job_finds_what_it_began_with(database, make_record, key, target, monkeypatch):
    monkeypatch.setattr(warm_up.sample, "__defaults__", (20,))
    _filled(database, make_record)
    job = database.start_job("tune", seed=0, strategy="random")
    first = database.known(key, target, 1, job=job)
    database.add([make_record(100 + i, 1e-9) for i in range(30)])
    database.add([make_record(200, 1e-9)], job=job)
    assert database.known(key, target, 1, job=job) == first
    assert database.known(key, target, 1) != first


def test_a_job_of_an_older_version_does_not_learn_from_itself(database, make_record, key, target):
    job = database.start_job("tune", seed=0, strategy="random")
    with database.writing() as connection:
        connection.exec_driver_sql("UPDATE jobs SET known_until = NULL")
    database.add([make_record(1)])
    database.add([make_record(2)], job=job)
    assert [r.config["tile"] for r in database.known(key, target, 1, job=job)] == [1]


@pytest.mark.parametrize("counts", [{1: 3, 2: 100, 3: 10}, {1: 1}, {}, {5: 7, 6: 7, 7: 7}])
def test_shares_are_even_and_nothing_is_left_unused(counts):
    given = shares(counts, 20)
    assert sum(given.values()) == min(20, sum(counts.values()))
    assert all(given[n] <= counts[n] for n in counts)
    cut = [given[n] for n in counts if given[n] < counts[n]]
    assert max(cut, default=0) - min(cut, default=0) <= 1


def test_no_more_rows_are_read_than_the_bound(sqlite: Database, make_record, key, target):
    """SQLite counts the steps of its machine: of ten times the trials they must not be more."""

    def steps() -> int:
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        with sqlite.reading() as connection:
            driver = connection.connection.driver_connection
            driver.set_progress_handler(step, 100)
            warm_up.sample(connection, [1], None, 20)
            driver.set_progress_handler(None, 0)
        return count

    _filled(sqlite, make_record, 300)
    few = steps()
    sqlite.add([make_record(1000 + i, 1e-3 + i * 1e-6) for i in range(3000)])
    assert steps() <= 2 * few
