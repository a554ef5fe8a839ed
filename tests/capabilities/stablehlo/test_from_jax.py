"""Functions of JAX through the API: trees in and out, shared memory, sentences for mistakes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import tilesmith

jax = pytest.importorskip("jax", reason="JAX is not installed")
pytestmark = pytest.mark.extra
jnp = jax.numpy

WEIGHT = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)


def _layer(parameters: dict[str, Any], x: Any, scale: Any) -> dict[str, Any]:
    y = x @ jnp.asarray(WEIGHT) + parameters["b"]
    return {"y": (y * scale, y > 0), "half": y.astype(jnp.bfloat16)}


def test_trees_go_in_and_come_out() -> None:
    x, parameters = jnp.ones((3, 64)), {"b": jnp.arange(8.0)}
    compiled = tilesmith.from_jax(_layer, parameters, x, 2)
    assert [i.name for i in compiled.executable.inputs] == ["parameters['b']", "x", "scale"]
    assert compiled.executable.outputs[1].name == "result['y'][0]"
    found, wanted = compiled(parameters, np.asarray(x), 3), _layer(parameters, x, 3)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert isinstance(ours, jax.Array)
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(
            np.asarray(ours, np.float32), np.asarray(theirs, np.float32), rtol=1e-2
        )


def test_constants_are_shared_and_results_lie_where_jax_takes_them() -> None:
    weight = jnp.asarray(WEIGHT)
    model = tilesmith.jax_model(lambda x: x @ weight, jnp.ones((3, 64)))
    held = [c for c in model.graph({}).constants.values() if c.shape == (64, 8)]
    assert np.shares_memory(held[0], np.from_dlpack(weight))
    compiled = tilesmith.from_jax(lambda x: x @ weight, jnp.ones((3000, 64)))
    taken: list[Any] = []
    original = jax.dlpack.from_dlpack

    def watched(array: Any) -> Any:
        taken.append(array)
        return original(array)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.dlpack, "from_dlpack", watched)
        result = compiled(jnp.ones((3000, 64)))  # small ones are copied, which is faster
    assert np.shares_memory(taken[0], np.from_dlpack(result))


def test_models_of_jax_are_taken_by_every_job() -> None:
    model = tilesmith.jax_model(partial(_layer, {"b": np.zeros(8, np.float32)}), WEIGHT.T, 1.5)
    assert tilesmith.simulate(model, "trn1").latency_us > 0


def test_random_keys_go_in() -> None:
    key = jax.random.key(3)
    compiled = tilesmith.from_jax(lambda k: jax.random.uniform(k, (4,)), key)
    np.testing.assert_allclose(compiled(key), jax.random.uniform(key, (4,)))


def test_mistakes_are_told_in_a_sentence() -> None:
    with pytest.raises(tilesmith.ModelError, match="cannot be traced for these arguments"):
        tilesmith.from_jax(lambda x: x if x > 0 else -x, 1.0)
    compiled = tilesmith.from_jax(lambda x: x + 1, np.ones(3, np.float32))
    with pytest.raises(tilesmith.ModelError, match="trace it again"):
        compiled(np.ones(3, np.float32), 1)
    with pytest.raises(tilesmith.ModelError, match="has the shape 4"):
        compiled(np.ones(4, np.float32))
    with pytest.raises(tilesmith.ModelError, match="calls 'ApproxTopK', a library of JAX's"):
        tilesmith.from_jax(lambda x: jax.lax.approx_max_k(x, 2), np.ones(4, np.float32))


def test_without_jax_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesmith.jobs.extras.find_spec", lambda name: None)
    with pytest.raises(tilesmith.DependencyError, match=r"pip install 'tilesmith\[jax\]'"):
        tilesmith.from_jax(lambda x: x, 1.0)
