"""Tensors without elements: nothing computes them, and what reads them is known beforehand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.capabilities.c_library.c_libraries import loaded, needs_compiler, recipe
from tests.compiler.model_builder import assert_close, inputs_of, model_of, random
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.support.errors import JobError

CASES = {
    "all": "g (float[0, 3] x) => (float[0, 3] y) { y = Relu(x) }",
    "inner": "g (float[2, 0] x, float[0, 3] z) => (float[2, 3] y) { y = MatMul(x, z) }",
    "rows": "g (float[0, 4] x, float[4, 3] z) => (float[0, 3] y) { y = MatMul(x, z) }",
    "joined": "g (float[0, 3] x, float[2, 3] z) => (float[2, 3] y) { y = Concat<axis=0>(x, z) }",
    "summed": "g (float[0, 3] x) => (float[1, 3] y) { y = ReduceSum<keepdims=1>(x, a) }",
    "scalar": "g (float[0] x) => (float y) { y = ReduceSum<keepdims=0>(x) }",
    "picked": "g (float[4, 3] x, int64[0] i) => (float[0, 3] y) { y = Gather(x, i) }",
    "beside": "g (float[0, 3] x, float[2, 3] z) => (float[0, 3] y, float[2, 3] u) "
    "{ y = Softmax(x) u = Exp(z) }",
}
WEIGHTS = {"summed": {"a": np.array([0])}}


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_models_with_tensors_without_elements_run_and_become_libraries(
    tmp_path: Path, name: str
) -> None:
    model = model_of(CASES[name], **WEIGHTS.get(name, {}))
    found = recipe(model)
    hosts = [name for name in found.report.host_nodes if not name.startswith("Identity")]
    assert not hosts, "nothing is left to compute on the host"
    inputs = inputs_of(import_model(model))
    names = [ref.info.name for ref in found.outputs]
    wanted = dict(zip(names, ReferenceEvaluator(model).run(None, inputs), strict=True))
    assert_close(Executable(found).run(inputs), wanted)
    library = loaded(model, tmp_path)
    workspace = library.workspace()
    assert_close(workspace(inputs), wanted)
    outputs = {n: np.full(v.shape, 7, v.dtype) for n, v in wanted.items()}
    given = [inputs[n] if inputs[n].size else 0 for n, *_ in library.inputs]
    assert workspace.run(given, [v if v.size else 0 for v in outputs.values()]) == (0, "")
    assert_close(outputs, wanted)
    workspace.end()


def test_empty_parts_of_a_concat_go() -> None:
    model = model_of(
        "g (float[2, 0] x, float[2, 3] z, float[2, 4] u) => (float[2, 7] y) "
        "{ y = Concat<axis=1>(z, x, u) }"
    )
    inputs = {"x": np.zeros((2, 0), np.float32), "z": random(2, 3), "u": random(2, 4)}
    found = Executable(recipe(model)).run(inputs)
    assert_close(found, {"y": np.concatenate((inputs["z"], inputs["u"]), axis=1)})


def test_a_tensor_without_elements_is_not_viewed_as_one_with_some() -> None:
    """Such a view would read what lies beside it."""
    text = "g (float[0, 3, 4] x) => (float y) { y = Reshape<allowzero=1>(x, s) }"
    executable = Executable(recipe(model_of(text, opset=14, s=np.zeros(0, np.int64))))
    with pytest.raises(JobError, match="Reshape 'y' failed on the host"):
        executable.run({"x": np.zeros((0, 3, 4), np.float32)})
