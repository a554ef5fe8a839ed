"""What models are run and timed on: arrays, fills, files of outputs, runs and warm-ups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.end_to_end.command import invoke, refuse, save_model, succeed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "small.onnx")


def _expected(model: Path, x: np.ndarray) -> np.ndarray:
    (weight,) = onnx.load(str(model)).graph.initializer
    return np.maximum(x @ numpy_helper.to_array(weight), 0)


@pytest.mark.parametrize(
    ("fill", "x"),
    [
        ("zeros", np.zeros((4, 8))),
        ("ones", np.ones((4, 8))),
        ("iota", np.arange(32).reshape(4, 8)),
    ],
)
def test_inputs_without_arrays_are_filled(
    model: Path, tmp_path: Path, fill: str, x: np.ndarray
) -> None:
    out = tmp_path / "y.npy"
    said = succeed("run", model, "--fill", fill, "-o", out, "--print-time")
    np.testing.assert_allclose(np.load(out), _expected(model, x), rtol=1e-4, atol=1e-4)
    assert said["run_us"] > 0 and said["compile_s"] > 0


def test_time_is_told_only_when_asked_for(model: Path) -> None:
    assert "run_us" not in succeed("run", model)
    assert "ran in" in invoke("run", model, "--print-time").stderr


@pytest.mark.parametrize("name", ["o.csv", "o.txt", "out.tar.gz"])
def test_a_file_of_another_kind_is_refused(model: Path, tmp_path: Path, name: str) -> None:
    said = refuse("run", model, "--fill", "ones", "--output", tmp_path / name)
    assert "is not written; arrays go to .npy" in said
    assert not (tmp_path / name).exists()


def test_bench_takes_arrays_runs_and_warm_up(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 8), np.float32))
    given = ("--input", f"x={tmp_path / 'x.npy'}", "--runs", "7", "--warm-up", "2")
    said = succeed("bench", model, *given, "--against", "onnxruntime")
    assert said["runs"] == 7 and said["peers"]["onnxruntime"]["runs"] == 7
    assert said["max_rel_err"] < 1e-4
    np.save(tmp_path / "bad.npy", np.ones((3, 8), np.float32))
    assert "x" in refuse("bench", model, "--input", f"x={tmp_path / 'bad.npy'}")
    other = save_model(tmp_path / "other.onnx")
    assert "of one MODEL" in refuse("bench", model, other, *given)


def test_bench_keeps_several_runs_in_flight(model: Path) -> None:
    said = succeed("bench", model, "--concurrency", "3", "--runs", "9", "--fill", "ones")
    assert said["runs"] == 9 and said["concurrency"] == 3 and said["runs_per_s"] > 0
