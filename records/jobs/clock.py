"""The database server's clock: the one clock that times of several machines are read from.

`UtcNow()` inside a statement is the moment its transaction began, in UTC without a zone, as every
time in the database is stored. On SQLite, whose users share one machine, it is that machine's.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from tilesmith.records.schema.models import UtcDateTime


class UtcNow(FunctionElement[datetime]):
    """See the module's docstring."""

    type = UtcDateTime()
    inherit_cache = True


@compiles(UtcNow)
def _standard(element: UtcNow, compiler: Any, **_: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(UtcNow, "postgresql")
def _postgresql(element: UtcNow, compiler: Any, **_: Any) -> str:
    return "timezone('utc', CURRENT_TIMESTAMP)"  # a session's own zone must not matter


@compiles(UtcNow, "sqlite")
def _sqlite(element: UtcNow, compiler: Any, **_: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"  # CURRENT_TIMESTAMP there has whole seconds


def now(connection: Connection) -> datetime:
    """The server's time, with its zone."""
    return connection.execute(select(UtcNow())).scalar_one()
