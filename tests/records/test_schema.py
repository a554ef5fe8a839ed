"""Schemas: migrations build what the models say, old files are upgraded, newer ones refused."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib import resources
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from tilesmith.records import Database, Toolchain
from tilesmith.records.schema import versioning
from tilesmith.records.schema.models import metadata
from tilesmith.records.schema.versioning import REVISIONS, VERSION_TABLE
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import DatabaseError

FIRST = Path(__file__).with_name("first_schema.sqlite3")


@pytest.fixture(autouse=True)
def migrations_run(monkeypatch):
    """Every database is made by migrations: see `_once` in `tests/conftest.py`."""
    monkeypatch.setattr(versioning, "upgrade", vars(versioning.upgrade)["__wrapped__"])


def test_a_further_empty_file_gets_what_migrations_came_to(tmp_path, monkeypatch):
    def contents(name):
        Database.open(tmp_path / name).close()
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            return [row for row in connection.iterdump() if "'uid'" not in row]

    migrated = contents("migrated.db")
    monkeypatch.undo()
    assert contents("first.db") == contents("second.db") == migrated


def test_migrations_build_exactly_the_models(database):
    with database.reading() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, metadata) == []


def test_every_migration_is_listed_in_order():
    config = AlembicConfig()
    config.set_main_option(
        "script_location", str(resources.files("tilesmith.records.schema") / "migrations")
    )
    scripts = ScriptDirectory.from_config(config)
    chain = [script.revision for script in scripts.walk_revisions()][::-1]
    assert tuple(chain) == REVISIONS


@pytest.fixture
def old_file(tmp_path):
    """A database of the first schema."""
    return Path(shutil.copy(FIRST, tmp_path / "old.db"))


def test_a_database_of_the_first_schema_is_upgraded_and_loses_nothing(old_file):
    with sqlite3.connect(old_file) as before:
        rows = before.execute("SELECT * FROM trials ORDER BY id").fetchall()
        assert before.execute(f"SELECT * FROM {VERSION_TABLE}").fetchall() == [("0001",)]
    before.close()
    toolchain = Toolchain("0.2.0", "0.50.0", "1", "1", "1")
    with Database.open(str(old_file), toolchain=toolchain) as database:
        assert database.check() == []
        stats = database.stats()
        assert database.rows() == len(rows) == 15
        assert (stats["workloads"], stats["targets"], stats["jobs"]) == (2, 1, 1)
        (job,) = database.jobs()
        assert (job.command, job.seed) == ("tilesmith tune model.onnx", 7)
        assert database.job_state(job.id) == '{"step": 3}'
        target = database.query()[0].target_identity
        facts = database.target_facts(target)
        assert facts is not None and facts.identity == target and facts.number("clock") == 4.0
        conv = "conv2d n=1 c=64 h=56 w=56 oc=64 kh=3 kw=3"
        pairs = database.layout_bests([conv], target)[conv]
        assert {pair: best.record.config["tile"] for pair, best in pairs.items()} == {
            ("NCHW", "NCHW"): 4,
            ("NCHW16c", "NCHW16c"): 4,
        }
        assert not pairs["NCHW", "NCHW"].stale
        matmul = database.best("matmul m=64 n=64 k=64 const=b epilogue=bias,relu", target, 2)
        assert matmul.latency == 8e-6 and matmul.record.host == "box"
        (crash,) = database.quarantined()
        assert crash.config == Config.of(tile=3) and "signal 11" in crash.result.message
        with database.reading() as connection:
            assert connection.execute(text("SELECT count(*) FROM bests")).scalar() == 5
    with sqlite3.connect(old_file) as after:
        now = after.execute("SELECT * FROM trials ORDER BY id").fetchall()
        assert [row[: len(rows[0])] for row in now] == rows
        assert after.execute(f"SELECT * FROM {VERSION_TABLE}").fetchall() == [(REVISIONS[-1],)]
    after.close()


def test_a_failing_upgrade_leaves_the_old_database_as_it_was(old_file):
    with sqlite3.connect(old_file) as before:
        before.execute("CREATE TABLE bests (in_the_way INTEGER)")
    before.close()
    with pytest.raises(DatabaseError, match=r"old\.db' failed: .*bests"):
        Database.open(str(old_file))
    with sqlite3.connect(old_file) as after:
        assert after.execute(f"SELECT * FROM {VERSION_TABLE}").fetchall() == [("0001",)]
        views = "SELECT count(*) FROM sqlite_master WHERE type = 'view'"
        assert after.execute(views).fetchone() == (0,)
        assert after.execute("SELECT count(*) FROM trials").fetchone() == (15,)
    after.close()


def become_newer(database, **about):
    """A pretended future schema: more tables and columns, and what it says of older clients."""
    with database.writing() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0999'"))
        connection.execute(text("ALTER TABLE trials ADD COLUMN mood VARCHAR(8)"))
        connection.execute(text("ALTER TABLE jobs ADD COLUMN colour INTEGER DEFAULT 7 NOT NULL"))
        connection.execute(text("CREATE TABLE moods (id INTEGER PRIMARY KEY)"))
        for name, value in about.items():
            change = text("UPDATE about SET value = :value WHERE name = :name")
            connection.execute(change, {"name": name, "value": value})


def test_an_older_client_works_on_a_newer_additive_schema(location, make_record, key, target):
    with Database.open(location) as database:
        become_newer(database)
    with Database.open(location) as older:
        job = older.start_job("tune", seed=0, strategy="random")
        older.add([make_record(1)], job=job, job_state="1")
        older.finish_job(job)
        assert older.best(key, target) and older.check() == []
        assert older.jobs()[0].status == "finished"
    with Database.open(location) as again, again.reading() as connection:
        found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
        assert found == "0999", "nothing was migrated back"


def test_an_older_client_only_reads_where_it_must_not_write(location, make_record, key, target):
    with Database.open(location) as database:
        database.add([make_record(1)])
        become_newer(database, writable_from="0999")
    with Database.open(location) as older:
        assert older.best(key, target) is not None
        with pytest.raises(DatabaseError, match=r"can only be read from here.*pip install -U"):
            older.start_job("tune", seed=0, strategy="random")


def test_a_schema_that_older_clients_cannot_read_is_refused_with_what_to_do(location):
    with Database.open(location) as database:
        become_newer(database, readable_from="0999", writable_from="0999")
    with pytest.raises(DatabaseError, match=r"newer Tilesmith \(schema '0999'.*pip install -U"):
        Database.open(location)


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "photos.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE photos (id INTEGER)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match=r"not a tuning database: it holds the table 'photos'"):
        Database.open(str(path))
    assert path.read_bytes() == before


def test_many_processes_may_make_the_same_database(tmp_path):
    path = tmp_path / "new.db"
    program = (
        "import sys; from tilesmith.records import Database; Database.open(sys.argv[1]).close()"
    )
    command = [sys.executable, "-W", "error", "-c", program, str(path)]
    root = Path(__file__).parents[2]
    makers = [
        subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for maker in makers:
        _, errors = maker.communicate(timeout=300)
        assert maker.returncode == 0, errors
    with Database.open(str(path)) as database:
        assert database.check() == []


def test_a_database_without_the_row_of_its_schema_is_damaged(tmp_path):
    path = tmp_path / "tuning.db"
    Database.open(str(path)).close()
    with sqlite3.connect(path) as other:
        other.execute(f"DELETE FROM {VERSION_TABLE}")
    other.close()
    with pytest.raises(DatabaseError, match=f"'{VERSION_TABLE}' has lost its row") as caught:
        Database.open(str(path))
    with sqlite3.connect(path) as other:  # what the message says to do
        other.execute(str(caught.value)[str(caught.value).index("INSERT") :])
    other.close()
    with Database.open(str(path)) as database:
        assert database.check() == []


def test_workloads_that_are_one_since_a_schema_become_one(location, make_record, target):
    one, said = "attention m=9 n=9 k=64", "attention m=9 n=9 k=64 scale=0.125"
    other = "attention m=9 n=9 k=16"
    with Database.open(location) as old:
        old.add([make_record(1, 3e-3, workload=one), make_record(2, 1e-3, workload=one)])
        old.add([make_record(2, 2e-3, workload=said), make_record(3, 5e-3, workload=said)])
        old.add([make_record(1, 4e-3, workload=said, threads=2)])
        old.add([make_record(1, 6e-3, workload=f"{other} scale=0.25")])
        with old.writing() as connection:
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0006'"))
    with Database.open(location) as database:
        assert database.check() == []
        assert database.stats()["workloads"] == 2
        assert database.rows() == 6, "the history stays"
        assert database.best(one, target).latency == 2e-3, "the last word on configuration 2"
        latencies = [record.latency for record in database.top(one, target, threads=1)]
        assert latencies == [2e-3, 3e-3, 5e-3]
        assert database.best(one, target, 2).latency == 4e-3
        assert database.best(other, target).latency == 6e-3


def test_an_export_of_old_keys_is_read_under_todays(location, make_record, target, tmp_path):
    with Database.open(str(tmp_path / "old.db")) as old:
        old.add([make_record(1, 3e-3, workload="attention m=9 n=9 k=64 scale=0.125")])
        lines = list(old.export_lines())
    with Database.open(location) as database:
        database.import_lines(lines)
        assert database.best("attention m=9 n=9 k=64", target).latency == 3e-3
