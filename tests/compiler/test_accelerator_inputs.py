"""What models on Trainium-like cores do that engines have no types or instructions for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.compiler.model_builder import assert_close, expected, model_of
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.hardware.target import load_target

TRN1 = load_target("trn1")

CASES = {
    "a mask": ("f = Cast<to=9>(n) y = Where(f, x, zero)", 0),
    "a number": ("f = Cast<to=1>(n) y = Mul(f, x)", 0),
    "twice": ("f = Cast<to=1>(n) g = Sub(f, x) y = Mul(f, g)", 0),
    "through a view": ("m = Reshape(n, shape) f = Cast<to=1>(m) y = Mul(f, x)", 0),
    "as two types": ("f = Cast<to=1>(n) b = Cast<to=9>(n) z = Mul(f, x) y = Where(b, z, x)", 0),
    "as itself, too": ("f = Cast<to=1>(n) y = Mul(f, x) z = Mul(n, n)", 2),
}


@pytest.mark.parametrize("name", CASES)
def test_integers_that_are_converted_need_no_host(name: str) -> None:
    body, host = CASES[name]
    extra = ", int64[2, 5] z" if "z = Mul(n, n)" in body else ""
    model = model_of(
        f"g (float[2, 5] x, int64[2, 5] n) => (float[2, 5] y{extra}) {{ {body} }}",
        zero=np.float32(0), shape=np.array([2, 5]),
    )  # fmt: skip
    executable = build(import_model(model), TRN1)
    assert executable.report.host == host, executable.report.host_nodes
    assert executable.report.precision == "fp32"
    inputs = {
        "x": np.arange(10, dtype=np.float32).reshape(2, 5),
        "n": np.array([[0, 1, -3, 2**24 + 1, 0], [7, 0, 2**40, -1, 256]]),
    }
    assert_close(executable.run(inputs), expected(model, inputs))


def test_an_artifact_keeps_what_is_converted(tmp_path: Path) -> None:
    model = model_of("g (int64[3] n) => (float[3] y) { f = Cast<to=1>(n) y = Exp(f) }")
    build(import_model(model), TRN1).save(tmp_path / "m.tsm")
    loaded = Executable.load(tmp_path / "m.tsm")
    assert loaded.inputs[0].dtype == "int64" and not loaded.report.host
    inputs = {"n": np.array([1, 0, -2])}
    assert_close(loaded.run(inputs), expected(model, inputs))


@pytest.mark.parametrize("operator", ["Sin", "Cos"])
def test_angles_of_many_turns_need_no_host(operator: str) -> None:
    """The activation is meant for half a turn to either side."""
    model = model_of(f"g (float[4, 101] x) => (float[4, 101] y) {{ y = {operator}(x) }}")
    executable = build(import_model(model), TRN1)
    assert not executable.report.host
    angles = np.linspace(-2000, 2000, 404).astype(np.float32).reshape(4, 101)
    wanted = {"Sin": np.sin, "Cos": np.cos}[operator](angles.astype(np.float64))
    assert np.abs(executable.run({"x": angles})["y"] - wanted).max() < 1e-6


def test_a_scalar_is_made_on_the_host_where_it_has_to_be() -> None:
    model = model_of(
        "g (float[9] x) => (int64 y) { m = ReduceMax<keepdims=0>(x) y = Cast<to=7>(m) }"
    )
    executable = build(import_model(model), TRN1)
    assert executable.report.host == 1
    found = executable.run({"x": np.array([1, 5, 2, 5, 0, 0, 0, 0, 0], np.float32)})["y"]
    assert found.shape == () and found == 5
