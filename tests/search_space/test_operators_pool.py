"""Pooling on drawn windows, against the template's numpy loop and, once, onnx's own reference."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from tests.conformance.template_checks import check_config
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


@settings(max_examples=10)
@given(
    st.sampled_from(["max", "average"]),
    st.sampled_from([1, 5, 16, 19]),
    st.tuples(st.integers(3, 11), st.integers(3, 37)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(0, 999),
)
def test_windows(
    kind: str,
    channels: int,
    image: tuple[int, int],
    window: tuple[int, int],
    step: tuple[int, int],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    pads = "x".join(str(rng.integers(0, window[i % 2])) for i in range(4))
    text = (
        f"pool2d kind={kind} c={channels} h={image[0]} w={image[1]} kh={window[0]} kw={window[1]} "
        f"stride={step[0]}x{step[1]} pad={pads} ceil={seed % 2} count_include_pad={seed // 2 % 2}"
    )
    workload = Workload.parse(text)
    config = space_of(workload, host_target()).sample(rng)[0]
    check_config(workload, config, rng)


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_the_reference_agrees_with_onnx(counted: int, ceil: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 7)).astype(np.float32)
    attributes = {
        "kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": ceil,
        "count_include_pad": counted,
    }  # fmt: skip
    node = onnx.helper.make_node("AveragePool", ["x"], ["y"], **attributes)
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "pool",
        [info("x", onnx.TensorProto.FLOAT, x.shape)],
        [info("y", onnx.TensorProto.FLOAT, None)],
    )
    want = ReferenceEvaluator(onnx.helper.make_model(graph)).run(None, {"x": x})[0]
    workload = Workload.parse(
        "pool2d kind=average n=2 c=3 h=9 w=7 kh=3 kw=2 stride=2 pad=1x0x1x1 "
        f"ceil={ceil} count_include_pad={counted}"
    )
    np.testing.assert_allclose(
        template_of("pool2d").reference(workload, {"x": x}), want, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("pool2d kind=max c=1 h=2 w=2 kh=3 kw=3", "window of 3 does not fit the padded height"),
        ("pool2d kind=max c=1 h=9 w=9 kh=3 kw=3 pad=3", "must be smaller than the window"),
        ("pool2d kind=max c=1 h=9 w=9 kh=3 kw=3 pad=1x1x1", "one, two or four integers"),
        ("pool2d kind=max c=1 h=9 w=9 kh=3 kw=3 stride=0", "one or two positive integers"),
        ("pool2d kind=median c=1 h=9 w=9", "kind=median; one of max, average"),
    ],
)
def test_bad_parameters_are_named(text: str, complaint: str) -> None:
    with pytest.raises(WorkloadError, match=complaint):
        Workload.parse(text)
