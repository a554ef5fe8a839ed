"""Parts of a split tensor, taken through a sequence: kernels at known places, else the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import model_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model


def _model(split: str, at: int, attributes: str = "axis = 1") -> Any:
    cut = "SplitToSequence" + (f"<{attributes}>(x, n)" if split else f"<{attributes}>(x)")
    given = f"n = Constant<value = {split}>()" if split else ""
    return model_of(f"""g (float[3, 7] x) => (float[N, M] y) {{
        {given}
        s = {cut}
        i = Constant<value = int64 {{{at}}}>()
        p = SequenceAt(s, i)
        two = Constant<value = float {{2}}>()
        y = Mul(p, two)
    }}""")


@pytest.mark.parametrize(
    ("split", "at", "attributes"),
    [
        ("int64 {3}", -1, "axis = 1"),
        ("int64[3] {2, 0, 5}", 2, "axis = -1"),
        ("int64[3] {2, 0, 5}", 1, "axis = -1"),
        ("", 5, "axis = 1, keepdims = 1"),
        ("", 5, "axis = 1, keepdims = 0"),
        ("", -2, "axis = 0"),
    ],
)
def test_parts_are_slices(split: str, at: int, attributes: str) -> None:
    model = _model(split, at, attributes)
    if "keepdims = 0" in attributes:
        model.graph.output[0].type.tensor_type.shape.dim.pop()
    x = np.arange(21, dtype=np.float32).reshape(3, 7)
    executable = build(import_model(model), host_target())
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(executable.run({"x": x})["y"], expected)
    assert executable.report.host == 0 or expected.size == 0


def test_a_part_named_by_an_input_stays_as_it_is() -> None:
    model = model_of("""g (float[3, 6] x, int64 i) => (float[3, 2] y) {
        n = Constant<value = int64 {2}>()
        s = SplitToSequence<axis = 1>(x, n)
        y = SequenceAt(s, i)
    }""")
    x = np.arange(18, dtype=np.float32).reshape(3, 6)
    found = build(import_model(model), host_target()).run({"x": x, "i": np.int64(1)})["y"]
    np.testing.assert_array_equal(found, x[:, 2:4])


def test_axes_out_of_a_sequence_are_not_taken_for_left_out() -> None:
    """As ONNX's inference takes them, whose shape it does not know."""
    model = model_of("""g (float[2, 3, 4] x) => (float[A, B, C] y) {
        one = Constant<value = int64[1] {1}>() two = Constant<value = int64[1] {2}>()
        zero = Constant<value = int64 {0}>()
        s = SequenceConstruct(one, two) a = SequenceAt(s, zero)
        y = Slice(x, one, two, a, one)
    }""")
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    found = build(import_model(model), host_target()).run({"x": x})["y"]
    np.testing.assert_array_equal(found, x[:, 1:2])
