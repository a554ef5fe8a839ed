"""One value that is none of its column's costs one row, which the page names; never a page."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.capabilities.dashboard.conftest import Serve
from tilesmith.records import Database

PAGES = ("/", "/jobs/1", "/jobs/2", "/jobs/1?show=tasks", "/jobs/2?show=failures",
         "/jobs/2?show=workers", "/workers", "/schedules", "/records/1", "/compare?a=1&b=2",
         "/jobs/1/report")  # fmt: skip

BAD: tuple[object, ...] = ("zzz", "-1e400", "[1, []]", b"\xff\xfe")

TABLES = ("jobs", "trials", "workers", "series", "workloads", "targets")


def copy_of(file: Path, place: Path) -> sqlite3.Connection:
    """A copy of a database, to be damaged."""
    with closing(sqlite3.connect(file)) as whole:
        copy = sqlite3.connect(place, isolation_level=None)
        whole.backup(copy)
        return copy


DAMAGE: dict[str, tuple[str, str, int, object, list[str]]] = {
    "jobs 2 (progress": ("jobs", "progress", 2, "{", ["/", "/jobs/2"]),
    "jobs 2 (heartbeat_at": ("jobs", "heartbeat_at", 2, b"\xff", ["/", "/jobs/2"]),
    "jobs 1 (started_at": ("jobs", "started_at", 1, "zzz", ["/"]),
    "trials 2 (latency_s": ("trials", "latency_s", 2, "-1e400", ["/jobs/1", "/schedules"]),
    "trials 11 (created_at": ("trials", "created_at", 11, "zzz", ["/jobs/2"]),
    "trials 11 (config": ("trials", "config", 11, '{"a": []}', ["/compare?a=1&b=2"]),
    "series 1 (measured_by": ("series", "measured_by", 1, "zzz", ["/schedules"]),
    "workers 1 (pace": ("workers", "pace", 1, "zzz", ["/workers", "/jobs/2?show=workers"]),
    "targets 1 (facts": ("targets", "facts", 1, "[]", ["/jobs/1/report", "/jobs/1"]),
}


@pytest.mark.parametrize("table", TABLES)
def test_no_value_of_any_column_upsets_a_page(
    file: Path, serve: Serve, tmp_path: Path, table: str
) -> None:
    """All columns of a table are damaged, each in a row of its own as far as there are rows."""
    place = tmp_path / "damaged.db"
    for turn, bad in enumerate(BAD):
        with closing(copy_of(file, place)) as copy:
            names = [row[1] for row in copy.execute(f"PRAGMA table_info({table})")]
            rows = [row[0] for row in copy.execute(f"SELECT id FROM {table} ORDER BY id DESC")]
            for index, name in enumerate(names):
                with suppress(sqlite3.IntegrityError):
                    if name != "id" and rows:
                        row = rows[(index + turn) % min(3, len(rows))]
                        copy.execute(f"UPDATE {table} SET {name} = ? WHERE id = ?", (bad, row))
        client = serve(place)
        for page in PAGES[turn % 3 :: 3]:
            assert client.get(page).status_code in (200, 404, 422), (page, bad)
        place.unlink()


@pytest.mark.parametrize("name", DAMAGE)
def test_a_row_that_cannot_be_read_is_named_and_the_rest_is_shown(
    file: Path, serve: Serve, tmp_path: Path, name: str
) -> None:
    table, column, row, bad, pages = DAMAGE[name]
    place = tmp_path / "damaged.db"
    with closing(copy_of(file, place)) as copy:
        copy.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (bad, row))
    client = serve(place)
    for page in pages:
        reply = client.get(page)
        assert reply.status_code == 200, reply.text
        if not page.endswith("/report"):
            assert "1 row could not be shown: " in reply.text
            assert f"{table} {row} ({column} is " in reply.text
    if table == "jobs":
        numbers = re.findall(r'data-key="job (\d+)"', client.get("/").text)
        assert numbers == (["2"] if column == "started_at" else ["2", "1"])


def test_only_rows_that_cannot_be_read_are_named(file: Path, tmp_path: Path) -> None:
    place = tmp_path / "damaged.db"
    with Database.open(str(file), read_only=True) as database:
        assert database.damaged_rows() == ()
    with closing(copy_of(file, place)) as copy:
        copy.execute("UPDATE trials SET latency_s = 'zzz', samples = '[' WHERE id = 4")
        copy.execute("UPDATE trials SET message = CAST(x'ff' AS TEXT) WHERE id = 7")
        copy.execute("UPDATE jobs SET progress = '[]' WHERE id = 1")
    with Database.open(str(place), read_only=True) as database:
        damaged = database.damaged_rows()
        assert {(row.table, row.number, row.column) for row in damaged} == {
            ("trials", 4, "latency_s"), ("trials", 4, "samples"), ("trials", 7, "message"),
            ("jobs", 1, "progress")}  # fmt: skip
        database.leave_out(damaged)
        with database.reading() as connection:
            numbers = connection.exec_driver_sql("SELECT id FROM trials ORDER BY id").scalars()
            assert list(numbers) == [1, 2, 3, 5, 6, 8, 9, 10, 11]
        assert database.job(1).progress == {} and database.damaged_rows() == damaged
