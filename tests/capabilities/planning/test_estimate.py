"""Estimates of single points, and the definitions they keep."""

from __future__ import annotations

import pytest

from tests.capabilities.planning.test_architectures import PUBLISHED, read
from tilesmith.capabilities.planning.deployment import Deployment, DeploymentLoad, bucket
from tilesmith.capabilities.planning.estimates.estimate import estimate, step_seconds
from tilesmith.search_space.meshes.mesh import load_mesh

LLAMA = read(PUBLISHED["Llama 3 8B"][0])


def test_a_point_is_made_of_its_parts() -> None:
    deployment = Deployment(load_mesh("trn1.32xlarge"), tensor=32, weights="int8")
    load = DeploymentLoad(batch=1, input_tokens=128, output_tokens=8064, max_sequence=8192)
    point = estimate(LLAMA, deployment, load)
    assert sum(point.parts["token"].values()) == pytest.approx(point.tpot_ms)
    assert sum(point.parts["prompt"].values()) == pytest.approx(point.ttft_ms)
    assert step_seconds(LLAMA, deployment, 1, 1, 8192) * 1e3 == pytest.approx(point.tpot_ms)
    assert {"ttft_ms", "tpot_ms", "tokens_per_s", "memory_gib", "bound"} <= set(point.to_json())
    assert point.memory.weights == pytest.approx(8.03, abs=1.5)


def test_buckets_are_powers_of_two_below_the_limit() -> None:
    assert [bucket(n, 8192) for n in (1, 128, 129, 4097, 8192)] == [128, 128, 256, 8192, 8192]
    assert bucket(5000, 6000) == 6000
