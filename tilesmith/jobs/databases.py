"""Which tuning database is meant where none is named: one rule for commands and the Python API.

What is named, else the environment variable `TILESMITH_DATABASE`, else `tuning.db` where it lies in
the current directory. A database that nobody named is said aloud, so that nobody wonders where
schedules come from. `None` in Python, and the word `none` elsewhere, mean no database at all.
"""

import os
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from tilesmith.jobs.notices import tell
from tilesmith.records.schema.urls import without_password
from tilesmith.search_space.support.errors import InputError

VARIABLE = "TILESMITH_DATABASE"
FILE = "tuning.db"
NONE = "none"


class ByDefault(Enum):
    """The type of `BY_DEFAULT`, which no path or URL equals."""

    TOKEN = "by default"

    def __repr__(self) -> str:
        return "BY_DEFAULT"


BY_DEFAULT: Final = ByDefault.TOKEN
"""In place of a database: the one that this module's rule finds."""

Named = str | Path | None | ByDefault


@dataclass(frozen=True)
class Located:
    """A database, and why it is the one.

    Attributes:
        location: SQLite file or URL; None: no database.
        why: "named", "TILESMITH_DATABASE", "current directory", or "none there".
    """

    location: str | None = field(repr=False)  # it may hold a password
    why: str

    @property
    def display(self) -> str | None:
        """The location as people and logs may see it."""
        return None if self.location is None else without_password(self.location)

    @property
    def sentence(self) -> str:
        """A line that says which database is used; "" where the user knows."""
        if self.location is None or self.why == "named":
            return ""
        where = f"by {VARIABLE}" if self.why == VARIABLE else f"in the {self.why}"
        new = "" if "://" in self.location or Path(self.location).exists() else ", a new one"
        return f"database: {self.display} ({where}{new})"


def located(named: Named, *, makes: bool = False) -> Located:
    """The database that is meant.

    Args:
        makes: whether the job makes a database where there is none.
    """
    if isinstance(named, str) and named == NONE:
        return Located(None, "named")
    if not isinstance(named, ByDefault):
        return Located(None if named is None else str(named), "named")
    if named_by := os.environ.get(VARIABLE):
        return Located(None if named_by == NONE else named_by, VARIABLE)
    if makes or Path(FILE).exists():
        return Located(FILE, "current directory")
    return Located(None, "none there")


def here(named: Named, *, makes: bool = False) -> str | None:
    """`located` for the Python API: a database that the caller did not name is told of.

    Raises:
        InputError: the job `makes` a database, and none is meant.
    """
    database = located(named, makes=makes)
    if makes and database.location is None:
        raise InputError(
            f"results are kept in a database; give --database {FILE}, or leave --database out"
        )
    if database.sentence:
        tell(database.sentence)
    return database.location
