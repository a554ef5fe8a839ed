"""`tilesmith nki` as it is typed: time, run, check, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import tilesmith
from tilesmith.command_line import command_line

KERNEL = """
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl


@nki.jit
def silu(x):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(x.shape[1]):
        tile = nl.load(x[:, i])
        e = nisa.activation(op=nl.exp, data=tile, scale=-1.0)
        nl.store(y[:, i], value=nl.multiply(tile, nl.reciprocal(nl.add(e, 1.0))))
    return y
"""
REFERENCE = """
import numpy as np

def silu(x):
    return x / (1 + np.exp(-x))
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("nki") / "kernel.py"
    file.write_text(KERNEL)
    (file.parent / "reference.py").write_text(REFERENCE)
    return f"{file}::silu"


def said(*words: str) -> Result:
    return CliRunner().invoke(command_line, ["nki", *words])


def test_time_by_line_and_engine(kernel: str, tmp_path: Path) -> None:
    page = tmp_path / "timeline.html"
    result = said("time", kernel, "--inputs", "x=128x2x96", "--page", str(page))
    assert result.exit_code == 0, result.output
    at = next(n for n, line in enumerate(KERNEL.splitlines(), 1) if "e = nisa.activation" in line)
    assert "bound by" in result.output and f"kernel.py:{at} (in silu)" in result.output
    assert "<svg" in page.read_text()
    report = json.loads(said("time", kernel, "--inputs", "x=128x2x96", "--json").output)
    assert report["read"] == report["written"] == 128 * 2 * 96 * 4
    assert sum(line["instructions"] for line in report["lines"]) == report["instructions"]


def test_run_beside_a_reference(kernel: str, tmp_path: Path) -> None:
    array = tmp_path / "x.npy"
    x = np.linspace(-4, 4, 128 * 2 * 96, dtype=np.float32).reshape(128, 2, 96)
    np.save(array, x)
    reference = f"{Path(kernel.partition('::')[0]).parent / 'reference.py'}::silu"
    out = tmp_path / "y.npz"
    words = ("run", kernel, "--inputs", f"x={array}", "--reference", reference)
    result = said(*words, "--output", str(out), "--json")
    assert result.exit_code == 0, result.output
    (off,) = json.loads(result.output)["differences"].values()
    assert off < 1e-6
    (y,) = np.load(out).values()
    np.testing.assert_allclose(y, x / (1 + np.exp(-x)), rtol=1e-5, atol=1e-6)


def test_in_python(kernel: str) -> None:
    traced = tilesmith.nki(kernel, {"x": ((128, 2, 96), "float32")}, target="trn2")
    x = traced.inputs()["x"]
    (y,) = traced.run({"x": x}).values()
    np.testing.assert_allclose(y, x / (1 + np.exp(-x)), rtol=1e-5, atol=1e-6)
    assert traced.time().makespan > 0


def test_check_says_what_a_kernel_takes(kernel: str) -> None:
    result = said("check", kernel, "--inputs", "x=128x2x96")
    assert result.exit_code == 0 and "keeps the laws of trn1" in result.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--inputs", "x=what?"), "neither a shape"),
        (("--inputs", "x"), "not of the form NAME=VALUE"),
        (("--grid", "2y"), "not of the form 2x4"),
        (("--target", "lpu1"), "family 'lpu'"),
        (("--target", "none"), "none"),
    ],
)
def test_wrong_words_are_a_sentence(kernel: str, words: tuple[str, ...], sentence: str) -> None:
    result = said("check", kernel, *words)
    assert result.exit_code == 2 and sentence in result.output
    assert "Traceback" not in result.output
