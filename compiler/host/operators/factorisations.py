"""Factorisations of matrices on the host, in numpy, as LAPACK's routines give them.

    Cholesky(x; lower)                    factor, and 0 or the order that is not positive definite
    LU(x)                                 both factors in one, rows swapped (from 1 on), 0 or where
                                          the pivot is 0
    TriangularSolve(a, b; left, lower, transpose, unit)    x of op(a) x = b or x op(a) = b
    Reflections(x), FromReflections(x, factors)            the two halves of QR
    Eigenvectors(x; lower, vectors), SingularVectors(x; vectors, full)

ONNX has none of them; JAX writes them as calls of LAPACK. Invariant: all take stacks of matrices
along the last two axes, and give the dtype they are given.
"""

from typing import Literal

import numpy as np

from tilesmith.compiler.host.operators.call import Array, OperatorCall, Results, host_operator


def _square(call: OperatorCall) -> tuple[Array, Array]:
    """The input as a list of matrices, and a 0 for each, as wide as LAPACK states."""
    x = call.inputs[0]
    return x.reshape(-1, *x.shape[-2:]), np.zeros(x.shape[:-2], np.int32)


@host_operator("Cholesky")
def cholesky(call: OperatorCall) -> Results:
    x = call.inputs[0]
    matrices, info = _square(call)
    lower = bool(call.attributes["lower"])
    factors = np.full_like(matrices, np.nan)
    faults = info.reshape(-1)
    for number, matrix in enumerate(matrices):
        try:
            factor = np.linalg.cholesky(matrix if lower else matrix.T)
        except np.linalg.LinAlgError:
            faults[number] = _first_indefinite(matrix if lower else matrix.T)
            continue
        factors[number] = factor if lower else factor.T
    return factors.reshape(x.shape), info


def _first_indefinite(matrix: Array) -> int:
    """The order of the first leading part that is not positive definite."""
    for order in range(1, len(matrix)):
        try:
            np.linalg.cholesky(matrix[:order, :order])
        except np.linalg.LinAlgError:
            return order
    return len(matrix)


@host_operator("LU")
def lu(call: OperatorCall) -> Results:
    x = call.inputs[0]
    matrices, info = _square(call)
    faults = info.reshape(-1)
    rows, columns = x.shape[-2:]
    many = min(rows, columns)
    factors = matrices.copy()
    pivots = np.zeros((len(matrices), many), np.int32)
    for number, matrix in enumerate(factors):
        for step in range(many):
            best = step + int(np.argmax(np.abs(matrix[step:, step])))
            pivots[number, step] = best + 1
            if matrix[best, step] == 0:
                faults[number] = faults[number] or step + 1
                continue
            if best != step:
                matrix[[step, best]] = matrix[[best, step]]
            matrix[step + 1 :, step] /= matrix[step, step]
            below, right = matrix[step + 1 :, step], matrix[step, step + 1 :]
            matrix[step + 1 :, step + 1 :] -= np.outer(below, right)
    return factors.reshape(x.shape), pivots.reshape(*x.shape[:-2], many), info


@host_operator("TriangularSolve")
def triangular_solve(call: OperatorCall) -> Results:
    a, b = call.inputs
    lower, transpose = bool(call.attributes["lower"]), bool(call.attributes["transpose"])
    left = bool(call.attributes["left"])
    if transpose == left:  # x op(a) = b is op(a)' x' = b'
        a, lower = a.swapaxes(-1, -2), not lower
    x = (b if left else b.swapaxes(-1, -2)).copy()
    order = range(a.shape[-1]) if lower else range(a.shape[-1] - 1, -1, -1)
    for row in order:
        known = slice(0, row) if lower else slice(row + 1, None)
        products = a[..., row : row + 1, known] @ x[..., known, :]
        x[..., row, :] -= products[..., 0, :]
        if not call.attributes["unit"]:
            x[..., row, :] /= a[..., row, row, None]
    return (x if left else x.swapaxes(-1, -2),)


@host_operator("Reflections")
def reflections(call: OperatorCall) -> Results:
    (x,) = call.inputs
    reflectors, factors = np.linalg.qr(x, mode="raw")
    return np.asarray(reflectors).swapaxes(-1, -2).astype(x.dtype), np.asarray(factors).astype(
        x.dtype
    )


@host_operator("FromReflections")
def from_reflections(call: OperatorCall) -> Results:
    x, factors = call.inputs
    q = np.zeros_like(x)
    diagonal = np.arange(min(x.shape[-2:]))
    q[..., diagonal, diagonal] = 1
    for column in range(factors.shape[-1] - 1, -1, -1):
        vector = x[..., column:, column].copy()
        vector[..., 0] = 1
        part = q[..., column:, :]
        along = (vector[..., None, :] @ part) * factors[..., column, None, None]
        part -= vector[..., :, None] * along
    return (q,)


@host_operator("Eigenvectors")
def eigenvectors(call: OperatorCall) -> Results:
    x = call.inputs[0]
    _, info = _square(call)
    half: Literal["L", "U"] = "L" if call.attributes["lower"] else "U"
    if not call.attributes["vectors"]:
        return x, np.linalg.eigvalsh(x, half).astype(x.dtype), info
    values, vectors = np.linalg.eigh(x, half)
    return vectors.astype(x.dtype), values.astype(x.dtype), info


@host_operator("SingularVectors")
def singular_vectors(call: OperatorCall) -> Results:
    x = call.inputs[0]
    _, info = _square(call)
    full = bool(call.attributes["full"])
    if not call.attributes["vectors"]:
        sides = [(*x.shape[:-2], n, n) for n in x.shape[-2:]]
        empty = [np.zeros(side, x.dtype) for side in sides]
        values = np.linalg.svd(x, compute_uv=False)
        return x, values.astype(x.dtype), empty[0], empty[1], info
    first, values, second = np.linalg.svd(x, full_matrices=full)
    return x, values.astype(x.dtype), first.astype(x.dtype), second.astype(x.dtype), info
