"""Range: how many numbers it gives, and what has none or too many."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.model_builder import model_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import JobError


@pytest.mark.parametrize(
    ("numbers", "what"),
    [
        ((0.0, np.inf, 1.0), "limit is inf"),
        ((0.0, 4.0, np.nan), "delta is nan"),
        ((0.0, 4.0, 0.0), "delta is 0"),
        ((0.0, 1e30, 1.0), "elements; 2147483648 are possible"),
    ],
)
def test_a_range_without_end_is_a_sentence(numbers: tuple[float, ...], what: str) -> None:
    model = model_of("g (float a, float b, float c) => (float[N] y) { y = Range(a, b, c) }")
    executable = build(import_model(model), host_target())
    with pytest.raises(JobError, match=f"Range 'y' .*{what}"):
        executable.run(dict(zip("abc", map(np.float32, numbers), strict=True)))


@pytest.mark.parametrize("numbers", [(1, 7, 2), (7, 1, -3), (3, 3, 1), (0.5, 2.0, 0.25)])
def test_ranges_count_as_onnx_says(numbers: tuple[float, ...]) -> None:
    kind, dtype = ("int64", np.int64) if isinstance(numbers[0], int) else ("float", np.float32)
    model = model_of(f"g ({kind} a, {kind} b, {kind} c) => ({kind}[N] y) {{ y = Range(a, b, c) }}")
    given = dict(zip("abc", map(dtype, numbers), strict=True))
    found = build(import_model(model), host_target()).run(given)["y"]
    np.testing.assert_array_equal(found, np.arange(*numbers).astype(dtype))
