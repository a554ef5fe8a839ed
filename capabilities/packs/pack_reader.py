"""How the compiler gets at packs: registers with `tilesmith.jobs.packs`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilesmith.capabilities.packs.places import packs_for
from tilesmith.jobs.packs import PackReader, pack_readers
from tilesmith.search_space.hardware.target import Target

if TYPE_CHECKING:
    from tilesmith.compiler.backends.recorded import Records


@pack_readers.register("files")
class PackFiles(PackReader):
    """Packs in files, named or installed."""

    def records(
        self, database: "Records | None", packs: Sequence[str] | None, target: Target
    ) -> "Records | None":
        known = packs_for(packs)
        if not known:
            return database
        from tilesmith.capabilities.packs.lookup import PackRecords

        records = PackRecords(database, known, target)
        return records if records.knows_the_machine else database
