"""The guide's matrix products: right values at small sizes, and what each step gains."""

from __future__ import annotations

import numpy as np
import optimisation_guide as guide
import pytest

from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.families.trainium.simulator.timelines.timeline import timeline


@pytest.mark.parametrize("name", sorted(guide.VERSIONS))
def test_values(trn2, rng, name):
    lhs = rng.standard_normal((256, 256)).astype(np.float32)
    rhs = rng.standard_normal((256, 1024)).astype(np.float32)
    more = {"tiles_m": 1, "tiles_k": 1} if name == "blocked" else {}
    stream = guide.VERSIONS[name].kernel(trn2, 256, 1024, 256, **more)
    got = execute(stream, {"lhsT": lhs, "rhs": rhs})["out"]
    assert np.abs(got - lhs.T @ rhs).max() <= 1e-5 * np.abs(got).max()


def test_each_step_moves_less_and_hoisting_frees_the_tensor_engine(trn2):
    played = {n: timeline(v.kernel(trn2, 2048, 2048, 4096)) for n, v in guide.VERSIONS.items()}
    moved = [p.costs.total_bytes for p in played.values()]
    assert moved == sorted(moved, reverse=True)
    share = {name: guide.activity(p) for name, p in played.items()}
    assert share["tiled"]["dma"] > 0.95 and share["hoisted"]["tensor"] > 0.85
    assert share["blocked"]["dma"] < 0.3 < 0.85 < share["hoisted"]["dma"]
