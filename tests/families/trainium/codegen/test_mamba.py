"""The scan kernels: right values, and the order and the cliff that AWS published."""

from __future__ import annotations

import mamba
import numpy as np
import pytest

from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.families.trainium.simulator.timelines.timeline import timeline


def recurrence(delta, u, a, b, c):
    """out[n, t] = sum over i of h_i[t] c_i[t],  h_i[t] = exp(delta a_i) h_i[t-1] + delta u b_i."""
    h, out = np.zeros(a.shape), np.zeros(delta.shape)
    for t in range(delta.shape[1]):
        h = np.exp(delta[:, t, None] * a) * h + (delta * u)[:, t, None] * b[:, t]
        out[:, t] = h @ c[:, t]
    return out


@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
def test_values(trn1, rng, version):
    channels, length, states = 256, 64, 3
    keywords = {"piece": 16} if version == "v3" else {}
    stream = mamba.VERSIONS[version](trn1, channels, length, states, **keywords)
    inputs = {
        "delta": rng.uniform(0.1, 1, (channels, length)),
        "u": rng.standard_normal((channels, length)),
        "A": -rng.uniform(0.1, 1, (channels, states)),
        "B": rng.standard_normal((states, length)),
        "C": rng.standard_normal((states, length)),
    }
    expected = recurrence(*inputs.values())
    got = execute(stream, {k: v.astype(np.float32) for k, v in inputs.items()})["out"]
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


def test_order_and_cliff(trn1):
    channels = 512
    time = {
        (version, length): timeline(mamba.VERSIONS[version](trn1, channels, length)).makespan
        for version, wide, length in mamba.PUBLISHED
        if wide > channels and length in (512, 1024, 8192)
    }
    assert time["v2", 512] < time["v1", 512]
    assert time["v3", 1024] < time["v2", 1024]
    assert time["v3", 8192] < time["v2", 8192]
    longer = 8192 / 512
    assert time["v3", 8192] < 1.2 * longer * time["v2", 512] < time["v2", 8192]
