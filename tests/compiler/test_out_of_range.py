"""Numbers that leave the range of float16 are told in a sentence where they do so."""

from __future__ import annotations

import numpy as np
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
