"""ONNX's own operator tests: every model of theirs that becomes kernels gives the outputs they
list, run by the references of the kernels' templates, its weights constant or not.

`tests/onnx_backend` runs them by the code that comes of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tilesmith.compiler.build import prepared
from tilesmith.compiler.graph_text import graph_text
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.verifier import verify


def _cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return list(collect_testcases(None))


def _floats(case: Any) -> bool:
    inputs, outputs = case.data_sets[0]
    arrays = (*inputs, *outputs)
    return all(isinstance(a, np.ndarray) for a in arrays) and outputs[0].dtype == np.float32


def _with_constants(model: onnx.ModelProto, inputs: Sequence[Any]) -> onnx.ModelProto:
    """The model as exporters write it: everything but the first input is a weight."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for value, array in zip(model.graph.input[1:], inputs[1:], strict=False):
        changed.graph.initializer.append(numpy_helper.from_array(np.asarray(array), value.name))
    del changed.graph.input[1:]
    return changed


@pytest.mark.parametrize(("constants", "least"), [(False, 450), (True, 410)])
@pytest.mark.filterwarnings("ignore")
def test_operators_compute_what_the_standard_says(constants: bool, least: int) -> None:
    lowered = 0
    for case in filter(_floats, _cases()):
        inputs, outputs = case.data_sets[0]
        if constants and len(inputs) == 1:
            continue  # nothing would be another
        if "bernoulli" in case.name:
            continue  # draws other numbers
        model = _with_constants(case.model, inputs) if constants else case.model
        graph = prepared(import_model(model))
        verify(graph)
        if not any(node.kind == "kernel" for node in graph.nodes):
            continue
        lowered += 1
        names = [value.name for value in model.graph.input]
        found = run_reference(graph, dict(zip(names, inputs, strict=False)))
        for value, wanted in zip(model.graph.output, outputs, strict=True):
            message = f"{case.name}\n{graph_text(graph)}"
            np.testing.assert_allclose(found[value.name], wanted, 1e-3, 1e-5, err_msg=message)
    assert lowered > least
