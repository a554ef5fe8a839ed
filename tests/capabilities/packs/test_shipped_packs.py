"""The packs that ship: small, legal, and each schedule faster than its default when it was made."""

from __future__ import annotations

from importlib import resources

from tilesmith.capabilities.packs.checking import unfit_schedules
from tilesmith.capabilities.packs.file_format import lines_of
from tilesmith.capabilities.packs.making import WORTH
from tilesmith.capabilities.packs.places import ROOM, installed_packs
from tilesmith.search_space.results.origin import Origin

LARGEST = 5 << 20


def test_they_are_small_and_written_as_we_write_them() -> None:
    files = [
        file
        for file in resources.files(f"tilesmith.capabilities.packs.{ROOM}").iterdir()
        if file.name.endswith(".jsonl")
    ]
    assert files and sum(len(file.read_bytes()) for file in files) <= LARGEST
    written = {file.name: file.read_text().splitlines() for file in files}
    for pack in installed_packs():
        assert written[pack.name] == list(lines_of(pack))


def test_every_schedule_is_legal_and_was_worth_packing() -> None:
    for pack in installed_packs():
        assert pack.schedules and list(unfit_schedules(pack)) == []
        best: dict[tuple[str, str], float] = {}
        for one in pack.schedules:
            subject = one.record.target_identity, one.record.workload_key
            best[subject] = max(best.get(subject, 0.0), one.gain)
        assert min(best.values()) >= WORTH * 0.999, "but for rounding"


def test_it_is_said_how_each_was_measured() -> None:
    for pack in installed_packs():
        for one in pack.schedules:
            assert one.record.toolchain is not None and one.record.created_at is not None
            assert one.origin in (Origin.SEARCHED, Origin.MEASURED)
