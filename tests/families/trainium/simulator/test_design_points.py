"""Targets that differ in rates share lowered programs; what is judged is as if they did not."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.codegen.programs.structures import space_of
from tilesmith.families.trainium.simulator import skeletons
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge

WORKLOADS = (
    "matmul m=130 n=600 k=300 dtype=bfloat16",
    "conv2d c=16 h=14 w=14 oc=32 kh=3 kw=3 pad=1 const=weight",
    "attention m=128 n=256 k=64 heads=2 dtype=bfloat16",
    "softmax shape=300x500",
    "transpose shape=64x40x72 perm=2x0x1",
)
SETTINGS = (
    {},
    {"dma.engines": "32"},
    {"tensor.ghz": "1.4", "vector.ghz": "3.0"},
    {"sbuf.mib": "48"},
    {"tensor.rows": "64", "tensor.cols": "64"},
    {"semaphore.ns": "500", "hbm.gbps_core": "50"},
)
CACHES = (
    "_skeleton", "_parts", "alike", "_first", "simulated_space", "_analysis", "_lowered", "_plans",
)  # fmt: skip


def forget() -> None:
    for name in CACHES:
        getattr(skeletons, name).cache_clear()


def judged(text: str, target: Target) -> tuple[np.ndarray, np.ndarray, list[str]]:
    workload = Workload.parse(text)
    configs = space_of(workload, target).sample(np.random.default_rng(3), 5)
    found = judge(workload, target, configs)
    return found.latency, found.features, found.bound


@pytest.mark.parametrize("text", WORKLOADS)
def test_sharing_changes_nothing(text: str) -> None:
    targets = [load_target("trn1").with_settings(settings) for settings in SETTINGS]
    alone = []
    for target in targets:
        forget()
        alone.append(judged(text, target))
    forget()
    for target, (latency, features, bound) in zip(targets, alone, strict=True):
        shared = judged(text, target)
        np.testing.assert_array_equal(shared[0], latency)
        np.testing.assert_array_equal(shared[1], features)
        assert shared[2] == bound


def test_rates_do_not_lower_anew() -> None:
    forget()
    base = load_target("trn1")
    judged(WORKLOADS[0], base)
    lowered = skeletons._lowered.cache_info().misses
    assert lowered
    judged(WORKLOADS[0], base.with_settings({"dma.engines": "32", "tensor.ghz": "1.4"}))
    assert skeletons._lowered.cache_info().misses == lowered
    judged(WORKLOADS[0], base.with_settings({"sbuf.mib": "48"}))
    assert skeletons._lowered.cache_info().misses > lowered
