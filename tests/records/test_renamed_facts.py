"""A database whose targets state `vector.lanes`, of float32, serves CPUs described in bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.records.make_vector_lanes import FILE, KEY, TARGET
from tilesmith.records import Database, TuningRecord
from tilesmith.search_space.hardware.instruction_set import lanes
from tilesmith.search_space.hardware.target import Fact, Target, parse_target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu.microbenchmarks import calibration

IDENTITY = "cpu-aaf1bbd6"
"""What the version that made the file called the machine."""


def described_today(size: int = 32) -> Target:
    """The same machine as it is described now."""
    facts = {name: fact for name, fact in TARGET.facts if name != "vector.lanes"}
    width = Fact(size, "instruction set", "V", "bytes", minimum=4, maximum=8192)
    return Target.of("cpu", "cpu", facts | {"vector.bytes": width}, TARGET.doc)


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    return Path(shutil.copy(FILE, tmp_path / "old.db"))


def test_a_machine_keeps_its_identity() -> None:
    assert described_today().identity == TARGET.identity == IDENTITY
    assert described_today(64).identity != IDENTITY


def test_old_records_serve_and_new_ones_join_them(old_file: Path) -> None:
    target = described_today()
    with Database.open(str(old_file)) as database:
        assert database.check() == []
        best = database.best(KEY, target)
        assert best is not None and (best.latency, best.record.config["tile"]) == (8e-6, 5)
        result = MeasureResult("ok", "hardware", (7e-6,))
        record = TuningRecord.of(Workload.parse(KEY), target, Config.of(tile=7), result)
        database.register_target(target)
        database.add([record])
        assert database.stats()["targets"] == 1
        found = database.best(KEY, target)
        assert found is not None and found.record.config["tile"] == 7
        facts = database.target_facts(IDENTITY)
        assert facts is not None and facts.integer("vector.bytes") == 32


def test_old_descriptions_are_read_as_todays(old_file: Path) -> None:
    with Database.open(str(old_file)) as database:
        found = database.target_facts(IDENTITY)
    assert found is not None and found.identity == IDENTITY
    assert "vector.lanes" not in found and lanes(found, "float32") == 8
    fact = found.fact("vector.bytes")
    assert (fact.value, fact.unit, fact.minimum, fact.maximum) == (32, "bytes", 4, 256)
    assert Target.from_json(found.to_json()) == found
    written = parse_target("mine", 'family = "cpu"\n[vector]\nlanes = 16')
    assert written.integer("vector.bytes") == 64


def test_exports_of_old_databases_are_imported(old_file: Path, tmp_path: Path) -> None:
    with Database.open(str(old_file)) as database:
        lines = list(database.export_lines())
    assert "vector.lanes" in json.loads(lines[0])["targets"][IDENTITY]["facts"]
    with Database.open(str(tmp_path / "new.db")) as database:
        database.import_lines(lines)
        facts = database.target_facts(IDENTITY)
        assert facts is not None and facts.integer("vector.bytes") == 32
        assert database.best(KEY, described_today()) is not None


def test_a_kept_calibration_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(calibration.ENVIRONMENT, str(tmp_path))
    (tmp_path / f"{IDENTITY}.json").write_text('{"clock.ghz": 3.25}')
    assert calibration.calibrated(described_today()).number("clock.ghz") == 3.25
