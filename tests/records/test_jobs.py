"""Jobs have an owner: what runs is left alone, the dead are taken over, commits are fenced."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import text

from tilesmith.records import Database
from tilesmith.records.jobs import job as jobs
from tilesmith.records.jobs import processes
from tilesmith.records.jobs.job import LeaseLost
from tilesmith.records.opened import job_store
from tilesmith.records.trials.record import WorkerReport
from tilesmith.records.trials.toolchain import calibration_of
from tilesmith.search_space.hardware.target import Fact, Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import JobError
from tilesmith.search_space.workloads.workload import Workload


def begun(database):
    return database.start_job("tune", seed=0, strategy="random", state="0")


def pretend(database, job, **columns):
    """Set columns of a job behind everybody's back."""
    words = ", ".join(f"{name} = :{name}" for name in columns)
    with database.writing() as connection:
        connection.execute(text(f"UPDATE jobs SET {words} WHERE id = :id"), {**columns, "id": job})


def ago(database, job, seconds):
    """Date a job's last sign of life back, and move it to another machine."""
    with database.writing() as connection:
        row = jobs.row_of(connection, job)
        jobs.change(connection, job, heartbeat_at=row["heartbeat_at"] - timedelta(seconds=seconds))
    pretend(database, job, process="elsewhere/pid:[1]/7/1")


def test_a_job_knows_who_runs_it(database):
    job = begun(database)
    found = database.job(job)
    assert found.owner == processes.owner() and found.runs and not found.lost
    assert 0 <= found.silent_s < 30
    assert abs(found.heartbeat_at - found.started_at) < timedelta(seconds=30)
    database.beat(job, {"trials": 7})
    assert database.job(job).progress == {"trials": 7}
    database.beat(job)
    assert database.job(job).progress == {"trials": 7}, "a bare sign of life keeps it"


def test_what_runs_is_not_taken_over(database, location, versions):
    job = begun(database)
    with Database.open(location, toolchain=versions[0]) as other:
        with pytest.raises(JobError, match=rf"job {job} is run by .*@.*:\d+ since .* UTC, last"):
            other.take_over(job)
        ago(database, job, 30)
        with pytest.raises(JobError, match=r"last seen 3. s ago"):
            other.take_over(job)


def test_what_was_silent_for_long_is_taken_over_and_its_owner_writes_no_more(
    database, location, versions, make_record, watching
):
    job = begun(database)
    database.add([make_record(1)], job=job, job_state="1")
    ago(database, job, 1000)
    assert database.job(job).lost
    with Database.open(location, toolchain=versions[0]) as other:
        other.take_over(job)
        for act in (
            lambda: database.add([make_record(2)], job=job, job_state="2"),
            lambda: database.beat(job),
            lambda: database.finish_job(job),
        ):
            with pytest.raises(LeaseLost, match=f"job {job} was taken over by"):
                act()
        assert other.job_state(job) == "1" and other.stats()["trials"] == 1
        other.add([make_record(2)], job=job, job_state="2")
        other.finish_job(job)
    assert database.job(job).status == "finished"


def test_of_two_who_want_a_dead_job_one_gets_it(database, location, versions):
    job = begun(database)
    database.finish_job(job, "interrupted")
    with database.reading() as connection:
        seen = jobs.row_of(connection, job)
    with Database.open(location, toolchain=versions[0]) as other:
        other.take_over(job)
        with database.writing() as connection:
            assert not jobs.take_over(connection, seen, "f" * 32)
        with pytest.raises(JobError, match="is run by"):
            database.take_over(job)


def test_the_death_of_a_process_is_seen_at_once_on_its_machine(sqlite):
    program = (
        "import sys, os; from tilesmith.records import Database;"
        "database = Database.open(sys.argv[1]);"
        "print(database.start_job('tune', seed=0, strategy='random'), flush=True);"
        "sys.stdin.read(); os._exit(9)"
    )
    command = [sys.executable, "-c", program, sqlite.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        job = int(process.stdout.readline())
        if not sqlite.job(job).owner or processes.signature() == "":
            pytest.skip("this system does not tell which processes live")
        pretend(sqlite, job, heartbeat_at="2020-01-01 00:00:00.000000")
        assert sqlite.job(job).runs, "the clock does not matter where the process can be seen"
        process.stdin.close()
        process.wait()
        assert sqlite.job(job).lost
    sqlite.take_over(job)
    assert sqlite.job(job).runs


def test_a_job_that_this_process_gave_up_is_not_running(database, location, versions):
    with Database.open(location, toolchain=versions[0]) as other:
        job = begun(other)
        assert database.job(job).runs
    assert database.job(job).lost
    database.take_over(job)


def test_a_commit_that_had_happened_is_not_repeated(database, make_record):
    job = begun(database)
    database.add([make_record(1)], job=job, job_state="1")
    database._leases[job].step -= 1  # as if nobody had heard of its outcome
    database.add([make_record(1)], job=job, job_state="1")
    assert database.stats()["trials"] == 1 and database.job_state(job) == "1"
    database.add([make_record(2)], job=job, job_state="2")
    assert database.stats()["trials"] == 2


def test_signatures_tell_processes_apart():
    mine = processes.signature()
    if not mine:
        pytest.skip("this system does not tell which processes live")
    assert processes.lives(mine) is True
    place, number, start = mine.rsplit("/", 2)
    assert processes.lives(f"{place}/{number}/{int(start) + 1}") is False
    assert processes.lives(f"another{place}/{number}/{start}") is None
    assert processes.lives("") is None


def test_workers_are_kept_by_name(database):
    job, other = begun(database), begun(database)
    first = [WorkerReport("b", "host", "cpu-1", "busy", trials=1), WorkerReport("a")]
    database.write_workers(job, first)
    database.write_workers(other, [WorkerReport("b", state="ended")])
    database.write_workers(
        job, [WorkerReport("b", "host", "cpu-1", "set aside", "it drifts", 9, 2, 0.8)]
    )
    a, b = database.workers(job)
    assert (a.name, a.state, a.trials, a.pace) == ("a", "idle", 0, None)
    assert (b.state, b.message, b.trials, b.failures, b.pace) == (
        "set aside", "it drifts", 9, 2, 0.8,
    )  # fmt: skip
    assert b.started_at <= b.seen_at and b.machine == "cpu-1"
    assert [worker.state for worker in database.workers(other)] == ["ended"]


@pytest.fixture
def watching(monkeypatch):
    """Watching a job takes no time: what is in the list is done in the first pause."""
    passed, then = [0.0], []

    def sleep(seconds):
        passed[0] += seconds
        while then:
            then.pop()()

    monkeypatch.setattr(
        job_store, "time", SimpleNamespace(monotonic=lambda: passed[0], sleep=sleep)
    )
    return then


@pytest.mark.parametrize("seconds", [1000, -1000])
def test_a_clock_that_jumps_kills_no_job_that_stirs(
    seconds, database, location, versions, watching
):
    """The server's clock is set: a heartbeat looks old, or lies in the future."""
    job = begun(database)
    ago(database, job, seconds)
    watching.append(lambda: database.beat(job))
    with Database.open(location, toolchain=versions[0]) as other:
        with pytest.raises(JobError, match="and alive"):
            other.take_over(job)
        ago(database, job, seconds)
        other.take_over(job)
        assert other.job(job).runs, "nothing stirred while it was watched"


def test_what_others_measured_meanwhile_is_found_if_it_still_holds(
    database, make_record, key, versions
):
    target = Target.of("cpu", "cpu", {"clock": Fact(1.0, calibratable=True)}, "a machine")
    here, there = {"calibration": calibration_of(target)}, {"calibration": "another"}

    def told(number, **more):
        simulated = {"measured_by": "simulator", **here, **more}
        return replace(make_record(number, **simulated), target_identity=target.identity)

    database.add([told(1)])
    mine, other = begun(database), begun(database)
    database.add([told(2), told(3), told(3, latency=2e-3)], job=other)
    database.add([told(4)], job=mine)
    database.add([told(5, **there), told(6, toolchain=versions[1]), told(7, threads=2)])
    configs = [Config.of(tile=number) for number in range(1, 9)]
    workload = Workload.parse(key)

    def found(job):
        records = database.measured_meanwhile(
            job, workload, target, 1, configs, measured_by="simulator"
        )
        return [(record.config["tile"], record.latency) for record in records]

    assert found(mine) == [(2, 1e-3), (3, 2e-3)], "the last word of others since it began"
    assert found(other) == [(4, 1e-3)]
    late = begun(database)
    assert found(late) == [], "what was there before is known from the start"
