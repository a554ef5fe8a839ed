"""Every bad input of the command line: exit code 2 and one sentence that says what to do."""

from __future__ import annotations

import platform
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.end_to_end.command import SMALL, TUNE, refuse, save_model, start, succeed

BAD_OPERATORS = {
    "matmul m=512 n=512": "needs k=",
    "matmul m=0 n=512 k=512": "m=0",
    "matmul m=512 n=512 k=512 dtype=float31": "unknown dtype 'float31'",
    "matmul m=512 n=512 k=512 q=1": "no parameter 'q'",
    "matmul m=512 n=512 k=512 m=2": "given twice",
    "matmul m=512 n=512 k": "not of the form NAME=VALUE",
    "matmul m=512 n=512 k=512 epilogue=frobnicate": "unknown epilogue step 'frobnicate'",
    "matmul m=99999999999999999999 n=1 k=1": "more than 1,099,511,627,776 elements",
    "conv2d c=1 h=99999999999 w=9999999999 oc=1 kh=3 kw=3": "operand 'data' of 'conv2d",
    "matmol m=512 n=512 k=512": "unknown operator 'matmol'",
}


@pytest.mark.parametrize("text", BAD_OPERATORS)
def test_a_wrong_operator_is_refused(text: str, tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    assert BAD_OPERATORS[text] in refuse("tune", "--op", text, "--database", database)
    assert not database.exists()


Spoil = Callable[[Path], object]

BAD_FILES: dict[str, tuple[Spoil, str]] = {
    "missing": (lambda path: path.unlink(), "does not exist"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:100]), "truncated"),
    "text": (lambda path: path.write_text("hello, world\n" * 9), "not an ONNX model"),
    "empty": (lambda path: path.write_bytes(b""), "not an ONNX model"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "cannot be read"),
    "future opset": (lambda path: save_model(path, opset=999), "opset 999"),
    "contradiction": (lambda path: save_model(path, (4, 9)), "4x9, 8x6"),
    "no shape": (lambda path: save_model(path, None), "--shape x=1x3x224x224"),
    "symbolic dimension": (lambda path: save_model(path, ("batch", 8)), "--shape"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
@pytest.mark.parametrize("command", ["tune", "compile", "run", "bench", "simulate"])
def test_a_wrong_model_is_refused(command: str, kind: str, model: Path, tmp_path: Path) -> None:
    spoil, expected = BAD_FILES[kind]
    spoil(model)
    more = {
        "tune": ["--database", tmp_path / "tuning.db"],
        "compile": ["-o", tmp_path / "small.tsm"],
    }.get(command, [])
    assert expected in refuse(command, model, *more)
    assert not (tmp_path / "small.tsm").exists()


def test_wrong_usage_is_refused(model: Path, tmp_path: Path) -> None:
    database = ["--database", tmp_path / "tuning.db"]
    assert "not both" in refuse("tune", model, "--op", SMALL, *database)
    assert "--op" in refuse("tune", *database)
    assert "--database" in refuse("tune", "--op", SMALL, "--database", "none")
    assert "No such option" in refuse("tune", "--op", SMALL, *database, "--trails", "3")
    assert "No such command" in refuse("tuna")
    assert "--trials" in refuse("tune", "--op", SMALL, *database, "--trials", "0")
    assert "strategy" in refuse("tune", "--op", SMALL, *database, "--strategy", "wishing")
    assert "cost model" in refuse("tune", "--op", SMALL, *database, "--cost-model", "crystal")
    assert "--against" in refuse("bench", model, "--against", "abacus")
    assert "--time-limit" in refuse("bench", model, "--seconds", "inf")
    assert "scheduler" in refuse("tune", "--op", SMALL, *database, "--scheduler", "fate")
    assert "time-limit = nan" in refuse("tune", "--op", SMALL, *database, "--time-limit", "nan")
    assert not (tmp_path / "tuning.db").exists(), "nothing is made for a job that cannot start"


def test_a_wrong_target_is_refused(tmp_path: Path) -> None:
    simulate = ["simulate", "--op", SMALL, "--target"]
    assert "unknown target 'trn9'" in refuse(*simulate, "trn9")
    assert "cannot be read" in refuse(*simulate, tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("family = ")
    assert "not valid TOML" in refuse(*simulate, broken)
    assert "no 'sbuf.gib'" in refuse(*simulate, "trn1", "--set", "sbuf.gib=1")
    assert "not of type int" in refuse(*simulate, "trn1", "--set", "sbuf.mib=big")
    assert "out of range" in refuse(*simulate, "trn1", "--set", "sbuf.mib=-1")
    assert "KEY=VALUE" in refuse(*simulate, "trn1", "--set", "sbuf.mib")
    assert "avx9" in refuse(*simulate, "cpu", "--set", "isa.name=avx9")


def test_an_operator_without_schedules_for_a_target_is_refused(model: Path, tmp_path: Path) -> None:
    pool = "pool2d kind=max c=8 h=8 w=8 kh=2 kw=2 stride=2"
    expected = "operator 'pool2d' has no schedule for target 'systolic'"
    assert expected in refuse("simulate", "--op", pool, "--target", "systolic")
    job = ["tune", "--op", pool, "--target", "systolic", "--database", tmp_path / "tuning.db"]
    assert expected in refuse(*job)
    compile_it = ["compile", model, "--target", "systolic", "-o", tmp_path / "small.tsm"]
    assert "'systolic'" in refuse(*compile_it)


def test_hardware_that_is_not_here_is_refused(tmp_path: Path) -> None:
    job = ["tune", "--op", SMALL, "--database", tmp_path / "tuning.db", "--target", "trn1"]
    assert "simulator" in refuse(*job, "--measure", "hardware")


def test_a_wrong_shape_is_refused(model: Path) -> None:
    assert "'y'" in refuse("simulate", model, "--shape", "y=4x8")
    assert "NAME=1x3x224x224" in refuse("simulate", model, "--shape", "x:4x8")
    assert "'x'" in refuse("simulate", model, "--shape", "x=5x8")


def test_an_output_that_cannot_be_written_is_refused(model: Path, tmp_path: Path) -> None:
    database, long = tmp_path / "tuning.db", "x" * 300
    succeed("tune", "--op", SMALL, "--database", database, *TUNE)
    for command, source in writing_commands(model, database):
        before = None if source is None else source.read_bytes()
        assert "folder does not exist" in refuse(*command, tmp_path / "nowhere" / "out")
        assert "it is a folder" in refuse(*command, tmp_path)
        assert "cannot be written" in refuse(*command, tmp_path / long)
        if source is not None:
            assert "another name" in refuse(*command, source)
            assert source.read_bytes() == before
    compile_it = ["compile", model, "--database", database, "-o"]
    assert "another name" in refuse(*compile_it, database)
    array = model.with_suffix(".npy")
    assert "another name" in refuse("run", model, "--input", f"x={array}", "--output", array)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_fails_the_job_in_every_command(model: Path, tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    succeed("tune", "--op", SMALL, "--database", database, *TUNE)
    for command, _ in writing_commands(model, database):
        assert "No space left on device" in refuse(*command, "/dev/full", code=1)


def writing_commands(model: Path, database: Path) -> list[tuple[list[str | Path], Path | None]]:
    """Commands that want the path of their output as the next word, and what they read."""
    array = model.with_suffix(".npy")
    np.save(array, np.zeros((4, 8), np.float32))
    on_core = ["--op", "matmul m=128 n=128 k=128", "--target", "trn1"]
    return [
        (["compile", model, "-o"], model),
        (["run", model, "--input", f"x={array}", "--output"], model),
        (["simulate", *on_core, "--trace"], None),
        (["report", "--database", database, "-o"], database),
        (["db", "export", "--database", database, "-o"], database),
    ]


def test_shapes_an_artifact_does_not_have_are_refused(model: Path, tmp_path: Path) -> None:
    artifact = tmp_path / "small.tsm"
    succeed("compile", model, "-o", artifact)
    succeed("run", artifact, "--shape", "x=4x8")
    assert "--shape x=5x8" in refuse("run", artifact, "--shape", "x=5x8")


def test_a_model_larger_than_memory_ends_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_model(tmp_path / "large.onnx", (1 << 50, 8))
    assert "1 TiB" in refuse("run", path)

    def none_left(size: int) -> None:
        raise MemoryError

    monkeypatch.setattr("tilesmith.compiler.runtime.pool.aligned_bytes", none_left)
    path = save_model(tmp_path / "smaller.onnx", (1 << 30, 8))
    assert "GiB" in refuse("run", path, code=1)


def test_numbers_out_of_range_are_refused(model: Path, tmp_path: Path) -> None:
    assert "--threads" in refuse("run", model, "--threads", "0")
    assert "--threads" in refuse("run", model, "--threads", "100000")
    job = ["tune", "--op", SMALL, "--database", tmp_path / "t.db"]
    assert "--seed" in refuse(*job, "--seed", str(2**63))


def test_wrong_arrays_are_refused(model: Path, tmp_path: Path) -> None:
    good, other = tmp_path / "good.npy", tmp_path / "other.npy"
    np.save(good, np.zeros((4, 8), np.float32))
    run = ["run", model, "--input"]
    assert "'z'" in refuse(*run, f"z={good}")
    np.save(other, np.zeros((5, 8), np.float32))
    assert "5x8" in refuse(*run, f"x={other}")
    np.save(other, np.zeros((4, 8), np.int64))
    assert "int64" in refuse(*run, f"x={other}")
    np.save(other, np.array([{}], dtype=object), allow_pickle=True)
    assert "plain numbers" in refuse(*run, f"x={other}")
    other.write_text("1, 2, 3")
    assert "plain numbers" in refuse(*run, f"x={other}")
    assert "cannot be read" in refuse(*run, f"x={tmp_path / 'absent.npy'}")
    assert "given twice" in refuse(*run, f"x={good}", "--input", f"x={good}")


def test_a_wrong_artifact_is_refused(tmp_path: Path) -> None:
    artifact = tmp_path / "model.tsm"
    artifact.write_bytes(b"PK\x03\x04 this is no artifact")
    assert "model.tsm" in refuse("run", artifact)
    assert "absent.tsm" in refuse("bench", tmp_path / "absent.tsm")


def test_a_wrong_database_is_refused(model: Path, tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    compile_it = ["compile", model, "-o", tmp_path / "small.tsm", "--database", database]
    assert "tuning.db" in refuse(*compile_it)
    database.write_text("this is no database " * 100)
    assert "tuning.db" in refuse(*compile_it)
    assert "tuning.db" in refuse("tune", "--op", SMALL, "--database", database)
    assert "nowhere" in refuse("tune", "--op", SMALL, "--database", tmp_path / "nowhere" / "t.db")
    assert "frob" in refuse("tune", "--op", SMALL, "--database", "frob://host/name")


def test_a_database_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    succeed("tune", "--op", SMALL, "--database", database, *TUNE)
    with sqlite3.connect(database) as connection:
        connection.execute("update schema_version set version_num = '9999'")
        connection.execute("update about set value = '9999'")  # as one that older clients harm
    connection.close()
    assert "newer" in refuse("tune", "--op", SMALL, "--database", database)


def test_a_read_only_database_is_refused_where_it_would_be_written(tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    succeed("tune", "--op", SMALL, "--database", database, *TUNE)
    database.chmod(0o444)
    assert "read-only" in refuse("tune", "--op", SMALL, "--database", database, *TUNE)
    assert succeed("db", "stats", "--database", database)["trials"] >= 2


def test_something_untuned_is_refused_where_all_must_be_tuned(model: Path, tmp_path: Path) -> None:
    database, artifact = tmp_path / "tuning.db", tmp_path / "small.tsm"
    succeed("tune", "--op", SMALL, "--database", database, *TUNE)
    compile_it = ["compile", model, "-o", artifact, "--database", database, "--require-tuned"]
    assert "matmul m=4" in refuse(*compile_it)
    assert not artifact.exists()


def test_a_target_whose_instructions_this_machine_lacks_is_refused_before_any_trial(
    tmp_path: Path,
) -> None:
    machine = "x86_64" if platform.machine() in ("x86_64", "amd64") else "aarch64"
    foreign = "neon" if machine == "x86_64" else "avx2"
    where = ("--database", str(tmp_path / "t.db"), "--set", f"isa.name={foreign}")
    said = refuse("tune", "--op", "matmul m=8 n=8 k=8", *where)
    assert f"has no '{foreign}' instructions: it is {machine}" in said
    assert "--measure simulator" in said and not (tmp_path / "t.db").exists()


def test_a_device_is_no_file_to_read(tmp_path: Path) -> None:
    """It has no end: reading it takes all the memory there is."""
    artifact = tmp_path / "zero.tsm"
    artifact.symlink_to("/dev/zero")
    for asked in (("run", "/dev/zero"), ("run", artifact), ("plan", "/dev/zero", "--mesh", "x")):
        assert "it is a device, and a file is expected" in refuse(*asked)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_help_that_cannot_be_printed_ends_with_a_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        process = start("--help", stdout=full)
    _, said = process.communicate()
    assert process.returncode == 1
    assert said == "tilesmith: No space left on device\n"


def test_a_line_without_an_end_is_no_trial(tmp_path: Path) -> None:
    endless = tmp_path / "sparse.jsonl"
    with endless.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on disk
    said = refuse("db", "import", endless, "--database", tmp_path / "t.db")
    assert "is not an export of tuning records: an endless line" in said
