"""Pools whose window exceeds what it slides over, and pads that cut off, as kernels."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.lowering_checks import check_both
from tests.compiler.model_builder import model_of, operators

POOLS = {
    "a window of more than all": ((7, 7), "kernel_shape = [9, 8], strides = [9, 9]", "global=1"),
    "rounded up": ((7, 5), "kernel_shape = [9, 9], strides = [9, 9], ceil_mode = 1", "global=1"),
    "along one axis": ((7, 5), "kernel_shape = [2, 8], strides = [2, 4]", "kh=2 kw=5"),
    "padded": ((4, 6), "kernel_shape = [8, 3], strides = [3, 1], pads = [1, 0, 1, 0]", "kh=6"),
    "one axis": ((6,), "kernel_shape = [9], strides = [9]", "global=1"),
}  # fmt: skip


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("name", POOLS)
def test_a_window_larger_than_its_input_is_clamped(name: str, operator: str) -> None:
    extents, attributes, form = POOLS[name]
    result = ", ".join("ABCD"[: len(extents) + 2])
    model = model_of(
        f"g (float[1, 3, {', '.join(map(str, extents))}] x) => (float[{result}] y) "
        f"{{ y = {operator}<{attributes}>(x) }}"
    )
    lowered = check_both(model)
    assert any(form in key for key in operators(lowered)), operators(lowered)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize(
    "pads", [[0, -1, 0, 0, -2, 0], [0, -1, 2, 0, 3, -1], [-1, 0, 0, 0, 0, -3], [1, -2, 1, 0, 2, 2]]
)
def test_negative_pads_cut_off(pads: list[int], mode: str) -> None:
    if mode != "constant":
        pads = [0 if position % 3 == 0 else pad for position, pad in enumerate(pads)]
    model = model_of(
        f'g (float[3, 6, 5] x) => (float[A, B, C] y) {{ y = Pad<mode = "{mode}">(x, pads) }}',
        pads=np.array(pads),
    )
    check_both(model)


def test_a_padded_number_keeps_all_its_digits() -> None:
    model = model_of(
        "g (float[3] x) => (float[5] y) { y = Pad(x, pads, value) }",
        pads=np.array([1, 1]), value=np.float32(1.23456789),
    )  # fmt: skip
    check_both(model, tolerance=0.0)
