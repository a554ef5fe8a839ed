"""Compiled loops over float32: what numpy computes, rounded where it rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codegen.made import body, made
from tilesmith.codegen.compiled import Floats, Singles, compiled
from tilesmith.search_space.support.errors import TranslationError


@compiled
def rounded(n: int, values: Singles, wide: Floats, narrow: Singles) -> float:
    """Arithmetic of float32, beside numbers of other types."""
    total = values[0] * 0
    for i in range(n):
        step = values[i] * 0.1 + i
        if step > 0.3 and values[i] == values[i]:
            total += max(step, -step) / 3
        narrow[i] = float(step) * 3
        wide[i] = total - 1
    return float(total)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=9))
def test_singles_are_rounded_as_numpy_does(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32)
    found = []
    for function in (rounded, rounded.python):
        wide, narrow = np.zeros(len(values)), np.zeros(len(values), np.float32)
        found.append((function(len(values), values, wide, narrow), wide, narrow))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("b[0] = max(a[0], b[0])", "max\\(\\) of singles and other numbers"),
        ("v = a[0]; v = b[0]", "is a single and would become"),
        ("v = 1.0; v = a[0]", "would become a single"),
        ("v = a[0] // 2", "FloorDiv of floats"),
    ],
)
def test_singles_do_not_become_other_numbers_unasked(tmp_path: Path, line: str, why: str) -> None:
    text = body(*line.split("; "), head="def f(a: Singles, b: Floats) -> None:")
    with pytest.raises(TranslationError, match=why):
        made(tmp_path, text)(np.ones(1, np.float32), np.ones(1))
