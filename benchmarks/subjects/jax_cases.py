"""What `benchmarks/jax_functions.py` calls: functions of JAX by name, and small arrays for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

words = str.split
Case = tuple[str, Callable[..., Any], tuple[Any, ...]]

RNG = np.random.default_rng(0)
A = RNG.standard_normal((3, 4)).astype(np.float32)
B = RNG.standard_normal((3, 4)).astype(np.float32)
P = RNG.uniform(0.1, 0.9, (3, 4)).astype(np.float32)
V = RNG.standard_normal(6).astype(np.float32)
M = RNG.standard_normal((4, 4)).astype(np.float32)
T = RNG.standard_normal((2, 3, 4)).astype(np.float32)
WHOLE = RNG.integers(-3, 9, (3, 4)).astype(np.int32)
J = RNG.integers(1, 5, (3, 4)).astype(np.int32)
U = RNG.integers(0, 200, (3, 4)).astype(np.uint8)
K = np.array([2, 0, 1, 2], np.int32)
F = A > 0
LONG = RNG.standard_normal((100, 4)).astype(np.float32)
IMAGE = RNG.standard_normal((1, 8, 8, 3)).astype(np.float32)
KERNEL = RNG.standard_normal((3, 3, 3, 5)).astype(np.float32)

ONE_REAL = words(
    """
    abs absolute ceil floor rint round trunc fix sign signbit negative positive square sqrt
    exp exp2 expm1 sin cos tan sinh cosh tanh arctan arcsinh sinc deg2rad rad2deg degrees
    radians cbrt reciprocal isnan isinf isfinite isposinf isneginf nan_to_num sum prod mean
    std var max min amax amin argmax argmin any all cumsum cumprod ptp median sort argsort
    ravel flip fliplr flipud diff ediff1d gradient nansum nanmean nanmax nanmin nanstd
    nanvar nanprod nanargmax nanargmin nancumsum nancumprod nanmedian average ndim size
    shape copy zeros_like ones_like real conj tril triu diagonal trace count_nonzero i0
    log1p angle imag frexp modf spacing rot90 atleast_2d atleast_3d squeeze transpose
    matrix_transpose unwrap cov corrcoef logical_not iscomplex isreal
    """
)
ONE_POSITIVE = words(
    """
    log log2 log10 arcsin arccos arctanh log1p sqrt
    """
)
TWO_REAL = words(
    """
    add subtract multiply divide true_divide floor_divide mod remainder fmod power
    float_power maximum minimum fmax fmin arctan2 hypot logaddexp logaddexp2 copysign
    nextafter heaviside equal not_equal less less_equal greater greater_equal logical_and
    logical_or logical_xor allclose isclose array_equal append divmod vdot inner outer kron
    """
)
TWO_WHOLE = words(
    """
    add subtract multiply floor_divide remainder mod fmod power maximum minimum bitwise_and
    bitwise_or bitwise_xor left_shift right_shift gcd lcm equal less divide
    """
)
ONE_WHOLE = words(
    """
    abs sign negative bitwise_not invert sum prod max min argmax cumsum sort bitwise_count
    """
)
NN = words(
    """
    relu relu6 sigmoid softplus sparse_plus sparse_sigmoid soft_sign silu swish log_sigmoid
    leaky_relu hard_sigmoid hard_silu hard_swish hard_tanh elu celu selu gelu glu squareplus
    mish softmax log_softmax logsumexp standardize identity
    """
)
SPECIAL = words(
    """
    erf erfc erfinv expit gammaln digamma xlogy entr logit ndtr ndtri log_ndtr i0e i1e i0 i1
    gamma betaln rel_entr kl_div xlog1py softmax log_softmax
    """
)


def listed() -> Iterator[Case]:
    """Functions of one or two arrays, by name."""
    for prefix, module, names, arguments in (
        ("jnp", jnp, ONE_REAL, (A,)), ("jnp", jnp, ONE_POSITIVE, (P,)),
        ("jnp", jnp, TWO_REAL, (A, B)), ("jnp int32", jnp, TWO_WHOLE, (WHOLE, J)),
        ("jnp int32", jnp, ONE_WHOLE, (WHOLE,)), ("jnp uint8", jnp, ["sum", "max", "sort"], (U,)),
        ("nn", jax.nn, NN, (A,)), ("special", jax.scipy.special, SPECIAL, (P,)),
    ):  # fmt: skip
        for name in names:
            function = getattr(module, name, None)
            if function is None:
                continue
            given = arguments
            if name in ("xlogy", "betaln", "rel_entr", "kl_div", "xlog1py"):
                given = (P, P)
            yield f"{prefix}.{name}", function, given


WRITTEN: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "jnp.where": (jnp.where, (F, A, B)),
    "jnp.clip": (lambda x: jnp.clip(x, -0.5, 0.5), (A,)),
    "jnp.dot": (jnp.dot, (A, M)),
    "jnp.matmul batched": (jnp.matmul, (T, M)),
    "jnp.matvec": (jnp.matvec, (M, A[0])),
    "jnp.vecdot": (jnp.vecdot, (A, B)),
    "jnp.einsum": (lambda a, b: jnp.einsum("ij,kj->ki", a, b), (A, B)),
    "jnp.einsum trace": (lambda a: jnp.einsum("ii->i", a), (M,)),
    "jnp.einsum three": (lambda a, b, c: jnp.einsum("ij,jk,kl->il", a, b, c), (A, M, M)),
    "jnp.tensordot": (lambda a, b: jnp.tensordot(a, b, 1), (T, M)),
    "jnp.concatenate": (lambda a, b: jnp.concatenate([a, b], 1), (A, B)),
    "jnp.stack": (lambda a, b: jnp.stack([a, b], 1), (A, B)),
    "jnp.hstack": (lambda a, b: jnp.hstack([a, b]), (A, B)),
    "jnp.split": (lambda a: jnp.split(a, 2, 1), (A,)),
    "jnp.array_split": (lambda a: jnp.array_split(a, 3, 1), (A,)),
    "jnp.tile": (lambda a: jnp.tile(a, (2, 3)), (A,)),
    "jnp.repeat": (lambda a: jnp.repeat(a, 3, 1), (A,)),
    "jnp.roll": (lambda a: jnp.roll(a, 2, 1), (A,)),
    "jnp.pad constant": (lambda a: jnp.pad(a, 1), (A,)),
    "jnp.pad edge": (lambda a: jnp.pad(a, 2, mode="edge"), (A,)),
    "jnp.pad reflect": (lambda a: jnp.pad(a, 2, mode="reflect"), (A,)),
    "jnp.pad wrap": (lambda a: jnp.pad(a, 1, mode="wrap"), (A,)),
    "jnp.take": (lambda a, k: jnp.take(a, k, axis=1), (A, K)),
    "jnp.take_along_axis": (lambda a, k: jnp.take_along_axis(a, k, 1), (A, J - 1)),
    "jnp.put_along_axis": (
        lambda a, k: jnp.put_along_axis(a, k, 9.0, 1, inplace=False),
        (A, J[:, :1] - 1),
    ),
    "jnp.choose": (lambda k, a: jnp.choose(k, a, mode="clip"), (K, A)),
    "jnp.select": (lambda f, a, b: jnp.select([f, a > b], [a, b], 7.0), (F, A, B)),
    "jnp.piecewise": (lambda a: jnp.piecewise(a, [a < 0, a >= 0], [jnp.exp, jnp.log1p]), (A,)),
    "jnp.searchsorted": (lambda v, a: jnp.searchsorted(jnp.sort(v), a), (V, A)),
    "jnp.digitize": (lambda a, v: jnp.digitize(a, jnp.sort(v)), (A, V)),
    "jnp.interp": (lambda a, v: jnp.interp(a, jnp.sort(v), v), (A, V)),
    "jnp.histogram": (lambda v: jnp.histogram(v, 4), (V,)),
    "jnp.bincount": (lambda k: jnp.bincount(k, length=5), (K,)),
    "jnp.unique": (lambda k: jnp.unique(k, size=4), (K,)),
    "jnp.nonzero": (lambda k: jnp.nonzero(k, size=4), (K,)),
    "jnp.argwhere": (lambda k: jnp.argwhere(k, size=4), (K,)),
    "jnp.isin": (jnp.isin, (K, K[:2])),
    "jnp.union1d": (lambda k: jnp.union1d(k, k, size=4), (K,)),
    "jnp.percentile": (lambda a: jnp.percentile(a, 30.0, axis=1), (A,)),
    "jnp.quantile": (lambda a: jnp.quantile(a, 0.7), (A,)),
    "jnp.partition": (lambda a: jnp.partition(a, 2), (A,)),
    "jnp.argpartition": (lambda a: jnp.argpartition(a, 2), (A,)),
    "jnp.lexsort": (lambda k, v: jnp.lexsort((v, k)), (K, A[0])),
    "jnp.convolve": (jnp.convolve, (V, A[0])),
    "jnp.correlate": (jnp.correlate, (V, A[0])),
    "jnp.polyval": (jnp.polyval, (V, A)),
    "jnp.cross": (jnp.cross, (T[0, :, :3], T[1, :, :3])),
    "jnp.diag": (jnp.diag, (V,)),
    "jnp.diagflat": (jnp.diagflat, (V,)),
    "jnp.fill_diagonal": (lambda m: jnp.fill_diagonal(m, 3.0, inplace=False), (M,)),
    "jnp.tri": (lambda a: a * jnp.tri(3, 4, 1), (A,)),
    "jnp.eye": (lambda m: m + jnp.eye(4), (M,)),
    "jnp.arange": (lambda a: a + jnp.arange(4.0), (A,)),
    "jnp.linspace": (lambda a: a * jnp.linspace(0, 1, 4), (A,)),
    "jnp.meshgrid": (jnp.meshgrid, (V, A[0])),
    "jnp.moveaxis": (lambda t: jnp.moveaxis(t, 0, 2), (T,)),
    "jnp.swapaxes": (lambda t: jnp.swapaxes(t, 0, 2), (T,)),
    "jnp.expand_dims": (lambda a: jnp.expand_dims(a, 1), (A,)),
    "jnp.broadcast_to": (lambda a: jnp.broadcast_to(a, (5, 3, 4)), (A,)),
    "jnp.apply_along_axis": (lambda a: jnp.apply_along_axis(jnp.sum, 1, a), (A,)),
    "jnp.vander": (jnp.vander, (V,)),
    "jnp.trapezoid": (jnp.trapezoid, (A,)),
    "jnp.packbits": (jnp.packbits, (F,)),
    "jnp.unpackbits": (jnp.unpackbits, (U,)),
    "jnp.delete": (lambda v: jnp.delete(v, 2), (V,)),
    "jnp.insert": (lambda v: jnp.insert(v, 2, 9), (V,)),
    "jnp.resize": (lambda a: jnp.resize(a, (4, 5)), (A,)),
    "jnp.trim_zeros": (jnp.trim_zeros, (V,)),
    "jnp.linalg.norm": (jnp.linalg.norm, (A,)),
    "jnp.linalg.det": (jnp.linalg.det, (M,)),
    "jnp.linalg.inv": (jnp.linalg.inv, (M,)),
    "jnp.linalg.matrix_power": (lambda m: jnp.linalg.matrix_power(m, 3), (M,)),
    "jnp.linalg.cholesky": (lambda m: jnp.linalg.cholesky(m @ m.T + 4 * jnp.eye(4)), (M,)),
    "jnp.linalg.slogdet": (jnp.linalg.slogdet, (M,)),
    "jnp.linalg.eigvalsh": (lambda m: jnp.linalg.eigvalsh(m + m.T), (M,)),
    "jnp.linalg.lstsq": (lambda a, b: jnp.linalg.lstsq(a.T, b.T)[0], (A, B)),
    "jnp.linalg.qr": (lambda m: jnp.linalg.qr(m)[1], (M,)),
    "solve_triangular": (jax.scipy.linalg.solve_triangular, (M, M)),
    "cho_solve": (
        lambda m: jax.scipy.linalg.cho_solve(
            jax.scipy.linalg.cho_factor(m @ m.T + 4 * jnp.eye(4)), m
        ),
        (M,),
    ),
    "jnp.linalg.solve": (jnp.linalg.solve, (M, M)),
    "jnp.linalg.svd": (jnp.linalg.svd, (M,)),
    "x.at.set": (lambda a, k: a.at[:, k].set(2.0), (A, K)),
    "x.at.add": (lambda a, k: a.at[k % 3].add(2.0), (A, K)),
    "x.at.multiply": (lambda a: a.at[1].multiply(2.0), (A,)),
    "x.at.min": (lambda a, k: a.at[k % 3].min(0.0), (A, K)),
    "x.at.max": (lambda a, k: a.at[k % 3].max(0.0), (A, K)),
    "x.at.mul": (lambda a, k: a.at[k % 3].mul(2.0), (A, K)),
    "x.at.power": (lambda a: a.at[1].power(2.0), (A,)),
    "x.at.divide": (lambda a, k: a.at[:, k].divide(2.0), (A, K)),
    "x.at.subtract": (lambda a, k: a.at[k % 3].subtract(2.0), (A, K)),
    "x.at.apply": (lambda a: a.at[1].apply(jnp.exp), (A,)),
    "x.at.apply twice": (lambda a, k: a.at[k, 1:3].apply(jnp.tanh), (A, K)),
    "x.at.apply flags": (lambda f, k: f.at[k].apply(jnp.logical_not), (F, K)),
    "x[i, j]": (lambda a, k: a[k % 3, k], (A, K)),
    "x[mask]": (lambda a, f: jnp.where(f, a, 0).sum(), (A, F)),
    "x[None, ..., ::-1]": (lambda a: a[None, ..., ::-1], (A,)),
    "nn.one_hot": (lambda k: jax.nn.one_hot(k, 4), (K,)),
    "nn.gelu exact": (lambda a: jax.nn.gelu(a, approximate=False), (A,)),
    "nn.softmax where": (lambda a, f: jax.nn.softmax(a, where=f), (A, F)),
    "nn.dot_product_attention": (lambda q: jax.nn.dot_product_attention(q, q, q), (T[None],)),
    "nn.dot_product_attention causal": (
        lambda q: jax.nn.dot_product_attention(q, q, q, is_causal=True),
        (T[None],),
    ),
    "nn.initializers": (lambda: jax.nn.initializers.ones(jax.random.key(0), (2, 3)), ()),
    "lax.conv": (
        lambda x, k: lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        (IMAGE, KERNEL),
    ),
    "lax.conv strides, dilation": (
        lambda x, k: lax.conv_general_dilated(
            x, k, (2, 1), "VALID", rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        (IMAGE, KERNEL),
    ),
    "lax.conv_transpose": (lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"), (IMAGE, KERNEL)),
    "lax.conv depthwise": (
        lambda x, k: lax.conv_general_dilated(
            x,
            k[:, :, :1, :3],
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=3,
        ),
        (IMAGE, KERNEL),
    ),
    "lax.conv 1-D": (
        lambda x, k: lax.conv_general_dilated(
            x[:, 0], k[0], (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")
        ),
        (IMAGE, KERNEL),
    ),
    "lax.reduce_window max": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        (IMAGE,),
    ),
    "lax.reduce_window add": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        (IMAGE,),
    ),
    "lax.reduce_window mul": (
        lambda x: lax.reduce_window(x, 1.0, lax.mul, (1, 2, 2, 1), (1, 1, 1, 1), "VALID"),
        (IMAGE,),
    ),
    "lax.reduce general": (
        lambda a: lax.reduce(a, jnp.float32(0), lambda x, y: x + y + x * y, (1,)),
        (P,),
    ),
    "lax.scan": (lambda a: lax.scan(lambda c, x: (c * 0.5 + x, c), jnp.zeros(4), a), (A,)),
    "lax.scan reverse": (
        lambda a: lax.scan(lambda c, x: (c * 0.5 + x, c), jnp.zeros(4), a, reverse=True),
        (A,),
    ),
    "lax.scan long": (
        lambda x: lax.scan(lambda c, r: (jnp.tanh(c + r), c), jnp.zeros(4), x),
        (LONG,),
    ),
    "lax.scan long, reverse": (
        lambda x: lax.scan(lambda c, r: (jnp.tanh(c + r), c), jnp.zeros(4), x, reverse=True),
        (LONG,),
    ),
    "lax.scan long, gradient": (
        jax.grad(lambda x: lax.scan(lambda c, r: (jnp.tanh(c + r), c), jnp.zeros(4), x)[1].sum()),
        (LONG,),
    ),
    "lax.scan length": (
        lambda a: lax.scan(lambda c, _: (c * 0.9, c.sum()), a, length=100),
        (A,),
    ),
    "lax.map long": (lambda x: lax.map(lambda r: r * r.sum(), x), (LONG,)),
    "lax.fori_loop rows": (
        lambda x: lax.fori_loop(0, 100, lambda i, c: c.at[i].set(c[i] * 2 + x[99 - i]), x),
        (LONG,),
    ),
    "lax.fori_loop the row before": (
        lambda x: lax.fori_loop(1, 100, lambda i, c: c.at[i].add(c[i - 1] * 0.5), x),
        (LONG,),
    ),
    "lax.fori_loop": (lambda a: lax.fori_loop(0, 200, lambda i, c: c * 0.99 + i, a), (A,)),
    "lax.while_loop": (lambda a: lax.while_loop(lambda c: c.sum() < 50, lambda c: c + 1, a), (A,)),
    "lax.cond": (lambda a: lax.cond(a.sum() > 0, jnp.exp, jnp.sin, a), (A,)),
    "lax.switch": (lambda k, a: lax.switch(k, [jnp.exp, jnp.sin, jnp.cos], a), (np.int32(1), A)),
    "lax.map": (lambda a: lax.map(lambda x: x * x.sum(), a), (A,)),
    "lax.associative_scan": (lambda a: lax.associative_scan(jnp.add, a), (A,)),
    "lax.top_k": (lambda a: lax.top_k(a, 2), (A,)),
    "lax.approx_max_k": (lambda a: lax.approx_max_k(a, 2), (A,)),
    "lax.sort two keys": (lambda k, v: lax.sort((k, v), num_keys=2), (K, A[0])),
    "lax.sort along": (lambda k, v: lax.sort((k, v, k + 1), num_keys=1), (K, A[0])),
    "jnp.argsort by size": (lambda a: jnp.argsort(jnp.abs(a), 1, descending=True), (A,)),
    "jnp.sort downwards": (lambda k: jnp.sort(k, descending=True), (K,)),
    "lax.cummax": (lambda a: lax.cummax(a, 1), (A,)),
    "lax.cummin": (lambda a: lax.cummin(a, 1), (A,)),
    "lax.cumlogsumexp": (lambda a: lax.cumlogsumexp(a, 1), (A,)),
    "lax.dynamic_slice": (lambda a, k: lax.dynamic_slice(a, (k[0], k[2]), (2, 2)), (A, K)),
    "lax.dynamic_update_slice": (
        lambda a, k: lax.dynamic_update_slice(a, a[:1, :2], (k[0], k[2])),
        (A, K),
    ),
    "lax.gather vmapped": (jax.vmap(lambda a, k: a[k]), (A, J - 1)),
    "lax.scatter vmapped": (jax.vmap(lambda a, k: a.at[k].add(1.0)), (A, J - 1)),
    "lax.erf_inv": (lax.erf_inv, (P,)),
    "lax.rsqrt": (lax.rsqrt, (P,)),
    "lax.integer_pow": (lambda a: lax.integer_pow(a, -3), (A,)),
    "lax.clamp": (lambda a: lax.clamp(-0.1, a, 0.2), (A,)),
    "lax.population_count": (lax.population_count, (WHOLE,)),
    "lax.clz": (lax.clz, (J,)),
    "lax.bitcast_convert_type": (lambda a: lax.bitcast_convert_type(a, jnp.int32), (A,)),
    "lax.reduce_precision": (lambda a: lax.reduce_precision(a, 8, 7), (A,)),
    "lax.pad interior": (lambda a: lax.pad(a, 0.0, ((1, -1, 2), (0, 1, 0))), (A,)),
    "lax.dot_general": (lambda t: lax.dot_general(t, t, (((2,), (2,)), ((0,), (0,)))), (T,)),
    "lax.batch_matmul": (lax.batch_matmul, (T, T.transpose(0, 2, 1))),
    "lax.select_n": (lambda f, a, b: lax.select_n(f, a, b), (F, A, B)),
    "lax.nextafter": (lax.nextafter, (A, B)),
    "lax.igamma": (lax.igamma, (P, P)),
    "grad of max pool": (
        jax.grad(
            lambda x: (
                lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2
            ).sum()
        ),
        (IMAGE,),
    ),
    "grad of overlapping max pool": (
        jax.grad(
            lambda x: (
                lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") ** 2
            ).sum()
        ),
        (IMAGE,),
    ),
    "grad of network": (jax.grad(lambda m, a: jnp.tanh(a @ m).sum()), (M, A)),
    "jacfwd": (jax.jacfwd(lambda v: jnp.sin(v) * v.sum()), (V,)),
    "random.uniform": (lambda k: jax.random.uniform(k, (5,)), (jax.random.key(1),)),
    "random.normal": (lambda k: jax.random.normal(k, (5,)), (jax.random.key(1),)),
    "random.categorical": (lambda k, a: jax.random.categorical(k, a), (jax.random.key(1), A)),
    "random.permutation": (lambda k: jax.random.permutation(k, 6), (jax.random.key(1),)),
    "image.resize": (lambda x: jax.image.resize(x, (1, 12, 5, 3), "bilinear"), (IMAGE,)),
    "image.resize nearest": (lambda x: jax.image.resize(x, (1, 12, 5, 3), "nearest"), (IMAGE,)),
    "ops.segment_sum": (lambda a, k: jax.ops.segment_sum(a, k[:3], 3), (A, K)),
    "bfloat16 product": (lambda a, m: a.astype(jnp.bfloat16) @ m.astype(jnp.bfloat16), (A, M)),
    "float16 softmax": (lambda a: jax.nn.softmax(a.astype(jnp.float16)), (A,)),
    "int8 product": (
        lambda u: jnp.dot(
            u.astype(jnp.int8), u.T.astype(jnp.int8), preferred_element_type=jnp.int32
        ),
        (U,),
    ),
    "checkpoint": (jax.checkpoint(lambda a: jnp.sin(jnp.sin(a))), (A,)),
    "vmap of vmap": (jax.vmap(jax.vmap(lambda a, b: jnp.where(a > b, a, b))), (A, B)),
}
"""Those that need more arguments than arrays."""
