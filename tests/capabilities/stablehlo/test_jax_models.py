"""Networks written by hand in JAX come to the kernels that their like of ONNX comes to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import tilesmith
from tilesmith.compiler.backends.backend import backend_of

jax = pytest.importorskip("jax", reason="JAX is not installed")
pytestmark = pytest.mark.extra
jnp, lax = jax.numpy, jax.lax

X = np.random.default_rng(3).standard_normal((2, 16, 32)).astype(np.float32)


def _weights(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {**dict.fromkeys("qkvo", (32, 32)), "up": (32, 64), "down": (64, 32), "g": (32,)}
    made = {n: rng.standard_normal(s).astype(np.float32) / 6 for n, s in shapes.items()}
    return {**made, "b": made["g"] * 2}


P = _weights()


def layer_norm(x: Any) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-6) * P["g"] + P["b"]


def fast_layer_norm(x: Any) -> Any:
    """As flax computes it."""
    mean = x.mean(-1, keepdims=True)
    variance = jnp.maximum(0.0, lax.square(x).mean(-1, keepdims=True) - lax.square(mean))
    return (x - mean) * (lax.rsqrt(variance + 1e-6) * P["g"]) + P["b"]


def rms_norm(x: Any) -> Any:
    return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * P["g"]


def plain_attention(x: Any, causal: bool = False) -> Any:
    q, k, v = ((x @ P[n]).reshape(2, 16, 4, 8) for n in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(8)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((16, 16), bool)), scores, -1e30)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)
    return mixed.reshape(2, 16, 32) @ P["o"]


def attention_of_jax(x: Any) -> Any:
    q, k, v = (jnp.einsum("bsd,dhe->bshe", x, P[n].reshape(32, 4, 8)) for n in "qkv")
    mixed = jax.nn.dot_product_attention(q, k, v)
    return jnp.einsum("bshe,hed->bsd", mixed, P["o"].reshape(4, 8, 32))


def block(x: Any, norm: Any, attention: Any, activation: Any) -> Any:
    x = x + attention(norm(x))
    return x + activation(norm(x) @ P["up"]) @ P["down"]


def kernels(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """What the function is compiled to; its results agree with JAX's."""
    compiled = tilesmith.from_jax(function, *arguments)
    assert not compiled.executable.report.host_nodes
    found, wanted = compiled(*arguments), jax.jit(function)(*arguments)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    steps = compiled.executable.recipe.steps
    return [str(getattr(step, "workload", "")) for step in steps]


@pytest.mark.parametrize("norm", [layer_norm, fast_layer_norm, rms_norm])
def test_normalisations_are_one_kernel(norm: Any) -> None:
    (only,) = kernels(norm, X)
    name = "rms_norm" if norm is rms_norm else "layer_norm"
    assert only.startswith(f"{name} shape=32x32 epsilon=1e-6")


@pytest.mark.parametrize(
    ("norm", "attention", "activation", "name"),
    [
        (layer_norm, plain_attention, jax.nn.gelu, "gelu_tanh"),
        (rms_norm, partial(plain_attention, causal=True), jax.nn.silu, "silu"),
        (layer_norm, attention_of_jax, partial(jax.nn.gelu, approximate=False), "gelu"),
    ],
)
def test_a_transformer_block(norm: Any, attention: Any, activation: Any, name: str) -> None:
    found = kernels(partial(block, norm=norm, attention=attention, activation=activation), X)
    names = sorted(workload.split()[0] for workload in found)
    norms = ["rms_norm" if norm is rms_norm else "layer_norm"] * 2
    assert names == sorted([*["matmul"] * 6, *["transpose"] * 4, "attention", *norms])
    assert any(workload.endswith(f"epilogue={name}") for workload in found)


def _network(weights: list[Any], x: Any) -> Any:
    """Convolutions with channels last, each with its normalisation; a sum; pools; a product."""

    def step(x: Any, number: int, stride: int) -> Any:
        weight, mean, scale, shift = weights[number]
        layout = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, weight, (stride, stride), "SAME", dimension_numbers=layout)
        return (y - mean) * lax.rsqrt(scale + 1e-5) * shift + mean

    x = jax.nn.relu(step(x, 0, 2))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    x = jax.nn.relu(x + step(jax.nn.relu(step(x, 1, 1)), 2, 1))
    return x.mean((1, 2)) @ weights[3]


def _network_weights() -> list[Any]:
    rng = np.random.default_rng(5)

    def layer(size: int, inputs: int) -> tuple[Any, ...]:
        weight = rng.standard_normal((size, size, inputs, 16)).astype(np.float32) / size
        return weight, *(rng.uniform(0.5, 1.0, 16).astype(np.float32) for _ in range(3))

    return [layer(5, 3), layer(3, 16), layer(3, 16), np.ones((16, 4), np.float32)]


def test_a_network_with_channels_last_is_transposed_once() -> None:
    image = np.random.default_rng(4).standard_normal((1, 17, 17, 3)).astype(np.float32)
    found = kernels(partial(_network, _network_weights()), image)
    assert [workload.split()[0] for workload in found] == [
        "transpose", "conv2d", "pool2d", "conv2d", "conv2d", "pool2d", "matmul",
    ]  # fmt: skip
    steps = [w.rpartition("epilogue=")[2] for w in found if w.startswith("conv2d")]
    assert steps == ["bias,relu", "bias,relu", "bias,residual,relu"]


def test_both_are_simulated_on_an_accelerator() -> None:
    step = partial(block, norm=layer_norm, attention=plain_attention, activation=jax.nn.gelu)
    image = np.zeros((1, 17, 17, 3), np.float32)
    for function, example in ((step, X), (partial(_network, _network_weights()), image)):
        recipe = tilesmith.compile(tilesmith.jax_model(function, example), "trn1").recipe
        assert not recipe.report.host_nodes
        assert backend_of(recipe.target).simulate(recipe).latency_us > 0
