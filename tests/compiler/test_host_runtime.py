"""Host nodes in onnxruntime where that is installed: chosen, refused, and never another value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.compiler.model_builder import model_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.host import runtime
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.support.errors import DependencyError, InputError

pytest.importorskip("onnxruntime")

UNIQUE = "g (float[6] x) => (float[N] y) { y = Unique(x) }"
"""What no kernel computes: its shape only running the model tells."""


def built(text: str, **constants: Any) -> Executable:
    return build(import_model(model_of(text, **constants)), host_target())


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without onnxruntime."""
    monkeypatch.setattr(runtime, "_module", lambda: None)


def runtimes(executable: Executable) -> list[str]:
    return [node.runtime for node in executable.host_nodes]


def test_host_nodes_run_in_onnxruntime() -> None:
    executable = built(UNIQUE)
    assert [node.name for node in executable.host_nodes] == list(executable.report.host_nodes)
    assert runtimes(executable) == ["onnxruntime"]
    found = executable.run({"x": np.array([3, 1, 3, 2, 1, 1], np.float32)})
    assert found["y"].tolist() == [1, 2, 3]


def test_an_artifact_runs_without_it(tmp_path: Path, without: None) -> None:
    path = tmp_path / "m.tsm"
    built(UNIQUE).save(path)
    executable = Executable.load(path)
    assert runtimes(executable) == ["reference"]
    found = executable.run({"x": np.array([3, 1, 3, 2, 1, 1], np.float32)})
    assert found["y"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(("asked", "expected"), [("reference", "reference"), ("", "onnxruntime")])
def test_the_environment_says_which(
    asked: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(runtime.ENVIRONMENT, asked)
    assert runtimes(built(UNIQUE)) == [expected]


def test_an_unknown_runtime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(runtime.ENVIRONMENT, "abacus")
    with pytest.raises(InputError, match="TILESMITH_HOST=abacus names nothing"):
        built(UNIQUE)


def test_asked_for_and_not_there(without: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(runtime.ENVIRONMENT, "onnxruntime")
    with pytest.raises(DependencyError, match=r"tilesmith\[host\]"):
        built(UNIQUE)


def test_values_that_are_not_finite_go_to_the_reference() -> None:
    executable = built("g (float16[2, 3] x) => (int64[2] y) { y = ArgMax<axis=1, keepdims=0>(x) }")
    values = np.array([[0, np.nan, 2], [5, 1, 2]], np.float16)
    if executable.host_nodes:
        assert executable.run({"x": values})["y"].tolist() == np.argmax(values, axis=1).tolist()
    assert executable.run({"x": np.nan_to_num(values)})["y"].tolist() == [2, 0]


def test_bodies_are_looked_into() -> None:
    """A whole number by zero inside a body would end the process."""
    text = """
        g (uint8[2] a, uint8[2] b, bool which) => (uint8[N] y) {
            y = If(which) <
                then_branch = t () => (uint8[N] p) { p = Div(a, b) },
                else_branch = e () => (uint8[N] q) { q = Add(a, b) }
            >
        }"""
    executable = built(text)
    assert runtimes(executable) in (["reference"], [])


def test_early_opsets_stay() -> None:
    node = onnx.helper.make_node("Unique", ["x"], ["y"])
    info = import_model(model_of(UNIQUE)).info("x")
    for opset, expected in ((6, True), (11, False)):
        session = runtime.session_of(node, [info], [info], {}, [("", opset)], 1)
        assert (session is None) == expected


def test_the_share_of_the_host_is_measured() -> None:
    executable = built(UNIQUE)
    bound = executable.bind({"x": np.arange(6, dtype=np.float32)})
    assert 0.5 < bound.host_share() <= 1
    none = built("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    assert none.bind({"x": np.ones(2, np.float32)}).host_share() == 0


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_statistics_have_types_of_their_own(dtype: str, without: None) -> None:
    """LayerNormalization 17 stashes float32; BatchNormalization 15 keeps its statistics' type."""
    kind = {"float16": "float16", "float64": "double"}[dtype]
    rows = f"""g ({kind}[3, 8] x) => ({kind}[3, 8] y, float[3, 1] m, float[3, 1] d)
        {{ y, m, d = LayerNormalization(x, s) }}"""
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(dtype)
    _agrees(model_of(rows, s=np.arange(8, dtype=dtype)), {"x": x})
    if dtype == "float64":
        return  # onnxruntime has no such BatchNormalization
    images = f"""g ({kind}[3, 2, 4] x) => ({kind}[3, 2, 4] y, float[2] m, float[2] v)
        {{ y, m, v = BatchNormalization<training_mode=1>(x, s, b, mean, var) }}"""
    constants = {"s": np.ones(2, dtype), "b": np.zeros(2, dtype)}
    held = {"mean": np.array([0.5, -1], np.float32), "var": np.array([1, 2], np.float32)}
    model = model_of(images, opset=15, **constants, **held)
    _agrees(model, {"x": x.reshape(3, 2, 4)})


def _agrees(model: onnx.ModelProto, inputs: dict[str, Any]) -> None:
    import onnxruntime

    executable = build(import_model(model), host_target())
    assert runtimes(executable) in (["reference"], [])  # halves are kernels where they can be
    found = executable.run(inputs)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for output, value in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        assert found[output.name].dtype == value.dtype
        np.testing.assert_allclose(found[output.name], value, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("operator", ["ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"])
@pytest.mark.parametrize("attributes", ["<axes=[1]>", "<keepdims=0>", "<axes=[-1, 0]>"])
def test_reductions_of_whole_numbers_stay_whole(
    operator: str, attributes: str, without: None
) -> None:
    import onnxruntime

    text = f"g (int32[3, 4] x) => (int32[N, M] y) {{ y = {operator}{attributes}(x) }}"
    text = text.replace("[N, M]", "") if "keepdims" in attributes else text
    model = model_of(text, opset=13)
    x = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
    found = build(import_model(model), host_target()).run({"x": x})["y"]
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
