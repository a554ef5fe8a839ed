"""Packs: files of schedules that compile models where the database knows nothing.

A capability that reads them registers itself (`pack_readers`); the compiler is given what it makes
of a database and the packs that are meant.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.extensions import absent
from tilesmith.search_space.support.registry import Registry

if TYPE_CHECKING:
    from tilesmith.compiler.backends.recorded import Records


class PackReader(ABC):
    """How packs are found and read."""

    @abstractmethod
    def records(
        self, database: "Records | None", packs: Sequence[str] | None, target: Target
    ) -> "Records | None":
        """What is on record in a database and in packs; the database alone where no pack knows
        such a machine.

        Args:
            packs: files that are named, or the word `none`; None: those of the environment.

        Raises:
            InputError: a pack cannot be read, or is none.
        """


pack_readers: Registry[type[PackReader]] = Registry("reader of packs", "", room="pack_reader")


def with_packs(
    database: "Records | None", packs: Sequence[str] | None, target: Target
) -> "Records | None":
    """As `PackReader.records`; the database alone where nothing reads packs and none is named."""
    for name in pack_readers:
        return pack_readers[name]().records(database, packs, target)
    if packs:
        raise absent("packs", "a pack of schedules")
    return database
