"""Boxes and regions on the host, as native loops: what onnxruntime finds, in its order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import JobError

Array = NDArray[Any]


def found_and_expected(text: str, opset: int, inputs: dict[str, Array], **weights: Array) -> None:
    model = model_of(text, opset, **weights)
    found = run_reference(import_model(model), inputs)
    assert_close(found, expected(model, inputs))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_boxes_that_remain(data: st.DataObject) -> None:
    """Coarse numbers, so that scores are equal and thresholds are met exactly."""
    images, classes, count = (data.draw(st.integers(1, most)) for most in (2, 3, 40))
    grain, seed = data.draw(st.sampled_from((1, 8, 1000))), data.draw(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    boxes = np.round(rng.uniform(-1, 1, (images, count, 4)) * grain) / np.float32(grain)
    scores = np.round(rng.uniform(-1, 1, (images, classes, count)) * grain) / np.float32(grain)
    centred = data.draw(st.integers(0, 1))
    weights: dict[str, Array] = {
        "most": np.array([data.draw(st.integers(0, 12))]),
        "overlap": np.float32([data.draw(st.sampled_from((0.0, 0.25, 0.5, 1.0)))]),
    }
    names = ", ".join(weights)
    if data.draw(st.booleans()):
        weights["score"] = np.float32([data.draw(st.sampled_from((0.0, 0.5)))])
        names += ", score"
    found_and_expected(
        f"g (float[{images}, {count}, 4] x, float[{images}, {classes}, {count}] p) => "
        f"(int64[A, 3] y) {{ y = NonMaxSuppression<center_point_box={centred}>(x, p, {names}) }}",
        11, {"x": boxes.astype(np.float32), "p": scores.astype(np.float32)}, **weights,
    )  # fmt: skip


def test_many_boxes_of_scores_far_apart() -> None:
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 300, (1, 2000, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(5, 80, (1, 2000, 2))], axis=-1)
    scores = np.exp(rng.uniform(-80, 80, (1, 2, 2000))).astype(np.float32)
    scores[0, 1, 5] = np.inf
    found_and_expected(
        "g (float[1, 2000, 4] x, float[1, 2, 2000] p) => (int64[A, 3] y) "
        "{ y = NonMaxSuppression(x, p, most, overlap) }",
        11, {"x": boxes.astype(np.float32), "p": scores},
        most=np.array([2000]), overlap=np.float32([0.4]),
    )  # fmt: skip


def test_numbers_that_are_none_end() -> None:
    model = model_of(
        "g (float[1, 6, 4] x, float[1, 1, 6] p) => (int64[A, 3] y) "
        "{ y = NonMaxSuppression(x, p, most, overlap) }",
        11, most=np.array([6]), overlap=np.float32([0.5]),
    )  # fmt: skip
    inputs = {"x": random(1, 6, 4), "p": np.full((1, 1, 6), np.nan, np.float32)}
    inputs["p"][0, 0, 3] = 1.0
    (found,) = run_reference(import_model(model), inputs).values()
    assert found[0].tolist() == [0, 0, 3]


def test_boxes_that_do_not_fit_their_scores() -> None:
    model = model_of(
        "g (float[A, B, 4] x, float[C, D, E] p) => (int64[F, 3] y) "
        "{ y = NonMaxSuppression(x, p, most) }", 11, most=np.array([6]),
    )  # fmt: skip
    graph = import_model(model, {"x": (1, 5, 4), "p": (1, 2, 6)})
    with pytest.raises(JobError, match="do not fit scores of shape"):
        run_reference(graph, {"x": random(1, 5, 4), "p": random(1, 2, 6)})


REGIONS = (
    "g (float[2, 3, 9, 11] x, float[5, 4] q, int64[5] b) => (float[A, B, C, D] y) {{ y = RoiAlign<"
    'output_height=3, output_width=2, spatial_scale=0.5, mode="{mode}"{stated}>(x, q, b) }}'
)


def boxes_of(seed: int) -> Array:
    found = np.random.default_rng(seed).uniform(-6, 26, (5, 2, 2))
    return np.sort(found, axis=1).reshape(5, 4).astype(np.float32)


@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("mode", ["avg", "max"])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 99), ratio=st.sampled_from((0, 2)))
def test_regions_of_as_many_samples_as_pixels(opset: int, mode: str, seed: int, ratio: int) -> None:
    inputs = {"x": random(2, 3, 9, 11), "q": boxes_of(seed), "b": np.array([0, 1, 1, 0, 1])}
    text = REGIONS.format(mode=mode, stated=f", sampling_ratio={ratio}")
    found_and_expected(text, opset, inputs)


def test_regions_larger_than_can_be_sampled() -> None:
    inputs = {"x": random(2, 3, 9, 11), "q": boxes_of(0), "b": np.array([0, 1, 1, 0, 1])}
    inputs["q"][2] = (0, 0, 1e20, 5)
    graph = import_model(model_of(REGIONS.format(mode="avg", stated=""), 16))
    with pytest.raises(JobError, match="set sampling_ratio"):
        run_reference(graph, inputs)


def test_largest_pixels_of_regions() -> None:
    regions = np.concatenate([[[0], [1], [1], [0], [1]], boxes_of(3)], axis=1)
    found_and_expected(
        "g (float[2, 3, 9, 11] x, float[5, 5] q) => (float[A, B, C, D] y) "
        "{ y = MaxRoiPool<pooled_shape=[3, 2], spatial_scale=0.5>(x, q) }",
        16, {"x": random(2, 3, 9, 11), "q": regions.astype(np.float32)},
    )  # fmt: skip


def test_they_run_as_native_loops_where_onnxruntime_is_installed() -> None:
    model = model_of(REGIONS.format(mode="avg", stated=""), 16)
    executable = build(import_model(model), host_target())
    inputs = {"x": random(2, 3, 9, 11), "q": boxes_of(1), "b": np.array([0, 1, 1, 0, 1])}
    assert_close(executable.run(inputs), expected(model, inputs))
