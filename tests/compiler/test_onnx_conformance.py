"""ONNX's own operator tests: every model of theirs that becomes kernels gives the outputs they
list."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from compiler.build import prepared
from compiler.onnx_import import import_model
from compiler.reference import run_reference
from search_space.errors import ModelError


def _cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return list(collect_testcases(None))


def _floats(case: Any) -> bool:
    inputs, outputs = case.data_sets[0]
    arrays = (*inputs, *outputs)
    return all(isinstance(a, np.ndarray) for a in arrays) and outputs[0].dtype == np.float32


@pytest.mark.filterwarnings("ignore")
def test_operators_compute_what_the_standard_says() -> None:
    lowered = 0
    for case in filter(_floats, _cases()):
        try:
            graph = import_model(case.model)
        except ModelError:  # extents of zero, dtypes without a name, sequences
            continue
        graph = prepared(graph)
        graph.check()
        if not any(node.kind == "kernel" for node in graph.nodes):
            continue
        lowered += 1
        inputs, outputs = case.data_sets[0]
        names = [value.name for value in case.model.graph.input]
        found = run_reference(graph, dict(zip(names, inputs, strict=False)))
        for value, wanted in zip(case.model.graph.output, outputs, strict=True):
            message = f"{case.name}\n{graph}"
            np.testing.assert_allclose(found[value.name], wanted, 1e-3, 1e-5, err_msg=message)
    assert lowered > 450
