"""Numbers that leave the range of float16 are told in a sentence where they do so."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

import tilesmith as ts
from tests.compiler.model_builder import model_of, random

LARGE = (
    "g (float[4, 32] x) => (float[4, 16] y) "
    "{ big = MatMul(x, w) turned = Relu(big) other = Sigmoid(turned) "
    "  less = Sub(turned, big) y = Mul(less, other) }"
)


@pytest.mark.parametrize("target", ["lpu1", "cpu"])
def test_the_first_tensor_that_leaves_the_range_is_named(target: str) -> None:
    model = model_of(LARGE, w=(1e4 * np.abs(random(32, 16))).astype(np.float32))
    report = ts.compare(model, target, inputs={"x": np.abs(random(4, 32))}, precision="fp16")
    told = [note for note in report.notes if "leaves the range of float16" in note]
    assert len(told) == 1
    assert told[0].startswith("MatMul 'big'") or told[0].startswith("Relu")
    assert "of the 64 elements" in told[0] and "over 65,504" in told[0]


@pytest.mark.parametrize("target", ["lpu1", "cpu"])
def test_numbers_within_it_are_not_mentioned(target: str) -> None:
    model = model_of(LARGE, w=random(32, 16))
    report = ts.compare(model, target, inputs={"x": random(4, 32)}, precision="fp16")
    assert not any("range" in note for note in report.notes)


def test_a_run_says_which_kernel_left_the_range(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of(LARGE, w=(1e4 * np.abs(random(32, 16))).astype(np.float32))
    model.graph.name = "too_large"
    executable = ts.compile(model, "lpu1")
    inputs = {"x": np.abs(random(4, 32))}
    assert np.isnan(executable.run(inputs)["y"]).all()
    executable.run(inputs)
    (told,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "model 'too_large'" in told and "kernel 'big'" in told
    reached = re.search(r"reach (\S+),", told)
    assert reached is not None
    largest = (inputs["x"] @ onnx.numpy_helper.to_array(model.graph.initializer[0])).max()
    assert abs(float(reached[1]) / largest - 1) < 2e-3


def test_infinities_that_fp32_has_too_are_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of("logs (float[4, 32] x) => (float[4, 32] y) { y = Log(x) }")
    found = ts.compile(model, "lpu1").run({"x": np.zeros((4, 32), np.float32)})["y"]
    assert np.isneginf(found).all()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
