"""Random right models are right: a fixed number of cases, in every run.

`python -m benchmarks.random_graphs` goes through tens of thousands.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import random_graphs
from benchmarks.subjects.quantised_graphs import random_graph


@pytest.mark.parametrize(
    ("seed", "number"),
    [(3, 365), (3, 418), (4, 522), (11, 14), (777, 1525), *((12, n) for n in range(8))],
)
def test_random_right_models_are_right(seed: int, number: int) -> None:
    """Some of which onnxruntime computes coarsely, where float64 decides."""
    rng = np.random.default_rng((seed, number))
    graph = random_graph(rng, random_graphs.STEPS, bytes_in=0.0)
    assert graph.steps
    assert random_graphs.wrong(graph) == ""


def test_what_is_off_beyond_roundings_is_wrong() -> None:
    right = np.array([1.0, 2.0], np.float32)
    moved = [right * np.float32(1 + 1e-6)]
    assert random_graphs.far_off(right * np.float32(1 + 1e-5), right, moved, 20) == ""
    assert "is 0.02 off" in random_graphs.far_off(right * np.float32(1.01), right, moved, 20)
    whole = right.astype(np.int64)
    assert random_graphs.far_off(whole + 1, whole, [whole], 20)
    assert random_graphs.far_off(whole + 1, whole, [whole + 2], 20) == ""
