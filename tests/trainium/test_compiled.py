"""The compiled subset of Python computes what Python computes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesmith.codegen.compiled import Floats, Ints, compiled


@compiled
def collatz(n: int, seeds: Ints, lengths: Ints, mean: Floats) -> int:
    """Steps to 1 of each seed (at most 50); the number of odd seeds."""
    odd = 0
    total = 0.0
    for i in range(n):
        value = seeds[i]
        if value % 2 == 1 and value > 0:
            odd += 1
        steps = 0
        while value != 1:
            odd_value = value % 2
            value = odd_value * (3 * value + 1) + (1 - odd_value) * (value // 2)
            steps += 1
            if steps >= 50 or value < 0:
                break
        if not steps > 0:
            continue
        lengths[i] = steps
        total += float(steps)
        mean[0] = max(mean[0], total / (i + 1))
    return odd


@compiled
def halves(value: int, scale: float) -> float:
    """Half of a value, scaled."""
    return value / 2 * scale


@compiled
def tally(i: int, values: Ints, total: Floats) -> int:
    """Add half of a value to the total; whether the value is odd. (Its locals are its own.)"""
    value = values[i] - 1
    value += 1
    total[0] += halves(value, 3)
    return value % 2


@compiled
def count_odd(n: int, values: Ints, total: Floats) -> int:
    """How many values are odd."""
    value = 0
    for i in range(n):
        if tally(i, values, total) == 1:
            value += 1
    return value


def test_helpers_are_called_natively_and_in_python():
    values = np.array([1, 4, 7, 10, 11], dtype=np.int64)
    for function in (count_odd, count_odd.python):
        total = np.zeros(1)
        assert function(len(values), values, total) == 3
        assert total[0] == 33 / 2 * 3
    assert set(count_odd.helpers) == {"tally"} and set(tally.helpers) == {"halves"}


@given(st.lists(st.integers(1, 10_000), max_size=20))
@settings(max_examples=30, deadline=None)
def test_native_equals_python(values):
    seeds = np.array(values, dtype=np.int64)
    results = []
    for function in (collatz, collatz.python):
        lengths, mean = np.zeros(len(seeds), dtype=np.int64), np.zeros(1)
        odd = function(len(seeds), seeds, lengths, mean)
        results.append((odd, lengths.tolist(), mean.tolist()))
    assert results[0] == results[1]
