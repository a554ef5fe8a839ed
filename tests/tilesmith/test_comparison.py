"""Comparing outputs with a peer's: errors are measured, never lost."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

import tilesmith
from tilesmith.jobs.compilation.compiling import random_inputs
from tilesmith.jobs.evaluation.benching import difference
from tilesmith.jobs.measures.peers import Contender, load_peer
from tilesmith.search_space.support.errors import DependencyError, ModelError


def contender(**outputs: NDArray[Any]) -> Contender:
    return Contender("peer", "1", lambda: None, lambda: outputs)


def test_errors_are_the_largest_over_outputs() -> None:
    ours = {"y": np.array([1.0, 2.5]), "z": np.array([100.0, 101.0])}
    theirs = contender(y=np.array([1.0, 2.0]), z=np.array([100.0, 100.0]))
    assert difference(ours, theirs) == (1.0, 0.25)


def test_a_number_that_is_not_finite_is_an_infinite_error() -> None:
    absolute, relative = difference({"y": np.array([math.nan])}, contender(y=np.array([1.0])))
    assert (absolute, relative) == (math.inf, math.inf)


def test_an_output_of_zeros_and_an_empty_one() -> None:
    ours = {"y": np.array([0.5]), "none": np.empty((0, 3))}
    theirs = contender(y=np.array([0.0]), none=np.empty((0, 3)))
    assert difference(ours, theirs) == (0.5, 0.5)


@pytest.mark.parametrize(("peer", "extra"), [("openvino", "peers"), ("iree", "iree")])
def test_a_peer_that_is_not_installed_names_the_extra(
    peer: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, peer, None)
    monkeypatch.setitem(sys.modules, f"{peer}.compiler.version", None)
    with pytest.raises(DependencyError, match=rf"tilesmith\[{extra}\]"):
        load_peer(peer, Path("model.onnx"), {}, 1)


def test_a_model_the_peer_refuses_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"onnxruntime cannot run .*bad\.onnx"):
        load_peer("onnxruntime", bad, {}, 1)


def test_a_bound_run_may_be_repeated() -> None:
    """Nothing that runs may overwrite a bound input, however long the model."""
    lines = [f"h{i} = MatMul(h{i - 1}, w)" for i in range(1, 6)]
    text = f"chain (float[4, 4] h0) => (float[4, 4] h5) {{ {' '.join(lines)} }}"
    graph = parser.parse_graph(text)
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    graph.initializer.append(numpy_helper.from_array(weight, "w"))
    opset = [helper.make_opsetid("", 17)]
    executable = tilesmith.compile(helper.make_model(graph, opset_imports=opset, ir_version=8))
    inputs = random_inputs(executable)
    bound = executable.bind(inputs)
    for _ in range(3):
        bound.run()
    assert np.array_equal(bound.outputs()["h5"], executable.run(inputs)["h5"])
