"""Ranges, scales and integers of quantisation, against numpy and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tilesmith.capabilities.quantisation.numbers.histograms import SIDE, Histogram
from tilesmith.capabilities.quantisation.numbers.ranges import Affine, Method
from tilesmith.capabilities.quantisation.numbers.weights import byte_weights
from tilesmith.capabilities.quantisation.preparation.plan import WeightedLayer
from tilesmith.search_space.support.errors import InputError, ModelError

FLOATS = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
PARTS = st.lists(npst.arrays(np.float32, st.integers(0, 40), elements=FLOATS), min_size=1)
LAYER = WeightedLayer("n", "Conv", "x", "w", 0, "b")


def seen(*parts: np.ndarray) -> Histogram:
    found = Histogram()
    for part in parts:
        found.add(part)
    return found


@given(PARTS, st.randoms(use_true_random=False))
def test_a_histogram_is_the_same_in_any_order_and_loses_nothing(parts, random) -> None:
    first = seen(*parts)
    random.shuffle(parts)
    second, whole = seen(*parts), np.concatenate(parts)
    assert first.width == second.width
    assert np.array_equal(first.counts, second.counts)
    assert first.total == whole.size
    if whole.size:
        assert (first.low, first.high) == (whole.min(), whole.max())


@given(npst.arrays(np.float32, st.integers(1, 200), elements=FLOATS))
def test_counts_are_numpys_histogram(values) -> None:
    found = seen(values)
    edges = np.arange(-SIDE, SIDE + 1) * found.width
    counted, _ = np.histogram(values.astype(np.float64), edges)
    assert np.array_equal(found.counts, counted)


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.05, 0.5, 0.9, 0.9995, 1.0])
def test_quantiles_are_numpys_up_to_a_bin(share: float) -> None:
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32) * 3 + 1
    found = seen(*np.split(values, 10))
    assert found.quantile(share) == pytest.approx(np.quantile(values, share), abs=2 * found.width)
    assert found.width <= np.abs(values).max() / (SIDE // 2)


def test_methods_leave_out_what_they_say() -> None:
    values = np.concatenate([np.linspace(-1, 1, 9998), [50.0, -70.0]]).astype(np.float32)
    found = seen(values)
    assert Method.parse("minmax").range_of(found, False) == (-70.0, 50.0)
    low, high = Method.parse("percentile:99.9").range_of(found, False)
    assert -1.0 <= low <= -0.9
    assert 0.9 <= high <= 1.0
    low, high = Method.parse("percentile:99").range_of(found, True)
    assert low == -high
    low, high = Method.parse("mse").range_of(found, False)
    assert -70 < low < -1
    assert 1 < high < 50


def test_mse_is_about_the_best_of_all_shrunken_ranges() -> None:
    values = np.random.default_rng(1).laplace(size=20_000).astype(np.float32)
    low, high = Method.parse("mse").range_of(seen(values), False)

    def error(low: float, high: float) -> float:
        rounded = Affine.over(low, high, False).rounded(values)
        return float(((rounded - values).astype(np.float64) ** 2).sum())

    least, most = float(values.min()), float(values.max())
    tried = [error(least * share, most * share) for share in np.linspace(0.2, 1, 81)]
    assert error(low, high) <= 1.05 * min(tried)


@pytest.mark.parametrize(
    ("low", "high", "scale", "zero"),
    [
        (0.0, 255.0, 1.0, 0),
        (-128.0, 127.0, 1.0, 128),
        (-5.1, 0.0, 0.02, 255),  # negative numbers only
        (0.0, 0.0, 1.0, 0),  # zeros only
        (0.0, 1e-30, 2.0**-60, 0),  # nothing that one can divide by
    ],
)
def test_bytes_of_a_range(low: float, high: float, scale: float, zero: int) -> None:
    affine = Affine.over(low, high, False)
    assert affine.scale == pytest.approx(scale)
    assert (affine.zero, affine.dtype) == (zero, "uint8")
    assert affine.rounded(np.zeros(1, np.float32)) == 0


def test_a_range_of_negative_numbers_holds_zero() -> None:
    found = seen(np.array([-3.0, -1.0], np.float32))
    assert Method.parse("minmax").range_of(found, False) == (-3.0, 0.0)


@pytest.mark.parametrize("text", ["max", "minmax:3", "percentile:20", "percentile:x", "mse:1"])
def test_unknown_methods_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="percentile"):
        Method.parse(text)


def test_weights_have_a_scale_for_each_channel() -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((6, 3, 3, 3)) * 10.0 ** np.arange(-3, 3)[:, None, None, None]
    weights = weights.astype(np.float32)
    bias = rng.standard_normal(6).astype(np.float32)
    found = byte_weights(LAYER, weights, bias, np.float32(0.5))
    largest = np.abs(weights).reshape(6, -1).max(axis=1)
    np.testing.assert_allclose(found.scales, largest / 127, rtol=1e-6)
    assert np.abs(found.values).reshape(6, -1).max(axis=1).tolist() == [127] * 6
    step = found.scales.reshape(6, 1, 1, 1)
    assert (np.abs(found.floats() - weights) <= step * 0.501).all()
    assert (np.abs(found.float_bias() - bias) <= found.bias_scales * 0.501 + 1e-6).all()


def test_channels_of_zeros_and_of_tiny_weights_keep_their_bias() -> None:
    weights = np.zeros((3, 2, 1, 1), np.float32)
    weights[1] = 1e-12  # its scale makes the bias too large for int32
    bias = np.array([0.25, 3.0, 0.0], np.float32)
    found = byte_weights(LAYER, weights, bias, np.float32(0.01))
    np.testing.assert_allclose(found.float_bias(), bias, rtol=1e-5)
    np.testing.assert_allclose(found.floats(), weights, atol=1e-6)
    assert (found.scales > 0).all()


def test_weights_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ModelError, match="not finite"):
        byte_weights(LAYER, np.full((1, 1, 1, 1), np.nan, np.float32), None, np.float32(1))


@given(low=st.floats(1e-6, 1e3), high=st.floats(1e-6, 1e3))
def test_even_zero_points_cover_the_range_in_steps_hardly_larger(low: float, high: float) -> None:
    even, plain = (Affine.over(-low, high, False, even) for even in (True, False))
    assert even.zero % 2 == 0
    ends = [(byte - even.zero) * float(even.scale) for byte in even.bounds]
    assert ends[0] <= -low * (1 - 1e-6)
    assert ends[1] >= high * (1 - 1e-6)
    assert even.scale <= plain.scale * (255 / 253) * (1 + 1e-6)
