"""Host operators in element types that `onnx.reference` lacks: against those of float32."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model

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
