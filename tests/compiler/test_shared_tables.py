"""Constants are kept once: equal ones, and tables of embeddings that are weights, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.codegen.host import host_target
from tilesmith.codegen.native.kernel import compile_config
from tilesmith.codegen.structures import default_of
from tilesmith.compiler.build import build
from tilesmith.compiler.executable import Executable
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.program import kernels_of
from tilesmith.compiler.weights import Constants
from tilesmith.search_space.scheduler import scheduler_of
from tilesmith.search_space.template import template_of
from tilesmith.search_space.workload import Workload

_WORDS, _WIDTH = 2099, 160  # 1.3 MB; neither is a whole number of vectors

_TIED = (
    "h = Gather(table, ids) t = Transpose<perm = [1, 0]>(table) n = Tanh(h) y = MatMul(n, t)",
    "h = Gather(table, ids) n = Tanh(h) y = Gemm<transB = 1>(n, table)",
)


def _own(model: onnx.ModelProto) -> int:
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer)


def _tied(text: str, picked: int = 5) -> onnx.ModelProto:
    return model_of(
        f"g (int64[{picked}] ids) => (float[{picked}, {_WORDS}] y) {{ {text} }}",
        table=random(_WORDS, _WIDTH),
    )


def _operators(executable: Executable) -> list[str]:
    return [step.workload.split()[0] for step in kernels_of(executable.recipe.steps)]


def _check(executable: Executable, model: onnx.ModelProto, picked: int = 5) -> None:
    ids: NDArray[Any] = np.random.default_rng(0).integers(-_WORDS, _WORDS, picked)
    ids[:2] = _WORDS - 1, -_WORDS
    given = {"ids": ids}
    wanted = dict(expected(model, given))
    assert_close(executable.run(given), wanted, 1e-4)


@pytest.mark.parametrize("text", _TIED)
def test_an_embedding_that_is_weights_too_is_kept_once(text: str, tmp_path: Path) -> None:
    model = _tied(text)
    executable = build(import_model(model), host_target())
    assert executable.report.constant_bytes <= 1.05 * _own(model)
    assert "gather_packed" in _operators(executable)
    executable.save(tmp_path / "m.tsm")
    for found in (executable, Executable.load(tmp_path / "m.tsm")):
        _check(found, model)


def test_tables_that_others_read_stay_as_they_are() -> None:
    model = model_of(
        f"g (int64[5] ids, float[{_WORDS}, {_WIDTH}] x) => (float[5, {_WORDS}] y, "
        f"float[{_WORDS}, {_WIDTH}] z) {{ {_TIED[1]} z = Mul(x, table) }}",
        table=random(_WORDS, _WIDTH),
    )
    executable = build(import_model(model), host_target())
    assert "gather_packed" not in _operators(executable)
    given = {"ids": np.arange(5), "x": random(_WORDS, _WIDTH, seed=1)}
    assert_close(executable.run(given), expected(model, given), 1e-4)


def test_where_most_of_a_table_is_picked_it_stays_plain() -> None:
    model = _tied(_TIED[1], picked=600)
    executable = build(import_model(model), host_target())
    assert "gather_packed" not in _operators(executable)
    _check(executable, model, picked=600)


def test_layers_that_share_weights_share_what_is_packed() -> None:
    lines = " ".join(f"a{i + 1} = MatMul(a{i}, w) b{i} = Relu(a{i + 1})" for i in range(6))
    weight = random(256, 256) / 16
    model = model_of(f"g (float[4, 256] a0) => (float[4, 256] b5) {{ {lines} }}", w=weight)
    executable = build(import_model(model), host_target())
    assert executable.report.constant_bytes <= 1.05 * weight.nbytes
    given = {"a0": random(4, 256)}
    assert_close(executable.run(given), expected(model, given), 1e-4)


@pytest.mark.parametrize("text", ["m=3 n=70 k=33", "m=9 n=33 k=20 tb=1"])
def test_panels_are_what_products_prepare(text: str) -> None:
    workload, target = Workload.parse(f"matmul {text} const=b"), host_target()
    config = default_of(workload, target)
    panels = scheduler_of(workload, target).panels(workload, target, config)["b"]
    b = random(*template_of("matmul").inputs(workload)[1].shape)
    found = compile_config(workload, target, config).prepare({"b": b})[panels.buffer]
    rows = b if panels.axis == 0 else b.T
    filled = np.zeros((found.shape[0] * panels.block, rows.shape[1]), np.float32)
    filled[: len(rows)] = rows
    wanted = filled.reshape(found.shape[0], panels.block, -1).transpose(0, 2, 1)
    np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)


@pytest.mark.parametrize("lends", [True, False])
def test_equal_weights_of_other_names_are_kept_once(lends: bool) -> None:
    weight, other = random(300, 300), random(300, 300)
    other[150, 150] += 1
    constants = Constants(lends)
    places = [constants.add((name, ""), array, None) for name, array in
              (("a", weight), ("b", other), ("c", weight.copy()), ("a", weight))]  # fmt: skip
    assert places[0] == places[2] == places[3] != places[1]
    assert constants.size == 2 * weight.nbytes
