"""Which schema a database has, and how it gets the current one.

The revision is kept in the table `schema_version`. An empty database gets every migration from the
first on; an older one the missing ones, in one transaction, under the writers' lock, so that any
number of processes may open a new file at the same moment.

Migrations are additive: they add tables, and columns that are null or have a default, so that
clients of several versions share a database while a team upgrades. The table `about` says from
which schema on a client may read (`readable_from`) and write (`writable_from`); a migration that
older clients would damage raises these. An older client keeps working within them, and is refused
in a sentence where it must not.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources

from sqlalchemy import Connection, Engine, column, inspect, select, table, text
from sqlalchemy.exc import DBAPIError

from tilesmith.records.schema.engine import use_write_ahead_log
from tilesmith.records.schema.faults import translated
from tilesmith.records.schema.models import ABOUT, metadata
from tilesmith.search_space.support.errors import DatabaseError

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")
"""Every schema this installation knows, oldest first (the files in `migrations/versions`)."""

_LOG = logging.getLogger(__name__)

VERSION_TABLE = "schema_version"

_ADVISORY_LOCK = 7310577936  # any number, ours alone: PostgreSQL serialises upgrades on it


def prepare(engine: Engine, name: str, *, writable: bool) -> str:
    """Bring the database to the newest schema, unless it has that or a newer one.

    Args:
        name: how messages call the database.
        writable: whether an empty or older database may be changed.

    Returns:
        Why it may not be written from here; "" where it may.

    Raises:
        DatabaseError: not a tuning database, of a newer schema that this client cannot read, or
            old and read-only.
    """
    with translated(name):
        with engine.connect() as connection:
            revision = _revision(connection, name)
            newer = revision is not None and revision not in REVISIONS
            refusal = _unwritable(connection, name, revision) if revision and newer else ""
        if not writable:
            refusal = refusal or "is read-only; make it writable or name another file"
        else:
            use_write_ahead_log(engine)
        if newer or revision == REVISIONS[-1]:
            return refusal
        if not writable:
            raise DatabaseError(
                f"database '{name}' has the old schema '{revision}' and is read-only; "
                "copy it to where you may write and open the copy, or let somebody who may write "
                "it open it once, as with 'tilesmith db stats'"
                if revision
                else f"database '{name}' is empty and read-only"
            )
        writer = engine.connect().execution_options(tilesmith_write=True)
        with _owning(name, revision), writer as connection, connection.begin():
            if engine.dialect.name == "postgresql":
                connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
            if _revision(connection, name) in (None, *REVISIONS[:-1]):
                upgrade(connection)
    return ""


@contextmanager
def _owning(name: str, revision: str | None) -> Iterator[None]:
    """Say in words that a user may not change the tables (SQLSTATE 42501)."""
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != "42501":
            raise
        state = f"has the old schema '{revision}'" if revision else "is empty"
        raise DatabaseError(
            f"database '{name}' {state}, and this user may not change its tables; "
            "let its owner open it once with this version"
        ) from error


def _revision(connection: Connection, name: str) -> str | None:
    """The schema's revision, None for an empty database; `DatabaseError` for a foreign one."""
    inspector = inspect(connection)
    tables = inspector.get_table_names()
    if VERSION_TABLE not in tables:
        ours = set(metadata.tables)
        foreign = set(tables) if connection.dialect.name == "sqlite" else ours & set(tables)
        if foreign:
            raise DatabaseError(
                f"'{name}' is not a tuning database: it holds the table '{min(foreign)}' "
                f"but no '{VERSION_TABLE}'"
            )
        return None
    version = table(VERSION_TABLE, column("version_num"))
    revision = connection.execute(select(version.c.version_num)).scalar()
    if revision is None and set(metadata.tables) & set(tables):
        raise DatabaseError(
            f"database '{name}' is damaged: its table '{VERSION_TABLE}' has lost its row, which "
            "says what schema it has; restore a copy or, if this version wrote it last: "
            f"INSERT INTO {VERSION_TABLE} VALUES ('{REVISIONS[-1]}')"
        )
    return None if revision is None else str(revision)


def _unwritable(connection: Connection, name: str, revision: str) -> str:
    """Why a database of a newer schema may not be written by this client; "" if it may.

    Raises:
        DatabaseError: it may not even be read.
    """
    about: dict[str, str] = {}
    if inspect(connection).has_table(ABOUT.name):
        about = {row.name: row.value for row in connection.execute(select(ABOUT))}
    ours = REVISIONS[-1]
    advice = (
        f"written by a newer Tilesmith (schema '{revision}'; this one knows up to '{ours}'); "
        "upgrade with 'pip install -U tilesmith'"
    )
    if revision < ours or about.get("readable_from", revision) > ours:
        raise DatabaseError(f"database '{name}' was {advice}")
    if about.get("writable_from", revision) > ours:
        return f"can only be read from here: it was {advice}"
    return ""


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Run the missing migrations up to `revision` on an open write transaction."""
    # Imported here: Alembic is needed once in a database's life, not on every start.
    from alembic import command
    from alembic.config import Config

    config = Config()
    folder = str(resources.files("tilesmith.records.schema") / "migrations").replace("%", "%%")
    config.set_main_option("script_location", folder)
    config.attributes.update(connection=connection, version_table=VERSION_TABLE)
    command.upgrade(config, revision)
    _LOG.debug("brought the schema to %s", revision)
