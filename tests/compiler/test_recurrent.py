"""LSTM, GRU and RNN compiled: every attribute, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.onnx.importer import import_model

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 3, 5


def recurrent(
    operator: str,
    batch: int = BATCH,
    lengths: list[int] | None = None,
    bare: bool = False,
    peepholes: bool = False,
    opset: int = 17,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one operator, seeded weights in it; `bare` leaves biases and states out."""
    rng = np.random.default_rng(0)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    first = attributes.get("layout", 0)

    def draw(*shape: int) -> NDArray[Any]:
        return (rng.standard_normal(shape) * 0.5).astype(np.float32)

    rows = GATES[operator] * HIDDEN
    state = (batch, directions, HIDDEN) if first else (directions, batch, HIDDEN)
    weights = {"w": draw(directions, rows, INPUTS), "r": draw(directions, rows, HIDDEN)}
    weights |= {} if bare else {"b": draw(directions, 2 * rows), "h": draw(*state)}
    if lengths is not None:
        weights["lengths"] = np.array(lengths, np.int32)
    names, results = ["x", "w", "r", "b", "lengths", "h"], ["y", "last"]
    if operator == "LSTM":
        names, results = [*names, "c", "p"], [*results, "cell"]
        weights |= {} if bare else {"c": draw(*state)}
        weights |= {"p": draw(directions, 3 * HIDDEN)} if peepholes else {}
    inputs = [name if name == "x" or name in weights else "" for name in names]
    node = helper.make_node(operator, inputs, results, hidden_size=HIDDEN, **attributes)
    shape = (batch, STEPS, INPUTS) if first else (STEPS, batch, INPUTS)
    graph = helper.make_graph(
        [node],
        "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def run_both(
    model: onnx.ModelProto, host: int = 0, threads: int = 1
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    executable = build(import_model(model), host_target(), options=BuildOptions(threads=threads))
    assert executable.report.host == host, executable.report.host_nodes
    (info,) = executable.inputs
    x = np.random.default_rng(1).standard_normal(info.dims).astype(np.float32)
    found = executable.run({"x": x})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(None, {"x": x})
    return [found[output.name] for output in model.graph.output], expected


def assert_both(model: onnx.ModelProto, host: int = 0, threads: int = 1) -> None:
    for ours, theirs in zip(*run_both(model, host, threads), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_directions(operator: str, direction: str) -> None:
    assert_both(recurrent(operator, direction=direction))


@pytest.mark.parametrize("operator", GATES)
def test_lengths_of_sequences(operator: str) -> None:
    assert_both(recurrent(operator, lengths=[4, 1, 3]))


def test_lengths_read_backwards() -> None:
    """What ends early is turned round by itself."""
    assert_both(recurrent("GRU", direction="bidirectional", lengths=[4, 1, 3]))


@pytest.mark.parametrize(
    ("operator", "more"),
    [
        ("LSTM", {"batch": 1}),
        ("LSTM", {"bare": True, "opset": 8}),
        ("LSTM", {"peepholes": True, "direction": "bidirectional"}),
        ("LSTM", {"input_forget": 1}),
        ("LSTM", {"clip": 0.3, "peepholes": True}),
        (
            "LSTM",
            {
                "activations": ["HardSigmoid", "scaledtanh", "Affine"],
                "activation_alpha": [0.3, 1.2, 0.9],
                "activation_beta": [0.4, 0.8, 0.1],
            },
        ),
        ("GRU", {"linear_before_reset": 1, "clip": 0.4}),
        ("GRU", {"linear_before_reset": 1, "bare": True}),
        ("RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.2]}),
        ("RNN", {"activations": ["Softplus"], "opset": 14}),
    ],
)
def test_attributes(operator: str, more: dict[str, Any]) -> None:
    assert_both(recurrent(operator, **more))


def test_two_threads() -> None:
    assert_both(recurrent("LSTM", direction="bidirectional"), threads=2)


@pytest.mark.parametrize("operator", GATES)
def test_batches_first(operator: str) -> None:
    """onnxruntime has no `layout`: its results are those of the other layout, turned."""
    model = recurrent(operator, layout=1, direction="bidirectional")
    executable = build(import_model(model), host_target())
    assert executable.report.host == 0
    shape = executable.inputs[0].dims
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    found = executable.run({"x": x})
    plain = recurrent(operator, direction="bidirectional")
    for tensor in plain.graph.initializer:
        if tensor.name in ("h", "c"):
            (turned,) = (t for t in model.graph.initializer if t.name == tensor.name)
            value = numpy_helper.to_array(turned).swapaxes(0, 1)
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), tensor.name))
    session = onnxruntime.InferenceSession(plain.SerializeToString())
    rows, *states = session.run(None, {"x": np.ascontiguousarray(x.swapaxes(0, 1))})
    expected = [rows.transpose(2, 0, 1, 3), *(state.swapaxes(0, 1) for state in states)]
    for output, value in zip(model.graph.output, expected, strict=True):
        np.testing.assert_allclose(found[output.name], value, rtol=1e-5, atol=2e-6)


def test_not_a_number_stays() -> None:
    model = recurrent("LSTM", bare=True)
    executable = build(import_model(model), host_target())
    x = np.zeros((STEPS, BATCH, INPUTS), np.float32)
    x[1, 2, 0] = np.nan
    y = executable.run({"x": x})["y"]
    assert np.isnan(y[1:, 0, 2]).all() and not np.isnan(y[:, 0, :2]).any()
    assert not np.isnan(y[0]).any()


@pytest.mark.parametrize(
    ("operator", "name", "shape"),
    [
        ("RNN", "w", (1, HIDDEN, INPUTS - 1)),
        ("GRU", "r", (1, 2 * HIDDEN, HIDDEN)),
        ("GRU", "b", (1, 3 * HIDDEN)),
        ("LSTM", "h", (1, 1, HIDDEN)),
        ("LSTM", "c", (1, BATCH, HIDDEN + 1)),
        ("LSTM", "p", (1, HIDDEN)),
    ],
)
def test_shapes_that_do_not_fit_are_left_to_the_host(
    operator: str, name: str, shape: tuple[int, ...]
) -> None:
    """ONNX's inference does not look at them, and parts of what is there would be others'."""
    model = recurrent(operator, peepholes=operator == "LSTM")
    (weight,) = (w for w in model.graph.initializer if w.name == name)
    weight.CopyFrom(numpy_helper.from_array(np.ones(shape, np.float32), name))
    executable = build(import_model(model), host_target())
    assert executable.report.host == 1
