"""Host operators in element types that `onnx.reference` lacks: against those of float32."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.expressions.dtypes import to_numpy

NODES = {
    "GlobalLpPool": "GlobalLpPool<p=3>(x)",
    "MeanVarianceNormalization": "MeanVarianceNormalization<axes=[1, 3]>(x)",
    "Det": "Det(x)",
    "GlobalMaxPool": "GlobalMaxPool(x)",
}


@pytest.mark.parametrize("dtype", ["float16", "double"])
@pytest.mark.parametrize("name", NODES)
def test_other_floating_types(name: str, dtype: str) -> None:
    text = "g ({0}[2, 3, 4, 4] x) => ({0}{1} y) {{ y = {2} }}"
    shape = "[A, B]" if name == "Det" else "[A, B, C, D]"
    model, single = (model_of(text.format(t, shape, NODES[name])) for t in (dtype, "float"))
    x = random(2, 3, 4, 4).astype(np.float16)
    found = run_reference(import_model(model), {"x": x.astype(np.dtype(dtype))})
    wanted = expected(single, {"x": x.astype(np.float32)})
    exact = {name: value.astype(np.dtype(dtype)) for name, value in wanted.items()}
    assert_close(found, exact, 2e-3 if dtype == "float16" else 2e-5)


@pytest.mark.parametrize("reduction", ["add", "max"])
def test_narrow_types_stay_what_they_are(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference combines bfloat16 in float32, and leaves it at that."""
    monkeypatch.setenv("TILESMITH_HOST", "reference")
    model = model_of(
        f'g (bfloat16[4, 3] x, int64[2, 1] i, bfloat16[2, 3] u) => (bfloat16[4, 3] y) '
        f'{{ y = ScatterND<reduction="{reduction}">(x, i, u) }}', 18,
    )  # fmt: skip
    kind = to_numpy("bfloat16")
    x, u = np.full((4, 3), 2, kind), np.full((2, 3), 3, kind)
    found = run_reference(import_model(model), {"x": x, "i": np.array([[1], [2]]), "u": u})["y"]
    assert found.dtype == kind
    rows = {"add": 5, "max": 3}[reduction]
    np.testing.assert_array_equal(found.astype(np.float32)[:, 0], [2, rows, rows, 2])


def test_mean_of_operands_that_broadcast_the_first() -> None:
    operands = "double[1, 1] a, double[2, 3] b, double[3] c"
    text = f"g ({operands}) => (double[2, 3] y) {{ y = Mean(a, b, c) }}"
    rng = np.random.default_rng(3)
    given = {"a": rng.random((1, 1)), "b": rng.random((2, 3)), "c": rng.random(3)}
    before = given["a"].copy()
    found = run_reference(import_model(model_of(text)), given)["y"]
    np.testing.assert_allclose(found, (given["a"] + given["b"] + given["c"]) / 3, rtol=1e-15)
    np.testing.assert_array_equal(given["a"], before)
