"""Records go in and come back whole; jobs, their state and their trials hold together."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tilesmith.records import Database, Toolchain, TuningRecord, config_digest
from tilesmith.records.questions.queries import Filter
from tilesmith.search_space.hardware.target import Fact, Target
from tilesmith.search_space.results.measure import STATUSES, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import DatabaseError, InputError, JobError, WorkloadError
from tilesmith.search_space.workloads.workload import Workload


def test_every_field_comes_back(database, at):
    record = TuningRecord(
        "conv2d n=1 c=64 h=56 w=56 oc=64 kh=3 kw=3 dtype=bfloat16",
        "trn1-0123abcd",
        Config.of(tile=8, order="mnk", letters="äß∂"),
        MeasureResult(
            "ok", "simulator", (0.1 + 0.2, 1e-300, 5e-324), "", (3.0,), "psum", elapsed=0.25
        ),
        threads=3,
        input_layout="NCHW",
        output_layout="NCHW16c",
        calibration="cafe0123",
        toolchain=Toolchain("1", "2", "3", "4", "5", "6"),
        host="elsewhere",
        created_at=at(61),
    )
    database.add([record])
    (found,) = database.query()
    assert found == record
    assert found.result.elapsed == 0.25
    assert database.record(found.id) == record
    assert found.digest == config_digest(record.config)


def test_what_a_record_leaves_open_is_filled_in(database, make_record, versions):
    database.add([make_record()])
    (found,) = database.query()
    now, _ = versions
    assert found.toolchain.codegen == now.codegen and found.toolchain.schema
    assert found.host and found.created_at is not None


@pytest.mark.parametrize("status", STATUSES)
def test_every_status_is_kept_with_its_text(database, make_record, status):
    text = "line one\nline 'two' \x00 \udce4 \N{SNOWMAN}"
    database.add([make_record(1, 2e-3, status=status, message=text)])
    (found,) = database.query(Filter(status=status))
    assert found.result.status == status
    if status != "ok":
        assert found.latency is None
        assert found.result.message == "line one\nline 'two' \\0 \\udce4 \N{SNOWMAN}"


def test_an_aborted_trial_keeps_its_lower_bound_and_never_wins(database, key, target, make_record):
    aborted = MeasureResult("slow", "hardware", (1e-9,), "aborted at 3x the best")
    database.add([TuningRecord(key, target, Config.of(tile=1), aborted), make_record(2, 1.0)])
    assert database.best(key, target).record.config == Config.of(tile=2)
    (found,) = database.query(Filter(status="slow"))
    assert found.result.samples == (1e-9,)


def test_a_sample_that_is_no_number_is_refused_and_nothing_is_written(database, make_record):
    with pytest.raises(DatabaseError, match="not a number of seconds"):
        database.add([make_record(1), make_record(2, float("inf"))])
    assert database.stats()["trials"] == 0


def test_a_record_of_an_unknown_operator_is_readable(database, target, make_record):
    key = "operator_of_the_future size=12 mode=fast"
    database.add([make_record(workload=key)])
    best = database.best(key, target)
    assert best.record.workload_key == key
    with pytest.raises(WorkloadError, match="unknown operator 'operator_of_the_future'"):
        _ = best.record.workload


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("status = 'melted'", "status 'melted', which this Tilesmith does not know"),
        ("samples = '[1.0'", "record 1 is damaged: its samples"),
        ("samples = '5'", "record 1 is damaged: its samples are no JSON list of seconds"),
        ("samples = '[\"1.0\", null]'", "record 1 is damaged: its samples"),
        ("warm_samples = '[NaN]'", "record 1 is damaged: its samples"),
        ("samples = '[]'", "record 1 is damaged: it worked, but has no samples"),
        ("config = 'tile=1'", "record 1 is damaged: a configuration is a JSON object"),
    ],
)
def test_a_row_that_makes_no_sense_is_named(database, make_record, change, reason):
    database.add([make_record()])
    with database.writing() as connection:
        connection.execute(text(f"UPDATE trials SET {change}"))
    with pytest.raises(InputError, match=reason):
        database.query()


def test_a_latency_that_is_no_number_is_damage(tmp_path, target, make_record):
    with Database.open(str(tmp_path / "tuning.db")) as database:  # PostgreSQL refuses texts itself
        database.add([make_record()])
        with database.writing() as connection:
            connection.execute(text("UPDATE trials SET latency_s = 'fast'"))
        with pytest.raises(DatabaseError, match="is damaged: a latency is 'fast', no number"):
            database.best(make_record().workload_key, target)


def test_who_asks_to_be_told_of_damaged_rows_gets_the_others(database, make_record):
    database.add([make_record(1), make_record(2), make_record(3)])
    with database.writing() as connection:
        connection.execute(text("UPDATE trials SET samples = '5' WHERE id = 2"))
    told: list[str] = []
    assert [record.id for record in database.query(sort="oldest", damaged=told.append)] == [1, 3]
    assert told == ["record 2 is damaged: its samples are no JSON list of seconds"]


@pytest.mark.parametrize(
    ("table", "column", "bad"),
    [
        ("trials", "created_at", "-1"),
        ("series", "threads", "'two'"),
        ("series", "measured_by", "'dreams'"),
        ("toolchains", "simulator", "x'ff00'"),
    ],
)
def test_what_nobody_foresaw_is_told_by_the_rows_that_are_damaged(
    tmp_path, make_record, table, column, bad
):
    path = str(tmp_path / "tuning.db")
    with Database.open(path) as database:
        database.add([make_record()])
        with database.writing() as connection:
            connection.execute(text(f"UPDATE {table} SET {column} = {bad}"))
        (row,) = database.damaged_rows()
        assert any(str(row) in fault for fault in database.check())
    for error in (TypeError, KeyError):
        named = rf"is damaged: {table} 1 \({column} is .*db verify"
        with pytest.raises(DatabaseError, match=named), Database.open(path):
            raise error("of what was read")
    with pytest.raises(JobError, match="our own"), Database.open(path):
        raise JobError("our own")


def test_facts_of_a_target_that_are_none_are_damage(database, target, make_record):
    database.add([make_record()])
    with database.writing() as connection:
        connection.execute(text("UPDATE targets SET facts = '[1, 2]'"))
    with pytest.raises(DatabaseError, match=rf"target '{target}' is damaged"):
        database.target_facts(target)


def test_a_record_of_this_installation_takes_layouts_from_its_template():
    workload = Workload.parse("matmul m=8 n=8 k=8")
    target = Target.of("cpu", "cpu", {"lanes": Fact(16)})
    result = MeasureResult("ok", "hardware", (1.0,))
    record = TuningRecord.of(
        workload, target, Config.of(input_layout="NCHW", output_layout="NHWC"), result, threads=2
    )
    assert record.layouts == ("NCHW", "NHWC")
    assert (record.workload, record.target_identity) == (workload, target.identity)


def test_tried_and_quarantined(database, key, target, make_record):
    other = "matmul m=1 n=1 k=1"
    database.add(
        [
            make_record(1),
            make_record(2, status="crash"),
            make_record(3, status="compile"),
            make_record(4, status="crash", workload=other),
            make_record(5, measured_by="simulator"),
        ]
    )
    digests = {tile: config_digest(Config.of(tile=tile)) for tile in range(1, 6)}
    assert database.tried(key, target) == {digests[tile] for tile in (1, 2, 3, 5)}
    assert database.tried(key, target, measured_by="simulator") == {digests[5]}
    assert database.tried(key, target, threads=2) == set()
    assert [r.digest for r in database.quarantined(key, target)] == [digests[2]]
    assert len(database.quarantined()) == 2
    database.add([make_record(2, 1e-3)])
    assert database.quarantined(key, target) == [], "it works now, and that is the last word"


def test_jobs_and_their_state(database, make_record):
    first = database.start_job("tune a", seed=7, strategy="evolutionary")
    second = database.start_job("tune b", seed=2**40, strategy="random", state="{}")
    assert database.job_state(first) is None
    database.add([make_record(1), make_record(2)], job=first, job_state="after two")
    assert database.job_state(first) == "after two"
    assert database.job_state(second) == "{}"
    assert [r.job for r in database.query(Filter(job=first))] == [first, first]
    database.finish_job(second, "failed", "disk on fire")
    found = {job.id: job for job in database.jobs()}
    assert list(found) == [second, first], "the newest first"
    assert (found[first].status, found[first].ended_at) == ("running", None)
    assert (found[second].status, found[second].message) == ("failed", "disk on fire")
    assert found[second].ended_at >= found[second].started_at
    assert (found[second].seed, found[second].strategy) == (2**40, "random")
    assert [job.id for job in database.jobs(command="tune a")] == [first]
    assert [job.id for job in database.jobs(status="failed")] == [second]
    database.finish_job(second, "running")
    assert database.jobs(command="tune b")[0].ended_at is None


def test_results_and_state_are_written_together_or_not_at_all(database, make_record):
    job = database.start_job("tune", seed=0, strategy="random", state="before")
    unwritable = make_record(2, job=job + 99)  # no such job: the foreign key refuses it
    with pytest.raises(DatabaseError):
        database.add([make_record(1), unwritable], job=job, job_state="after")
    assert database.job_state(job) == "before"
    assert database.stats()["trials"] == 0


def test_a_job_that_is_not_there_is_named(database):
    for ask in (
        lambda: database.job_state(5),
        lambda: database.finish_job(5),
        lambda: database.add([], job=5, job_state=""),
    ):
        with pytest.raises(DatabaseError, match="no job 5"):
            ask()
    with pytest.raises(DatabaseError, match="no record 12"):
        database.record(12)


def test_targets_keep_their_last_description(database):
    def described(value: float) -> Target:
        return Target.of("cpu", "cpu", {"clock": Fact(value, calibratable=True)}, "a machine")

    database.start_job("tune", seed=0, strategy="random", targets=[described(1.0)])
    database.register_target(described(2.0))
    assert database.target_facts(described(1.0).identity) == described(2.0)
    assert database.target_facts("cpu-ffffffff") is None
    assert database.stats()["targets"] == 1


def test_stats_count(database, make_record):
    empty = database.stats()
    assert (empty["trials"], empty["workloads"], empty["targets"], empty["jobs"]) == (0, 0, 0, 0)
    database.add(make_record(tile, workload=f"matmul m={tile % 3} n=1 k=1") for tile in range(9))
    database.add([make_record(1, status="crash"), make_record(2, measured_by="simulator")])
    stats = database.stats()
    assert (stats["trials"], stats["workloads"], stats["targets"]) == (11, 4, 1)
    assert stats["by_status"] == {"ok": 10, "crash": 1}
    assert stats["by_measured_by"] == {"hardware": 10, "simulator": 1}
    assert stats["bytes"] > 0


FILTERS = {
    "workload": Filter(workload="n=8*dtype"),
    "case": Filter(workload="MATMUL"),
    "underscore is no wildcard": Filter(workload="m_1"),
    "operator": Filter(operator="conv2d"),
    "target": Filter(target="cpu"),
    "no target": Filter(target="cp"),
    "status": Filter(status="crash"),
    "failed": Filter(status="failed"),
    "measured_by": Filter(measured_by="simulator"),
    "config": Filter(config='"tile":3'),
    "message": Filter(message="100% odd_"),
    "fast": Filter(faster_than=0.005),
    "slow": Filter(slower_than=0.005, operator="matmul"),
    "latest": Filter(latest=True, status="ok"),
    "host": Filter(host="B"),
    "threads": Filter(threads=2),
}


def passes(where: Filter, record: TuningRecord, latest: bool) -> bool:
    """The filter's meaning in plain Python."""
    import re

    def found(part: str, text: str) -> bool:
        pattern = ".*".join(map(re.escape, part.split("*")))
        return not part or re.search(pattern, text, re.IGNORECASE | re.DOTALL) is not None

    latency = record.latency
    return all(
        (
            found(where.workload, record.workload_key),
            not where.operator or record.workload_key.split()[0] == where.operator,
            where.target in ("", "cpu", record.target_identity),
            where.status in (None, record.result.status)
            or (where.status == "failed" and not record.result.ok),
            where.measured_by in (None, record.result.measured_by),
            found(where.config, record.config.key),
            found(where.message, record.result.message),
            found(where.host, record.host),
            where.threads in (None, record.threads),
            where.faster_than is None or (latency is not None and latency <= where.faster_than),
            where.slower_than is None or (latency is not None and latency >= where.slower_than),
            latest or not where.latest,
        )
    )


@pytest.fixture
def mixed(database, make_record, at) -> Database:
    """Trials of all sorts, every configuration twice."""
    number = 0
    for tile in (1, 2, 3, 31):
        records = []
        for key in ("matmul m=1 n=8 k=8", "matmul m=2 n=8 k=8 dtype=bfloat16", "conv2d m_1=x"):
            for status in ("ok", "crash", "wrong", "ok"):
                number += 1
                record = make_record(
                    tile,
                    number * 1e-4,
                    workload=key,
                    status=status,
                    message="100% odd_ thing" if tile == 2 else "other",
                    measured_by="simulator" if tile == 31 else "hardware",
                    host="ab"[number % 2],
                    threads=1 + number % 2,
                    created_at=at(number),
                )
                records.append(record)
        database.add(records)
    return database


@pytest.mark.parametrize("name", FILTERS)
def test_filters_agree_with_plain_python(mixed, name):
    where = FILTERS[name]
    everything = mixed.query(sort="oldest", limit=None)
    last = {(r.workload_key, r.threads, r.result.measured_by, r.config): r.id for r in everything}
    expected = [r.id for r in everything if passes(where, r, r.id in last.values())]
    assert [r.id for r in mixed.query(where, sort="oldest", limit=None)] == expected
    assert [r.id for r in mixed.query(where, limit=None)] == expected[::-1]


def test_a_filter_that_allows_very_many_series_answers_alike(mixed, monkeypatch):
    where = Filter(operator="matmul")
    few = mixed.query(where)
    monkeypatch.setattr("tilesmith.records.questions.queries._PARAMETERS", 0)
    assert mixed.query(where) == few and len(few) == 32


def test_sorting_limit_and_offset(mixed):
    everything = mixed.query(sort="oldest", limit=None)
    working = sorted((r for r in everything if r.result.ok), key=lambda r: r.latency)
    fastest = [r.id for r in mixed.query(sort="fastest", limit=None)]
    assert fastest == [r.id for r in working]
    assert [r.id for r in mixed.query(sort="fastest", limit=3, offset=2)] == fastest[2:5]
    assert [r.id for r in mixed.query(sort="slowest", limit=4)] == fastest[::-1][:4]
    assert [r.id for r in mixed.query(limit=5, offset=1)] == [r.id for r in everything][::-1][1:6]
    by_workload = [r.workload_key for r in mixed.query(sort="workload", limit=None)]
    assert by_workload == sorted(by_workload)
    assert len(mixed.query(sort="workload", limit=7, offset=44)) == 4


def test_unknown_sort_and_status_are_refused(sqlite):
    with pytest.raises(DatabaseError, match="one of newest, oldest"):
        sqlite.query(sort="prettiest")
    with pytest.raises(DatabaseError, match="unknown status 'good'"):
        Filter(status="good")
