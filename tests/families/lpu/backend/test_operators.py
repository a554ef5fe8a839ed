"""Small whole models of one kind of operator each on an LPU-like chip, against `onnx.reference`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import model_of, random
from tests.families.lpu.backend.test_models import TARGET, compared, decode_step
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.families.lpu.backend.programs.program import ChipProgram, segments


def convolutions() -> onnx.ModelProto:
    """Eight of eight channels one after another: words of the first are used again by the last."""
    steps = "".join(
        f"c{n} = Conv<pads=[1,1,1,1]>(r{n - 1}, w{n}) r{n} = Relu(c{n}) " for n in range(1, 9)
    )
    text = f"cnn (float[1, 8, 6, 6] r0) => (float[1, 8, 6, 6] r8) {{ {steps} }}"
    return model_of(text, **{f"w{n}": random(8, 8, 3, 3, seed=n) / 6 for n in range(1, 9)})


def group_norm() -> onnx.ModelProto:
    """As exporters write it: groups become rows of an instance norm."""
    text = (
        "norm (float[1, 8, 4, 5] x) => (float[1, 8, 4, 5] y) { g = Reshape(x, groups) "
        "n = InstanceNormalization<epsilon=1e-5>(g, one, zero) b = Reshape(n, whole) "
        "s = Mul(b, scale) y = Add(s, bias) }"
    )
    sizes = {"groups": np.array([1, 2, 80]), "whole": np.array([1, 8, 4, 5])}
    numbers = {"one": np.ones(2, np.float32), "zero": np.zeros(2, np.float32)}
    return model_of(text, **sizes, **numbers, scale=random(8, 1, 1), bias=random(8, 1, 1, seed=1))


def reductions() -> onnx.ModelProto:
    text = (
        "sums (float[3, 4, 5, 6] x) => (float[3, 6] a, float[4, 5] b, float[1, 4, 1, 6] c) { "
        "r = Relu(x) a = ReduceMean<axes=[1, 2], keepdims=0>(r) "
        "b = ReduceMax<axes=[0, 3], keepdims=0>(r) c = ReduceMean<axes=[0, 2]>(r) }"
    )
    return model_of(text)


def grouped() -> onnx.ModelProto:
    """Dilated, grouped and depthwise convolutions, strides, uneven padding."""
    text = (
        "cnn (float[1, 12, 9, 7] x) => (float[1, 12, 5, 4] y) "
        "{ a = Conv<group=3, pads=[1,1,1,1]>(x, w1) b = Relu(a) "
        "  c = Conv<dilations=[2,1], pads=[2,1,2,1]>(b, w2) d = Relu(c) "
        "  y = Conv<group=12, strides=[2,2], pads=[1,0,1,1]>(d, w3) }"
    )
    weights = {"w1": random(12, 4, 3, 3) / 6, "w2": random(12, 12, 3, 3) / 10}
    return model_of(text, **weights, w3=random(12, 1, 3, 2))


def transposed() -> onnx.ModelProto:
    text = (
        "up (float[1, 6, 5, 4] x) => (float[1, 5, 10, 8] y) "
        "{ a = ConvTranspose<strides=[2,2], pads=[1,1,1,1]>(x, w) y = Add(a, b) }"
    )
    return model_of(text, w=random(6, 5, 4, 4) / 8, b=random(5, 1, 1))


def causal_attention() -> onnx.ModelProto:
    """Two heads; what comes later is masked before the softmax."""
    parts = "".join(
        f"{n}a = MatMul(x, w{n}) {n}b = Reshape({n}a, heads) {n} = Transpose<perm=[{p}]>({n}b) "
        for n, p in (("q", "1,0,2"), ("k", "1,2,0"), ("v", "1,0,2"))
    )
    text = (
        f"attention (float[10, 32] x) => (float[10, 32] y) {{ {parts} s = MatMul(q, k) "
        "t = Mul(s, scale) m = Add(t, mask) p = Softmax<axis=-1>(m) c = MatMul(p, v) "
        "ct = Transpose<perm=[1,0,2]>(c) cr = Reshape(ct, whole) y = MatMul(cr, wo) }"
    )
    weights = {f"w{n}": random(32, 32, seed=i) / 6 for i, n in enumerate("qkvo")}
    mask = np.triu(np.full((10, 10), -10000, np.float32), 1)
    sizes = {"heads": np.array([10, 2, 16]), "whole": np.array([10, 32])}
    return model_of(text, **weights, **sizes, mask=mask, scale=np.array(0.25, np.float32))


def concatenated() -> onnx.ModelProto:
    """Inputs and constants beside what was computed, along rows and along lanes."""
    text = (
        "parts (float[6, 20] x, float[2, 20] past) => (float[9, 32] y) { a = MatMul(x, w) "
        "b = Concat<axis=0>(past, a, known) c = Concat<axis=1>(b, side) y = MatMul(c, v) }"
    )
    weights = {"w": random(20, 20) / 5, "known": random(1, 20), "side": random(9, 12)}
    return model_of(text, **weights, v=random(32, 32) / 6)


@pytest.mark.parametrize(
    "made",
    [convolutions, group_norm, reductions, grouped, transposed, causal_attention, concatenated],
)
def test_models_run_whole_on_the_chip(made: Callable[[], onnx.ModelProto]) -> None:
    model = made()
    sizes = {
        given.name: [dim.dim_value for dim in given.type.tensor_type.shape.dim]
        for given in model.graph.input
    }
    executable = compared(model, 4e-3, **{name: random(*size) for name, size in sizes.items()})
    assert executable.report.host == 0


@pytest.mark.parametrize(
    ("kernel", "attributes"),
    [
        ((4, 3), "strides=[3,2], pads=[1,0,2,1]"),
        ((3, 2), "strides=[2,1], dilations=[1,2], output_padding=[1,0]"),
        ((1, 2), "strides=[3,3]"),  # fewer taps than the stride: pixels are interleaved
    ],
)
def test_transposed_convolutions(kernel: tuple[int, int], attributes: str) -> None:
    text = (
        "up (float[2, 4, 3, 5] x) => (float[batch, maps, h, w] y) "
        f"{{ y = ConvTranspose<{attributes}>(x, w, b) }}"
    )
    model = model_of(text, w=random(4, 3, *kernel) / 4, b=random(3, seed=1))
    assert compared(model, 4e-3, x=random(2, 4, 3, 5)).report.host == 0


def test_groups_of_a_transposed_convolution_are_by_themselves() -> None:
    text = (
        "up (float[1, 4, 3, 5] x) => (float[1, {0}, 6, 10] y) "
        "{{ y = ConvTranspose<strides=[2,2], group={1}>(x, w) }}"
    )
    weights, image = random(4, 3, 2, 2) / 4, random(1, 4, 3, 5)
    whole = build(import_model(model_of(text.format(6, 2), w=weights)), TARGET).run({"x": image})
    for group in range(2):
        half = model_of(text.format(3, 1).replace("1, 4", "1, 2"), w=weights[2 * group :][:2])
        wanted = ReferenceEvaluator(half).run(None, {"x": image[:, 2 * group :][:, :2]})[0]
        assert np.abs(whole["y"][:, 3 * group :][:, :3] - wanted).max() < 4e-3


def test_large_images_are_upsampled_in_few_chains() -> None:
    """Zeros between pixels: interleaving 32 x 32 of them took 537."""
    text = (
        "up (float[1, 6, 24, 24] x) => (float[1, 5, 48, 48] y) "
        "{ y = ConvTranspose<strides=[2,2]>(x, w) }"
    )
    executable = compared(model_of(text, w=random(6, 5, 2, 2) / 4), 4e-3, x=random(1, 6, 24, 24))
    (program,) = segments(executable.recipe)
    assert isinstance(program, ChipProgram) and len(program.joined.flow.chains) < 40


@pytest.mark.parametrize("at", [0.3, 999.0, 1e7])
def test_angles_of_many_turns_are_computed_in_float32(at: float) -> None:
    """As diffusion models embed time steps: in float16 the angle would be off by half a radian."""
    text = (
        "steps (float[2, 1] t) => (float[2, 64] y) "
        "{ a = Mul(t, f) s = Sin(a) c = Cos(a) y = Concat<axis=-1>(s, c) }"
    )
    model = model_of(text, f=np.exp(-np.arange(32) / 3).astype(np.float32))
    executable = compared(model, 1e-3, t=np.array([[at], [at / 7]], np.float32))
    assert executable.report.host == 0


def test_places_between_pixels_are_computed_in_float32() -> None:
    """In float16 corners at 70 pixels would be a thirty-second of a pixel away."""
    text = (
        "roi (float[2, 3, 40, 50] x, float[5, 4] r, int64[5] i) => (float[5, 3, 4, 4] y) "
        "{ y = RoiAlign<output_height=4, output_width=4, sampling_ratio=2, "
        "spatial_scale=0.25>(x, r, i) }"
    )
    rng = np.random.default_rng(1)
    first = rng.uniform(0, 80, (5, 2))
    regions = np.concatenate([first, first + rng.uniform(20, 80, (5, 2))], 1).astype(np.float32)
    images = np.array([0, 1, 1, 0, 1])
    compared(model_of(text), 2e-3, x=random(2, 3, 40, 50), r=regions, i=images)


def test_what_waits_for_angles_of_float16_runs_on_the_host() -> None:
    text = "wave (float[4, 64] x) => (float[4, 64] y) { a = MatMul(x, w) b = Sin(a) y = Relu(b) }"
    compared(model_of(text, w=random(64, 64)), 2e-2, x=random(4, 64))


def test_a_decode_step_wider_than_a_vector_runs_with_its_caches() -> None:
    """Rows of 384 are two vectors each, heads of 96 lie across them."""
    angles = np.tile(random(48), 2).reshape(1, 1, 1, 96)
    inputs = {"x": random(1, 1, 384), "pk": random(1, 2, 5, 96), "pv": random(1, 2, 5, 96)}
    inputs |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    executable = compared(decode_step(384, 4, 2, 5), 4e-3, **inputs)
    assert executable.report.host == 0


def test_windows_over_rows_of_one_channel_run_on_the_host() -> None:
    """Rows of the image lie beside each other, so that each begins at a lane of its own."""
    text = (
        "pool (float[1, 1, 5, 5] x) => (float[1, 1, 3, 3] y) "
        '{ y = AveragePool<kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER">(x) }'
    )
    compared(model_of(text), 1e-6, x=random(1, 1, 5, 5))


def recurrent() -> onnx.ModelProto:
    """Six steps of two sequences in both directions."""
    text = (
        "r (float[6, 2, 20] x) => (float[6, 2, 2, 24] y, float[2, 2, 24] h) "
        '{ y, h = LSTM<hidden_size=24, direction="bidirectional">(x, w, r, b) }'
    )
    weights = {"w": random(2, 96, 20) / 5, "r": random(2, 96, 24, seed=2) / 5}
    return model_of(text, **weights, b=random(2, 192, seed=3) / 5)


def test_steps_of_recurrent_layers_are_chains_with_weights_that_stay() -> None:
    executable = compared(recurrent(), 4e-3, x=random(6, 2, 20))
    assert executable.report.host == 0
