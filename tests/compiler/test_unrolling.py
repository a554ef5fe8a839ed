"""Unrolled loops give what onnxruntime does, and those that cannot be unrolled stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tests.compiler.test_bodies import SUMS, with_body
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.passes.unrolling import UnrollLoops
from tilesmith.compiler.recipe.program import HostStep
from tilesmith.families.kit.simulation.host_costs import operations
from tilesmith.search_space.hardware.target import load_target

COUNTED = """b (int64 i, bool going, float[2] s) => (bool on, float[2] t, float[2] r) {
    on = Identity(going) f = Cast<to=1>(i) r = Add(s, f) t = Mul(r, outer) }"""

ONCE = """b (int64 i, bool going, float[2] s) => (bool on, float[2] t, float[2] r) {
    m = ReduceMax(s) on = Less(m, m) r = Add(s, s) t = Mul(r, outer) }"""


def scan(attributes: str, dims: str) -> onnx.ModelProto:
    text = f"g (float[2] s, float[{dims}] x) => (float[2] y, float[A, B] r)"
    return with_body(
        model_of(f"{text} {{ y, r = Scan<num_scan_inputs=1{attributes}>(s, x) }}"), SUMS
    )


def loop(trips: int, body: str = COUNTED) -> onnx.ModelProto:
    text = "g (float[2] s, float[2] outer) => (float[2] y, float[A, B] rows)"
    model = model_of(
        f"{text} {{ y, rows = Loop(n, true, s) }}", n=np.array(trips), true=np.array(True)
    )
    return with_body(model, body)


def recurrent(operator: str, gates: int) -> onnx.ModelProto:
    weights = {"w": random(2, gates * 3, 4), "r": random(2, gates * 3, 3, seed=1)}
    text = "g (float[5, 2, 4] x) => (float[5, 2, 2, 3] y, float[2, 2, 3] h)"
    call = f'y, h = {operator}<hidden_size=3, direction="bidirectional">(x, w, r, b)'
    return model_of(f"{text} {{ {call} }}", **weights, b=random(2, 2 * gates * 3, seed=2))


def inputs_of(graph: Graph) -> dict[str, np.ndarray]:
    return {info.name: random(*info.dims, seed=7) for info in graph.inputs}


@pytest.mark.parametrize(
    "model",
    [
        scan("", "3, 2"),
        scan(", scan_input_axes=[1], scan_input_directions=[1]", "2, 3"),
        scan(", scan_output_axes=[1], scan_output_directions=[1]", "3, 2"),
        scan("", "1, 2"),
        loop(4),
        recurrent("LSTM", 4),
        recurrent("GRU", 3),
        recurrent("RNN", 1),
    ],
)
def test_copies_compute_what_iterations_do(model: onnx.ModelProto) -> None:
    graph = import_model(model)
    unrolled = UnrollLoops(1000).run(graph)
    assert not any(node.is_onnx("Loop", "Scan", "LSTM", "GRU", "RNN") for node in unrolled.nodes)
    assert not any(node.bodies for node in unrolled.nodes)
    inputs = inputs_of(graph)
    assert_close(run_reference(unrolled, inputs), expected(model, inputs))


@pytest.mark.parametrize("model", [loop(1000), loop(3, ONCE), recurrent("LSTM", 4)])
def test_loops_of_many_copies_or_of_unknown_length_stay(model: onnx.ModelProto) -> None:
    graph = import_model(model)
    assert [n.operator for n in UnrollLoops(20).run(graph).nodes] == [
        n.operator for n in graph.nodes
    ]


def cell(hidden: int) -> onnx.ModelProto:
    weights = {"w": random(1, 4 * hidden, 8), "r": random(1, 4 * hidden, hidden, seed=1) / 9}
    text = f"g (float[3, 1, 8] x) => (float[3, 1, 1, {hidden}] y, float[1, 1, {hidden}] h)"
    return model_of(f"{text} {{ y, h = LSTM<hidden_size={hidden}>(x, w, r) }}", **weights)


def test_cores_take_steps_whose_products_are_worth_it() -> None:
    target = load_target("trn1")
    small, large = (build(import_model(cell(hidden)), target) for hidden in (32, 128))
    assert not large.report.host_nodes and len(small.report.host_nodes) == 1
    for executable, model in ((small, cell(32)), (large, cell(128))):
        inputs = {"x": random(3, 1, 8)}
        assert_close(executable.run(inputs), expected(model, inputs))
    (step,) = (step for step in small.recipe.steps if isinstance(step, HostStep))
    assert operations(step) == 2 * 3 * 4 * 32 * (8 + 32)
