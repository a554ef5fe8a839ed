"""The programs of `examples/library`, built as their page says, against onnxruntime."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

import tilesmith as ts

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "library"
STRICT = "-Wall -Wextra -Wpedantic -Werror"

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("cmake", "make", "cc", "c++"))),
    reason="cmake or a C++ compiler is not installed",
)


def program(*words: str | Path, folder: Path) -> str:
    done = subprocess.run(
        list(map(str, words)), cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def onnx_runs(path: Path, **inputs: Any) -> NDArray[np.float32]:
    (found,) = onnxruntime.InferenceSession(path).run(None, inputs)
    return np.asarray(found).ravel()


def packaged(folder: Path, name: str, **asked: Any) -> tuple[Path, str]:
    """A library that was moved to a folder with a blank in its name, and what the example says."""
    program(sys.executable, EXAMPLES / "make_models.py", folder=folder)
    ts.emit_library(folder / "classifier.onnx", folder / name, prefix="classifier", **asked)
    moved = folder / "as a package"
    moved.mkdir()
    for path in folder.glob("*classifier*"):
        path.rename(moved / path.name)
    image = (np.arange(784) % 29 / np.float32(29)).astype(np.float32).reshape(1, 1, 28, 28)
    wanted = onnx_runs(moved / "classifier.onnx", image=image)
    return moved, f"it is a {wanted.argmax()}\n"


def test_cmake_finds_a_library_as_a_package(tmp_path: Path) -> None:
    moved, wanted = packaged(tmp_path, "classifier.so")
    program(
        "cmake", "-S", EXAMPLES / "packaged", "-B", "build", f"-Dclassifier_DIR={moved}",
        f"-DCMAKE_C_FLAGS={STRICT}", folder=tmp_path,
    )  # fmt: skip
    program("cmake", "--build", "build", folder=tmp_path)
    assert wanted in program(tmp_path / "build" / "classify", folder=tmp_path)


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="pkg-config is not installed")
@pytest.mark.parametrize(("name", "kind"), [("a", "archive"), ("so", "library")])
def test_pkg_config_finds_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    moved, wanted = packaged(tmp_path, f"libclassifier.{name}", kind=kind, threads=2)
    monkeypatch.setenv("PKG_CONFIG_PATH", str(moved))
    said = program("pkg-config", "--cflags", "--libs", "classifier", folder=tmp_path)
    program("cc", EXAMPLES / "classify.c", "-o", "run", *shlex.split(said), folder=tmp_path)
    assert wanted in program(tmp_path / "run", folder=tmp_path)


def test_the_examples_compute_what_onnxruntime_does(tmp_path: Path) -> None:
    program(sys.executable, EXAMPLES / "make_models.py", folder=tmp_path)
    program(
        "cmake", "-S", EXAMPLES, "-B", "build", f"-DMODELS={tmp_path}",
        f"-DTILESMITH={sys.executable} -m tilesmith",
        f"-DCMAKE_C_FLAGS={STRICT} -fsanitize=address,undefined", f"-DCMAKE_CXX_FLAGS={STRICT}",
        folder=tmp_path,
    )  # fmt: skip
    program("cmake", "--build", "build", folder=tmp_path)
    build = tmp_path / "build"

    said = program(build / "classify", folder=tmp_path)
    image = (np.arange(784) % 29 / np.float32(29)).astype(np.float32).reshape(1, 1, 28, 28)
    wanted = onnx_runs(tmp_path / "classifier.onnx", image=image)
    found = np.array(re.findall(r"class \d: (\S+)", said), np.float32)
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert f"it is a {wanted.argmax()}\n" in said
    assert "input image: float32 1x1x28x28, 3136 bytes\n" in said
    assert "a wrong call: output 'probabilities' is NULL\n" in said

    said = program(build / "two_models", "embedder.weights", folder=build)
    for seed in (0, 1):
        image = (np.arange(784) * (seed + 1) % 29 / np.float32(29)).astype(np.float32)
        wanted = onnx_runs(tmp_path / "classifier.onnx", image=image.reshape(1, 1, 28, 28))
        tokens = (np.arange(16, dtype=np.int64) * 61 + seed).reshape(1, 16)
        embedding = onnx_runs(tmp_path / "embedder.onnx", tokens=tokens)
        (line,) = re.findall(rf"thread {seed}: (.*)", said)
        found = np.array(line.replace("|", "").split(), np.float32)
        np.testing.assert_allclose(found[:10], wanted, atol=2e-5)
        np.testing.assert_allclose(found[10:], embedding[[0, 63]], atol=2e-5)
    assert "status 6: gather 'rows' takes index 1000 of an axis with 1000 entries" in said
