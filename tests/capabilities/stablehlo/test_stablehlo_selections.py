"""Gradients of pooling by an extreme, against JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.capabilities.stablehlo.stablehlo_modules import compare, compiled, run
from tilesmith.search_space.support.errors import ModelError

jax = pytest.importorskip("jax", reason="JAX is not installed")
pytestmark = pytest.mark.extra
jnp, lax = jax.numpy, jax.lax

IMAGE = np.random.default_rng(0).standard_normal((2, 7, 9, 3)).astype(np.float32)


def pool(window: tuple[int, ...], strides: tuple[int, ...], padding: str, least: bool) -> Any:
    join, start = (lax.min, jnp.inf) if least else (lax.max, -jnp.inf)
    return lambda x: (lax.reduce_window(x, start, join, window, strides, padding) ** 3).sum()


@pytest.mark.parametrize(
    ("window", "strides", "padding", "least"),
    [
        pytest.param((1, 2, 2, 1), (1, 2, 2, 1), "VALID", False, id="side by side"),
        pytest.param((1, 2, 2, 1), (1, 2, 2, 1), "SAME", False, id="padded"),
        pytest.param((1, 3, 3, 1), (1, 2, 2, 1), "SAME", False, id="overlapping"),
        pytest.param((1, 2, 2, 1), (1, 3, 3, 1), "VALID", False, id="apart"),
        pytest.param((1, 3, 2, 1), (1, 1, 1, 1), "SAME", True, id="the smallest"),
    ],
)
def test_gradients_of_pooling(window: Any, strides: Any, padding: str, least: bool) -> None:
    function = jax.grad(pool(window, strides, padding, least))
    executable = compiled(jax.jit(function).lower(IMAGE).as_text())
    assert not executable.report.host_nodes
    compare(run(executable, [IMAGE]), [np.asarray(jax.jit(function)(IMAGE))])


def test_the_first_of_equals_is_chosen() -> None:
    equal = np.ones((1, 4, 4, 1), np.float32)
    function = jax.grad(pool((1, 2, 2, 1), (1, 2, 2, 1), "VALID", least=False))
    (found,) = run(compiled(jax.jit(function).lower(equal).as_text()), [equal])
    assert np.flatnonzero(found).tolist() == [0, 2, 8, 10]


def test_numbers_around_are_never_chosen() -> None:
    """The operation's own padding, which JAX writes as an operation before it."""
    text = jax.jit(jax.grad(pool((3,), (2,), "VALID", least=False))).lower(IMAGE[0, :, 0, 0])
    padded = text.as_text().replace("<{padding = dense<0> : tensor<1x2xi64>", "<{padding = "
                                    "dense<[[1, -1]]> : tensor<1x2xi64>")  # fmt: skip
    x = -np.abs(IMAGE[0, :, 0, 0])
    (found,) = run(compiled(padded), [x])
    best = np.array([x[a:b].max() for a, b in ((0, 3), (2, 5), (4, 7))])  # of the pooling
    wanted = np.zeros_like(x)
    for (a, b), number in zip(((0, 2), (1, 4), (3, 6)), 3 * best**2, strict=True):
        wanted[a + x[a:b].argmax()] += number
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_functions_of_ones_own_are_refused_in_a_sentence() -> None:
    function = jax.grad(pool((1, 2, 2, 1), (1, 2, 2, 1), "VALID", least=False))
    text = jax.jit(function).lower(IMAGE).as_text()
    with pytest.raises(ModelError, match=r"select_and_scatter.*joins numbers by a function"):
        compiled(text.replace("stablehlo.add %arg1", "stablehlo.subtract %arg1"))
    large = jax.grad(pool((1, 40, 40, 1), (1, 1, 1, 1), "VALID", least=False))
    text = jax.jit(large).lower(np.zeros((1, 41, 41, 1), np.float32)).as_text()
    with pytest.raises(ModelError, match="windows of 1600 elements; up to 1024"):
        compiled(text)
