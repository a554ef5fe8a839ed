"""A PostgreSQL server of its own: killed under a job, crowded, refusing; no password is shown."""

from __future__ import annotations

import logging
import re
import tempfile
import threading
import traceback
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from benchmarks.database_jobs import measured
from benchmarks.subjects.postgres_server import Server, binaries
from tilesmith.records import Database
from tilesmith.records.schema.faults import GoneError, UnavailableError
from tilesmith.records.schema.urls import without_password
from tilesmith.records.trials.record import WorkerReport
from tilesmith.search_space.support.errors import DatabaseError, JobError

SECRET = "s3cr:e@t"


@pytest.fixture(scope="module")
def server():
    if binaries() is None:
        pytest.skip("no PostgreSQL server's binaries are installed here")
    with tempfile.TemporaryDirectory(prefix="tilesmith-server-") as folder:
        try:
            made = Server(Path(folder), connections=12)
        except JobError as error:
            pytest.skip(str(error))
        rule = "local all locked scram-sha-256\n"
        file = Path(folder) / "data" / "pg_hba.conf"
        file.write_text(rule + file.read_text())
        made.start()
        try:
            yield made
        finally:
            made.stop("immediate")


def execute(server, *statements, database="postgres"):
    url = server.url.replace("/postgres?", f"/{database}?")
    engine = create_engine(
        url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


@pytest.fixture
def url(server):
    execute(server, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return server.url


@pytest.fixture
def base(url):
    with Database.open(url) as opened:
        opened.be_patient(30.0)
        yield opened


@pytest.mark.parametrize("mode", ["fast", "kill -9"])
def test_a_job_outlives_the_death_of_its_server(mode, server, base, make_record):
    job = base.start_job("tune", seed=0, strategy="random")
    base.add([make_record(1)], job=job, job_state="1")
    if mode == "kill -9":
        server.kill()
        reviver = threading.Timer(0.3, server.start)
        reviver.start()
    else:
        server.restart(mode)
    base.add([make_record(2)], job=job, job_state="2")
    base.beat(job)
    base.finish_job(job)
    if mode == "kill -9":
        reviver.join()
    assert base.patiently(lambda: base.stats())["trials"] == 2 and base.check() == []
    assert base.job(job).status == "finished" and base.job_state(job) == "2"


def test_a_commit_cut_off_after_it_happened_is_not_repeated(base, make_record, monkeypatch):
    """The server's answer to COMMIT is lost: the next attempt finds the step already made."""
    job = base.start_job("tune", seed=0, strategy="random")
    real, cut = type(base).writing, []

    @contextmanager
    def writing(self):
        with real(self) as connection:
            yield connection
        if not cut:
            cut.append(1)
            raise UnavailableError("broke off after the commit")

    monkeypatch.setattr(type(base), "writing", writing)
    base.add([make_record(1)], job=job, job_state="1")
    cut.clear()
    base.finish_job(job, "interrupted")
    cut.clear()
    base.take_over(job)
    cut.clear()
    other = base.start_job("tune", seed=1, strategy="random")
    monkeypatch.undo()
    assert base.stats()["trials"] == 1
    assert [found.id for found in base.jobs()] == [other, job]
    base.add([make_record(2)], job=job, job_state="2")
    assert base.job_state(job) == "2"


def test_patience_ends_and_can_be_ended(base, server):
    job = base.start_job("tune", seed=0, strategy="random")
    server.stop("immediate")
    try:
        base.be_patient(0.2)
        with pytest.raises(UnavailableError, match="no server listens there"):
            base.add([], job=job, job_state="1")
        base.be_patient(3600.0, lambda: False)
        with pytest.raises(UnavailableError):
            base.beat(job)
            base.finish_job(job)
    finally:
        server.start()


def test_a_dropped_or_replaced_database_is_noticed(server, make_record):
    for again in (False, True):
        execute(server, "CREATE DATABASE short_lived")
        location = server.url.replace("/postgres?", "/short_lived?")
        with Database.open(location) as opened:
            job = opened.start_job("tune", seed=0, strategy="random")
            execute(server, "DROP DATABASE short_lived WITH (FORCE)")
            if again:
                execute(server, "CREATE DATABASE short_lived")
                with Database.open(location) as other:
                    assert other.start_job("tune", seed=0, strategy="random") == job
            opened.be_patient(5.0)
            with pytest.raises(GoneError, match="replaced by another" if again else "not there"):
                opened.add([make_record(1)], job=job, job_state="1")
    execute(server, "DROP DATABASE short_lived WITH (FORCE)")


def test_many_jobs_share_few_connections(server, url, make_record):
    """Nine jobs, each with a thread that beats, on a server with room for nine connections."""
    opened = [Database.open(url) for _ in range(8)]
    jobs = [base.start_job("tune", seed=0, strategy="random") for base in opened]

    def work(base, job):
        for tile in range(5):
            base.be_patient(30.0)
            base.add([make_record({"tile": tile, "job": job})], job=job, job_state=str(tile))
            base.beat(job)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(opened, jobs, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened[0].stats()["trials"] == 40
    for base in opened:
        base.close()


def test_jobs_in_processes_of_their_own_lose_nothing(url):
    """What `python -m benchmarks.database_jobs` does at size; two jobs share each workload."""
    figures = measured(url, count=3, trials=300, size=25)
    assert (figures.jobs, figures.trials) == (3, 300)
    wrong = (figures.lost, figures.twice, figures.states_wrong, figures.unfinished, figures.faults)
    assert figures.failed == 0 and wrong == (0, 0, 0, 0, 0)


def refusals(server):
    """Locations that cannot be opened, by what is said of them."""
    at = f"@/postgres?host={server.folder}"
    quoted = SECRET.replace(":", "%3A").replace("@", "%40")
    return {
        "refuses this user or its password": f"postgresql://locked:{quoted}{at}",
        "refuses this user: it has no such": f"postgresql://nobody_here:{quoted}{at}",
        "no database of that name": f"postgresql://tester:{quoted}{at}".replace("/postgres", "/no"),
        "no server listens": f"postgresql://tester:{quoted}@localhost:1/x",
        "there is no such host": f"postgresql://tester:{quoted}@nohost.invalid/x",
        "is not a database URL": f"postgresql://tester:{SECRET}@localhost:port/x",
        "cannot be reached": f"postgresql://localhost:1/x?password={quoted}",
    }


def test_refusals_are_one_sentence_and_show_no_password(server, caplog):
    execute(server, "DROP ROLE IF EXISTS locked", "CREATE ROLE locked LOGIN PASSWORD 'other'")
    caplog.set_level(logging.DEBUG)
    for reason, location in refusals(server).items():
        with pytest.raises(DatabaseError, match=reason) as caught:
            Database.open(location)
        told = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text
        assert "s3cr" not in told and "e@t" not in told and "%40t" not in told
        assert "\n" not in str(caught.value)


def test_passwords_are_starred_wherever_urls_are_quoted():
    for text_with, without in {
        "tune --database postgresql://me:pw@h/x": "tune --database postgresql://me:***@h/x",
        "'postgresql://me:p@w:d@h:5/x'": "'postgresql://me:***@h:5/x'",
        "postgresql://h/x?user=me&password=pw&a=b": "postgresql://h/x?user=me&password=***&a=b",
        "postgresql://me@h/x and tuning.db": "postgresql://me@h/x and tuning.db",
    }.items():
        assert without_password(text_with) == without


def test_a_role_with_select_alone_reads_and_is_told_so_when_it_writes(
    server, url, base, make_record, key, target
):
    base.add([make_record(1)])
    execute(
        server,
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN",
        "GRANT USAGE ON SCHEMA public TO reader",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
    )
    location = url.replace("tester@", "reader@")
    with Database.open(location) as opened:
        assert opened.best(key, target) is not None
        assert len(opened.overview()) == len(opened.query()) == 1
        assert opened.stats()["trials"] == 1 and opened.jobs() == []
        with pytest.raises(DatabaseError, match=r"may only be read by this user.*GRANT"):
            opened.start_job("tune", seed=0, strategy="random")
    execute(server, "UPDATE schema_version SET version_num = '0002'")
    with pytest.raises(DatabaseError, match=r"old schema '0002', and this user may not change"):
        Database.open(location)
    execute(server, "DROP OWNED BY reader", "DROP ROLE reader")


def test_the_documented_rights_are_enough(server, url, base, make_record, key, target):
    document = (Path(__file__).parents[2] / "docs" / "database.md").read_text()
    granted = re.findall(r"```text\n(CREATE ROLE.*?)```", document, re.DOTALL)
    assert len(granted) == 2
    for block in granted:
        statements = block.replace("DATABASE tuning", "DATABASE postgres").split(";")
        execute(server, *filter(None, map(str.strip, statements)))
    with Database.open(url.replace("tester@", "tuner@")) as tuner:
        job = tuner.start_job("tune", seed=0, strategy="random")
        tuner.add([make_record(1)], job=job, job_state="1")
        tuner.add([make_record(1)], job=job, job_state="2")
        tuner.beat(job, {"trials": 2})
        tuner.write_workers(job, [WorkerReport("a")])
        tuner.finish_job(job)
    with Database.open(url.replace("tester@", "reader@")) as reader:
        assert reader.best(key, target) is not None and reader.jobs()[0].status == "finished"
    for role in ("reader", "tuner"):
        execute(server, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
