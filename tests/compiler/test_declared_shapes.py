"""Shapes that a model declares and only run-time inputs decide: the inputs have the last word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build, prepared
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.passes.canonical import Canonicalise
from tilesmith.search_space.support.errors import JobError

CASES = [
    ("float[2, 3] x, int64[2] s", "2, 3", "Reshape(x, s)", [2, 3], [3, 2]),
    ("float[1, 3] x, int64[2] s", "2, 3", "Expand(x, s)", [2, 3], [4, 3]),
    ("float[1, 3] x, int64[2] s", "2, 3", "Tile(x, s)", [2, 1], [1, 2]),
    ("float[1, 1, 3] x, int64[1] s", "1, 3", "Squeeze(x, s)", [0], None),
    ("float[2, 3] x, int64[1] s", "1, 2, 3", "Unsqueeze(x, s)", [0], [1]),
    ("float[1, 1, 3, 3] x, int64[4] s", "1, 1, 6, 6", "Resize(x, , , s)", [1, 1, 6, 6],
        [1, 1, 3, 6]),
    ("float[4, 3] x, int64[1] s", "2, 3", "Slice(x, zero, s)", [2], [1]),
    ("float[4, 3] x, int64[4] s", "4, 3", "Pad(x, s)", [0, 0, 0, 0], [1, 0, 0, 0]),
    ("float[4, 3] x, int64[1] s", "4, 1", "ReduceSum(x, s)", [1], [0]),
]  # fmt: skip


def _model(inputs: str, result: str, body: str, rest: str = "") -> Any:
    """`y`, declared with the shape `result`; `rest` reads it."""
    weights = {"zero": np.array([0])} if "zero" in body else {}
    if rest:
        text = f"g ({inputs}) => (float[A{', B' * result.count(',')}] z) "
        text += f"<float[{result}] y> {{ y = {body} z = {rest} }}"
    else:
        text = f"g ({inputs}) => (float[{result}] y) {{ y = {body} }}"
    return model_of(text, 18, **weights)


def _data(inputs: str, value: list[int]) -> dict[str, Any]:
    shape = [int(n) for n in inputs[inputs.index("[") + 1 : inputs.index("]")].split(",")]
    return {"x": random(*shape), "s": np.array(value)}


@pytest.mark.parametrize(("inputs", "result", "body", "right", "wrong"), CASES)
def test_an_output_has_the_shape_its_inputs_give_it(
    inputs: str, result: str, body: str, right: list[int], wrong: list[int] | None
) -> None:
    """As in onnxruntime, whatever the model declares."""
    model = _model(inputs, result, body)
    executable = build(import_model(model), host_target())
    for value in (right, wrong):
        if value is not None:
            data = _data(inputs, value)
            assert_close(executable.run(data), expected(model, data))


@pytest.mark.parametrize(("inputs", "result", "body", "right", "wrong"), CASES)
def test_kernels_of_a_declared_shape_run_when_the_inputs_confirm_it(
    inputs: str, result: str, body: str, right: list[int], wrong: list[int] | None
) -> None:
    model = _model(inputs, result, body, "Tanh(y)")
    graph = import_model(model)
    assert any(node.kind == "kernel" for node in prepared(graph).nodes)
    executable, data = build(graph, host_target()), _data(inputs, right)
    assert_close(executable.run(data), expected(model, data))
    if wrong is None:
        return
    with pytest.raises(
        JobError, match=r"tensor 'y' is declared to be .*, but these inputs make it"
    ):
        executable.run(_data(inputs, wrong))


def test_parts_of_a_split_are_as_long_as_the_input_says() -> None:
    text = """g (float[4, 3] x, int64[2] s) => (float[2, 3] y, float[2, 3] z, float[2, 3] u) {
        y, z = Split(x, s) u = Relu(z) }"""
    model = model_of(text)
    executable = build(import_model(model), host_target())
    data = {"x": random(4, 3), "s": np.array([2, 2])}
    assert_close(executable.run(data), expected(model, data))
    with pytest.raises(JobError, match=r"tensor 'z' is declared to be 2x3 .* make it 3x3"):
        executable.run({"x": random(4, 3), "s": np.array([1, 3])})


def test_what_reads_a_tensor_of_unknown_shape_may_declare_its_own() -> None:
    """Neither the compaction's nor the activation's shape can be inferred."""
    text = """g (float[4, 3] x, bool[4] c) => (float[2, 5] y) <float[2, 3] u> {
        t = Compress<axis=0>(x, c) u = Relu(t) y = MatMul(u, w) }"""
    model = model_of(text, w=random(3, 5))
    graph = import_model(model)
    assert any("matmul" in str(node.workload) for node in prepared(graph).nodes)
    data = {"x": random(4, 3), "c": np.array([True, False, True, False])}
    executable = build(graph, host_target())
    assert_close(executable.run(data), expected(model, data))
    assert_close(run_reference(graph, data), expected(model, data))
    with pytest.raises(JobError, match=r"tensor 'u' is declared to be 2x3 .* make it 1x3"):
        executable.run({**data, "c": np.array([True, False, False, False])})


def test_a_check_disappears_once_the_shape_is_known() -> None:
    text = """g (float[2, 3] x, int64[2] s) => (float[A, B] z) <float[3, 2] y> {
        y = Reshape(x, s) z = Tanh(y) }"""
    graph = import_model(model_of(text))
    assert [node.operator for node in graph.nodes] == ["Reshape", "CheckShape", "Tanh"]
    computed = graph.nodes[0].writes[0]
    known = replace(graph.info(computed), shape=(3, 2))
    found = Canonicalise().run(graph.with_(tensors={**graph.tensors, computed: known}))
    assert [node.operator for node in found.nodes] == ["Reshape", "Tanh"]
    assert Canonicalise().run(graph) is graph


LIES = {
    "empty": [0, 0],
    "more axes": [2, 3, 1],
    "another order": [3, 2],
    "another extent": [2, 4],
}

GIVEN_LATE = {
    "Reshape(x, s)": [3, 2],
    "Expand(x, s)": [2, 3],
    "Tile(x, s)": [2, 1],
    "Slice(x, s, ends)": [0, 1],
    "ReduceSum(x, s)": [0, 1],
    "Unsqueeze(x, s)": [0, 3],
    "Squeeze(x, none)": [0, 0],
    "CenterCropPad(x, s)": [3, 3],
    "ConstantOfShape(s)": [3, 1],
}
"""Operators whose results have a shape that only an input tells, and that input."""


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("body", GIVEN_LATE)
@pytest.mark.parametrize("rest", ["Shape(y)", "Flatten<axis=1>(y)"])
def test_a_wrong_declaration_gives_right_values_or_is_named(body: str, lie: str, rest: str) -> None:
    """Whatever reads the tensor: its shape alone, too, of which nothing else is computed."""
    late = "" if "none" not in body else ", int64[A] none"
    shape, kind = ", ".join(map(str, LIES[lie])), "int64" if "Shape(y)" in rest else "float"
    text = f"g (float[2, 3] x, int64[2] s{late}) => ({kind}[A] z) <float[{shape}] y> "
    weights = {"ends": np.array([2, 2])} if "ends" in body else {}
    model = model_of(f"{text} {{ y = {body} z = {rest} }}", 18, **weights)
    data = {"x": random(2, 3), "s": np.array(GIVEN_LATE[body])}
    shapes = None
    if late:
        data, shapes = {**data, "none": np.array([], np.int64)}, {"none": (0,)}
    executable = build(import_model(model, shapes), host_target())
    right = model_of(f"{text.split('<')[0]} {{ y = {body} z = {rest} }}", 18, **weights)
    try:
        found = executable.run(data)
    except JobError as error:
        assert f"'y' is declared to be {'x'.join(map(str, LIES[lie]))}" in str(error)
    else:
        assert_close(found, expected(right, data))
