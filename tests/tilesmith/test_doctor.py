"""`tilesmith doctor`: every question is answered, and problems are told from notes."""

from __future__ import annotations

import json
import sqlite3
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilesmith.command_line import command_line
from tilesmith.jobs.doctor import installation, noise, processor, working
from tilesmith.search_space.support.errors import TargetError


def _examined(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command_line, ["doctor", *arguments])
    return result.exit_code, result.stdout


def test_every_section_is_there_and_this_machine_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TILESMITH_DATABASE", raising=False)
    monkeypatch.setattr(noise, "_READINGS", 20)
    code, text = _examined("--json")
    found = json.loads(text)
    assert code == 0 and found["problems"] == 0
    sections = [finding["section"] for finding in found["findings"]]
    assert list(dict.fromkeys(sections)) == ["processor", "installed", "working", "measuring"]
    (database,) = (f for f in found["findings"] if f["name"] == "database")
    assert database["state"] == "note" and "tuning.db" in database["advice"]


def test_a_problem_ends_with_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> float:
        raise TargetError("this machine is made of cheese")

    monkeypatch.setattr(noise, "_READINGS", 20)
    monkeypatch.setattr(working, "_error", broken)
    code, text = _examined()
    assert code == 1
    assert "! compile and run    this machine is made of cheese" in text
    assert text.rstrip().splitlines()[-1].startswith("1 problem, ")


def test_wrong_numbers_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working, "_error", lambda: 0.25)
    found = {finding.name: finding for finding in working.findings()}
    assert found["compile and run"].state == "problem"


def test_a_cache_that_cannot_be_made_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path / "file" / "objects"))
    found = {finding.name: finding for finding in working.findings()}
    assert found["cache of code"].state == "note"
    assert "TILESMITH_CACHE" in found["cache of code"].advice


def test_a_file_that_is_no_database_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.db").write_bytes(b"not a database at all, but long enough to look at")
    monkeypatch.setenv("TILESMITH_DATABASE", str(tmp_path / "odd.db"))
    found = {finding.name: finding for finding in working.findings()}
    assert found["database"].state == "problem"
    sqlite3.connect(tmp_path / "new.db").close()
    monkeypatch.setenv("TILESMITH_DATABASE", str(tmp_path / "no" / "later.db"))
    found = {finding.name: finding for finding in working.findings()}
    assert found["database"].state == "problem"
    assert found["database"].value.endswith(f"there is no folder {tmp_path / 'no'}")
    monkeypatch.setenv("TILESMITH_DATABASE", str(tmp_path / "later.db"))
    found = {finding.name: finding for finding in working.findings()}
    assert found["database"].state == "note" and not (tmp_path / "later.db").exists()


def test_a_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://user:geheim@127.0.0.1:1/none"
    monkeypatch.setenv("TILESMITH_DATABASE", url)
    found = {finding.name: finding for finding in working.findings()}
    assert found["database"].state == "problem"
    assert "geheim" not in repr(found)


def test_what_is_needed_is_what_the_project_declares() -> None:
    path = Path(__file__).parents[2] / "pyproject.toml"
    project = tomllib.loads(path.read_text())["project"]
    named = {
        line.split(">")[0].split("[")[0] for line in project["dependencies"] if ";" not in line
    }
    (needs,) = (f for f in installation.findings() if f.name == "needs")
    shown = {part.split(" ")[0] for part in needs.value.split(", ")}
    assert named - shown <= {"packaging"}, "an installation may be older than the file"


def test_what_is_missing_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"numpy": "2.0"}
    monkeypatch.setattr(installation, "_version", lambda name: versions.get(name))
    found = {finding.name: finding for finding in installation.findings()}
    assert found["missing"].state == "problem" and "onnx" in found["missing"].value
    extras = found["extras"]
    assert extras.state == "note" and extras.value.startswith("not installed: ")
    assert "plots (pictures)" in extras.value and "jax (functions of JAX)" in extras.value
    assert ",plots," in extras.advice and extras.advice.startswith("pip install 'tilesmith[")
    assert not [name for name in found if name.startswith("extra ")]


def test_the_processor_is_described() -> None:
    found = {finding.name: finding.value for finding in processor.findings()}
    assert {"machine", "instruction set", "data caches", "cores"} <= set(found)
