"""Inputs that become shapes, axes or counts are given numbers that the model can be run with."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from tilesmith.compiler.onnx.importer import import_model
from tilesmith.jobs.compilation.seeded_inputs import fitting_inputs
from tilesmith.search_space.support.errors import InputError


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}')


def made(text: str) -> dict[str, Any]:
    return fitting_inputs(model(text), import_model(model(text)))


@pytest.mark.parametrize(
    ("text", "name", "wanted"),
    [
        ("g (float[2,3] x, int64[2] s) => (float[3,2] y) { y = Reshape(x, s) }", "s", [3, 2]),
        ("g (float[2,3,4] x, int64[2] s) => (float[a,b] y) { y = Reshape(x, s) }", "s", [2, 12]),
        ("g (float[3] x, int64[2] s) => (float[a,b] y) { y = Expand(x, s) }", "s", [1, 3]),
        ("g (float[4,2,3] t, int64[4] s) => (float[4,5,6,2] y) { y = AffineGrid(t, s) }",
         "s", [4, 1, 5, 6]),
        ("g (float[4,2,3] t, int64[4] s) => (float[a,b,c,2] y) { y = AffineGrid(t, s) }",
         "s", [4, 1, 2, 2]),
        ("""g (float[2,6] x, int32[1] n) => (float[3,4] y)
         <int64[1] two = {2}, int64[1] three = {3}> {
         c = Cast<to = 7>(n) d = Mul(c, two) s = Concat<axis = 0>(three, d) y = Reshape(x, s) }""",
         "n", [2]),
        ("g (float[2,6] x, int64[1] k) => (float[2,4] y, int64[2,4] i) { y, i = TopK(x, k) }",
         "k", [4]),
        ("g (float[2,6] x, int64[2] r) => (float[4,18] y) { y = Tile(x, r) }", "r", [2, 3]),
        ("g (float[1,6] x, int64[3] i) => (float[3,6] y) { y = Gather(x, i) }", "i", [0, 0, 0]),
        ("g (int64 n) => (int64[k] y) <int64 a = {0}, int64 d = {1}> { y = Range(a, n, d) }",
         "n", 4),
    ],
)  # fmt: skip
def test_a_model_runs_with_what_is_made_for_it(text: str, name: str, wanted: list[int]) -> None:
    proto = model(text)
    inputs = fitting_inputs(proto, import_model(proto))
    declared = [info.type.tensor_type.shape.dim for info in proto.graph.output]
    found = ReferenceEvaluator(proto).run(None, inputs)  # raises if numbers do not fit
    for value, dims in zip(found, declared, strict=True):
        assert all(d.dim_value in (0, e) for d, e in zip(dims, value.shape, strict=True))
    np.testing.assert_array_equal(inputs[name], wanted)


def test_what_cannot_be_told_is_asked_for() -> None:
    text = """g (float[2,6] x, int64[1] n) => (float[a,b] y) <int64[1] one = {1}> {
    d = Mod(n, one) s = Concat<axis = 0>(one, d) y = Reshape(x, s) }"""
    with pytest.raises(InputError, match=r"input 'n'.*becomes a shape.*with inputs="):
        made(text)


def test_tokens_are_left_as_they_are() -> None:
    text = "g (float[9,6] x, int64[5] i) => (float[5,6] y) { y = Gather(x, i) }"
    assert set(made(text)["i"].tolist()) == {0, 1}
