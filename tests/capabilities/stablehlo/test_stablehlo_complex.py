"""Complex numbers and Fourier transforms: functions of JAX, against JAX and numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilesmith
from tests.capabilities.stablehlo.stablehlo_modules import compiled, module_of, run

jax = pytest.importorskip("jax", reason="JAX is not installed")
pytestmark = pytest.mark.extra
jnp, lax = jax.numpy, jax.lax

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(np.complex64)


X, Y, ROW, LONG = drawn(3, 4), drawn(3, 4), drawn(6), drawn(80, 4)
REAL = RNG.standard_normal((3, 4)).astype(np.float32)
PLACES = np.array([2, 0, 2, 5, 9], np.int32)
CONSTANT = drawn(3, 4)
MANY = drawn(300)


def agrees(function: Callable[..., Any], *arguments: Any, wanted: Any = None) -> Any:
    """The compiled function gives what JAX does, or what is wanted; gives what was compiled."""
    model = tilesmith.from_jax(function, *arguments)
    found = jax.tree.leaves(model(*arguments))
    expected = jax.tree.leaves(jax.jit(function)(*arguments) if wanted is None else wanted)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=3e-5, atol=3e-5)
    return model


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *((name, X) for name in ("fft", "ifft", "irfft", "hfft", "fft2", "irfft2", "ifftn")),
        *((name, REAL) for name in ("fft", "rfft", "ihfft", "rfft2", "rfftn")),
        pytest.param("fft", drawn(2, 101), id="fft of a prime"),
        pytest.param("ifft", drawn(2, 3000), id="ifft of many"),
        pytest.param("fftn", drawn(3, 5, 7), id="fftn of three axes"),
        pytest.param("fft", drawn(0, 4), id="fft of nothing"),
    ],
)
def test_fourier_transforms(name: str, given: Any) -> None:
    wanted = getattr(np.fft, name)(given)
    narrow = wanted.astype(np.complex64 if wanted.dtype.kind == "c" else np.float32)
    agrees(getattr(jnp.fft, name), given, wanted=narrow)


def test_transforms_of_other_lengths_and_axes() -> None:
    agrees(
        lambda x: (
            jnp.fft.irfft(x, 7), jnp.fft.fft(x, 9), jnp.fft.ifft(x, 2), jnp.fft.fft(x, axis=0),
        ),
        X,
        wanted=[
            np.fft.irfft(X, 7).astype(np.float32),
            *(a.astype(np.complex64)
              for a in (np.fft.fft(X, 9), np.fft.ifft(X, 2), np.fft.fft(X, axis=0))),
        ],
    )  # fmt: skip


def test_a_transform_reads_its_input_as_it_lies() -> None:
    graph = tilesmith.jax_model(jnp.fft.fft, X).graph({})
    (transform,) = (node for node in graph.nodes if node.operator == "DFT")
    assert transform.inputs[0] == graph.inputs[0].name
    assert not any(node.operator == "Concat" for node in graph.nodes)


@pytest.mark.parametrize(
    "name",
    ["conj", "abs", "angle", "exp", "log", "sqrt", "log1p", "expm1", "reciprocal", "sin", "cos",
     "tan", "sinh", "cosh", "tanh", "arcsin", "arctanh", "square", "sign", "sum", "prod", "cumsum",
     "cumprod", "sort", "var", "isfinite"],
)  # fmt: skip
def test_functions_of_one_array(name: str) -> None:
    agrees(getattr(jnp, name), X)


@pytest.mark.parametrize(
    "name", ["add", "subtract", "multiply", "divide", "power", "equal", "vdot"]
)
def test_functions_of_two_arrays(name: str) -> None:
    agrees(getattr(jnp, name), X, Y)


def test_products_and_constants() -> None:
    agrees(
        lambda x, y, r: (
            x @ y.T, x @ r.T, r @ y.T, x * CONSTANT + (1 + 2j), r.astype(jnp.complex64) * 1j,
        ),
        X, Y, REAL,
    )  # fmt: skip
    agrees(lambda x: x * MANY, MANY)


def test_moving_elements() -> None:
    agrees(
        lambda x, y, r, k: (
            jnp.concatenate([x, y])[1:, ::-1].T.reshape(2, -1), jnp.pad(x, 1), x[:, k[:3]],
            jnp.where(x.real > 0, x, y), r.at[k].set(1j), r.at[k].add(2j), r.at[k].mul(1j),
            lax.dynamic_update_slice(r, lax.dynamic_slice(r, k[:1], (2,)), k[1:2]),
        ),
        X, Y, ROW, PLACES,
    )  # fmt: skip


@pytest.mark.parametrize("choice", [0, 1, 2])
def test_loops_and_choices(choice: int) -> None:
    def function(x: Any, rows: Any, k: Any) -> Any:
        return (
            lax.fori_loop(0, 100, lambda i, z: z * (0.9 + 0.1j) + i, x),
            lax.while_loop(lambda z: jnp.abs(z).sum() < 100, lambda z: z * 1.1j, x),
            lax.scan(lambda s, z: (s * 0.5 + z, s.real), jnp.zeros(4, jnp.complex64), rows),
            lax.switch(k, [lambda z: z * 1j, lambda z: z, lambda z: -z], x),
        )

    agrees(function, X, LONG, np.int32(choice))


def test_trees_and_gradients() -> None:
    agrees(lambda d: {"a": d["x"] * 1j, "b": d["x"].imag}, {"x": X})
    agrees(jax.grad(lambda z: (z**3).sum(), holomorphic=True), ROW)
    agrees(jax.grad(lambda r: jnp.abs(jnp.fft.fft(r)).sum()), REAL)


def test_quotients_and_sizes_of_numbers_without_squares() -> None:
    top = np.array([1e30 + 1e30j, 1e-30 + 1e-30j, 0, 3 + 4j, 1 + 1j, 2, -5, 1e38j], np.complex64)
    below = np.array([1e30 + 1e30j, 1e-30 - 1e-30j, 2, 1e-20j, 1e38 + 1j, np.inf, 0, 2e38 + 2e38j])
    model = tilesmith.from_jax(lambda x, y: (x / y, jnp.abs(x)), top, below.astype(np.complex64))
    quotient, size = (np.asarray(a) for a in model(top, below.astype(np.complex64)))
    finite = below != 0
    exact = top[finite].astype(np.complex128) / below[finite]
    np.testing.assert_allclose(quotient[finite], exact, rtol=1e-6, atol=1e-44)
    assert np.isneginf(quotient[~finite].real).all()
    np.testing.assert_allclose(size, np.abs(top.astype(np.complex128)), rtol=1e-6)


def test_modules_have_complex_numbers_as_two_along_the_last_axis() -> None:
    kind = "tensor<2x5xcomplex<f64>>"
    module = module_of(
        f"""%a = stablehlo.fft %0, type = FFT, length = [5] : ({kind}) -> {kind}
        %c = stablehlo.constant dense<(0x7FF0000000000000,-2.5)> : {kind}
        return %a, %c : {kind}, {kind}""",
        "2x5xcomplex<f64>", results="2x5xcomplex<f64> 2x5xcomplex<f64>",
    )  # fmt: skip
    given = RNG.standard_normal((2, 5, 2))
    found, constant = run(compiled(module), [given])
    np.testing.assert_allclose(found.view(complex)[..., 0], np.fft.fft(given.view(complex)[..., 0]))
    np.testing.assert_array_equal(constant, np.broadcast_to([np.inf, -2.5], (2, 5, 2)))


def test_arrays_go_in_and_out_as_they_lie() -> None:
    from tilesmith.capabilities.stablehlo.traced import _joined, _parted, _shared, array_of
    from tilesmith.compiler.runtime.executable import own_aligned

    given = jnp.asarray(X)
    pair = _parted(array_of(given))
    assert pair.shape == (3, 4, 2)
    assert pair.__array_interface__["data"][0] == given.unsafe_buffer_pointer()
    model = tilesmith.from_jax(lambda x: x * 2, given)
    (array,) = model.executable.run({"x": pair}, own_aligned).values()
    back = _shared(_joined(array, np.dtype(np.complex64)))
    assert back.unsafe_buffer_pointer() == array.__array_interface__["data"][0]
    np.testing.assert_array_equal(back, X * 2)


def test_numbers_of_python_and_arrays_in_any_order() -> None:
    model = tilesmith.from_jax(lambda x, y: (x * y, x + 1), 1j, X)
    product, more = model(2.5j, np.asfortranarray(X))
    np.testing.assert_allclose(product, X * 2.5j, rtol=1e-6)
    assert complex(more) == 1 + 2.5j
