"""Linear algebra that JAX writes as calls of LAPACK or as StableHLO's operations, against JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.capabilities.stablehlo.stablehlo_modules import compare, compiled, run

jax = pytest.importorskip("jax", reason="JAX is not installed")
pytestmark = pytest.mark.extra
jnp = jax.numpy
linalg, solve_triangular = jnp.linalg, jax.scipy.linalg.solve_triangular

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 5, 5)).astype(np.float32)
TALL = RNG.standard_normal((2, 6, 4)).astype(np.float32)
DEFINITE = X @ X.swapaxes(1, 2) + 3 * np.eye(5, dtype=np.float32)
INDEFINITE = np.stack([DEFINITE[0], -DEFINITE[1]])


def rebuilt(x: Any) -> Any:
    """By the factors, whose signs are a matter of taste."""
    q, r = linalg.qr(x)
    u, s, v = linalg.svd(x, full_matrices=False)
    return q @ r, jnp.abs(r), (u * s[..., None, :]) @ v, s


def spectrum(x: Any) -> Any:
    values, vectors = linalg.eigh(x)
    return values, (vectors * values[..., None, :]) @ vectors.swapaxes(-1, -2)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "cholesky": (linalg.cholesky, (DEFINITE,)),
    "cholesky upper": (lambda x: linalg.cholesky(x, upper=True), (DEFINITE,)),
    "cholesky of none": (linalg.cholesky, (INDEFINITE,)),
    "gradient of cholesky": (jax.grad(lambda x: linalg.cholesky(x).sum()), (DEFINITE,)),
    "solve": (linalg.solve, (X, X[:, :, :2])),
    "solve a vector": (linalg.solve, (X[0], X[1, 0])),
    "gradient of solve": (jax.grad(lambda a, b: linalg.solve(a, b).sum()), (X[0], X[1])),
    "inverse": (linalg.inv, (X,)),
    "determinant": (linalg.det, (X,)),
    "logarithm of it": (linalg.slogdet, (X,)),
    "factors of a singular one": (lambda x: jax.lax.linalg.lu(x)[:2], (np.ones_like(X),)),
    "factors": (jax.lax.linalg.lu, (TALL,)),
    "factors of a wide one": (jax.lax.linalg.lu, (TALL.swapaxes(1, 2),)),
    "least squares": (lambda a, b: linalg.lstsq(a, b)[0], (TALL[0], TALL[1])),
    "QR and singular values": (rebuilt, (TALL,)),
    "all vectors": (lambda x: jnp.abs(linalg.qr(x, mode="complete")[0])[..., :4], (TALL,)),
    "singular values": (lambda x: linalg.svd(x, compute_uv=False), (TALL,)),
    "eigenvalues": (spectrum, (DEFINITE,)),
    "eigenvalues alone": (linalg.eigvalsh, (DEFINITE,)),
}


@pytest.mark.parametrize("name", CASES)
def test_linear_algebra(name: str) -> None:
    function, arguments = CASES[name]
    executable = compiled(jax.jit(function).lower(*arguments).as_text())
    wanted = [np.asarray(array) for array in jax.tree.leaves(jax.jit(function)(*arguments))]
    compare(run(executable, list(arguments)), wanted, 2e-4)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_triangular_systems(
    lower: bool, left: bool, transpose: bool, unit: bool, platform: str
) -> None:
    """As a call of LAPACK on CPUs, and as StableHLO's operation, which the same host computes."""
    from jax import export

    def function(a: Any, b: Any) -> Any:
        return jax.lax.linalg.triangular_solve(
            a, b, left_side=left, lower=lower, transpose_a=transpose, unit_diagonal=unit
        )

    a, b = DEFINITE, X[:, :, :3] if left else X[:, :3]
    module = export.export(jax.jit(function), platforms=[platform])(a, b).mlir_module()
    compare(run(compiled(module), [a, b]), [np.asarray(jax.jit(function)(a, b))], 2e-4)


def test_the_operation_of_cholesky() -> None:
    from jax import export

    module = export.export(jax.jit(linalg.cholesky), platforms=["tpu"])(DEFINITE).mlir_module()
    compare(run(compiled(module), [DEFINITE]), [np.linalg.cholesky(DEFINITE)])
