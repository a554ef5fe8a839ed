"""Rows that cannot be read: which they are, and how a reader goes on without them.

SQLite keeps any value in any column, and other programs put them there: a word where seconds are
expected, bytes where text is, JSON that is none. PostgreSQL keeps the types of its columns, but
takes any text for JSON, and numbers that are not finite. Whoever only shows a database
(`dashboard`) asks `damaged_rows` once a question failed and asks again on connections where they
are left out: a temporary view of the same name stands before each table concerned, so that no
question has to know. Of other servers nothing is left out.

Invariants: nothing is written to the database. What a job may lack, and facts, which may be empty,
are shown empty, because other rows point to theirs; every other row is left out whole.
"""

import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_args

from sqlalchemy import Column, Connection, DateTime, Engine, Float, Integer, String, Table, event

from tilesmith.records.schema.models import COST_MODELS, JOBS, UtcDateTime, metadata
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import STATUSES, MeasuredBy
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import TilesmithError

_BLANK = ("facts", "calibration")
_SHOWN = 24
_TOLD = 3
_AT_ONCE = 10_000

_TABLES = [t for t in metadata.sorted_tables if "id" in t.c and t is not COST_MODELS]


@dataclass(frozen=True)
class DamagedRow:
    """A row with a value that is none of its column's.

    Attributes:
        blank: whether the row is shown with that value empty, instead of left out.
    """

    table: str
    number: int
    column: str
    value: str
    blank: bool = False

    def __str__(self) -> str:
        return f"{self.table} {self.number} ({self.column} is {self.value})"


def sentence(name: str, rows: Sequence[DamagedRow]) -> str:
    """That database `name` is damaged, where, and what to do."""
    others = f" and {len(rows) - _TOLD} more" if len(rows) > _TOLD else ""
    return (
        f"database '{name}' is damaged: {', '.join(map(str, rows[:_TOLD]))}{others}; restore a "
        "copy, or delete such rows ('tilesmith db verify --only-check --json' names all)"
    )


def damaged_rows(connection: Connection) -> tuple[DamagedRow, ...]:
    """Every such row of a database, table after table; reads all of it."""
    if connection.dialect.name not in _HOMES:
        return ()
    driver = connection.connection.driver_connection
    if not isinstance(driver, sqlite3.Connection):
        return tuple(row for table in _TABLES for row in _of_table(connection, table))
    usual, driver.text_factory = driver.text_factory, _text
    try:
        return tuple(row for table in _TABLES for row in _of_table(connection, table))
    finally:
        driver.text_factory = usual


_HOMES = {"sqlite": ("main", "temp"), "postgresql": ("", "pg_temp")}
"""Schemas of tables and of temporary views, by kind of database; "": the connection's default."""

_READ_WRITE = {
    "sqlite": ("PRAGMA query_only = OFF", "PRAGMA query_only = {closed}"),
    "postgresql": ("SET TRANSACTION READ WRITE", ""),
}
"""Temporary views count as writing: what lets them be made, and what ends that."""


def leave_out(engine: Engine, rows: Iterable[DamagedRow]) -> None:
    """Have every new connection of an engine go on as if these rows were not there.

    A server's user who may not make temporary views sees the database as it is.
    """
    tables = {table.name: table for table in _TABLES}
    concerned: dict[str, list[DamagedRow]] = {}
    for row in rows:
        concerned.setdefault(row.table, []).append(row)
    kind = engine.dialect.name

    def set_up(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        closed = cursor.execute("PRAGMA query_only").fetchone()[0] if kind == "sqlite" else ""
        home = _HOMES[kind][0] or engine.dialect.default_schema_name
        begin, end = _READ_WRITE[kind]
        try:
            cursor.execute(begin)
            for name, damaged in concerned.items():
                _put_view_before(cursor, f"{home}.{name}", tables[name], damaged, kind)
            if end:
                cursor.execute(end.format(closed=closed))
            connection.commit()
        except engine.dialect.dbapi.Error:  # type: ignore[union-attr]
            if kind == "sqlite":
                raise
            connection.rollback()
        cursor.close()

    if concerned:
        event.listen(engine, "connect", set_up)


def _put_view_before(
    cursor: Any, whole: str, table: Table, rows: list[DamagedRow], kind: str
) -> None:
    damaged = f"{_HOMES[kind][1]}.{table.name}_damaged"
    cursor.execute(
        f"CREATE TEMP TABLE {table.name}_damaged (id BIGINT, empty TEXT, UNIQUE (empty, id))"
    )
    values = {(row.number, row.column if row.blank else "") for row in rows}
    mark = "?" if kind == "sqlite" else "%s"
    cursor.executemany(f"INSERT INTO {damaged} VALUES ({mark}, {mark})", sorted(values))
    of = f"(SELECT id FROM {damaged} WHERE empty = '%s')"
    emptied = {row.column for row in rows if row.blank}  # the others keep their indices
    columns = ", ".join(
        f"CASE WHEN id IN {of % c.name} THEN {'NULL' if c.nullable else repr('')} "
        f"ELSE {c.name} END AS {c.name}"
        if c.name in emptied
        else c.name
        for c in table.c
    )
    cursor.execute(
        f"CREATE TEMP VIEW {table.name} AS SELECT {columns} FROM {whole} WHERE id NOT IN {of % ''}"
    )


def _may_be_empty(column: Column[Any]) -> bool:
    """Whether a row is worth showing without it: a job without its progress, say."""
    return column.name in _BLANK or (column.table is JOBS and bool(column.nullable))


def _of_table(connection: Connection, table: Table) -> Iterable[DamagedRow]:
    columns = list(table.c)
    checks = [_check(table.name, column) for column in columns]
    of_server = connection.dialect.name == "postgresql"
    names = ", ".join(
        f"CAST({column.name} AS TEXT)" if of_server and _holds_moments(column) else column.name
        for column in columns
    )
    home = _HOMES[connection.dialect.name][0] or connection.dialect.default_schema_name
    connection = connection.execution_options(yield_per=_AT_ONCE)
    for row in connection.exec_driver_sql(f"SELECT {names} FROM {home}.{table.name}"):
        named = {column.name: value for column, value in zip(columns, row, strict=True)}
        if named.get("status") == "ok" and named.get("samples") == "[]":
            yield DamagedRow(table.name, named["id"], "samples", "empty, though it worked")
        for column, check, value in zip(columns, checks, row, strict=True):
            if (value is None and column.nullable) or (value is not None and check(value)):
                continue
            shown = repr(value)
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
            yield DamagedRow(table.name, named["id"], column.name, shown, _may_be_empty(column))


def _text(stored: bytes) -> str | bytes:
    """What is no UTF-8 stays bytes, which no column of text may hold."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


Check = Callable[[Any], bool]


def _check(table: str, column: Column[Any]) -> Check:
    """Whether a value is one of a column's."""
    if (table, column.name) in _CHECKS:
        return _CHECKS[table, column.name]
    kind = column.type
    if _holds_moments(column):
        return _is_moment
    if isinstance(kind, String):
        return lambda value: isinstance(value, str)
    if isinstance(kind, Float):
        return _is_number
    if isinstance(kind, Integer):
        return lambda value: isinstance(value, int)
    return _is_number if column.name.endswith("_s") else lambda value: isinstance(value, int)


def _holds_moments(column: Column[Any]) -> bool:
    return isinstance(column.type, UtcDateTime | DateTime)


def _is_moment(value: object) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).year > 1
    except ValueError:
        return False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _is_json(value: object, kind: type = dict) -> bool:
    try:
        return isinstance(value, str) and isinstance(json.loads(value), kind)
    except (ValueError, RecursionError):
        return False


def _is_latency(value: object) -> bool:
    return _is_number(value) and value > 0  # type: ignore[operator]


def _are_samples(value: object) -> bool:
    return _is_json(value, list) and all(
        not isinstance(one, bool) and _is_number(one) for one in json.loads(str(value))
    )


def _is_config(value: object) -> bool:
    try:
        return isinstance(value, str) and Config.from_json(value) is not None
    except (TilesmithError, RecursionError):
        return False


def _are_facts(value: object) -> bool:
    return value == "" or _is_json(value)


def _is_target(value: object) -> bool:
    try:
        return value == "" or (isinstance(value, str) and Target.from_json(value) is not None)
    except (TilesmithError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return False


_CHECKS: dict[tuple[str, str], Check] = {
    ("jobs", "progress"): _is_json,
    ("trials", "config"): _is_config,
    ("trials", "samples"): _are_samples,
    ("trials", "warm_samples"): _are_samples,
    ("trials", "latency_s"): _is_latency,
    ("trials", "status"): lambda value: value in STATUSES,
    ("series", "measured_by"): lambda value: value in get_args(MeasuredBy),
    ("targets", "facts"): _is_target,
    ("machines", "facts"): _are_facts,
    ("machines", "calibration"): _are_facts,
}
