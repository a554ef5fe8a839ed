"""Images sampled at places known at run time: native, and equal to what onnxruntime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.compiler.lowering_checks import model_without_output_shape, whole
from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import JobError

Array = NDArray[Any]


def check_native(text: str, opset: int, inputs: dict[str, Array], **weights: Array) -> Any:
    """No host node; in numpy and as native code what onnxruntime computes. The executable."""
    model = model_without_output_shape(model_of(text, opset, **weights))
    model = onnx.shape_inference.infer_shapes(model)
    graph = import_model(model)
    wanted = expected(model, inputs)
    assert_close(run_reference(whole(graph), inputs), wanted, 1e-4)
    executable = build(graph, host_target())
    assert executable.report.host_nodes == ()
    assert_close(executable.run(inputs), wanted, 1e-4)
    return executable


PADDINGS = ("zeros", "border", "reflection")


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", PADDINGS)
@settings(max_examples=2, deadline=None)
@given(corners=st.integers(0, 1), channels=st.sampled_from((1, 19)), size=st.integers(1, 7))
def test_grids_of_images(padding: str, mode: str, corners: int, channels: int, size: int) -> None:
    stated = f'mode="{mode}", padding_mode="{padding}", align_corners={corners}'
    check_native(
        f"g (float[2, {channels}, 5, {size}] x, float[2, 3, 7, 2] q) => (float y) "
        f"{{ y = GridSample<{stated}>(x, q) }}",
        20,
        {"x": random(2, channels, 5, size), "q": 1.7 * random(2, 3, 7, 2)},
    )


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("padding", PADDINGS)
def test_grids_of_volumes(padding: str, mode: str) -> None:
    check_native(
        "g (float[2, 3, 4, 5, 3] x, float[2, 2, 3, 4, 3] q) => (float y) "
        f'{{ y = GridSample<mode="{mode}", padding_mode="{padding}">(x, q) }}',
        20,
        {"x": random(2, 3, 4, 5, 3), "q": 1.5 * random(2, 2, 3, 4, 3)},
    )


def test_grids_of_before_the_modes_were_renamed() -> None:
    check_native(
        "g (float[1, 3, 5, 4] x, float[1, 3, 7, 2] q) => (float y) "
        '{ y = GridSample<mode="bicubic">(x, q) }',
        16,
        {"x": random(1, 3, 5, 4), "q": random(1, 3, 7, 2)},
    )


def test_places_that_are_no_numbers_read_nothing_outside() -> None:
    """What comes of them is undefined; a run ends."""
    model = model_of(
        "g (float[1, 17, 2, 2] x, float[1, 1, 4, 2] q) => (float[A, B, C, D] y) "
        "{ y = GridSample(x, q) }",
        20,
    )
    places = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 0, 1, np.nan], np.float32)
    grid = places.reshape(1, 1, 4, 2)
    executable = build(import_model(model), host_target())
    assert executable.run({"x": random(1, 17, 2, 2), "q": grid})["y"].shape == (1, 17, 1, 4)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 3, 2, 4)])
def test_grids_of_affine_maps(size: tuple[int, ...], corners: int) -> None:
    count = len(size) - 2
    check_native(
        f"g (float[2, {count}, {count + 1}] t) => (float y) "
        f"{{ y = AffineGrid<align_corners={corners}>(t, size) }}",
        20, {"t": random(2, count, count + 1)}, size=np.array(size),
    )  # fmt: skip


REGIONS = (
    "g (float[3, {channels}, 9, 11] x, float[5, 4] q, int64[5] b) => (float y) {{ y = RoiAlign<"
    'output_height=3, output_width=2, spatial_scale=0.5, mode="{mode}", '
    'coordinate_transformation_mode="{coordinates}", sampling_ratio={ratio}>(x, q, b) }}'
)


def boxes(seed: int) -> Array:
    """Corners of boxes, some of them outside of the image."""
    found = np.random.default_rng(seed).uniform(-6, 26, (5, 2, 2))
    return np.sort(found, axis=1).reshape(5, 4).astype(np.float32)


@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("mode", ["avg", "max"])
@settings(max_examples=2, deadline=None)
@given(ratio=st.integers(1, 3), channels=st.sampled_from((2, 17)), seed=st.integers(0, 9))
def test_regions(mode: str, coordinates: str, ratio: int, channels: int, seed: int) -> None:
    text = REGIONS.format(mode=mode, coordinates=coordinates, ratio=ratio, channels=channels)
    numbers = np.array([0, 2, 2, 1, 0])
    images = np.abs(random(3, channels, 9, 11))  # a box outside has no maximum below zero
    check_native(text, 16, {"x": images, "q": boxes(seed), "b": numbers})


def test_a_region_of_an_image_that_is_not_there() -> None:
    text = REGIONS.format(mode="avg", coordinates="half_pixel", ratio=2, channels=3)
    model = onnx.shape_inference.infer_shapes(model_without_output_shape(model_of(text, 16)))
    inputs = {"x": random(3, 3, 9, 11), "q": boxes(0), "b": np.array([0, 1, 2, 3, 0])}
    with pytest.raises(JobError, match="takes index 3 of an axis with 3 entries"):
        build(import_model(model), host_target()).run(inputs)


@pytest.mark.parametrize("given", ["", "bias", "mask", "both"])
@pytest.mark.parametrize(("group", "offset_group"), [(1, 1), (2, 4)])
def test_deformable_convolutions(group: int, offset_group: int, given: str) -> None:
    count = 6 * offset_group
    names = {"": "", "bias": ", b", "mask": ", , k", "both": ", b, k"}[given]
    mask = f", float[2, {count}, 5, 10] k" if "k" in names else ""
    weights = {"w": random(6, 8 // group, 3, 2)} | ({"b": random(6)} if "b" in names else {})
    inputs = {"x": random(2, 8, 9, 11), "o": 2 * random(2, 2 * count, 5, 10)}
    check_native(
        f"g (float[2, 8, 9, 11] x, float[2, {2 * count}, 5, 10] o{mask}) => (float y) "
        f"{{ y = DeformConv<group={group}, offset_group={offset_group}, strides=[2, 1], "
        f"pads=[1, 0, 1, 1], dilations=[1, 2]>(x, w, o{names}) }}",
        19, inputs | ({"k": random(2, count, 5, 10)} if mask else {}), **weights,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("border", [np.inf, np.nan])
def test_zeros_outside_hide_what_is_no_number_at_the_border(border: float, mode: str) -> None:
    """Samples none of whose pixels is the border's are what they are beside a border of ones."""
    text = "g (float[1, 2, 6, 6] x, float[1, 1, 5, 2] at) => (float[1, 2, 1, 5] y) "
    model = model_of(f'{text} {{ y = GridSample<mode="{mode}">(x, at) }}', opset=20)
    plain = np.pad(random(1, 2, 4, 4), [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=1)
    x = np.pad(plain[..., 1:-1, 1:-1], [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=border)
    at = np.array([[-2.0, 0.1], [5, 5], [0.1, 1.9], [0.03, 0.02], [-9, 0.4]], np.float32)
    executable = build(import_model(model), host_target())
    found = executable.run({"x": x, "at": at.reshape(1, 1, 5, 2)})["y"]
    wanted = expected(model, {"x": plain, "at": at.reshape(1, 1, 5, 2)})["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
