"""Bests of other machines: the most alike first, of the same family, label and workload alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from sqlalchemy import text

from tilesmith.codegen.host.machine import cpu_target
from tilesmith.records import Database, TuningRecord
from tilesmith.records.questions.likeness import unlikeness
from tilesmith.records.questions.nearness import MACHINES, bests_elsewhere
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.ledgers.database_ledger import DatabaseLedger

WORKLOAD = Workload.parse("matmul m=64 n=64 k=64")
TRIPLE = "x86_64-unknown-linux-gnu"


def machine(name: str, isa: str = "avx2", **caches: int) -> Target:
    known = {"l1.kib": 32, "l2.kib": 512, "l3.kib": 8192, "threads": 8}
    settings = {**known, **{f"{level}.kib": kib for level, kib in caches.items()}}
    return cpu_target(name, isa, TRIPLE).with_settings(settings)


def tell(database: Database, target: Target, tile: int, seconds: float, **more: object) -> None:
    label = more.pop("measured_by", "hardware")
    workload = more.pop("workload", WORKLOAD)
    result = MeasureResult("ok", label, (seconds,))  # type: ignore[arg-type]
    found = TuningRecord.of(workload, target, Config.of(tile=tile), result, **more)  # type: ignore[arg-type]
    database.register_target(target)
    database.add([found])


def tiles(database: Database, target: Target) -> list[object]:
    found = bests_elsewhere(database, WORKLOAD, target, 1, "hardware")
    return [best.record.config["tile"] for best in found]


def test_the_most_alike_come_first_and_no_more_than_a_few(tmp_path: Path) -> None:
    here = machine("here")
    with Database.open(str(tmp_path / "t.db")) as database:
        assert tiles(database, here) == []
        tell(database, machine("neon", "neon"), 1, 1e-6)
        tell(database, machine("twin"), 2, 3e-3)
        tell(database, machine("twin"), 3, 2e-3)
        tell(database, machine("wide", "avx512"), 4, 1e-5)
        tell(database, machine("large", l2=1024), 5, 1e-3)
        tell(database, machine("larger", l2=4096), 6, 1e-3)
        assert tiles(database, here) == [3, 5, 6] and MACHINES == 3
        assert tiles(database, machine("twin"))[0] == 5, "itself is left out"


def test_nothing_else_is_offered(tmp_path: Path) -> None:
    here, twin = machine("here"), machine("twin")
    other = Workload.parse("matmul m=64 n=64 k=65")
    with Database.open(str(tmp_path / "t.db")) as database:
        tell(database, twin, 1, 1e-3, measured_by="simulator")
        tell(database, twin, 2, 1e-3, threads=2)
        tell(database, twin, 3, 1e-3, workload=other)
        tell(database, load_target("trn1"), 4, 1e-3)
        tell(database, here, 5, 1e-3)
        assert tiles(database, here) == []
        tell(database, twin, 6, 1e-3)
        assert tiles(database, here) == [6]
        ledger = DatabaseLedger(database, here, 1, 0)
        assert ledger.elsewhere(WORKLOAD, "hardware") == [Config.of(tile=6)]


@pytest.mark.parametrize("facts", ["", "[", "[1]", '{"facts": 3}', '{"facts": {"l1.kib": 3}}'])
def test_damaged_descriptions_are_as_far_as_can_be(tmp_path: Path, facts: str) -> None:
    here = machine("here")
    assert unlikeness(here, facts) == math.inf
    with Database.open(str(tmp_path / "t.db")) as database:
        tell(database, machine("twin"), 6, 1e-3)
        with database.writing() as connection:
            connection.execute(text("UPDATE targets SET facts = :facts"), {"facts": facts})
        assert tiles(database, here) == []


def test_unlikeness_sums_logarithms_of_numbers() -> None:
    here = machine("here")
    assert unlikeness(here, machine("twin").to_json()) == 0
    found = unlikeness(here, machine("other", l1=64, l2=128).to_json())
    assert found == pytest.approx(math.log(2) + math.log(4))
    strange = here.to_json().replace('"value": 512', '"value": -1')
    assert unlikeness(here, strange) == pytest.approx(math.log(8))
