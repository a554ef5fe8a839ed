"""Many writers, killed writers, full disks and read-only files: one sentence, and nothing lost."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import event

from tilesmith.records import Database, TuningRecord
from tilesmith.records.schema import engine as engines
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import DatabaseError, DependencyError, JobError

ROOT = Path(__file__).parents[2]
NOBODY = 65534

WRITER = """
import sys
from tilesmith.records import Database, TuningRecord
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.results.measure import MeasureResult

location, writer, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with Database.open(location) as database:
    job = database.start_job(f"tune {writer}", seed=writer, strategy="random")
    for first in range(0, count, 10):
        numbers = range(first, min(first + 10, count))
        result = MeasureResult("ok", "hardware", (1e-3,))
        config = [Config.of(tile=n, writer=writer) for n in numbers]
        records = [TuningRecord(f"matmul m={writer % 2}", "cpu-0", c, result) for c in config]
        database.add(records, job=job, job_state=str(first + len(records)))
        print(first + len(records), flush=True)
"""


def start_writer(location, writer, count):
    command = [sys.executable, "-W", "error", "-c", WRITER, location, str(writer), str(count)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_four_processes_write_at_once_and_nothing_is_lost(location):
    writers = [start_writer(location, number, 200) for number in range(4)]
    for writer in writers:
        _, errors = writer.communicate(timeout=300)
        assert writer.returncode == 0, errors
    with Database.open(location) as database:
        assert database.check() == []
        stats = database.stats()
        assert (stats["trials"], stats["workloads"], stats["jobs"]) == (800, 2, 4)
        assert all(database.job_state(job.id) == "200" for job in database.jobs())
        assert len(database.tried("matmul m=0", "cpu-0")) == 400


def test_killed_writers_leave_state_and_trials_in_step(tmp_path):
    path = str(tmp_path / "killed.db")
    Database.open(path).close()
    for number, lines in enumerate((1, 3, 7)):
        writer = start_writer(path, number, 100_000)
        reported = [int(writer.stdout.readline()) for _ in range(lines)][-1]
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=300)
        with Database.open(path) as database:
            assert database.check() == []
            job = database.jobs(command=f"tune {number}")[0]
            assert job.status == "running"
            trials = len([r for r in database.query(limit=None) if r.job == job.id])
            assert int(database.job_state(job.id)) == trials >= reported


def test_threads_may_share_a_database(sqlite, make_record):
    def work(number):
        for tile in range(20):
            sqlite.add([make_record({"tile": tile, "thread": number})])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sqlite.stats()["trials"] == 80 and sqlite.check() == []


def test_a_forked_child_makes_connections_of_its_own(sqlite, make_record):
    sqlite.add([make_record(1)])
    child = os.fork()
    if child == 0:
        try:
            sqlite.add([make_record(2)])
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sqlite.add([make_record(3)])
    assert sqlite.stats()["trials"] == 3 and sqlite.check() == []


def test_a_lock_held_for_ever_is_named_after_the_timeout(sqlite, make_record, monkeypatch):
    monkeypatch.setattr(engines, "LOCK_TIMEOUT_S", 0.0)
    monkeypatch.setattr(engines, "_BUSY_STEP_MS", 1)
    sqlite.add([make_record(1)])
    holder = sqlite3.connect(sqlite.name, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with (
        Database.open(sqlite.name) as other,
        pytest.raises(JobError, match="locked by another process"),
    ):
        other.add([make_record(2)])
    assert sqlite.stats()["trials"] == 1, "readers never wait"
    holder.execute("ROLLBACK")
    holder.close()
    sqlite.add([make_record(2)])


@pytest.fixture
def heard_interrupts():
    """Python's own handler of Ctrl-C, which a process started in the background lacks."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard_interrupts")
def test_control_c_is_heard_while_waiting_for_the_lock(sqlite, make_record, monkeypatch):
    monkeypatch.setattr(engines, "_BUSY_STEP_MS", 10)
    holder = sqlite3.connect(sqlite.name, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    alarm = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with Database.open(sqlite.name) as other, pytest.raises(KeyboardInterrupt):
        alarm.start()
        other.add([make_record(2)])
    holder.execute("ROLLBACK")
    holder.close()
    assert sqlite.stats()["trials"] == 0


def test_a_full_disk_is_said_and_what_was_committed_stays(sqlite, make_record):
    job = sqlite.start_job("tune", seed=0, strategy="random", state="0")
    sqlite.add([make_record(0)], job=job, job_state="1")

    def no_more_pages(connection, _record):
        connection.execute("PRAGMA max_page_count = 1")  # clamped to the pages in use

    event.listen(sqlite._engine, "connect", no_more_pages)
    sqlite._engine.dispose()
    many = [make_record(tile, message="x" * 500, status="wrong") for tile in range(500)]
    with pytest.raises(JobError, match=r"disk is full.*what was committed is kept"):
        sqlite.add(many, job=job, job_state="501")
    event.remove(sqlite._engine, "connect", no_more_pages)
    sqlite._engine.dispose()
    assert sqlite.stats()["trials"] == 1 and sqlite.job_state(job) == "1"
    assert sqlite.check() == []
    sqlite.add(many, job=job, job_state="501")
    assert sqlite.rows() == 501


def as_someone_else(action):
    """Run `action` as a user who may not write here; what it printed, or the error's text."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            answer = action()
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(sending, str(answer).encode())
        os._exit(0)
    os.close(sending)
    os.waitpid(child, 0)
    with os.fdopen(receiving) as file:
        return file.read()


@pytest.fixture
def shelf():
    """A folder that another user may read, and nobody but its owner may write."""
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="tilesmith-shelf-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def protect(path):
    path.chmod(0o444)
    path.parent.chmod(0o555)


def test_a_read_only_database_answers_and_refuses_to_be_written(
    shelf, key, target, make_record, versions
):
    path = shelf / "shared.db"
    with Database.open(str(path), toolchain=versions[0]) as database:
        database.add([make_record(1, 0.5)])
        list(database.export_lines())  # whatever reading imports, before rights are dropped
    protect(path)

    def read():
        with Database.open(str(path)) as opened:
            return opened.best(key, target).latency

    def write():
        with Database.open(str(path)) as opened:
            opened.start_job("tune", seed=0, strategy="random")

    assert as_someone_else(read) == "0.5"
    told = as_someone_else(write)
    assert told.startswith("DatabaseError") and "is read-only" in told and str(path) in told
    assert not list(shelf.glob("*-wal")), "nothing was made beside it"


def test_a_read_only_folder_makes_no_database(shelf):
    shelf.chmod(0o555)
    told = as_someone_else(lambda: Database.open(str(shelf / "new.db")))
    assert told.startswith("DatabaseError") and "is read-only" in told


def test_an_old_read_only_database_says_to_copy_it(shelf):
    path = shelf / "old.db"
    path.write_bytes(Path(__file__).with_name("first_schema.sqlite3").read_bytes())
    protect(path)
    told = as_someone_else(lambda: Database.open(str(path)))
    assert "old schema '0001' and is read-only; copy it" in told


def bad_file(folder, content):
    path = folder / "bad.db"
    path.write_bytes(content)
    return str(path)


def test_files_that_are_no_databases(tmp_path, empty_file):
    cases = {
        "not an SQLite file": bad_file(tmp_path, b"workload,latency\n" * 100),
        "is a folder": str(tmp_path),
        "no folder": str(tmp_path / "nowhere" / "x.db"),
        "not a database URL": "sqlite//://x:y:z",
        "unknown kind of database": "mongodb://localhost/x",
        "has no name": "",
    }
    for reason, location in cases.items():
        with pytest.raises(DatabaseError, match=reason):
            Database.open(location)
    with pytest.raises(DatabaseError, match="does not exist"):
        Database.open(str(tmp_path / "missing.db"), create=False)
    assert not (tmp_path / "missing.db").exists()


def test_a_database_that_lost_its_log_mode_gets_it_back(sqlite, make_record):
    sqlite.add([make_record(1)])
    sqlite.close()
    with sqlite3.connect(sqlite.name) as other:
        assert other.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    other.close()
    with Database.open(sqlite.name) as again, again.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_an_empty_file_becomes_a_database(tmp_path):
    with Database.open(bad_file(tmp_path, b"")) as database:
        assert database.stats()["trials"] == 0


def test_a_damaged_database_is_said_to_be_damaged(tmp_path, make_record):
    path = tmp_path / "damaged.db"
    with Database.open(str(path)) as database:
        database.add(make_record(tile) for tile in range(500))
    content = bytearray(path.read_bytes())
    for start in range(8192, len(content), 4096):
        content[start : start + 2048] = b"\xa5" * 2048
    path.write_bytes(content)
    with pytest.raises(DatabaseError, match="is damaged"), Database.open(str(path)) as database:
        database.query(limit=None)


def test_a_server_that_is_not_there_is_one_sentence_without_the_password():
    pytest.importorskip("psycopg")
    url = "postgresql://user:secret@localhost:1/x?connect_timeout=2"
    with pytest.raises(DatabaseError) as caught:
        Database.open(url)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_driver_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DependencyError, match=r"tilesmith\[postgresql\]"):
        Database.open("postgresql://localhost/x")


def test_a_location_may_be_a_url(tmp_path, key, target):
    path = tmp_path / "by-url.db"
    result = MeasureResult("ok", "hardware", (1.0,))
    with Database.open(f"sqlite:///{path}") as database:
        database.add([TuningRecord(key, target, Config.of(tile=1), result)])
    with Database.open(str(path)) as database:
        assert database.stats()["trials"] == 1


def test_opening_waits_for_no_import_of_the_migrations(empty_file):
    program = (
        "import sys; from tilesmith.records import Database; Database.open(sys.argv[1]).close();"
        "sys.exit('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(empty_file)], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_values_alone_need_no_sqlalchemy():
    program = "import sys, records; records.TuningRecord; sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_time_is_kept_in_utc(sqlite, make_record):
    before = time.time()
    sqlite.add([make_record()])
    (found,) = sqlite.query()
    assert before - 1 <= found.created_at.timestamp() <= time.time() + 1
