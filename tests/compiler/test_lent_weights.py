"""Weights that kernels use as they are stay where they are; an artifact holds them all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.compiler.model_builder import model_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_empty
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.files.arrays import typed_only
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable


@pytest.mark.parametrize("rows", [2, 256])
def test_large_weights_stay_where_they_are(rows: int, tmp_path: Path) -> None:
    """Between two small ones, so that a file's bytes have to come from three places."""
    model = model_of("""g (int64[3] i) => (float[3, 64] y) {
        found = Gather(table, i)
        more = Add(found, b)
        y = MatMul(more, w)
    }""")
    rng = np.random.default_rng(0)
    table = aligned_empty((rows, 64), np.dtype(np.float32))
    table[...] = rng.standard_normal(table.shape)
    held = {"b": rng.standard_normal(64).astype(np.float32), "table": table}
    held["w"] = rng.standard_normal((64, 64)).astype(np.float32)
    model.graph.initializer.extend(typed_only(*item) for item in held.items())
    executable = build(import_model(model, held=held), host_target())
    lent = [memory.ctypes.data for _, memory in executable.recipe.lent]
    assert lent == ([table.ctypes.data] if table.nbytes >= 1 << 16 else [])
    i = np.array([1, 0, rows - 1])
    expected = (table[i] + held["b"]) @ held["w"]
    np.testing.assert_allclose(executable.run({"i": i})["y"], expected, rtol=1e-4, atol=1e-4)
    executable.save(tmp_path / "model.tsm")
    loaded = Executable.load(tmp_path / "model.tsm")
    np.testing.assert_allclose(loaded.run({"i": i})["y"], expected, rtol=1e-4, atol=1e-4)
    assert not loaded.recipe.lent
    loaded.save(tmp_path / "again.tsm")
    assert (tmp_path / "again.tsm").read_bytes() == (tmp_path / "model.tsm").read_bytes()
