"""Kernels written by hand compute what numpy computes, cut blocks and shared groups included."""

from __future__ import annotations

import numpy as np
import pytest
from written import attention, elementwise, indexing, products, rows, windows

from tilesmith.families.trainium.simulator.execution.functional import execute


@pytest.fixture
def normal(rng):
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)


def close(got, expected, tolerance=1e-5):
    got = np.asarray(got, np.float32)
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()


def rms(x, epsilon=1e-6):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)


def soft(x):
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def test_tensor_add(trn1, normal):
    a, b = normal(128, 2100), normal(128, 2100)
    close(execute(elementwise.tensor_add(trn1, 128, 2100), {"a": a, "b": b})["c"], a + b)


def test_gelu(trn1, normal):
    from math import erf, sqrt

    x = normal(128, 40)
    expected = 0.5 * x * (1 + np.vectorize(erf)(x / sqrt(2)))
    close(execute(elementwise.gelu(trn1, 128, 40), {"x": x})["y"], expected)


def test_adamw(trn1, normal):
    parameter, m, gradient = (normal(128, 1100) for _ in range(3))
    v = normal(128, 1100) ** 2
    inputs = {"parameter": parameter, "m": m, "v": v, "gradient": gradient}
    found = execute(elementwise.adamw(trn1, 128, 1100), inputs)
    m = 0.9 * m + 0.1 * gradient
    v = 0.999 * v + 0.001 * gradient**2
    update = (m / (1 - 0.9**10)) / (np.sqrt(v / (1 - 0.999**10)) + 1e-8)
    close(found["new_m"], m)
    close(found["new_v"], v)
    close(found["new_parameter"], parameter - 1e-3 * 0.01 * parameter - 1e-3 * update)


def test_rope(trn1, normal):
    x, angle = normal(128, 3, 16), normal(128, 8)
    inputs = {"x": x, "cos": np.cos(angle), "sin": np.sin(angle)}
    turned = (x[..., :8] + 1j * x[..., 8:]) * np.exp(1j * angle)[:, None]
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    close(execute(elementwise.rope(trn1, 128, 3, 16), inputs)["y"], expected)


@pytest.mark.parametrize("features", [200, 700])
def test_layer_norm(trn1, normal, features):
    x, gamma, beta = normal(256, features), normal(features), normal(features)
    stream = rows.layer_norm(trn1, 256, features)
    centred = x - x.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * gamma + beta
    close(execute(stream, {"x": x, "gamma": gamma, "beta": beta})["y"], expected)


def test_rms_norm(trn1, normal):
    x, gamma = normal(256, 96), normal(96)
    close(execute(rows.rms_norm(trn1, 256, 96), {"x": x, "gamma": gamma})["y"], rms(x) * gamma)


def test_softmax(trn1, normal):
    x = 5 * normal(256, 96)
    close(execute(rows.softmax(trn1, 256, 96), {"x": x})["y"], soft(x))


def test_cumulative_sum_over_pieces(trn1, normal):
    x = normal(128, 5000)
    got = execute(rows.cumulative_sum(trn1, 128, 5000), {"x": x})["y"]
    close(got, np.cumsum(x, axis=1, dtype=np.float64), 1e-4)


def test_largest(trn1, normal):
    x = normal(128, 300)
    found = execute(rows.largest(trn1, 128, 300, 24), {"x": x})
    order = np.argsort(-x, axis=1)[:, :24]
    np.testing.assert_array_equal(found["values"], np.take_along_axis(x, order, axis=1))
    np.testing.assert_array_equal(np.take_along_axis(x, found["places"], axis=1), found["values"])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 3e-2)])
def test_add_rms_norm_matmul(trn1, normal, dtype, tolerance):
    x, residual, gamma, weight = normal(128, 256), normal(128, 256), normal(256), normal(256, 1300)
    stream = products.add_rms_norm_matmul(trn1, 128, 256, 1300, dtype)
    inputs = {"x": x, "residual": residual, "gamma": gamma, "weight": weight}
    close(execute(stream, inputs)["out"], (rms(x + residual) * gamma) @ weight, tolerance)


def test_matmul_add_rms_norm(trn1, normal):
    x, weight, residual, gamma = normal(128, 256), normal(256, 640), normal(128, 640), normal(640)
    stream = products.matmul_add_rms_norm(trn1, 128, 256, 640)
    inputs = {"x": x, "weight": weight, "residual": residual, "gamma": gamma}
    close(execute(stream, inputs)["out"], rms(x @ weight + residual) * gamma)


def test_lora(trn1, normal):
    x, weight, down, up = normal(256, 256), normal(256, 1100), normal(256, 16), normal(16, 1100)
    stream = products.lora(trn1, 256, 256, 1100, 16, scale=2.0)
    inputs = {"x": x, "weight": weight, "down": down, "up": up}
    close(execute(stream, inputs)["out"], x @ weight + 2 * (x @ down) @ up)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 5e-2)])
def test_bmm_softmax(trn1, normal, dtype, tolerance):
    lhs, rhs = normal(2, 256, 32), normal(2, 32, 700)
    stream = products.bmm_softmax(trn1, 2, 256, 32, 700, dtype)
    close(execute(stream, {"lhs": lhs, "rhs": rhs})["out"], soft(lhs @ rhs), tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [2, 1])
def test_attention(trn1, normal, monkeypatch, causal, groups):
    monkeypatch.setattr(attention, "BLOCK", 256)  # several blocks, a cut one, a masked one
    heads, count, width = 2, 640, 32
    q, k, v = (
        normal(heads, width, count),
        normal(groups, width, count),
        normal(groups, count, width),
    )
    stream = attention.attention(trn1, heads, count, count, width, groups, causal)
    found = execute(stream, {"q": q, "k": k, "v": v})["out"]
    shared = [h * groups // heads for h in range(heads)]
    scores = q.transpose(0, 2, 1) @ k[shared] / np.sqrt(width)
    if causal:
        scores = np.where(np.tri(count, dtype=bool), scores, -np.inf)
    close(found, soft(scores) @ v[shared])


def test_depthwise_conv1d(trn1, normal):
    x, w = normal(2, 128, 50), normal(128, 4)
    expected = sum(x[:, :, i : i + 47] * w[:, i : i + 1] for i in range(4))
    close(execute(windows.depthwise_conv1d(trn1, 2, 128, 50, 4), {"x": x, "w": w})["y"], expected)


def test_conv1d(trn1, normal):
    x, w = normal(2, 256, 600), normal(3, 256, 128)
    expected = sum(np.einsum("bct,co->bot", x[:, :, i : i + 598], w[i]) for i in range(3))
    stream = windows.conv1d(trn1, 2, 256, 600, 128, 3)
    close(execute(stream, {"x": x, "w": w})["y"], expected)


@pytest.mark.parametrize(("kind", "reduce"), [("max", np.max), ("average", np.mean)])
def test_pool2d(trn1, normal, kind, reduce):
    x = normal(128, 12, 8)
    stream = windows.pool2d(trn1, 128, 12, 8, 2, kind)
    expected = reduce(x.reshape(128, 6, 2, 4, 2), axis=(2, 4))
    close(execute(stream, {"x": x})["y"], expected)


def test_upsample_bilinear(trn1, normal):
    x = normal(128, 5, 7)

    def doubled(x):
        before = np.concatenate([x[..., :1], x[..., :-1]], axis=-1)
        after = np.concatenate([x[..., 1:], x[..., -1:]], axis=-1)
        pairs = np.stack([0.75 * x + 0.25 * before, 0.75 * x + 0.25 * after], axis=-1)
        return pairs.reshape(*x.shape[:-1], -1)

    expected = doubled(doubled(x).swapaxes(1, 2)).swapaxes(1, 2)
    close(execute(windows.upsample_bilinear(trn1, 128, 5, 7), {"x": x})["y"], expected)


def test_embedding(trn1, normal, rng):
    table, index = normal(50, 24), rng.integers(0, 50, (256, 1)).astype(np.int32)
    found = execute(indexing.embedding(trn1, 50, 24, 256), {"table": table, "index": index})
    np.testing.assert_array_equal(found["y"], table[index[:, 0]])


def test_select_columns(trn1, normal, rng):
    x, index = normal(256, 40), rng.integers(0, 40, (2, 16)).astype(np.int32)
    found = execute(indexing.select_columns(trn1, 256, 40, 32), {"x": x, "index": index})
    np.testing.assert_array_equal(found["y"], x[:, index.reshape(-1)])


def test_transpose2d(trn1, normal, monkeypatch):
    monkeypatch.setattr(indexing, "WIDTH", 256)
    x = normal(512, 384)
    np.testing.assert_array_equal(execute(indexing.transpose2d(trn1, 512, 384), {"x": x})["y"], x.T)
