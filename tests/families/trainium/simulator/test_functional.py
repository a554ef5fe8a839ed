"""Every instruction computes what numpy computes; dtypes round as their formats do."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.families.trainium.codegen.random_kernels import random_kernel
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import InputError

TRN1 = Core.of(load_target("trn1"))
P, F = 128, 96


def run(write, *inputs, out_shape=(P, F), dtype="float32"):
    """Run a kernel of one step: `write(kernel, out tile, input tiles...)`."""
    kernel = Kernel("one", TRN1)
    handles = [kernel.input(f"x{i}", x.shape, dtype) for i, x in enumerate(inputs)]
    y = kernel.output("y", out_shape, dtype)
    tiles = [kernel.sbuf(x.shape, dtype) for x in inputs]
    for tile, handle in zip(tiles, handles, strict=True):
        kernel.load(tile, handle)
    out = kernel.sbuf(out_shape, dtype)
    write(kernel, out, *tiles)
    kernel.store(y, out)
    return execute(kernel.finish(), {f"x{i}": x for i, x in enumerate(inputs)})["y"]


@pytest.fixture
def pair(rng):
    return [rng.standard_normal((P, F)).astype(np.float32) for _ in range(2)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("exp", np.exp),
        ("sigmoid", sigmoid),
        ("silu", lambda x: x * sigmoid(x)),
        ("tanh", np.tanh),
        ("square", np.square),
        ("relu", lambda x: np.maximum(x, 0)),
        ("softplus", lambda x: np.log1p(np.exp(x))),
    ],
)
def test_activation(pair, name, reference):
    x = pair[0]
    got = run(lambda k, out, a: k.activation(out, name, a, scale=2.0, bias=0.5), x)
    np.testing.assert_allclose(got, reference(2 * x + 0.5), rtol=2e-6, atol=1e-6)


def test_activation_with_column_operands_and_row_sums(rng):
    x = rng.standard_normal((P, F)).astype(np.float32)
    bias = rng.standard_normal((P, 1)).astype(np.float32)

    def write(kernel, out, a, b):
        whole = kernel.sbuf((P, F))
        kernel.activation(whole, "exp", a, bias=b, sums=out)

    got = run(write, x, bias, out_shape=(P, 1))
    np.testing.assert_allclose(got, np.exp(x + bias).sum(axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("op", "reference"),
    [("add", np.add), ("subtract", np.subtract), ("max", np.maximum), ("divide", np.divide)],
)
def test_tensor_tensor(pair, op, reference):
    got = run(lambda k, out, a, b: k.tensor_tensor(out, a, op, b), *pair)
    np.testing.assert_allclose(got, reference(*pair), rtol=1e-6)


def test_tensor_scalar_with_number_and_column(rng, pair):
    column = rng.standard_normal((P, 1)).astype(np.float32)
    got = run(
        lambda k, out, a, c: k.tensor_scalar(out, a, "subtract", c, "multiply", 3.0),
        pair[0], column,
    )  # fmt: skip
    np.testing.assert_allclose(got, (pair[0] - column) * 3, rtol=1e-6)


def test_scalar_tensor_tensor(pair):
    got = run(lambda k, out, a, b: k.scalar_tensor_tensor(out, a, "multiply", 2.0, "add", b), *pair)
    np.testing.assert_allclose(got, pair[0] * 2 + pair[1], rtol=1e-6)


def test_reduce_groups_of_inner_axes(pair):
    got = run(lambda k, out, a: k.reduce(out, a.split(1, 8, 12), "add"), pair[0], out_shape=(P, 8))
    np.testing.assert_allclose(got, pair[0].reshape(P, 8, 12).sum(2), rtol=1e-5, atol=1e-5)


def test_scan_is_the_recurrence(pair):
    decay = sigmoid(pair[0])
    got = run(lambda k, out, a, b: k.scan(out, a, "multiply", b, "add"), decay, pair[1])
    state, expected = np.zeros(P, np.float32), []
    for step in range(F):
        state = decay[:, step] * state + pair[1][:, step]
        expected.append(state)
    np.testing.assert_allclose(got, np.stack(expected, 1), rtol=1e-5, atol=1e-6)


def test_select_masks_the_upper_triangle(pair):
    got = run(lambda k, out, a: k.select(out, a, base=0, channel=1, step=-1, fill=-9.0), pair[0])
    np.testing.assert_array_equal(got, np.where(np.tri(P, F), pair[0], np.float32(-9)))


def test_broadcast_tile(pair, rng):
    row = rng.standard_normal((P, 12)).astype(np.float32)
    got = run(
        lambda k, out, a, b: k.tensor_tensor(out, a.split(1, 12, 8), "multiply", b.broadcast(8)),
        pair[0], row,
    )  # fmt: skip
    np.testing.assert_allclose(got, pair[0] * np.repeat(row, 8, axis=1), rtol=1e-6)


def test_matmul_accumulates_in_fp32_and_transposes(rng):
    a = rng.standard_normal((P, 256)).astype(ml_dtypes.bfloat16)
    b = rng.standard_normal((256, F)).astype(ml_dtypes.bfloat16)
    kernel = Kernel("product", TRN1)
    ha, hb = kernel.input("a", a.shape, "bfloat16"), kernel.input("b", b.shape, "bfloat16")
    hc = kernel.output("c", (P, F))
    ta, tb = kernel.sbuf((P, 256), "bfloat16"), kernel.sbuf((P, 2, F), "bfloat16")
    kernel.load(ta, ha)
    kernel.load(tb, hb.split(0, 2, 128).permute(1, 0, 2))
    total, turned, column = (
        kernel.psum((P, F)),
        kernel.psum((P, P)),
        kernel.sbuf((P, P), "bfloat16"),
    )
    for i in range(2):
        kernel.transpose(turned, ta[:, i * P : (i + 1) * P])
        kernel.copy(column, turned)
        kernel.matmul(total, column, tb[:, i], accumulate=i > 0)
    out = kernel.sbuf((P, F))
    kernel.copy(out, total, engine="scalar")
    kernel.store(hc, out)
    got = execute(kernel.finish(), {"a": a, "b": b})["c"]
    np.testing.assert_allclose(
        got, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-4, atol=1e-4
    )


def test_two_fp8_values_in_each_row_are_summed(rng):
    core = Core.of(load_target("trn2"))
    kernel = Kernel("double", core)
    kind = ml_dtypes.float8_e5m2
    a, b = (rng.standard_normal((32, 2, n)).astype(kind) for n in (16, 40))
    tiles = [kernel.sbuf(x.shape, "float8_e5m2") for x in (a, b)]
    for tile, name in zip(tiles, "ab", strict=True):
        kernel.load(tile, kernel.input(name, tile.shape, "float8_e5m2"))
    total, out = kernel.psum((16, 40)), kernel.sbuf((16, 40))
    kernel.matmul_double_row(total, *tiles)
    kernel.copy(out, total)
    kernel.store(kernel.output("c", (16, 40)), out)
    got = execute(kernel.finish(), {"a": a, "b": b})["c"]
    expected = np.einsum("kim,kin->mn", a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3", "float8_e5m2"])
def test_results_are_rounded_to_the_dtype_written(pair, dtype):
    from tilesmith.search_space.expressions.dtypes import to_numpy

    x = pair[0].astype(to_numpy(dtype))
    got = run(lambda k, out, a: k.tensor_scalar(out, a, "multiply", 1.25), x, dtype=dtype)
    np.testing.assert_array_equal(got, (x.astype(np.float32) * 1.25).astype(to_numpy(dtype)))


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_grant_order_computes_what_the_written_order_does(seed):
    """Stores, spills and overwrites in any legal order leave the same outputs."""
    from dataclasses import replace

    stream = random_kernel(TRN1, seed, 40)
    back = np.argsort(stream.rows["position"])
    written = replace(
        stream,
        rows={name: column[back] for name, column in stream.rows.items()},
        immediates=stream.immediates[back],
    )
    x = np.random.default_rng(seed).standard_normal((512, 256)).astype(np.float32)
    one, two = execute(stream, {"x": x})["y"], execute(written, {"x": x})["y"]
    np.testing.assert_array_equal(one, two)


def test_a_missing_or_misshapen_input_is_named():
    stream = random_kernel(TRN1, 0, 1)
    with pytest.raises(InputError, match="needs the input 'x'"):
        execute(stream, {})
    with pytest.raises(InputError, match=r"'x'.*has shape \(2, 2\); \(512, 256\)"):
        execute(stream, {"x": np.zeros((2, 2), np.float32)})
