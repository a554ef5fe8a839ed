"""Inputs and outputs in their caller's memory: nothing copied where that can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compiler.model_builder import model_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_empty
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable

_MODELS = {
    "one kernel": "y = Relu(x)",
    "input read twice": "a = Relu(x) b = Exp(a) y = Add(b, x)",
    "output read on": "y = Relu(x) n = Neg(y) z = Softmax<axis = 1>(n)",
    "view of the input": "s = Constant<value = int64[2] {128, 32}>() y = Reshape(x, s)",
    "the input itself": "y = Identity(x)",
    "join": "r = Relu(x) y = Concat<axis = 0>(r, x)",
    "host between": "r = Relu(x) d = Det(r) e = Exp(r) y = Add(e, x)",
}


def _expected(name: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
    relu = np.maximum(x, 0)
    return {
        "one kernel": relu,
        "input read twice": np.exp(relu) + x,
        "output read on": relu,
        "view of the input": x.reshape(128, 32),
        "the input itself": x,
        "join": np.concatenate([relu, x]),
        "host between": np.exp(relu) + x,
    }[name]


def _aligned(values: NDArray[np.float32], offset: int = 0) -> NDArray[np.float32]:
    """The values on a cache line, or `offset` elements after one."""
    memory = aligned_empty((values.size + offset,), values.dtype)[offset:].reshape(values.shape)
    memory[...] = values
    return memory


@pytest.mark.parametrize("name", list(_MODELS))
def test_wherever_inputs_lie(name: str, tmp_path: Path) -> None:
    outputs = "float[N, M] y, float[A, B] z" if "z =" in _MODELS[name] else "float[N, M] y"
    model = model_of(f"g (float[64, 64] x) => ({outputs}) {{ {_MODELS[name]} }}")
    built = build(import_model(model), host_target())
    built.save(tmp_path / "model.tsm")
    rng = np.random.default_rng(0)
    for executable in (built, Executable.load(tmp_path / "model.tsm")):
        seen = []
        for offset in (0, 1, 0):
            x = _aligned(rng.standard_normal((64, 64)).astype(np.float32), offset)
            before = x.copy()
            seen.append((executable.run({"x": x})["y"], _expected(name, x)))
            np.testing.assert_array_equal(x, before)
            turned = np.asfortranarray(x)
            seen.append((executable.run({"x": turned})["y"], _expected(name, x)))
        for found, expected in seen:  # each still what it was, when others have been made
            np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_bound_run_leaves_alone_what_another_has_given_away() -> None:
    model = model_of("g (float[64, 64] x) => (float[64, 64] y) { y = Relu(x) }")
    executable = build(import_model(model), host_target())
    x = _aligned(np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))
    assert executable.recipe.private == {"x", "y"}
    bound = executable.bind({"x": x})
    found = executable.run({"x": _aligned(-x)})["y"]
    bound.run()  # writes its own memory, not what the other run has given away
    np.testing.assert_array_equal(found, np.maximum(-x, 0))
