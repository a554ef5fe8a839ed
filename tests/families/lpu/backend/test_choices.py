"""Extremes, the first by rank and running sums on an LPU-like chip, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.compiler.model_builder import Arrays, expected, model_of, random
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.hardware.target import load_target

TARGET = load_target("lpu1")


def eighths(*shape: int) -> np.ndarray:
    """Numbers that float16 holds, some of them equal."""
    return (np.round(random(*shape) * 8) / 8).astype(np.float32)


def on_the_chip(model: onnx.ModelProto, inputs: Arrays) -> dict[str, np.ndarray]:
    executable = build(import_model(model), TARGET)
    assert executable.report.host == 0, executable.report.host_nodes
    return executable.run(dict(inputs))


@pytest.mark.parametrize(
    ("shape", "result", "call"),
    [
        ((5, 37), (5,), "ArgMax<axis=1, keepdims=0>"),
        ((5, 137), (5, 1), "ArgMin<axis=1, select_last_index=1>"),
        ((2, 2500), (2, 1), "ArgMax<axis=-1>"),
        ((1, 11, 6, 9), (1, 1, 6, 9), "ArgMax<axis=1>"),
        ((1, 11, 6, 9), (1, 6, 9), "ArgMin<axis=1, keepdims=0>"),
        ((7, 20), (1, 20), "ArgMax<axis=0, select_last_index=1>"),
    ],
)
def test_extremes_are_found_by_comparison(
    shape: tuple[int, ...], result: tuple[int, ...], call: str
) -> None:
    dims, wanted = (", ".join(map(str, s)) for s in (shape, result))
    model = model_of(f"g (float[{dims}] x) => (int64[{wanted}] y) {{ r = Abs(x) y = {call}(r) }}")
    inputs = {"x": eighths(*shape)}
    found = on_the_chip(model, inputs)["y"]
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, expected(model, inputs)["y"])


def test_what_is_not_a_number_is_passed_over_but_in_the_first_place() -> None:
    x = eighths(4, 20)
    x[0, 3] = x[1, 0] = x[2, :] = np.nan
    x[3, :] = -np.inf
    model = model_of("g (float[4, 20] x) => (int64[4, 1] y) { y = ArgMax<axis=1>(x) }")
    found = on_the_chip(model, {"x": x})["y"]
    np.testing.assert_array_equal(found, expected(model, {"x": x})["y"])


def test_rows_are_picked_by_what_was_largest() -> None:
    """As a decoder embeds the token that it has chosen."""
    text = (
        "g (float[4, 20] x) => (float[4, 64] y) "
        "{ i = ArgMax<axis=1, keepdims=0>(x) y = Gather(table, i) }"
    )
    table = eighths(20, 64)
    found = on_the_chip(model_of(text, table=table), {"x": random(4, 20)})["y"]
    np.testing.assert_array_equal(found, table[random(4, 20).argmax(1)])


@pytest.mark.parametrize("largest", [1, 0])
def test_the_first_by_rank_pick_rows(largest: int) -> None:
    text = (
        "g (float[5, 9] x) => (float[5, 3] v, int64[5, 3] i, float[5, 3, 6] y) "
        f"{{ v, i = TopK<axis=-1, largest={largest}>(x, k) y = Gather<axis=0>(table, i) }}"
    )
    model, inputs = model_of(text, k=np.array([3]), table=eighths(9, 6)), {"x": eighths(5, 9)}
    found = on_the_chip(model, inputs)
    for name, value in expected(model, inputs).items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize(
    ("shape", "axis", "attributes"),
    [
        ((7, 40), 0, ""),
        ((7, 340), 1, "<exclusive=1, reverse=1>"),
        ((3, 9, 40), 1, "<reverse=1>"),
        ((3, 9, 40), 2, "<exclusive=1>"),
    ],
)
def test_running_sums_are_products_with_a_triangle(
    shape: tuple[int, ...], axis: int, attributes: str
) -> None:
    dims = ", ".join(map(str, shape))
    text = f"g (float[{dims}] x) => (float[{dims}] y) {{ y = CumSum{attributes}(x, a) }}"
    model, inputs = model_of(text, a=np.array(axis)), {"x": eighths(*shape)}
    found, want = on_the_chip(model, inputs)["y"], expected(model, inputs)["y"]
    assert np.abs(found - want).max() <= 5e-4 * np.abs(want).max()
