"""`compile` names the kernels that were not tuned, why, and a command that tunes them."""

from __future__ import annotations

import shlex
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.command import SEARCH, invoke, save_model, succeed

KEY = "matmul m=4 n=6 k=8 const=b epilogue=relu"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tuning the model leaves; to be copied."""
    folder = tmp_path_factory.mktemp("tuned")
    model, database = save_model(folder / "small.onnx"), folder / "tuning.db"
    assert invoke("tune", model, *SEARCH, "--database", database).exit_code == 0
    return database


def why(*options: str | Path) -> tuple[list[tuple[str, str]], str | None]:
    """Why workloads are not tuned, by their keys, and the command that tunes them."""
    told: Any = succeed("compile", *options, "-o", "model.tsm")
    return [(one["workload"], one["why"]) for one in told["untuned"]], told["tune_command"]


def test_every_reason_is_named(here: Path, model: Path, tuned: Path) -> None:
    found, command = why(model)
    assert found == [(KEY, "there is no database")]
    assert command == shlex.join(["tilesmith", "tune", str(model)])
    shutil.copy(tuned, here)
    assert why(model) == ([], None)
    told = invoke("compile", model, "-o", "model.tsm", "--threads", 2).stdout
    assert f"not tuned: {KEY}" in told and "tuned for 1 thread, not for 2" in told
    assert f"to tune them: tilesmith tune {model} --database tuning.db --threads 2" in told
    found, command = why(model, "--target", "trn1")
    assert "tuned for another target (cpu-" in found[0][1] and "not for trn1-" in found[0][1]
    assert command is not None and "--target trn1" in command
    found, command = why(model, "--precision", "bf16")
    assert {reason for _, reason in found} == {"never tuned"} and "bf16" in str(command)


def test_other_versions_and_processors_are_named(here: Path, model: Path, tuned: Path) -> None:
    shutil.copy(tuned, here)
    with sqlite3.connect("tuning.db") as database:
        database.execute("update toolchains set simulator = '1'")
    ((_, reason),), _ = why(model)
    assert "simulator was 1" in reason
    with sqlite3.connect("tuning.db") as database:
        database.execute("update targets set identity = 'cpu-00000000'")
    ((_, reason),), _ = why(model)
    assert "another processor (cpu-00000000)" in reason


def test_the_command_does_what_it_says(here: Path, model: Path) -> None:
    _, command = why(model, "--threads", "2")
    assert command is not None
    words = shlex.split(command)[1:]
    assert invoke(*words, *SEARCH).exit_code == 0
    assert why(model, "--threads", "2") == ([], None)


def test_a_model_that_is_named_like_an_option_is_told_as_a_file(here: Path) -> None:
    save_model(here / "-m.onnx")
    told = invoke("compile", "-o", "model.tsm", "--", "-m.onnx")
    command = told.output.splitlines()[-1].partition("to tune them: ")[2]
    assert command == "tilesmith tune ./-m.onnx"
