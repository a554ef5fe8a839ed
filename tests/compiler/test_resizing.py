"""Resize as gathers and products: native, and what `onnx.reference` computes.

onnxruntime computes places in float32, which moves some of the nearest neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.compiler.lowering_checks import model_without_output_shape
from tests.compiler.model_builder import assert_close, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model

SCALED: dict[str, Any] = {"scales": [1, 1, 0.6, 1.3]}
SIZED: dict[str, Any] = {"sizes": [1, 2, 4, 12]}


def check_native(attributes: str, **given: Any) -> None:
    """No host node, and the values of `onnx.reference`."""
    names = [name if name in given else "" for name in ("roi", "scales", "sizes")]
    types = {"roi": np.float32, "scales": np.float32, "sizes": np.int64}
    model = model_of(
        "g (float[1, 2, 9, 7] x) => (float y) "
        f"{{ y = Resize<{attributes}>(x, {', '.join(names).rstrip(', ')}) }}",
        19, **{name: np.array(value, types[name]) for name, value in given.items()},
    )  # fmt: skip
    model = onnx.shape_inference.infer_shapes(model_without_output_shape(model))
    executable = build(import_model(model), host_target())
    assert executable.report.host_nodes == ()
    inputs = {"x": random(1, 2, 9, 7)}
    (wanted,) = ReferenceEvaluator(model).run(None, inputs)
    assert_close(executable.run(inputs), {"y": wanted})


@pytest.mark.parametrize("outside", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_filters_against_aliasing(mode: str, outside: int) -> None:
    for given in (SCALED, SIZED, {"scales": [1, 1, 0.26, 0.5]}):
        check_native(f'mode="{mode}", antialias=1, exclude_outside={outside}', **given)


CROP = 'coordinate_transformation_mode="tf_crop_and_resize"'


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_regions_of_interest(mode: str) -> None:
    stated = f'mode="{mode}", {CROP}, extrapolation_value=2.5'
    check_native(stated, roi=[0, 0, 0.1, 0.2, 1, 1, 0.8, 0.9], sizes=[1, 2, 5, 9])
    check_native(stated, roi=[0, 0, -0.1, 0.2, 1, 1, 0.8, 1.3], sizes=[1, 2, 9, 7])
    check_native(f"{stated}, axes=[3, 2]", roi=[0.1, 0.2, 0.8, 0.7], sizes=[9, 1])


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_images_that_keep_their_aspect(mode: str, policy: str) -> None:
    stated = f'mode="{mode}", keep_aspect_ratio_policy="{policy}"'
    check_native(f"{stated}, axes=[2, 3]", sizes=[5, 5])
    check_native(f"{stated}, axes=[3, 2]", sizes=[15, 20])


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
def test_neighbours_by_scales_that_no_extents_have(coordinates: str, rounding: str) -> None:
    check_native(
        f'mode="nearest", nearest_mode="{rounding}", '
        f'coordinate_transformation_mode="{coordinates}"',
        **SCALED,
    )


@pytest.mark.parametrize("given", [{"scales": [1, 1, 2, 3]}, {"sizes": [1, 2, 18, 21]}])
@pytest.mark.parametrize(
    "coordinates", ["align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]
)
def test_neighbours_of_places_that_the_template_does_not_have(
    coordinates: str, given: dict[str, Any]
) -> None:
    check_native(f'coordinate_transformation_mode="{coordinates}"', **given)


def test_neighbours_along_some_axes() -> None:
    check_native("axes=[3, 2]", scales=[2, 3])
    check_native("axes=[3, 2]", sizes=[14, 18])
    check_native("axes=[0, 1, 3, 2]", scales=[1, 1, 2, 3])
    check_native('axes=[3, 2], keep_aspect_ratio_policy="not_larger"', sizes=[14, 18])


def test_an_extent_is_rounded_down_as_it_is() -> None:
    """0.7 in float32 is less than 0.7; onnxruntime rounds 20 times that up to 14."""
    check_native('mode="nearest"', scales=[1, 1, 0.6, 0.7])


@pytest.mark.parametrize("mode", ["linear", "cubic", "antialiased"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_spreads_as_far_as_the_taps(mode: str, bad: float) -> None:
    """Those of weight 0 are none: places 0, 2, 4, ... of the result are pixels of the input."""
    stated = 'mode="linear", antialias=1' if mode == "antialiased" else f'mode="{mode}"'
    stated += ', coordinate_transformation_mode="align_corners"'
    given = random(1, 2, 9, 31)
    for pixel in ((0, 0, 4, 0), (0, 1, 0, 17), (0, 1, 8, 30)):
        for sizes in ([1, 2, 17, 61], [1, 2, 3, 5]):
            model = model_of(
                f"g (float[1, 2, 9, 31] x) => (float[{', '.join(map(str, sizes))}] y) "
                f"{{ y = Resize<{stated}>(x, , , sizes) }}", 19, sizes=np.array(sizes),
            )  # fmt: skip
            executable = build(import_model(model), host_target())
            # The weights are those of an impulse, and what has none keeps its value.
            impulse, spoiled = np.zeros_like(given), given.copy()
            impulse[pixel], spoiled[pixel] = 1, bad
            reached = executable.run({"x": impulse})["y"] != 0
            plain, found = (executable.run({"x": x})["y"] for x in (given, spoiled))
            np.testing.assert_array_equal(found[~reached], plain[~reached])
            assert not np.isfinite(found[reached]).any()
            (wanted,) = ReferenceEvaluator(model).run(None, {"x": given})
            assert_close({"y": plain}, {"y": wanted})
