"""Running sums on accelerators: products with a triangle, of long rows in pieces, and no host."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.model_builder import expected, model_of, random
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.hardware.target import load_target

TRN1 = load_target("trn1")


@pytest.mark.parametrize(
    ("shape", "axis", "attributes"),
    [
        ((7, 40), 0, ""),
        ((7, 340), 1, "<exclusive=1, reverse=1>"),
        ((3, 9, 40), 1, "<reverse=1>"),
        ((2, 4096), 1, ""),
        ((1, 5000), 1, "<exclusive=1>"),
        ((3, 1200), 1, "<reverse=1>"),
        ((3, 1200), 1, "<reverse=1, exclusive=1>"),
    ],
)
def test_the_values_are_those_of_sums_one_by_one(
    shape: tuple[int, ...], axis: int, attributes: str
) -> None:
    dims = ", ".join(map(str, shape))
    text = f"g (float[{dims}] x) => (float[{dims}] y) {{ y = CumSum{attributes}(x, a) }}"
    model, inputs = model_of(text, a=np.array(axis)), {"x": random(*shape)}
    executable = build(import_model(model), TRN1)
    assert not executable.report.host_nodes
    found, want = executable.run(inputs)["y"], expected(model, inputs)["y"]
    assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize(("shape", "kind"), [((1, 1009), "float"), ((7, 40), "int64")])
def test_rows_of_no_pieces_and_whole_numbers_stay_on_the_host(
    shape: tuple[int, ...], kind: str
) -> None:
    dims = ", ".join(map(str, shape))
    text = f"g ({kind}[{dims}] x) => ({kind}[{dims}] y) {{ y = CumSum(x, a) }}"
    model, value = model_of(text, a=np.array(1)), np.round(random(*shape) * 8)
    inputs = {"x": value.astype("float32" if kind == "float" else kind)}
    executable = build(import_model(model), TRN1)
    assert len(executable.report.host_nodes) == 1
    np.testing.assert_array_equal(executable.run(inputs)["y"], expected(model, inputs)["y"])
