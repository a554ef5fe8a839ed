"""Random quantised models, a few in every run, and the list of what is refused.

`python -m benchmarks.quantised_fuzzing` goes through hundreds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import quantised_fuzzing, quantising_fuzzing
from benchmarks.quantised_fuzzing import REASONS, compared, outcome
from benchmarks.subjects.graphs.quantised_graphs import random_graph
from benchmarks.subjects.graphs.quantised_steps import STEPS
from tilesmith.search_space.support.errors import ModelError

DOCUMENT = Path(__file__).parents[2] / "docs" / "quantisation.md"


@pytest.mark.parametrize("number", [3, 17, 40, 41])
def test_a_random_quantised_model_is_right(number: int) -> None:
    graph = random_graph(np.random.default_rng((5, number)), STEPS)
    assert outcome(graph).verdict == "right", outcome(graph)


@pytest.mark.parametrize("way", ["minmax", "int8 weights"])
def test_a_random_float_model_is_quantised(way: str) -> None:
    rng = np.random.default_rng((5, 2))
    graph = random_graph(rng, quantising_fuzzing.STEPS, bytes_in=0)
    assert quantising_fuzzing.outcome(graph, way)[0] in ("near", "nothing to do")


def test_a_wrong_output_is_told_from_roundings() -> None:
    graph = random_graph(np.random.default_rng((5, 3)), STEPS)
    wanted = graph.reference()
    right = {name: wanted[name] for name in graph.outputs}
    assert compared(graph, right).verdict == "right"
    wrong = {name: value[..., ::-1] + value.dtype.type(40) for name, value in right.items()}
    assert compared(graph, wrong).verdict == "wrong"


def test_refusals_are_of_the_written_list(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(DOCUMENT.read_text().split())
    for said, why in REASONS.items():
        assert f'"{said}": {why}' in text
    graph = random_graph(np.random.default_rng((5, 3)), STEPS)
    for said, verdict in ((next(iter(REASONS)), "refused"), ("no reason", "unlisted")):
        monkeypatch.setattr(quantised_fuzzing, "import_model", _refusing(said))
        assert outcome(graph).verdict == verdict


def _refusing(said: str) -> object:
    def refuse(model: object) -> None:
        raise ModelError(said)

    return refuse
