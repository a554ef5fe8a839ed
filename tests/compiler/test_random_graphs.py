"""Random right models are right: a fixed number of cases, in every run.

`python -m benchmarks.random_graphs` goes through tens of thousands.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from benchmarks import random_graphs
from benchmarks.subjects.graphs import suite_steps
from benchmarks.subjects.graphs.other_forms import said_otherwise
from benchmarks.subjects.graphs.quantised_graphs import Graph, random_graph


@pytest.mark.parametrize(
    ("seed", "number"),
    [(3, 365), (3, 418), (4, 522), (11, 14), (777, 1525), *((12, n) for n in range(8))],
)
def test_random_right_models_are_right(seed: int, number: int) -> None:
    """Some of which onnxruntime computes coarsely, where float64 decides."""
    rng = np.random.default_rng((seed, number))
    graph = random_graph(rng, random_graphs.STEPS, bytes_in=0.0)
    assert graph.steps
    assert random_graphs.wrong(graph, random_graphs.runs(graph)) == ""


def test_a_run_that_onnxruntime_refuses_is_left_out() -> None:
    """Floats that are moved to the other side of a step, and so a divisor of 0."""
    graph = Graph(np.random.default_rng(0), 17)
    near = graph.input(np.ones(1, np.float32))
    divisor = graph.one("Cast", graph.one("Identity", near), to=onnx.TensorProto.INT64)
    graph.one("Mod", graph.constant([7], np.int64), divisor)
    assert len(random_graphs.runs(graph)) < 4
    assert random_graphs.wrong(graph, random_graphs.runs(graph)) == ""


def test_a_model_said_otherwise_is_as_right() -> None:
    """In functions, branches, loops, scans, sequences, optional values and other forms."""
    rng = np.random.default_rng(1)
    written: set[str] = set()
    for _ in range(12):
        graph = random_graph(rng, random_graphs.STEPS, draw=suite_steps.draw)
        if graph.steps:
            said, more = said_otherwise(graph, rng)
            written |= {node.op_type for node in said.graph.node}
            assert random_graphs.wrong(graph, random_graphs.runs(graph), said, more) == ""
    assert {"If", "Loop", "Scan", "SequenceAt", "Optional"} <= written


def test_what_is_off_beyond_roundings_is_wrong() -> None:
    right = np.array([1.0, 2.0], np.float32)
    moved = [right * np.float32(1 + 1e-6)]
    assert random_graphs.far_off(right * np.float32(1 + 1e-5), right, moved, 20) == ""
    assert "is 0.02 off" in random_graphs.far_off(right * np.float32(1.01), right, moved, 20)
    whole = right.astype(np.int64)
    assert random_graphs.far_off(whole + 1, whole, [whole], 20)
    assert random_graphs.far_off(whole + 1, whole, [whole + 2], 20) == ""
