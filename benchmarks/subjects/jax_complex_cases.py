"""What `benchmarks/jax_functions.py` calls of complex numbers and of Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.subjects.jax_cases import A, Case, K, V, words

RNG = np.random.default_rng(1)


def _drawn(*shape: int) -> Any:
    pair = RNG.standard_normal((2, *shape))
    return (pair[0] + 1j * pair[1]).astype(np.complex64)


Z, W, S, LINES = _drawn(3, 4), _drawn(3, 4), _drawn(6), _drawn(80, 4)

ONE = words(
    """
    real imag conj abs angle exp exp2 log log2 log10 log1p expm1 sqrt square reciprocal negative
    positive sign sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh arccosh arctanh sinc sum
    mean prod var std cumsum cumprod sort argsort transpose ravel flip diff trace isfinite isnan
    isinf iscomplex isreal nan_to_num ones_like round rot90 sort_complex any all count_nonzero
    """
)
TWO = words(
    """
    add subtract multiply divide power float_power equal not_equal inner outer kron vdot allclose
    isclose append
    """
)
TRANSFORMS = words("fft ifft rfft irfft hfft ihfft fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn")


def complex_listed() -> Iterator[Case]:
    """Functions of one or two arrays, by name."""
    for name in ONE:
        yield f"complex jnp.{name}", getattr(jnp, name), (Z,)
    for name in TWO:
        yield f"complex jnp.{name}", getattr(jnp, name), (Z, W)
    for name in TRANSFORMS:
        real = ("rfft" in name and not name.startswith("i")) or name == "ihfft"
        yield f"jnp.fft.{name}", getattr(jnp.fft, name), (A if real else Z,)


COMPLEX: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "jnp.fft.fft of reals": (jnp.fft.fft, (V,)),
    "jnp.fft.fft along rows": (lambda z: jnp.fft.fft(z, axis=0), (Z,)),
    "jnp.fft.fft of 101": (jnp.fft.fft, (_drawn(2, 101),)),
    "jnp.fft.fft of 4096": (jnp.fft.fft, (_drawn(2, 4096),)),
    "jnp.fft.fft padded": (lambda z: jnp.fft.fft(z, 7), (Z,)),
    "jnp.fft.irfft odd": (lambda z: jnp.fft.irfft(z, 7), (Z,)),
    "jnp.fft.fftn of three axes": (jnp.fft.fftn, (_drawn(3, 5, 7),)),
    "jnp.fft.fftshift": (lambda v: jnp.fft.fftshift(jnp.fft.fft(v)), (V,)),
    "jnp.fft.fft, gradient": (jax.grad(lambda v: jnp.abs(jnp.fft.fft(v)).sum()), (V,)),
    "signal.fftconvolve": (jax.scipy.signal.fftconvolve, (V, A[0])),
    "signal.stft": (lambda z: jax.scipy.signal.stft(z, nperseg=16)[2], (LINES[:, 0].real,)),
    "complex constants": (lambda z: z * S[:4] + (1 + 2j), (Z,)),
    "complex matmul": (lambda z, w: z @ w.T, (Z, W)),
    "complex matmul by reals": (lambda z, a: z @ a.T, (Z, A)),
    "complex einsum": (lambda z, w: jnp.einsum("ij,ij->j", z, w.conj()), (Z, W)),
    "complex astype": (lambda a: a.astype(jnp.complex64) * 1j, (A,)),
    "complex where": (lambda z, w: jnp.where(z.real > 0, z, w), (Z, W)),
    "complex concatenate": (lambda z, w: jnp.concatenate([z, w])[1:, ::-1].reshape(2, -1), (Z, W)),
    "complex pad": (lambda z: jnp.pad(z, 1), (Z,)),
    "complex take": (lambda z, k: z[:, k], (Z, K)),
    "complex at.set": (lambda s, k: s.at[k].set(1j), (S, K)),
    "complex at.add": (lambda s, k: s.at[k].add(1j), (S, K)),
    "complex at.mul": (lambda s, k: s.at[k].mul(1j), (S, K)),
    "complex dynamic_update_slice": (
        lambda s, k: lax.dynamic_update_slice(s, lax.dynamic_slice(s, k[:1], (2,)), k[2:3]),
        (S, K),
    ),
    "complex fori_loop": (
        lambda z: lax.fori_loop(0, 100, lambda i, x: x * (0.9 + 0.1j) + i, z),
        (Z,),
    ),
    "complex while_loop": (
        lambda z: lax.while_loop(lambda x: jnp.abs(x).sum() < 100, lambda x: x * 1.1j, z),
        (Z,),
    ),
    "complex scan": (
        lambda x: lax.scan(lambda s, z: (s * 0.5 + z, s.real), jnp.zeros(4, jnp.complex64), x),
        (LINES,),
    ),
    "complex cond": (
        lambda z: lax.cond(z.real.sum() > 0, lambda x: x * 1j, lambda x: x, z),
        (Z,),
    ),
    "complex switch": (
        lambda k, z: lax.switch(k, [lambda x: x * 1j, lambda x: x, lambda x: -x], z),
        (np.int32(1), Z),
    ),
    "complex norm": (jnp.linalg.norm, (Z,)),
    "complex vmap": (jax.vmap(lambda z: jnp.fft.ifft(z * z)), (Z,)),
    "complex gradient": (jax.grad(lambda z: (z**3).sum(), holomorphic=True), (S,)),
    "complex trees": (lambda d: {"a": d["x"] * 1j, "b": d["x"].real}, ({"x": Z},)),
    "random.normal complex": (
        lambda k: jax.random.normal(k, (4,), jnp.complex64),
        (jax.random.key(0),),
    ),
}
"""Those that need more arguments than arrays."""
