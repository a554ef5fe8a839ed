"""The page over PostgreSQL, as a role that may only read, and through a server's restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from tests.capabilities.dashboard.conftest import PRODUCT, Serve, configs, trial
from tests.records.conftest import postgres as postgres
from tilesmith.records import Database
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import DatabaseError

PASSWORD = "S3cr'et @ word"
"""The server takes any; no page shows it."""

GRANTS = Path(__file__).parents[3] / "deploy" / "reader.sh"

PAGES = ("/", "/jobs/1", "/jobs/1?show=tasks", "/jobs/1?show=workers", "/workers", "/schedules",
         "/schedules?workload=m=16&operator=matmul&target=cpu", "/records/1", "/compare?a=1&b=1",
         "/jobs/1/report", "/?q=a.onnx&state=running")  # fmt: skip


def grants() -> list[str]:
    """The statements of `deploy/reader.sh`, for a server where every password is right."""
    sql = GRANTS.read_text().partition("<<'SQL'\n")[2].partition("\nSQL")[0]
    return sql.replace(":'password'", "'x'").split(";\n")


@pytest.fixture
def reader(postgres: str, cpu: Target) -> str:
    """URL of a role that may only read, on a server where a job runs."""
    engine = create_engine(make_url(postgres).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
        known = connection.execute(text("SELECT 1 FROM pg_roles WHERE rolname='tilesmith_reader'"))
        for statement in grants()[known.first() is not None :]:
            connection.execute(text(statement))
    engine.dispose()
    with Database.open(postgres) as database:
        database.start_job("tilesmith tune a.onnx", seed=0, strategy="random", targets=[cpu])
        tried = zip(configs(cpu, PRODUCT, 3), (8.0, 9.0, 4.0), strict=True)
        database.add([trial(cpu, PRODUCT, config, us) for config, us in tried], job=1)
    named = make_url(postgres).set(username="tilesmith_reader", password=PASSWORD)
    return named.render_as_string(hide_password=False)


def test_a_role_that_may_only_read_is_enough(reader: str, serve: Serve) -> None:
    client = serve(reader)
    for page in PAGES:
        answer = client.get(page)
        assert answer.status_code == 200, page
        assert "S3cr" not in answer.text, page
    assert "2.00×" in client.get("/jobs/1").text
    with Database.open(reader, create=False, read_only=True) as database:
        with pytest.raises(DatabaseError), database.reading() as connection:
            connection.execute(text("DELETE FROM trials"))
        with pytest.raises(DatabaseError):
            database.start_job("x", seed=0, strategy="random")


def test_an_owner_reads_through_transactions_that_cannot_write(postgres: str, reader: str) -> None:
    with (
        Database.open(postgres, create=False, read_only=True) as database,
        pytest.raises(DatabaseError, match="read"),
        database.reading() as connection,
    ):
        connection.execute(text("DELETE FROM trials"))


def test_connections_that_the_server_ended_are_made_anew(
    postgres: str, reader: str, serve: Serve
) -> None:
    client = serve(reader)
    assert client.get("/").status_code == 200
    engine = create_engine(make_url(postgres).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = :name"
        connection.execute(text(ending), {"name": "tilesmith_reader"})
    engine.dispose()
    answers = [client.get(f"/?q={n}").status_code for n in range(3)]
    assert answers[-1] == 200 and set(answers) <= {200, 503}


DAMAGE = {
    "jobs 1 (progress": ("jobs SET progress = '{' WHERE id = 1", "/jobs/1"),
    "jobs 1 (started_at": ("jobs SET started_at = 'infinity' WHERE id = 1", "/"),
    "trials 3 (config": ("trials SET config = '{' WHERE id = 3", "/records/1"),
    "trials 3 (samples": ("trials SET samples = 'x' WHERE id = 3", "/jobs/1/report"),
    "series 1 (measured_by": ("series SET measured_by = 'zzz' WHERE id = 1", "/schedules"),
    "targets 1 (facts": ("targets SET facts = '[]' WHERE id = 1", "/jobs/1"),
}


@pytest.mark.parametrize("which", DAMAGE)
def test_a_row_that_cannot_be_read_is_left_out_and_named(
    postgres: str, reader: str, serve: Serve, which: str
) -> None:
    statement, page = DAMAGE[which]
    engine = create_engine(make_url(postgres).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {statement}"))
    engine.dispose()
    client = serve(reader)
    for asked in (*PAGES, page):
        answer = client.get(asked)
        gone = (404, 422) if asked.startswith(("/jobs/1", "/records/1")) else ()
        assert answer.status_code in (200, *gone), (asked, answer.text)
        assert "does not answer" not in answer.text and "internal" not in answer.text.lower()
    with Database.open(reader, create=False, read_only=True) as database:
        (row,) = database.damaged_rows()
    assert str(row).startswith(which)
    assert which in client.get("/?q=after").text
