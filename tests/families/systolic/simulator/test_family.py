"""Compute cycles of the systolic target against SCALE-Sim's published closed forms."""

from __future__ import annotations

import itertools
import math

import pytest

from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import TargetError, WorkloadError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge, simulate

SIZES = [
    (256, 128, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (1, 1, 1),
    (33, 65, 129),
    (7, 300, 2),
]
ARRAYS = [(32, 32), (128, 128), (16, 64), (64, 16), (8, 256)]
CASES = list(itertools.product(("ws", "is", "os"), ARRAYS, SIZES))


def compute_cycles(dataflow: str, rows: int, cols: int, m: int, n: int, k: int) -> int:
    settings = {"array.rows": str(rows), "array.cols": str(cols), "dataflow": dataflow}
    target = load_target("systolic").with_settings(settings)
    return simulate(Workload.parse(f"matmul m={m} n={n} k={k}"), target).compute_cycles


def closed_form(dataflow: str, r: int, c: int, m: int, n: int, k: int) -> int:
    """SCALE-Sim 3.0, as published: folds (2R + C + T - 2) - 1, without the fill for "os"."""
    sr, sc, t = {"ws": (k, n, m), "is": (k, m, n), "os": (m, n, k)}[dataflow]
    folds = math.ceil(sr / r) * math.ceil(sc / c)
    return folds * ((1 if dataflow == "os" else 2) * r + c + t - 2) - 1


@pytest.mark.parametrize(("dataflow", "array", "size"), CASES)
def test_cycles_equal_the_closed_form(dataflow, array, size):
    assert len(CASES) >= 72
    assert compute_cycles(dataflow, *array, *size) == closed_form(dataflow, *array, *size)


@pytest.mark.parametrize(
    ("dataflow", "rows", "size", "cycles"),
    [
        ("os", 32, (256, 128, 256), 10175),
        ("ws", 32, (256, 128, 256), 11199),
        ("is", 32, (256, 128, 256), 14207),
        ("os", 128, (512, 512, 512), 12255),
        ("ws", 128, (512, 512, 512), 14303),
        ("ws", 128, (1024, 1024, 1024), 89983),
    ],
)
def test_cycles_of_runs_of_scale_sim(dataflow, rows, size, cycles):
    assert compute_cycles(dataflow, rows, rows, *size) == cycles


CONVOLUTIONS = {
    # operator: (products, output pixels, filters, window elements)
    "conv2d c=3 h=32 w=32 oc=64 kh=7 kw=7 stride=2 pad=3": (1, 256, 64, 147),
    "conv2d n=2 c=64 h=14 w=12 oc=100 kh=3 kw=3": (2, 120, 100, 576),
    "conv2d c=12 h=9 w=9 oc=8 kh=3 kw=3 groups=4 pad=1": (4, 81, 2, 27),
    "depthwise_conv2d c=20 h=10 w=8 kh=3 kw=3 pad=1": (20, 80, 1, 9),
    "conv2d c=256 h=7 w=7 oc=512 kh=1 kw=1": (1, 49, 512, 256),
}


@pytest.mark.parametrize(
    ("dataflow", "array", "text"),
    list(itertools.product(("ws", "is", "os"), ARRAYS, CONVOLUTIONS)),
)
def test_convolutions_are_products_of_pixels_filters_and_windows(dataflow, array, text):
    count, pixels, filters, window = CONVOLUTIONS[text]
    settings = {"array.rows": str(array[0]), "array.cols": str(array[1]), "dataflow": dataflow}
    target = load_target("systolic").with_settings(settings)
    found = simulate(Workload.parse(text), target).compute_cycles
    assert found == count * closed_form(dataflow, *array, pixels, filters, window)


def test_attention_is_two_products_a_head():
    target = load_target("systolic")
    whole = simulate(Workload.parse("attention m=100 n=300 k=64 v=32 heads=3 batch=2"), target)
    parts = [closed_form("ws", 128, 128, *size) for size in ((100, 300, 64), (100, 32, 300))]
    assert whole.compute_cycles == 6 * sum(parts)


def test_an_operator_that_is_no_product_is_refused():
    with pytest.raises(WorkloadError, match="operator 'softmax' is none, use matmul, conv2d"):
        simulate(Workload.parse("softmax shape=4x4"), load_target("systolic"))


def test_utilization_never_exceeds_one():
    target = load_target("systolic")
    result = simulate(Workload.parse("matmul m=128 n=128 k=8192"), target)
    assert 0 < result.details["utilization"] <= 1


def test_a_batch_is_judged_like_one():
    target, workload = load_target("systolic"), Workload.parse("matmul m=64 n=64 k=64")
    judged = judge(workload, target, [None, None])
    assert judged.latency.tolist() == [simulate(workload, target).latency_us * 1e-6] * 2


def test_unknown_dataflow_names_the_allowed_ones():
    with pytest.raises(TargetError, match="dataflow = 'rs' is unknown; one of ws, os, is"):
        load_target("systolic").with_settings({"dataflow": "rs"})


def test_unknown_fidelity():
    with pytest.raises(TargetError, match="unknown fidelity 'exact'"):
        simulate(Workload.parse("matmul m=1 n=1 k=1"), load_target("systolic"), fidelity="exact")
