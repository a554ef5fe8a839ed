"""Windows of attention: which layers have one, and what it bounds, against counting."""

from __future__ import annotations

from typing import Any

import pytest

from tests.capabilities.planning.test_architectures import read, sized
from tilesmith.capabilities.planning.architecture import Architecture, AttentionOperator
from tilesmith.capabilities.planning.deployment import Deployment, DeploymentLoad
from tilesmith.capabilities.planning.estimates.estimate import step_seconds
from tilesmith.capabilities.planning.estimates.memory import memory_of
from tilesmith.capabilities.planning.estimates.shares import seen_pairs
from tilesmith.search_space.meshes.mesh import load_mesh
from tilesmith.search_space.support.errors import ModelError

DEPLOYMENT = Deployment(load_mesh("trn1.32xlarge"), 8)


def model(family: str, **more: Any) -> Architecture:
    fields = sized(family, 2048, 8192, 6, 16, num_key_value_heads=8, vocab_size=32000)
    return read({**fields, **more})


def seen(architecture: Architecture) -> dict[int, int]:
    """How many layers have which window."""
    return {
        operator.window: layer.repeats
        for layer in architecture.layers
        for operator in layer.operators
        if isinstance(operator, AttentionOperator)
    }


@pytest.mark.parametrize(
    ("found", "windows"),
    [
        (model("llama"), {0: 6}),
        (model("mistral"), {4096: 6}),
        (model("mistral", sliding_window=None), {0: 6}),
        (model("mistral", sliding_window=1000), {1000: 6}),
        (model("gemma2", head_dim=256), {4096: 3, 0: 3}),
        (model("phi3"), {0: 6}),
        (model("phi3", sliding_window=2047), {2047: 6}),
        (model("qwen2", sliding_window=4096), {0: 6}),
        (model("qwen2", use_sliding_window=True, max_window_layers=4), {0: 4, 4096: 2}),
        (model("qwen2", use_sliding_window=True, sliding_window=None), {0: 6}),
        (
            model("gemma2", head_dim=256, sliding_window=512,
                  layer_types=["sliding_attention"] * 5 + ["full_attention"]),
            {512: 5, 0: 1},
        ),
    ],
)  # fmt: skip
def test_layers_have_the_windows_of_their_family(
    found: Architecture, windows: dict[int, int]
) -> None:
    assert seen(found) == windows
    assert found.depth == 6


@pytest.mark.parametrize("types", [["full_attention"] * 5, ["chunked_attention"] * 6])
def test_unknown_kinds_of_layers_are_refused(types: list[str]) -> None:
    with pytest.raises(ModelError, match="6 of sliding_attention and full_attention are expected"):
        model("mistral", layer_types=types)


@pytest.mark.parametrize("window", [0, 3, 7, 100])
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (1, 12), (5, 12), (12, 12)])
def test_queries_see_themselves_and_those_before(rows: int, length: int, window: int) -> None:
    attention = AttentionOperator("attention", 8, 8, 64, 64, window=window)
    counted = sum(
        1
        for query in range(length - rows, length)
        for key in range(query + 1)
        if not window or key > query - window
    )
    assert seen_pairs(attention, rows, length) == counted


def test_a_window_bounds_cache_and_time() -> None:
    whole, window = model("mistral", sliding_window=None), model("mistral", sliding_window=1024)
    half = model("mistral", sliding_window=1024,
                 layer_types=["sliding_attention", "full_attention"] * 3)  # fmt: skip
    load = DeploymentLoad(2, 4096, 4096)
    caches = [memory_of(m, DEPLOYMENT, load).cache for m in (whole, half, window)]
    assert caches[1] / caches[0] == pytest.approx((3 + 3 / 8) / 6)
    assert caches[2] / caches[0] == pytest.approx(1 / 8)
    for new, context in ((1, 8192), (8192, 8192), (512, 8192)):
        times = [step_seconds(m, DEPLOYMENT, 2, new, context) for m in (whole, half, window)]
        assert times[0] > times[1] > times[2]
    assert step_seconds(window, DEPLOYMENT, 2, 1, 8192) == step_seconds(
        window, DEPLOYMENT, 2, 1, 1024
    )
