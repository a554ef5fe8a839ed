"""Values that no kernel touches: texts, sequences and optional values go in, through and out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilesmith as ts
from tests.compiler.model_builder import expected, model_of, random
from tilesmith.compiler.graph.value_types import fits, is_value_type, onnx_type, value_type
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.jobs.compilation.compiling import random_inputs
from tilesmith.search_space.support.errors import InputError, ModelError


def ran(model: onnx.ModelProto, inputs: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Outputs of the compiled model; saved and loaded again it gives the same."""
    executable = ts.compile(model)
    found = executable.run(inputs)
    executable.save(folder / "model.tsm")
    again = Executable.load(folder / "model.tsm").run(inputs)
    for name, value in found.items():
        assert fits(again[name], "") and type(again[name]) is type(value)
    return found


def test_texts_go_in_and_out_beside_kernels(tmp_path: Path) -> None:
    text = "g (string[1, 2] t, float[2] x) => (string[1, 2] s, float[2] y)"
    model = model_of(f"{text} {{ s = StringConcat(t, t) y = Relu(x) }}", 20)
    inputs = {"t": np.array([["day", "wé"]], dtype=object), "x": random(2)}
    found, wanted = ran(model, inputs, tmp_path), expected(model, inputs)
    assert found["s"].tolist() == wanted["s"].tolist() == [["dayday", "wéwé"]]
    np.testing.assert_array_equal(found["y"], wanted["y"])
    plain = {**inputs, "t": inputs["t"].astype(str)}  # numpy's own texts are texts, too
    assert ts.compile(model).run(plain)["s"].dtype == object


def test_constant_texts_are_kept_in_the_artifact(tmp_path: Path) -> None:
    model = model_of("g (string[2] t) => (string[2] s) { s = StringConcat(t, end) }", 20)
    ends = helper.make_tensor("end", TensorProto.STRING, [2], [b"!", "é".encode()])
    model.graph.initializer.append(ends)
    found = ran(model, {"t": np.array(["a", "b"], dtype=object)}, tmp_path)
    assert found["s"].tolist() == ["a!", "bé"]


def test_sequences_go_in_and_out(tmp_path: Path) -> None:
    model = model_of(
        """g (seq(float[A, 2]) s, float[3, 2] x, int64 at) => (seq(float[A, 2]) t, float[B, 2] y) {
            r = Relu(x) t = SequenceInsert(s, r, at) y = SequenceAt(t, at) }"""
    )
    inputs = {"s": [random(1, 2), random(4, 2)], "x": random(3, 2), "at": np.array(1)}
    found, wanted = ran(model, inputs, tmp_path), expected(model, inputs)
    assert len(found["t"]) == 3
    for a, b in zip(found["t"], wanted["t"], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(found["y"], wanted["y"])
    found["t"][0][:] = 0  # what is given out is the caller's
    assert inputs["s"][0].all()


def test_optional_values_may_be_left_empty(tmp_path: Path) -> None:
    model = model_of("g (optional(float[2]) x) => (bool y) { y = OptionalHasElement(x) }", 18)
    for value in (None, random(2)):
        found = ran(model, {"x": value}, tmp_path)
        assert bool(found["y"]) is (value is not None)


def test_an_optional_value_is_the_value_itself(tmp_path: Path) -> None:
    model = model_of("g (float[2] x) => (optional(float[2]) y) { y = Optional(x) }", 16)
    x = random(2)
    np.testing.assert_array_equal(ran(model, {"x": x}, tmp_path)["y"], x)
    empty = helper.make_node("Optional", [], ["y"], type=onnx_type("float32", {"float32": 1}, (2,)))
    model.graph.node[0].CopyFrom(empty)
    assert ran(model, {"x": x}, tmp_path)["y"] is None


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("string[2]", np.zeros(2, np.float32), "is of dtype float32; string is expected"),
        ("seq(float[2])", random(2), r"is of dtype float32; sequence\(float32\) is expected"),
        ("seq(float[2])", [np.zeros(2, int)], r"is of list; sequence\(float32\) is expected"),
        ("optional(float[2])", np.zeros(2, int), r"int64; optional\(float32\) is expected"),
        ("seq(float[2])", None, r"is of NoneType; sequence\(float32\) is expected"),
    ],
)
def test_values_of_another_type_are_refused(kind: str, value: Any, reason: str) -> None:
    operator = "Identity" if kind.startswith(("string", "seq")) else "OptionalGetElement"
    result = kind.removeprefix("optional(").removesuffix(")") if "opt" in kind else kind
    model = model_of(f"g ({kind} x) => ({result} y) {{ y = {operator}(x) }}", 18)
    with pytest.raises(ModelError, match=reason):
        ts.compile(model).run({"x": value})


def test_other_types_are_refused_by_name() -> None:
    model = model_of("g (map(int64, float) x) => (seq(float[2]) y) { y = SequenceEmpty() }")
    with pytest.raises(ModelError, match="input 'x' of 'g' is neither a tensor, a sequence nor"):
        ts.compile(model)


def test_random_values_are_of_numbers_only() -> None:
    model = model_of("g (string[2] x) => (string[2] y) { y = Identity(x) }")
    with pytest.raises(InputError, match="'x' of 'g' is of string, for which no random values"):
        random_inputs(ts.compile(model))


@pytest.mark.parametrize("text", ["string", "sequence(float32)", "optional(sequence(int64))"])
def test_types_are_texts(text: str) -> None:
    numbers = {"float32": 1, "int64": 7, "string": 8}
    assert is_value_type(text)
    names = {number: name for name, number in numbers.items()}
    assert value_type(onnx_type(text, numbers), names) == text
    assert not is_value_type("float32")
    assert not is_value_type("sequence(list)")


def test_a_sequence_of_16_bit_floats_comes_out_as_one(tmp_path: Path) -> None:
    """Beside kernels that widen what they read."""
    text = "g (float16[2, 4] x) => (seq(float16[2, 2]) s, float16[2, 4] y)"
    model = model_of(f"{text} {{ n = Constant<value = int64 {{2}}>() "
                     "s = SplitToSequence<axis = 1>(x, n) y = Relu(x) }")  # fmt: skip
    x = np.arange(8, dtype=np.float16).reshape(2, 4)
    found = ran(model, {"x": x}, tmp_path)
    assert [part.dtype for part in found["s"]] == [np.float16] * 2
    np.testing.assert_array_equal(found["s"][1], x[:, 2:])


def test_an_optional_value_of_an_initialiser_is_taken() -> None:
    """At opset 15, where OptionalGetElement takes no plain tensor."""
    text = "g (int32[2] x) => (int32[2] y)"
    nodes = "{ o = Optional(w) v = OptionalGetElement(o) y = Add(v, x) }"
    model = model_of(text + nodes, 15, w=np.array([3, 4], np.int32))
    found = ts.compile(model).run({"x": np.array([1, 1], np.int32)})
    assert found["y"].tolist() == [4, 5]
