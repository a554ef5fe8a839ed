"""Softmax, layer normalisation and reductions on drawn shapes: odd, prime, a single element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.template_checks import check_config, expected, run
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.workload import Workload

EXTENTS = st.sampled_from([1, 2, 3, 5, 13, 16, 31, 47, 64, 101])


def draw(text: str, seed: int) -> None:
    """Check one configuration of a workload, chosen by `seed`."""
    workload, rng = Workload.parse(text), np.random.default_rng(seed)
    config = space_of(workload, host_target()).sample(rng)[0]
    check_config(workload, config, rng)


@settings(max_examples=8)
@given(st.lists(EXTENTS, min_size=1, max_size=3), st.integers(0, 2), st.integers(0, 99))
def test_softmax(shape: list[int], position: int, seed: int) -> None:
    text = "x".join(map(str, shape))
    draw(f"softmax shape={text} axis={position % len(shape)} log={seed % 2}", seed)


@settings(max_examples=8)
@given(st.lists(EXTENTS, min_size=1, max_size=3), st.integers(1, 3), st.integers(0, 99))
def test_layer_norm(shape: list[int], axes: int, seed: int) -> None:
    text, axes = "x".join(map(str, shape)), min(axes, len(shape))
    flags = f"scale={seed % 2} bias={seed // 2 % 2}"
    draw(f"layer_norm shape={text} axes={axes} {flags}", seed)
    draw(f"rms_norm shape={text} axes={axes} scale={seed % 2}", seed)


@settings(max_examples=10)
@given(
    st.lists(EXTENTS, min_size=1, max_size=4),
    st.sampled_from(["sum", "mean", "max", "min"]),
    st.integers(1, 15),
    st.integers(0, 99),
)
def test_reduce(shape: list[int], kind: str, mask: int, seed: int) -> None:
    axes = [i for i in range(len(shape)) if mask >> i & 1] or [0]
    text, over = ("x".join(map(str, s)) for s in (shape, axes))
    draw(f"reduce shape={text} kind={kind} axes={over} keepdims={seed % 2}", seed)


def test_softmax_of_large_and_infinite_inputs() -> None:
    workload = Workload.parse("softmax shape=4x37")
    x = np.random.default_rng(0).standard_normal((4, 37)).astype(np.float32)
    x[0] += 1e4
    x[1, ::2] = -np.inf
    x[2, 5] = 300.0
    for config in space_of(workload, host_target()).sample(np.random.default_rng(1), 3):
        np.testing.assert_allclose(
            run(workload, config, {"x": x}), expected(workload, {"x": x}), rtol=1e-5, atol=1e-7
        )


def test_the_variance_survives_a_large_mean() -> None:
    workload = Workload.parse("layer_norm shape=3x129 scale=0 bias=0")
    x = np.random.default_rng(0).standard_normal((3, 129)).astype(np.float32) + 4096
    config = space_of(workload, host_target()).sample(np.random.default_rng(1))[0]
    got = run(workload, config, {"x": x})
    np.testing.assert_allclose(got, expected(workload, {"x": x}), atol=1e-2)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("softmax shape=3x4 axis=2", "axis=2 is out of range"),
        ("layer_norm shape=3x4 axes=3", "axes=3 are more than the 2"),
        ("layer_norm shape=3x4 epsilon=tiny", "epsilon=tiny is not a number"),
        ("rms_norm shape=3x4 axes=3", "operator 'rms_norm': axes=3 are more than the 2"),
        ("rms_norm shape=3x4 epsilon=-1", "operator 'rms_norm': epsilon=-1 is not a number"),
        ("reduce shape=3x4 axes=2", "not distinct axes of the 2"),
        ("reduce shape=3x4 axes=1x1", "not distinct axes"),
        ("reduce shape=3x4 kind=median", "kind=median; one of"),
        ("reduce shape=4 keepdims=0 epilogue=bias", "no channels"),
        ("reduce shape=3x4 kind=mean dtype=int64", "no mean of dtype=int64"),
    ],
)
def test_bad_parameters_are_named(text: str, complaint: str) -> None:
    with pytest.raises(WorkloadError, match=complaint):
        Workload.parse(text)


def test_a_mean_is_of_floating_numbers() -> None:
    for dtype in ("bfloat16", "float16", "float32", "float64", "float8_e4m3"):
        assert Workload.parse(f"reduce shape=4x6 kind=mean dtype={dtype}").dtype == dtype
    for dtype in ("int32", "uint8", "bool"):
        with pytest.raises(WorkloadError, match=f"no mean of dtype={dtype}"):
            Workload.parse(f"reduce shape=4x6 kind=mean dtype={dtype}")
