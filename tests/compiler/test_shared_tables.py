"""Constants are kept once: equal ones, and tables of embeddings that are weights, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.codegen.test_dot_products import target_of
from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import default_of
from tilesmith.compiler.assembly.weights import Constants
from tilesmith.compiler.backends.backend import backends
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.program import kernels_of
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.settling import tables
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

_WORDS, _WIDTH = 2099, 160  # 1.3 MB; neither is a whole number of vectors

_TIED = (
    "h = Gather(table, ids) t = Transpose<perm = [1, 0]>(table) n = Tanh(h) y = MatMul(n, t)",
    "h = Gather(table, ids) n = Tanh(h) y = Gemm<transB = 1>(n, table)",
)


_AMX = "+avx512vnni,+avx512bf16,+amx-tile,+amx-int8,+amx-bf16"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that are worth the trouble however small."""
    monkeypatch.setattr(tables, "_LEAST", 1 << 10)


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


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_an_embedding_in_16_bits_is_kept_once(precision: str) -> None:
    """Also where instructions multiply pairs, which lie side by side then."""
    model = _tied(_TIED[0])
    options = BuildOptions(precision=precision)
    executable = build(import_model(model), host_target(), options=options)
    assert executable.report.constant_bytes <= 1.05 * _own(model) / 2
    assert "gather_packed" in _operators(executable)
    given = {"ids": np.array([0, 1, -1, _WORDS - 1, 77])}
    limit = 2e-2 if precision == "bf16" else 2e-3
    assert_close(executable.run(given), expected(model, given), limit)


_CODES = (
    "e = Gather(q, ids) h = DequantizeLinear(e, s, z) t = Transpose<perm = [1, 0]>(q) "
    "d = DequantizeLinear(t, s, z) n = Tanh(h) y = MatMul(n, d)",
    "d = DequantizeLinear(q, s, z) h = Gather(d, ids) t = Transpose<perm = [1, 0]>(d) "
    "i = QuantizeLinear(t, s, z) w = DequantizeLinear(i, s, z) n = Tanh(h) y = MatMul(n, w)",
    "d = DequantizeLinear(q, s, z) h = Gather(d, ids) n = Tanh(h) y = Gemm<transB = 1>(n, d)",
)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("text", _CODES, ids=["picked", "again", "gemm"])
def test_an_embedding_in_bytes_is_kept_once(text: str, dtype: Any) -> None:
    """As onnxruntime's quantisers write it, where activations are floats."""
    codes = (random(_WORDS, _WIDTH) * 40).clip(-128, 127).astype(np.int8)
    zero = 3 if dtype == np.int8 else 131
    model = model_of(
        f"g (int64[5] ids) => (float[5, {_WORDS}] y) {{ {text} }}",
        q=(codes.astype(np.int16) + zero - 3).astype(dtype) if dtype == np.uint8 else codes,
        s=np.float32(0.02), z=np.array(zero, dtype),
    )  # fmt: skip
    executable = build(import_model(model), host_target())
    assert (
        executable.report.constant_bytes <= 1.08 * codes.nbytes
    )  # a scale and a zero point a word
    assert "gather_packed" in _operators(executable)
    given = {"ids": np.array([0, 1, -1, _WORDS - 1, 77])}
    assert_close(executable.run(given), expected(model, given), 1e-4)


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


@pytest.mark.parametrize(
    "text, features, group",
    [
        ("matmul m=3 n=70 k=33 const=b", "", 1),
        ("matmul m=9 n=33 k=20 tb=1 const=b", "", 1),
        ("matmul m=3 n=70 k=34 dtype=bfloat16 const=b", "+avx512bf16", 2),
        ("matmul m=9 n=37 k=40 dtype=bfloat16 tb=1 const=b", _AMX, 2),
        ("block_quantised_matmul m=2 n=37 k=70 bits=8 const=q,scale", "", 4),
    ],
)
def test_panels_are_what_products_prepare(text: str, features: str, group: int) -> None:
    """Row after row in blocks, groups of neighbours side by side, zeros where nothing is."""
    target = target_of("avx512", features) if features else host_target()
    workload = Workload.parse(text)
    config = default_of(workload, target)
    ((name, panels),) = scheduler_of(workload, target).panels(workload, target, config).items()
    operands = {o.name: o for o in template_of(workload.operator).inputs(workload)}
    given = {
        o.name: (random(*o.shape) * 50).astype(to_numpy(o.dtype))
        for o in operands.values()
        if o.name in workload.constants
    }
    compiled = backends["cpu"].compile(workload, target, config)
    found = np.asarray(compiled.prepare(given)[panels.buffer]).view(given[name].dtype)
    rows = given[name].reshape(operands[name].shape[0], -1)
    rows = rows if panels.axis == 0 else rows.T
    depth = -(-rows.shape[1] // panels.fill) * panels.fill
    filled = np.zeros((-(-len(rows) // panels.block) * panels.block, depth), rows.dtype)
    filled[: len(rows), : rows.shape[1]] = rows
    wanted = filled.reshape(-1, panels.block, depth // group, group).transpose(0, 2, 1, 3)
    assert panels.group == group
    np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)
    np.testing.assert_array_equal(panels.pack(rows).reshape(wanted.shape), wanted)


@pytest.mark.parametrize("lends", [True, False])
def test_equal_weights_of_other_names_are_kept_once(lends: bool) -> None:
    weight, other = random(300, 300), random(300, 300)
    other[150, 150] += 1
    constants = Constants(lends)
    places = [constants.add((name, ""), array, None) for name, array in
              (("a", weight), ("b", other), ("c", weight.copy()), ("a", weight))]  # fmt: skip
    assert places[0] == places[2] == places[3] != places[1]
    assert constants.size == 2 * weight.nbytes
