"""Compaction: texts go, everything that follows from the trials stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilesmith.records.questions.queries import Filter
from tilesmith.records.upkeep.compaction import ALIKE, FAR

KEYS = ("matmul m=1 n=8 k=8", "matmul m=2 n=8 k=8")
LONG = "LLVM ERROR: out of registers\n" + "%v = add\n" * 40


def _fill(database, make_record, at, seed, versions):
    """Trials of several jobs, some unfinished; the same as long as the seed is the same."""
    rng = np.random.default_rng(seed)
    jobs = [database.start_job(f"tune {n}", seed=n, strategy="random") for n in range(3)]
    records = []
    for i in range(80):
        status = str(rng.choice(["ok", "ok", "ok", "compile", "crash", "slow"]))
        near = float(rng.choice([1.0, 1.0 + 2e-3, 1.3, 4.0])) * 1e-5
        record = make_record(
            int(rng.integers(0, 25)),
            tuple(near * (1 + e) for e in (-1e-3, 0.0, 2e-3)),
            workload=KEYS[i % 2],
            status=status,
            message=LONG,
            created_at=at(i),
            toolchain=versions[int(rng.integers(0, 2))],
            threads=int(rng.integers(1, 3)),
        )
        result = replace(record.result, warm_samples=(1e-6, 2e-6) if status == "ok" else ())
        job = jobs[i % 3] if i % 4 else None
        records.append(replace(record, result=result, job=job))
    database.add(records)
    database.finish_job(jobs[0])
    database.finish_job(jobs[1], "interrupted")
    return jobs


def _consequences(database, target):
    """All that anybody asks: bests, quarantine, what jobs and cost models learn, counts."""
    threads = (1, 2)
    known = [database.known(key, target, n, job=None) for key in KEYS for n in threads]
    stats = database.stats()
    stats.pop("bytes")
    return (
        database.overview(),
        [database.layout_bests(KEYS, target, n) for n in threads],
        [r.config for r in database.quarantined()],
        [(r.config, r.result.status, r.latency, r.id) for found in known for r in found],
        [database.top(key, limit=5)[0] for key in KEYS],
        stats,
    )


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**16), moment=st.integers(0, 90))
def test_everything_that_follows_from_the_trials_is_as_before(
    sqlite, make_record, at, target, versions, seed, moment
):
    with sqlite.writing() as connection:
        for table in ("trials", "series", "jobs"):
            connection.exec_driver_sql(f"DELETE FROM {table}")
    _, running, resumable = _fill(sqlite, make_record, at, seed, versions)[::-1]
    before = _consequences(sqlite, target)
    jobs = [sqlite.query(Filter(job=job), limit=None) for job in (running, resumable)]
    young = sqlite.query(Filter(since=at(moment)), limit=None)
    done = sqlite.compact_trials(at(moment))
    assert _consequences(sqlite, target) == before
    assert sqlite.check() == []
    assert sqlite.query(Filter(since=at(moment)), limit=None) == young
    unfinished = [job.id for job in sqlite.jobs() if job.status != "finished"]
    for job, records in zip((running, resumable), jobs, strict=True):
        if job in unfinished:
            assert sqlite.query(Filter(job=job), limit=None) == records
    assert done.trials == done.samples + done.messages
    assert sqlite.compact_trials(at(moment)).trials == 0, "what is compacted stays as it is"


def test_what_goes_and_what_stays(database, make_record, at, key, target):
    trials = [(1, 1e-6), (2, FAR * 1e-6 * 0.99), (3, FAR * 1e-6 * 1.01), (4, 1e-5), (4, 1.2e-6)]
    for i, (tile, latency) in enumerate(trials):
        database.add([make_record(tile, (latency / 2, latency, latency * 2), created_at=at(i))])
    failures = range(10, 10 + ALIKE + 2)
    database.add(
        make_record(tile, status="compile", message=LONG, created_at=at(10)) for tile in failures
    )
    planned = database.compact_trials(at(60), dry_run=True)
    assert all(len(r.result.samples) == 3 for r in database.query(Filter(status="ok")))
    assert (planned.samples, planned.messages) == (2, 2)
    assert database.compact_trials(at(60)) == planned
    found = database.query(sort="oldest")
    assert [len(r.result.samples) for r in found[:5]] == [3, 3, 1, 1, 3]
    assert [r.latency for r in found[:5]] == [latency for _, latency in trials]
    whole = [r.result.message == LONG for r in found[5:]]
    assert whole == [True] * ALIKE + [False] * 2
    assert found[-1].result.message.startswith("LLVM ERROR: out of registers ... (cut")


def test_an_export_from_before_brings_nothing_twice(database, make_record, at, versions, target):
    _fill(database, make_record, at, 5, versions)
    lines = list(database.export_lines())
    bests = database.overview()
    assert database.compact_trials(at(79)).samples > 5
    report = database.import_lines(lines)
    assert (report.added, report.conflict_count, report.duplicates) == (0, 0, 80)
    assert database.overview() == bests


def test_only_the_last_days_are_spared(sqlite, make_record):
    sqlite.add([make_record(1, 1e-6), make_record(2, (1e-3,) * 9)])
    from datetime import UTC, datetime, timedelta

    assert sqlite.compact_trials(datetime.now(UTC) - timedelta(days=1)).trials == 0
    assert sqlite.compact_trials(datetime.now(UTC) + timedelta(days=1)).trials == 1


@pytest.mark.parametrize("days", ["-1", "x"])
def test_days_are_a_natural_number(days, tmp_path):
    from click.testing import CliRunner

    from tilesmith.command_line import command_line

    words = ["db", "compact", "--older-than", days, "--database", str(tmp_path / "a.db")]
    assert CliRunner().invoke(command_line, words).exit_code == 2
