"""One default for the database in every command and in Python, and it is said which one it is."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest

import tilesmith as ts
from tests.end_to_end.command import SMALL, TUNE, invoke, refuse, succeed
from tilesmith.jobs.databases import BY_DEFAULT, located


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: an empty one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_order_is_option_then_variable_then_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert located(BY_DEFAULT).location is None and located(None).location is None
    assert located(BY_DEFAULT, makes=True).sentence.endswith(
        "(in the current directory, a new one)"
    )
    (folder / "tuning.db").touch()
    assert located(BY_DEFAULT).location == "tuning.db"
    monkeypatch.setenv("TILESMITH_DATABASE", "postgresql://me:secret@host/db")
    found = located(BY_DEFAULT, makes=True)
    assert found.location == "postgresql://me:secret@host/db"
    assert found.sentence == "database: postgresql://me:***@host/db (by TILESMITH_DATABASE)"
    assert located("other.db").location == "other.db" and not located("other.db").sentence
    assert located("none").location is None
    monkeypatch.setenv("TILESMITH_DATABASE", "none")
    assert located(BY_DEFAULT).location is None


def test_every_command_finds_it_and_says_so(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no database: name one with --database" in refuse("db", "top")
    tuned = invoke("tune", model, *TUNE)
    assert tuned.exit_code == 0
    assert "database: tuning.db (in the current directory, a new one)" in tuned.stderr
    with sqlite3.connect(folder / "tuning.db") as asked:
        assert asked.execute("select count(*) from trials").fetchone()[0] > 0
    for words in (["db", "top"], ["db", "jobs"], ["simulate", model], ["run", model]):
        assert "database: tuning.db (in the current directory)" in invoke(*words).stderr
        told = succeed(*words)
        assert (told["database"], told["database_by"]) == ("tuning.db", "current directory")
    compiled = succeed("compile", model, "-o", "model.tsm")
    assert compiled["schedules"]["measured"] and compiled["database"] == "tuning.db"
    assert "database" not in succeed("run", "model.tsm"), "an artifact has its schedules"
    assert succeed("compile", model, "-o", "model.tsm", "--database", "none")["tuned"] == 0
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    monkeypatch.setenv("TILESMITH_DATABASE", str(folder / "tuning.db"))
    assert succeed("db", "stats")["database_by"] == "TILESMITH_DATABASE"


def test_python_has_the_same_default_and_tells_of_it(
    folder: Path, model: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tilesmith")
    ts.tune(ts.Workload.parse(SMALL), trials=2, measure="simulator")
    assert (folder / "tuning.db").exists()
    ts.compile(str(model))
    told = (record.message for record in caplog.records)
    assert [message for message in told if message.startswith("database")] == [
        "database: tuning.db (in the current directory, a new one)",
        "database: tuning.db (in the current directory)",
    ]
    caplog.clear()
    ts.compile(str(model), database=None)
    assert not [record for record in caplog.records if record.message.startswith("database")]
    with pytest.raises(ts.InputError, match="kept in a database"):
        ts.tune(ts.Workload.parse(SMALL), database=None)
