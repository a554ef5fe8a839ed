"""What JAX writes for indexing, sorting, windows and loops, against jaxlib's interpreter of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.capabilities.stablehlo.stablehlo_modules import (
    check,
    compare,
    compiled,
    interpreted,
    run,
)
from tilesmith.search_space.support.errors import ModelError

jax = pytest.importorskip("jax", reason="JAX is not installed")
pytestmark = pytest.mark.extra
jnp, lax = jax.numpy, jax.lax

X = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)
PLACES = np.array([0, 3, -1, 7], np.int32)
IMAGE = np.random.default_rng(1).standard_normal((2, 7, 6, 4)).astype(np.float32)


def text_of(function: Callable[..., Any], *arguments: Any) -> str:
    return str(jax.jit(function).lower(*arguments).as_text())


def agrees(function: Callable[..., Any], *arguments: Any, host: bool = True) -> None:
    """The function's module gives what the interpreter says; nothing on the host, if so asked."""
    executable = check(text_of(function, *arguments), [np.asarray(a) for a in arguments])
    assert host or not executable.report.host_nodes, executable.report.host_nodes


def agrees_with_jax(function: Callable[..., Any], *arguments: Any) -> None:
    """As `agrees`, where the interpreter is wrong: it writes into the operands of scatters, orders
    floating numbers in part only, and knows no operations of CHLO."""
    found = run(compiled(text_of(function, *arguments)), [np.asarray(a) for a in arguments])
    compare(found, [np.asarray(a) for a in jax.tree.leaves(jax.jit(function)(*arguments))])


def test_reading_at_computed_places() -> None:
    agrees(
        lambda x, i: (
            jnp.take(x, i, axis=1), x[:, i], x[0, i, i], x[..., i], x[:, 1, i], x[i[0]],
            jnp.take_along_axis(x, i[None, :, None].astype(int) % 5, axis=1),
        ),
        X, PLACES,
    )  # fmt: skip


def test_reading_windows_at_computed_places() -> None:
    agrees(
        lambda x, i: (
            lax.dynamic_slice(x, (0, i[1], 0), (2, 2, 8)),
            lax.dynamic_slice(x, (i[0], i[3], 1), (1, 2, 3)),
            jax.vmap(lambda r, s: lax.dynamic_slice(r, (s, s), (2, 3)))(x, i[:2]),
        ),
        X, PLACES,
    )  # fmt: skip


def test_writing_at_computed_places_leaves_out_what_lies_outside() -> None:
    agrees_with_jax(
        lambda x, i: (
            x.at[:, i].set(2.0), x.at[0].add(1.0), x.at[i].mul(3.0), x.at[1, i, 2].max(9.0),
            x.at[:, 1:3].set(x[:, 2:4]), x.at[:, i].add(x[:, :4], mode="clip"),
            lax.dynamic_update_slice(x, x[:, :2], (0, i[1], 0)),
            lax.dynamic_update_slice(x, x[:, :2], (0, 9, 0)),
            (x > 0).at[0, i[1]].set(True),
        ),
        X, PLACES,
    )  # fmt: skip


def test_writing_through_axes_that_are_shared() -> None:
    agrees_with_jax(lambda x, i: jax.vmap(lambda r, s: r.at[s].add(1.0))(x, i[:2]), X, PLACES)


def test_sorting_keeps_the_order_of_equals_and_puts_nan_last() -> None:
    odd = np.array([[3, np.nan, -0.0, 0.0, -np.inf, np.inf, 3, -1]], np.float32)
    agrees_with_jax(
        lambda x, k: (
            jnp.sort(x), jnp.argsort(x), jnp.argsort(-x, stable=True), jnp.lexsort((x[0], k)),
            jnp.sort(k, descending=True),
        ),
        odd, np.array([1, 0, 1, 0, 2, 2, 1, 0], np.int32),
    )  # fmt: skip


def test_the_largest_few() -> None:
    agrees_with_jax(lambda x: lax.top_k(x, 3), X)


def test_extremes_and_their_places() -> None:
    agrees(lambda x: (jnp.argmax(x, 1), jnp.argmin(x), jnp.max(x, (0, 2)), jnp.any(x > 1, 1)), X)


def test_running_sums_and_windows() -> None:
    agrees(
        lambda x: (
            jnp.cumsum(x, 1), jnp.cumprod(x, -1), lax.cummax(x, axis=1),
            lax.cumsum(x, axis=2, reverse=True),
        ),
        X,
    )  # fmt: skip


def test_pools_of_images_with_channels_last() -> None:
    def pools(x: Any) -> Any:
        square, twice = (1, 3, 2, 1), (1, 2, 2, 1)
        ones = jnp.ones(x.shape)
        total = lax.reduce_window(x, 0.0, lax.add, square, twice, "SAME")
        count = lax.reduce_window(ones, 0.0, lax.add, square, twice, "SAME")
        return (
            lax.reduce_window(x, -jnp.inf, lax.max, square, twice, "SAME"),
            lax.reduce_window(x, jnp.inf, lax.min, square, (1, 1, 1, 1), "VALID"), total / count,
        )  # fmt: skip

    agrees(pools, IMAGE, host=False)


def test_windows_of_any_function() -> None:
    def product(x: Any) -> Any:
        return lax.reduce_window(
            x, 1.0, lax.mul, (1, 3, 3, 1), (1, 2, 1, 1), "SAME", window_dilation=(1, 2, 1, 1)
        )

    agrees(product, IMAGE, host=False)


def test_loops_of_few_turns_are_written_out() -> None:
    weights = np.random.default_rng(2).standard_normal((4, 8, 8)).astype(np.float32) / 4

    def function(x: Any, w: Any) -> Any:
        return lax.scan(lambda c, v: (jnp.tanh(c @ v), c.sum()), x, w)

    agrees(function, X, weights, host=False)


def test_loops_of_many_turns_and_of_turns_unknown() -> None:
    agrees(
        lambda x: (
            lax.fori_loop(0, 100, lambda i, c: c * 0.9 + i * 0.01 + x[0, 0], x[0]),
            lax.while_loop(lambda c: c.sum() < 100.0, lambda c: c + 1.0, x),
        ),
        X,
    )


@pytest.mark.parametrize("number", [-1, 0, 1, 2, 5])
def test_choices(number: int) -> None:
    def function(x: Any, i: Any) -> Any:
        by_number = lax.switch(i, [lambda y: y + 1, lambda y: y * x[0, 0], lambda y: -y], x)
        return by_number, lax.cond(i > 0, lambda y: y * 2, lambda y: y - x[0], x)

    agrees(function, X, np.int32(number))


def test_random_numbers_are_those_of_jax() -> None:
    def function(key: Any) -> Any:
        return jax.random.uniform(key, (5,)), jax.random.randint(key, (3,), 0, 10)

    agrees(function, np.array([0, 42], np.uint32))


def test_what_is_unsupported_is_named_with_its_place() -> None:
    with pytest.raises(ModelError, match="calls 'lapack_"):
        compiled(text_of(lambda x: lax.linalg.hessenberg(x[0, :, :5]), X))


def test_the_interpreter_is_asked_for_every_result() -> None:
    module = text_of(lambda x: (x, x * 2), X)
    assert len(interpreted(module, [X])) == 2


def test_functions_without_an_operator_go_through_plain_operations() -> None:
    positive = np.abs(X) + 0.1
    agrees_with_jax(
        lambda x: (jax.scipy.special.gammaln(x), jax.scipy.special.digamma(x), lax.erf_inv(x / 9)),
        positive,
    )


def test_exported_functions_of_open_shape() -> None:
    from jax import export

    import tilesmith

    (rows,) = export.symbolic_shape("rows")
    given = jax.ShapeDtypeStruct((rows, 8), jnp.float32)
    exported = export.export(jax.jit(lambda x: (jax.nn.softmax(x * x.shape[0]), lax.top_k(x, 2))))
    model = tilesmith.from_stablehlo(exported(given).mlir_module_serialized)
    compiled = tilesmith.compile(model, shapes={"x": (5, 8)})
    found = run(compiled, [X[0]])
    compare(found, [np.asarray(a) for a in (jax.nn.softmax(X[0] * 5), *lax.top_k(X[0], 2))])
    with pytest.raises(ModelError, match=r'shapes={"x": \(1, 8\)}'):
        tilesmith.compile(model)


@pytest.mark.parametrize("shape", [(1, 12, 13, 3), (1, 2, 30, 1), (1, 4, 7, 12, 5)])
def test_sums_of_whole_numbers_over_windows_are_whole_numbers(shape: tuple[int, ...]) -> None:
    """Means times the size of a window are not, so a step function takes others."""
    window = tuple(min(n, 7) if 1 < at < len(shape) - 1 else 1 for at, n in enumerate(shape))

    def steps(x: Any) -> Any:
        total = lax.reduce_window(x, 0.0, lax.add, window, (1,) * x.ndim, "SAME")
        return jnp.floor(total), total / np.prod(window)

    x = np.random.default_rng(0).integers(0, 100, shape).astype(np.float32)
    agrees(steps, x, host=False)
