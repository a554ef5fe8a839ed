"""Merging many databases: what won, in any order of the sources, on every server."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from tilesmith.records import Database

KEYS = [f"matmul m={m} n=8 k=8" for m in (1, 2, 3)]


def _source(path, empty_file, make_record, at, seed, versions):
    """Trials that partly agree, partly contradict the other sources' and share their moments."""
    rng = np.random.default_rng(seed)
    now, then = versions
    database = Database.open(str(shutil.copy(empty_file, path)), toolchain=now)
    job = database.start_job(f"tune {seed}", seed=seed, strategy="random")
    trials = []
    for i in range(60):
        simulated = i % 3 == 0
        tile = int(rng.integers(1, 8))
        latency = tile * 1e-6 if simulated else float(rng.choice([1e-6, 2e-6, 3e-6])) * tile
        record = make_record(
            tile,
            latency,
            workload=KEYS[i % 3],
            status="crash" if rng.random() < 0.2 else "ok",
            measured_by="simulator" if simulated else "hardware",
            created_at=at(int(rng.integers(0, 5))),
            host=f"h{rng.integers(0, 2)}",
            toolchain=then if i % 7 == 0 else None,
        )
        machine = "" if simulated else f"{record.host}-1"
        trials.append(replace(record, result=replace(record.result, machine=machine)))
    database.add(trials, job=job)
    return database


@pytest.fixture
def sources(tmp_path, empty_file, make_record, at, versions):
    opened = [
        _source(tmp_path / f"source{seed}.db", empty_file, make_record, at, seed, versions)
        for seed in range(3)
    ]
    yield opened
    for database in opened:
        database.close()


def _bests(database):
    return [
        (b.record.workload_key, b.record.config, b.latency, b.record.host, b.stale_because)
        for b in database.overview()
    ]


def test_the_order_of_the_sources_changes_nothing(sources, tmp_path, empty_file, versions):
    outcomes = []
    for number, order in enumerate(permutations(sources)):
        path = shutil.copy(empty_file, tmp_path / f"merged{number}.db")
        with Database.open(str(path), toolchain=versions[0]) as merged:
            report = merged.merge(*order)
            assert merged.check() == []
            rows = [replace(r, id=None) for r in merged.query(sort="oldest", limit=None)]
            jobs = [(job.command, job.host, job.owner) for job in merged.jobs()]
            outcomes.append((report, rows, [r.job for r in rows], jobs, _bests(merged)))
    assert all(outcome == outcomes[0] for outcome in outcomes[1:])
    report = outcomes[0][0]
    assert sum(each.added for each in report.sources.values()) == len(outcomes[0][1])
    assert any(each.conflict_count for each in report.sources.values())
    assert any(each.duplicates for each in report.sources.values())
    assert all(each.stale for each in report.sources.values())


def test_one_after_the_other_comes_to_the_same_bests(sources, tmp_path, empty_file, versions):
    """Simulated trials of one seed are the same but for their times, so hardware is compared."""
    found = []
    for number, order in enumerate(permutations(sources)):
        path = shutil.copy(empty_file, tmp_path / f"step{number}.db")
        with Database.open(str(path), toolchain=versions[0]) as merged:
            for source in order:
                merged.merge(source)
            found.append(_bests(merged))
    assert all(bests == found[0] for bests in found[1:])


def test_it_says_whose_schedule_is_best_and_by_how_much(
    database, tmp_path, empty_file, make_record, versions
):
    opened = []
    for name, latencies in {"a": (4e-6, 2e-6, None), "b": (1e-6, None, 7e-6)}.items():
        path = shutil.copy(empty_file, tmp_path / f"{name}.db")
        source = Database.open(str(path), toolchain=versions[0])
        source.add(
            make_record(ord(name), latency, workload=key)
            for key, latency in zip(KEYS, latencies, strict=True)
            if latency
        )
        opened.append(source)
    a, b = opened
    database.add([make_record(1, 2e-6, workload=KEYS[0]), make_record(1, 1e-6, workload=KEYS[1])])
    report = database.merge(a, b)
    told = {s.workload: (s.winner, s.gain, s.best.latency) for s in report.standings}
    assert told == {
        KEYS[0]: (b.name, 2.0, 1e-6),
        KEYS[1]: ("", 1.0, 1e-6),
        KEYS[2]: (b.name, None, 7e-6),
    }
    assert [s.workload for s in report.standings] == [KEYS[2], KEYS[0], KEYS[1]]
    assert report.wins() == {a.name: 0, b.name: 2}
    first = next(s for s in report.standings if s.workload == KEYS[0])
    assert {name: first.over(best) for name, best in first.theirs.items()} == {
        a.name: 4.0,
        b.name: 1.0,
    }
    again = database.merge(b, a)
    assert all(each.added == 0 for each in again.sources.values())
    assert again.wins() == {a.name: 0, b.name: 0}
    for source in opened:
        source.close()


def test_from_a_server_into_a_file_jobs_and_machines_are_kept(
    database, sources, tmp_path, empty_file, versions
):
    database.merge(*sources)
    path = shutil.copy(empty_file, tmp_path / "home.db")
    with Database.open(str(path), toolchain=versions[0]) as home:
        (report,) = home.merge(database).sources.values()
        assert report.added == len(database.query(limit=None)) == len(home.query(limit=None))
        assert list(home.export_lines()) == list(database.export_lines())
        assert _bests(home) == _bests(database)

        def told(opened):
            rows = opened.query(sort="oldest", limit=None)
            commands = {job.id: job.command for job in opened.jobs()}
            return sorted(
                (
                    r.workload_key,
                    str(r.config),
                    str(r.created_at),
                    r.result.machine,
                    commands[r.job],
                )
                for r in rows
            )

        assert told(home) == told(database)
        assert {job.owner for job in home.jobs()} == {job.owner for job in database.jobs()}
