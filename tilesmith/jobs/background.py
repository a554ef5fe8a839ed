"""Models that are tuned while they are used: what `tune="background"` asks for, and of whom.

A `BackgroundTuner`, which a capability registers, takes a model that was compiled with what is
known now, and gives one that is exchanged for faster ones between calls.
"""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tilesmith.jobs.databases import ByDefault, Named, here
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.extensions import absent
from tilesmith.search_space.support.registry import Registry

if TYPE_CHECKING:
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.compiler.varying.executable import VaryingExecutable
    from tilesmith.jobs.requests.request import Resolved

    M = TypeVar("M", Executable, VaryingExecutable, Executable | VaryingExecutable)

VARIABLE = "TILESMITH_TUNE"
BACKGROUND = "background"
NEVER = "never"


class BackgroundTuner(ABC):
    """Has models tuned by a process beside the one that runs them."""

    @abstractmethod
    def database(self) -> str:
        """Where schedules are kept when no database is named or lies here; it may not exist yet."""

    @abstractmethod
    def followed(self, executable: "M", asked: "Resolved", database: str) -> "M":
        """The model, which becomes faster as it is tuned.

        Nothing is raised for what tuning needs and does not get: the model stays as it is then.

        Args:
            executable: compiled as `asked`.
            database: where schedules are kept.
        """


background_tuners: Registry[type[BackgroundTuner]] = Registry(
    "background tuner", "", room="background_tuner"
)


@dataclass(frozen=True)
class Tuning:
    """How a model is tuned while it is used, if it is.

    Attributes:
        tuner: None: it is not tuned.
        database: where its schedules are kept; None: it has none but defaults.
    """

    tuner: BackgroundTuner | None
    database: str | None

    @property
    def known(self) -> str | None:
        """The database to compile with: none where tuning has yet to make it."""
        if self.tuner is None or self.database is None or is_there(self.database):
            return self.database
        return None

    def followed(self, executable: "M", asked: "Resolved") -> "M":
        """As `BackgroundTuner.followed`; the executable itself where nobody tunes it."""
        if self.tuner is None or self.database is None:
            return executable
        return self.tuner.followed(executable, asked, self.database)


def is_there(database: str) -> bool:
    """Whether a database exists, as far as is known without opening it."""
    return "://" in database or Path(database).exists()


def tuning_of(tune: str | None, named: Named) -> Tuning:
    """How a model is tuned that is compiled with a database.

    Args:
        tune: "background" or "never"; None: what the environment variable `TILESMITH_TUNE` says,
            if anything.
        named: as for `jobs.databases.here`.

    Raises:
        InputError: another word; or no database is to be used, and tuning needs one.
        DependencyError: the capability is not installed.
    """
    location = here(named)
    asked, where = (os.environ.get(VARIABLE), VARIABLE) if tune is None else (tune, "tune")
    if not asked or asked == NEVER:
        return Tuning(None, location)
    if asked != BACKGROUND:
        raise InputError(f"{where} = {asked!r:.80} is neither '{BACKGROUND}' nor '{NEVER}'")
    for name in background_tuners:
        tuner = background_tuners[name]()
        if location is not None or isinstance(named, ByDefault):
            return Tuning(tuner, location or tuner.database())
        if tune is None:
            return Tuning(None, None)
        raise InputError(
            "what is tuned in the background is kept in a database, and database is None; name "
            "one, or leave it out"
        )
    raise absent("first_use", f"{where}='{BACKGROUND}'")
