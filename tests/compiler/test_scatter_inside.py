"""Writes along an inner axis, as exporters write them, against onnxruntime; and in place."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.codegen.kernels import HOST
from tests.compiler.model_builder import assert_close, expected, model_of
from tilesmith.codegen.native.kernel import compile_config
from tilesmith.codegen.programs.structures import default_of
from tilesmith.compiler.driver.build import build, scheduled
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.workloads.workload import Workload


def cache(count: int, updates: str = "u") -> onnx.ModelProto:
    """A cache [1, heads, positions, features] written at some positions."""
    return model_of(
        f"g (float[1, 3, 9, 8] c, float[1, 3, {count}, 8] n, int64[{count}] at) "
        "=> (float[1, 3, 9, 8] y) { t = Transpose<perm=[2, 1, 0, 3]>(c) e = Exp(n) "
        "u = Transpose<perm=[2, 1, 0, 3]>(e) k = Unsqueeze(at, one) "
        f"s = ScatterND(t, k, {updates}) y = Transpose<perm=[2, 1, 0, 3]>(s) }}",
        one=np.array([1]), w=np.ones((count, 3, 1, 8), np.float32),
    )  # fmt: skip


@pytest.mark.parametrize("updates", ["u", "w"])
@pytest.mark.parametrize("count", [1, 4])
def test_only_what_is_written_moves(count: int, updates: str) -> None:
    model = cache(count, updates)
    kernels = [n.workload for n in scheduled(import_model(model), HOST).nodes if n.workload]
    moved = sum(w.operator == "transpose" for w in kernels)
    assert moved == (count > 1 and updates == "w"), kernels
    executable = build(import_model(model), HOST)
    assert not executable.report.host
    rng = np.random.default_rng(0)
    inputs = {
        "c": rng.standard_normal((1, 3, 9, 8)).astype(np.float32),
        "n": rng.standard_normal((1, 3, count, 8)).astype(np.float32),
        "at": np.array([7, -1, 0, 3])[:count],
    }
    assert_close(executable.run(inputs), expected(model, inputs))


def test_equal_indices_are_looked_at_once() -> None:
    model = model_of(
        "g (float[5, 4] a, float[5, 4] b, int64[2] at) => (float[2, 4] y) "
        "{ p = Gather(a, at) e = Exp(p) q = Gather(b, at) y = Mul(e, q) }"
    )
    executable = build(import_model(model), HOST)
    checks = [len(getattr(step, "checks", ())) for step in executable.recipe.steps]
    assert sum(checks) == 1


@pytest.mark.parametrize(
    "key",
    [
        "scatter_nd shape=3x9x37 indices=2x1 lead=1",
        "scatter_nd shape=40x16 indices=3x1 reduction=add",
        "scatter_elements shape=19x37 indices=19x5 axis=1",
    ],
)
def test_one_memory_for_both_is_no_copy(key: str) -> None:
    """The same code, given its output for its input, changes it in place."""
    workload = Workload.parse(key)
    kernel = compile_config(workload, HOST, default_of(workload, HOST))
    rng = np.random.default_rng(3)
    x, indices, updates = kernel.inputs
    shape = {b.name: tuple(e.constant or 0 for e in b.shape) for b in kernel.code.parameters}
    arrays = {
        x.name: rng.standard_normal(shape[x.name]).astype(np.float32),
        indices.name: rng.permutation(9).astype(np.int64)[: int(np.prod(shape[indices.name]))]
        if workload.operator == "scatter_nd"
        else rng.integers(0, 37, shape[indices.name]),
        updates.name: rng.standard_normal(shape[updates.name]).astype(np.float32),
    }
    wanted = kernel(arrays)
    kernel.run({**arrays, kernel.output.name: arrays[x.name]})
    np.testing.assert_array_equal(arrays[x.name], wanted)
