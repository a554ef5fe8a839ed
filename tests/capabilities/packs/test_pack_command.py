"""`tilesmith pack`, by its command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.capabilities.packs.made_up import (
    FAR,
    MATMUL,
    NEAR,
    machine,
    other_than_default,
    pack_with,
    schedule,
)
from tilesmith.capabilities.packs.file_format import read_pack, write_pack
from tilesmith.codegen.programs.structures import default_of
from tilesmith.command_line import command_line
from tilesmith.records import Database, TuningRecord
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.workloads.workload import Workload

HERE = machine()


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(command_line, list(words))
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.output


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two workloads whose default was beaten, the second by nothing to speak of."""
    path = tmp_path / "t.db"
    with Database.open(str(path)) as opened:
        opened.register_target(HERE)
        for workload, gain in ((MATMUL, 2.0), (FAR, 1.001), (NEAR, 0.5)):
            _tell(opened, workload, 1e-4, default=True)
            for number in range(9):
                _tell(opened, workload, 1e-4 / gain + 1e-6 * number, number=number)
    return path


def _tell(
    database: Database, workload: Workload, seconds: float, number: int = 0, default: bool = False
) -> None:
    config = default_of(workload, HERE) if default else other_than_default(workload, HERE, number)
    result = MeasureResult("ok", "hardware", (seconds,) * 3)
    database.add([TuningRecord.of(workload, HERE, config, result, threads=1)])


def test_what_beats_its_default_is_packed_and_nothing_else(database: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    said = json.loads(run("pack", "make", "--database", str(database), "-o", str(file), "--json"))
    assert (said["machines"], said["schedules"]) == (1, 1)
    assert (said["file"], said["bytes"]) == (str(file), file.stat().st_size)
    (one,) = read_pack(file).schedules
    assert one.record.workload_key == MATMUL.key
    assert one.record.config == other_than_default(MATMUL, HERE)
    assert one.gain == pytest.approx(2.0)
    assert (
        "all 1 schedules are legal"
        in CliRunner().invoke(command_line, ["pack", "check", str(file)]).stderr
    )


@pytest.mark.parametrize(("gain", "packed"), [(1.05, False), (1.2, True)])
def test_what_a_simulator_alone_judged_has_more_to_prove(
    tmp_path: Path, gain: float, packed: bool
) -> None:
    path, file = tmp_path / "t.db", tmp_path / "p.jsonl"
    with Database.open(str(path)) as opened:
        opened.register_target(HERE)
        for config, seconds in (
            (default_of(MATMUL, HERE), 1e-4), (other_than_default(MATMUL, HERE), 1e-4 / gain)
        ):  # fmt: skip
            result = MeasureResult("ok", "simulator", (seconds,))
            opened.add([TuningRecord.of(MATMUL, HERE, config, result, threads=1)])
    words = ("pack", "make", "--database", str(path), "-o", str(file))
    run(*words, code=0 if packed else 2)
    assert not packed or read_pack(file).schedules[0].record.result.measured_by == "simulator"


def test_a_database_without_gain_makes_no_pack(database: Path, tmp_path: Path) -> None:
    words = ("pack", "make", "--database", str(database), "-o", str(tmp_path / "p.jsonl"))
    assert "beats its default by 2%" in run(*words, "--target", "trn1", code=2)
    assert not (tmp_path / "p.jsonl").exists()


def test_packs_are_merged_and_shown(tmp_path: Path) -> None:
    first, second, both = (str(tmp_path / f"{name}.jsonl") for name in ("a", "b", "c"))
    write_pack(pack_with((HERE, schedule(MATMUL, HERE))), Path(first))
    other = machine(processor="znver2")
    write_pack(pack_with((other, schedule(FAR, other, measured_by="simulator"))), Path(second))
    run("pack", "merge", first, second, "-o", both)
    assert len(read_pack(Path(both)).schedules) == 2
    shown = json.loads(run("pack", "show", both, "--schedules", "--json"))["packs"][0]
    by_processor = {one["processor"]: one for one in shown["machines"]}
    assert by_processor["znver2"]["measured_by"] == ["simulator"]
    assert by_processor["haswell"]["measured_by"] == ["hardware"]
    assert {one["workload"] for one in shown["records"]} == {MATMUL.key, FAR.key}
    assert "znver2" in run("pack", "show", both, "--schedules")
    assert run("pack", "show").strip() == "no pack is named or installed"


def test_a_signed_pack_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives import serialization as forms

    key = ed25519.Ed25519PrivateKey.generate()
    pem = forms.Encoding.PEM
    private, public = tmp_path / "key.pem", tmp_path / "public.pem"
    private.write_bytes(key.private_bytes(pem, forms.PrivateFormat.PKCS8, forms.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(pem, forms.PublicFormat.SubjectPublicKeyInfo))
    file = tmp_path / "p.jsonl"
    write_pack(pack_with((HERE, schedule(MATMUL, HERE))), file)
    monkeypatch.setenv("TILESMITH_PACKS", str(file))
    assert json.loads(run("pack", "show", "--json"))["packs"]
    monkeypatch.setenv("TILESMITH_TRUSTED_KEY", str(public))
    assert f"pack '{file}' is not signed" in run("pack", "show", code=2)
    run("sign", str(file), "--key", str(private))
    run("pack", "check", str(file), "--trusted-key", str(public))
    assert json.loads(run("pack", "show", "--json"))["packs"]
    file.write_bytes(file.read_bytes() + b"\n")
    assert "is not what the owner of" in run("pack", "check", str(file), code=2)


def test_an_illegal_schedule_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    write_pack(pack_with((HERE, schedule(MATMUL, HERE))), path)
    lines = path.read_text().splitlines()
    line = json.loads(lines[-1])
    line["config"]["m_tile"] = 10**15
    path.write_text("\n".join([*lines[:-1], json.dumps(line)]))
    said = run("pack", "check", str(path), code=2)
    assert MATMUL.key in said and "m_tile" in said and "1 of 1 schedules cannot be used" in said
