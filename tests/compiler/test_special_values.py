"""Operators at special values, NaN and infinities above all, on every family.

What is compared is compiled: native code here, and what the simulated accelerator computes. The
oracle is onnxruntime; but for maxima over windows and rows, where it keeps NaN or loses it by where
it stands, and takes the least finite number for -inf: there it is numpy, which keeps both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.compiler.model_builder import expected, model_of
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.hardware.target import Target, load_target

LIMITS = np.finfo(np.float32)
SPECIAL = np.array(
    [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 7.0, 1e-3, -1e-3, 20.0,
     -20.0, 89.0, -89.0, 100.0, -100.0, LIMITS.max, LIMITS.min, LIMITS.tiny, -LIMITS.tiny,
     LIMITS.smallest_subnormal, -LIMITS.smallest_subnormal, 1e30, -1e30, 1e-20, -1e-20],
    dtype=np.float32,
)  # fmt: skip
Floats = NDArray[np.float32]
TARGETS = {"cpu": host_target, "trn1": lambda: load_target("trn1")}


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    return TARGETS[request.param]()


def run(model: onnx.ModelProto, target: Target, x: Floats, *others: Floats) -> Floats:
    """The output of a model of which nothing runs on the host, where the family has kernels."""
    executable = build(import_model(model), target)
    names = [info.name for info in import_model(model).inputs]
    assert executable.report.host == 0
    return executable.run(dict(zip(names, (x, *others), strict=True)))["y"]


def agree(found: Floats, wanted: Floats) -> None:
    """NaN and infinities in the same places, all else close."""
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


MAPS = (
    "Relu(x)", "LeakyRelu<alpha = 0.1>(x)", "Clip(x, low, high)",
    "HardSigmoid(x)", "HardSwish(x)", "Softplus(x)", "Sigmoid(x)", "Tanh(x)", "Erf(x)", "Exp(x)",
    "Log(x)", "Sqrt(x)", "Reciprocal(x)", "Neg(x)", "Abs(x)",
    "Elu(x)", "Selu(x)", "Celu<alpha = 2.0>(x)", "Mish(x)", "Softsign(x)", "ThresholdedRelu(x)",
    "PRelu(x, high)", "Gelu(x)", "Max(x, high)", "Min(x, low)", "Mul(x, zero)", "Add(x, zero)",
    "Div(x, high)", "Div(high, x)", "Sub(low, x)", "Pow(x, third)", "Pow(x, high)",
)  # fmt: skip


@pytest.mark.parametrize("body", MAPS)
def test_maps(body: str, target: Target) -> None:
    x = np.tile(SPECIAL, 3)
    model = model_of(
        f"g (float[{len(x)}] x) => (float[{len(x)}] y) {{ y = {body} }}", opset=20,
        low=np.float32(-1), high=np.float32(2), zero=np.float32(0), third=np.float32(1 / 3),
    )  # fmt: skip
    agree(run(model, target, x), expected(model, {"x": x})["y"])


def softplus(x: Floats) -> Floats:
    return np.log1p(np.exp(x))


SMALL = {
    "Elu(x)": np.expm1,
    "Selu<alpha = 2.0, gamma = 1.5>(x)": lambda x: 3 * np.expm1(x),
    "Celu<alpha = 2.0>(x)": lambda x: 2 * np.expm1(x / 2),
    "Softplus(x)": softplus,
    "Mish(x)": lambda x: x * np.tanh(softplus(x)),
}


@pytest.mark.parametrize("body", SMALL)
def test_small_results_keep_their_digits(body: str) -> None:
    """Differences of numbers near 1, and their logarithms, against float64."""
    x = -np.logspace(-8, 1.9, 600, dtype=np.float32)
    text = f"g (float[{len(x)}] x) => (float[{len(x)}] y) {{ y = {body} }}"
    found = run(model_of(text, opset=20), host_target(), x)
    np.testing.assert_allclose(found, SMALL[body](x.astype(np.float64)), rtol=2e-6)


@pytest.mark.parametrize("exponent", [-0.5, 0.5])
def test_roots_are_powers_of_c(exponent: float, target: Target) -> None:
    """Of infinities and zeros of either sign, too; numpy takes a root of minus infinity."""
    text = f"g (float[{len(SPECIAL)}] x) => (float[{len(SPECIAL)}] y) {{ y = Pow(x, e) }}"
    found = run(model_of(text, e=np.float32(exponent)), target, SPECIAL)
    with np.errstate(divide="ignore"):
        wanted = [np.nan if -np.inf < x < 0 else np.abs(np.float64(x)) ** exponent for x in SPECIAL]
    agree(found, np.array(wanted, np.float32))


@pytest.mark.parametrize("body", ["Clip(x, low)", "Clip(x, , low)", "Max(x, low)", "Min(x, low)"])
def test_one_limit(body: str, target: Target) -> None:
    """The other side is open: infinity stays, which onnxruntime's Clip makes a finite number."""
    model = model_of(
        f"g (float[{len(SPECIAL)}] x) => (float[{len(SPECIAL)}] y) {{ y = {body} }}",
        low=np.float32(-1),
    )
    over = np.minimum if ", ," in body or "Min" in body else np.maximum
    agree(run(model, target, SPECIAL), over(SPECIAL, np.float32(-1)))


@pytest.mark.parametrize("name", ["Floor", "Ceil", "Round"])
def test_whole_numbers(name: str) -> None:
    text = f"g (float[{len(SPECIAL)}] x) => (float[{len(SPECIAL)}] y) {{ y = {name}(x) }}"
    model = model_of(text)
    agree(run(model, host_target(), SPECIAL), expected(model, {"x": SPECIAL})["y"])


@pytest.mark.parametrize("name", ["Max", "Min", "Add", "Sub", "Mul", "Div"])
def test_pairs(name: str, target: Target) -> None:
    x, z = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))
    model = model_of(
        f"g (float[{len(x)}] x, float[{len(x)}] z) => (float[{len(x)}] y) {{ y = {name}(x, z) }}"
    )
    agree(run(model, target, x, z), expected(model, {"x": x, "z": z})["y"])


@dataclass(frozen=True)
class Windows:
    """Windows over 7 x 9 elements."""

    size: tuple[int, int]
    step: int = 1
    pad: int = 0
    apart: tuple[int, int] = (1, 1)

    def maxima(self, x: Floats) -> Floats:
        edges = ((0, 0), (0, 0), (self.pad, self.pad), (self.pad, self.pad))
        padded = np.pad(x, edges, constant_values=-np.inf)
        reach = [(n - 1) * d + 1 for n, d in zip(self.size, self.apart, strict=True)]
        cells = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
        cells = cells[:, :, :: self.step, :: self.step, :: self.apart[0], :: self.apart[1]]
        return np.asarray(cells.max(axis=(4, 5)))

    def node(self) -> str:
        listed = {
            "kernel_shape": self.size, "strides": [self.step] * 2, "pads": [self.pad] * 4,
            "dilations": self.apart,
        }  # fmt: skip
        return f"MaxPool<{', '.join(f'{k} = {list(v)}' for k, v in listed.items())}>(x)"


def images(channels: int) -> Floats:
    """A special value somewhere in each channel of the first image, and every or every other
    channel of the second nothing but it."""
    x = np.random.default_rng(0).standard_normal((2, channels, 7, 9)).astype(np.float32)
    for channel in range(channels):
        special = (np.nan, np.inf, -np.inf)[channel % 3]
        x[0, channel].flat[(11 * channel) % 63] = special
        if channel % 4:
            x[1, channel] = special
    return x


def pooled(body: str, x: Floats, height: int, width: int) -> onnx.ModelProto:
    n, c = x.shape[:2]
    text = f"g (float[{n}, {c}, 7, 9] x) => (float[{n}, {c}, {height}, {width}] y) {{ y = {body} }}"
    return model_of(text)


@pytest.mark.parametrize("channels", [3, 19, 32])
@pytest.mark.parametrize(
    "windows",
    [Windows((3, 3), 2, 1), Windows((2, 2), 2), Windows((3, 2), apart=(2, 1)), Windows((7, 9))],
    ids=["padded", "apart", "dilated", "whole"],
)
def test_maxima_of_windows(windows: Windows, channels: int, target: Target) -> None:
    x = images(channels)
    wanted = windows.maxima(x)
    agree(run(pooled(windows.node(), x, *wanted.shape[2:]), target, x), wanted)


@pytest.mark.parametrize("channels", [3, 19, 32])
def test_maxima_of_images(channels: int, target: Target) -> None:
    x = images(channels)
    agree(run(pooled("GlobalMaxPool(x)", x, 1, 1), target, x), x.max(axis=(2, 3), keepdims=True))


@pytest.mark.parametrize(
    ("body", "shape"),
    [("AveragePool<kernel_shape = [2, 2]>(x)", (6, 8)), ("GlobalAveragePool(x)", (1, 1))],
)
def test_means(body: str, shape: tuple[int, int], target: Target) -> None:
    x = images(19)
    model = pooled(body, x, *shape)
    agree(run(model, target, x), expected(model, {"x": x})["y"])


ROWS = {
    "ReduceMax<axes = [AXIS]>": np.max, "ReduceMin<axes = [AXIS]>": np.min,
    "ReduceSum<keepdims = 1>": np.sum, "ReduceMean<axes = [AXIS]>": np.mean,
    "ReduceProd<axes = [AXIS]>": np.prod, "Softmax<axis = AXIS>": None,
    "LogSoftmax<axis = AXIS>": None,
}  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("length", [5, 37, 100])
@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str, length: int, axis: int, target: Target) -> None:
    rng, reduce = np.random.default_rng(1), ROWS[name]
    x = (rng.uniform(0.99, 1.01, (40, length)) * rng.choice([-1, 1], (40, length))).astype("f4")
    for row, special in enumerate(SPECIAL[:5]):
        x[3 * row, (7 * row) % length] = special
        x[3 * row + 1, [0, -1]] = special, -special
        x[3 * row + 2] = special
    x = x if axis else np.ascontiguousarray(x.T)
    operands = "x, over" if "Sum" in name else "x"
    kept = [1 if reduce and i == axis else extent for i, extent in enumerate(x.shape)]
    model = model_of(
        f"g (float[{x.shape[0]}, {x.shape[1]}] x) => (float[{kept[0]}, {kept[1]}] y) "
        f"{{ y = {name.replace('AXIS', str(axis))}({operands}) }}",
        over=np.array([axis]),
    )
    with np.errstate(all="ignore"):
        wanted = reduce(x, axis=axis, keepdims=True) if reduce else expected(model, {"x": x})["y"]
    agree(run(model, target, x), wanted)


TRANSPOSED = {
    "fewer taps": ("strides=[2, 2]", 3), "no taps": ("strides=[3, 3], pads=[1, 0, 1, 0]", 2),
    "as many taps": ("strides=[2, 2]", 4), "dilated": ("strides=[2, 3], dilations=[2, 2]", 2),
    "cropped": ("strides=[2, 2], pads=[2, 1, 3, 2], output_padding=[1, 1]", 3),
    "grouped": ("strides=[2, 1], group=2", 3),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions_spread_what_is_no_number_as_far_as_their_taps(name: str) -> None:
    """No zero that is put between taps or beside them meets an infinity."""
    attributes, size = TRANSPOSED[name]
    rng = np.random.default_rng(0)
    channels = 2 if "group" in attributes else 3
    model = model_of(
        f"g (float[1, 2, 6, 7] x) => (float[a, b, c, d] y) "
        f"{{ y = ConvTranspose<{attributes}>(x, w, bias) }}",
        w=rng.standard_normal((2, channels, size, size)).astype(np.float32),
        bias=np.arange(channels * (2 if "group" in attributes else 1), dtype=np.float32),
    )
    for bad in (np.nan, np.inf, -np.inf, 1.0):
        x = rng.standard_normal((1, 2, 6, 7)).astype(np.float32)
        x[0, 1, 2, 3] = x[0, 0, 5, 6] = bad
        agree(run(model, host_target(), x), expected(model, {"x": x})["y"])


def test_logarithms_of_sums_of_infinite_powers() -> None:
    rows = np.array(
        [[np.inf, 1, 2], [-np.inf] * 3, [np.inf, -np.inf, 0], [np.nan, np.inf, 0], [3e38] * 3],
        np.float32,
    )
    model = model_of("g (float[5, 3] x) => (float[5] y) { y = ReduceLogSumExp<keepdims=0>(x, a) }",
                     opset=18, a=[1])  # fmt: skip
    wanted = np.array([np.inf, -np.inf, np.inf, np.nan, 3e38], np.float32)
    agree(run(model, host_target(), rows), wanted)


@pytest.mark.parametrize("largest", [0, 1])
def test_what_is_no_number_is_the_largest_whatever_its_sign(target: Target, largest: int) -> None:
    """inf - inf has its sign set on x86."""
    text = "g (float[2, 6] x) => (float[2, 4] y) { s = Sub(x, x) t = Add(s, x) y, i = TopK(t, k) }"
    model = model_of(text.replace("TopK", f"TopK<largest = {largest}>"), k=np.array([4]))
    x = np.array([[3, np.inf, -1, 2, -np.inf, 0], [np.nan, 1, 5, np.inf, 2, 4]], np.float32)
    wanted = np.sort(np.where(np.isfinite(x), x, np.nan), axis=1)
    agree(run(model, target, x), wanted[:, ::-1][:, :4] if largest else wanted[:, :4])
