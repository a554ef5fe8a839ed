"""Small kernels in NKI: `OLD` as for `neuronxcc.nki`, `NEW` as for `nki` 0.3 and later."""

OLD = """
import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from neuronxcc.nki.language import par_dim


@nki.jit
def silu(x):
    parts, rows, columns = x.shape
    y = nl.ndarray((parts, rows, columns), dtype=np.float32, buffer=nl.shared_hbm)
    zero = nl.ndarray((par_dim(128), 1), dtype=np.float32, buffer=nl.sbuf)
    tiles = nl.ndarray((rows, par_dim(128), columns), dtype=np.float32, buffer=nl.sbuf)
    results = nl.ndarray((rows, par_dim(128), columns), dtype=np.float32, name="", buffer=nl.sbuf)
    zero[nl.arange(128)[:, None], 0] = nisa.memset(shape=(128, 1), value=0, dtype=np.float32)
    ip, ic = nl.arange(128)[:, None], nl.arange(columns)[None, :]
    for i in nl.affine_range(rows):
        tiles[i, ip, ic] = nl.load(x[ip, i, ic], dtype=np.float32, mask=None)
        e = nisa.activation(op=nl.exp, data=tiles[i, ip, ic], bias=zero[ip, 0], scale=-1.0)
        s = nisa.tensor_scalar(data=e, op0=nl.add, operand0=np.float32(1), reverse0=True)
        results[i, ip, ic] = nl.multiply(tiles[i, ip, ic], nisa.reciprocal(data=s))
        nl.store(y[ip, i, ic], value=results[i, ip, ic])
    return y


@nki.jit
def product(a, b):
    c = nl.ndarray((128, 64), dtype=a.dtype, buffer=nl.shared_hbm)
    rows = nl.load(a)
    total = nl.zeros((par_dim(128), 64), dtype=np.float32, buffer=nl.psum)
    for k in nl.affine_range(2):
        part = nl.load(b[k * 128 : (k + 1) * 128, :])
        total += nl.matmul(rows[:, k * 128 : (k + 1) * 128], part)
    nl.store(c, value=nl.copy(total, dtype=c.dtype))
    return c


@nki.jit
def masked(x, factor):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    ip, ic = nl.arange(128)[:, None], nl.arange(32)[None, :]
    for i in nl.affine_range(2):
        there = i * 128 + ip < 200
        tile = nl.load(x[i * 128 + ip, ic], mask=there)
        nl.store(y[i * 128 + ip, ic], value=nl.multiply(tile, factor, mask=there), mask=there)
    return y


@nki.jit
def pool(x, size):
    c, h, w = x.shape
    y = nl.ndarray((c, h // size, w // size), dtype=x.dtype, buffer=nl.shared_hbm)
    i0, i1, i2, i3, i4 = nl.mgrid[0:c, 0 : h // size, 0:size, 0 : w // size, 0:size]
    tile = nl.load(x)
    nl.store(y, value=nl.sum(tile[i0, size * i1 + i2, size * i3 + i4], axis=[2, 4]) / size**2)
    return y


@nki.jit
def instances(x):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = nl.program_id(0) * 32 + nl.arange(32)[:, None]
    columns = nl.program_id(1) * 16 + nl.arange(16)[None, :]
    nl.store(y[rows, columns], value=nl.load(x[rows, columns]) + 1)
    return y


@nki.jit
def twice(x):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(y, value=nl.add(nl.load(x), nl.load(x)))
    return y


def caller(x):
    return instances[2, 3](x)


@nki.jit
def turned(x):
    y = nl.ndarray((4, 64, 32), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(4):
        rows = nl.ndarray((par_dim(32), 64), dtype=x.dtype, buffer=nl.sbuf)
        rows[...] = nl.load(x)
        columns = nl.copy(nisa.nc_transpose(rows))
        changed = nl.ndarray((par_dim(64), 32), dtype=x.dtype, buffer=nl.sbuf)
        changed[...] = nl.multiply(columns, 2.0)
        changed[...] = nl.add(changed, float(i))
        nl.store(y[i], value=changed)
    return y


@nki.jit
def softmax(x):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    powers = nl.exp(tile - nl.max(tile, axis=1))
    nl.store(y, value=powers / nl.sum(powers, axis=[1]))
    return y


@nki.jit
def spread(x, row):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    one = nl.load(row)
    nl.store(y, value=nl.load(x) * one.broadcast_to((64, 700)))
    return y


@nki.jit
def largest(x):
    y = nl.ndarray((16, 1), dtype=x.dtype, buffer=nl.shared_hbm)
    best = nl.ndarray((par_dim(16), 1), dtype=x.dtype, buffer=nl.sbuf)
    each = nl.ndarray((4, par_dim(16), 1), dtype=x.dtype, buffer=nl.sbuf)
    ip = nl.arange(16)[:, None]
    for i in nl.affine_range(4):
        tile = nl.load(x[0:16, i, 0:20])
        each[i, ip, 0] = nisa.tensor_reduce(nl.max, data=tile, axis=[1])
        best[ip, 0] = nl.loop_reduce(each[i, ip, 0], op=np.max, loop_indices=[i])
    nl.store(y, value=best)
    return y


@nki.jit
def held(x):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    twice = []
    for i in range(24):
        tile = nl.load(x[i])
        twice.append(nl.add(tile, tile))
    for i in range(24):
        nl.store(y[23 - i], value=twice[i])
    return y


@nki.jit
def unknown(x):
    return nl.expo(x)  # unknown


@nki.jit
def wrong(x):
    return nl.exp(nl.load(x), speed=3)  # wrong


@nki.jit
def partitions(x):
    return nl.load(x)  # partitions


@nki.jit
def columns(x):
    tile = nl.load(x)
    return nisa.nc_matmul(tile, tile)  # columns


@nki.jit
def unwritten(x):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nl.store(y, value=tile)  # unwritten
    return y


@nki.jit
def banks(x):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    sums = [nl.zeros((par_dim(128), 128), dtype=np.float32, buffer=nl.psum) for _ in range(40)]
    for _ in range(2):
        for i, one in enumerate(sums):
            one += nl.matmul(tile, tile * i, transpose_x=True)  # banks
    for one in sums:
        nl.store(y, value=nl.copy(one))
    return y


@nki.jit
def waiting(x):
    y = nl.ndarray((12, 128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    sums = nl.zeros((12, par_dim(128), 512), dtype=np.float32, buffer=nl.psum)
    for i in nl.affine_range(12):
        sums[i, :, 0:128] = nl.matmul(tile, tile * float(i), transpose_x=True)
    for i in nl.affine_range(12):
        nl.store(y[i], value=nl.copy(sums[i, :, 0:128]))
    return y


@nki.jit
def outside(x):
    return nl.load(x[nl.arange(128)[:, None], nl.arange(8)[None, :]])  # outside


@nki.jit
def from_hbm(x):
    return nl.exp(x)  # from_hbm


@nki.jit
def fails(x):
    return x.shape[0] / 0  # fails
"""

NEW = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def product(lhs, rhs):
    K, M = lhs.shape
    _, N = rhs.shape
    out = nl.ndarray((M, N), dtype=lhs.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((M, N), dtype=nl.float32, buffer=nl.psum)
    for k in nl.affine_range(K // nl.tile_size.pmax):
        left = nl.ndarray((128, M), dtype=lhs.dtype, buffer=nl.sbuf)
        right = nl.ndarray((128, N), dtype=rhs.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=lhs[nl.ds(k * 128, 128), 0:M])
        nisa.dma_copy(dst=right, src=rhs[k * 128 : (k + 1) * 128, 0:N])
        nisa.nc_matmul(dst=total, stationary=left, moving=right)
    result = nl.ndarray((M, N), dtype=lhs.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(result, total)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def causal(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    places = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.iota(dst=places, pattern=[[1, 32]], offset=0, channel_multiplier=0)
    nisa.affine_select(
        dst=tile, pattern=[[-1, 32]], offset=0, channel_multiplier=1, on_true_tile=tile,
        on_false_value=-1.0, cmp_op=nl.greater_equal,
    )
    nisa.tensor_tensor(dst=tile, data1=tile, data2=places, op=nl.add)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def ranges(x, low, high):
    import torch  # of a driver; nothing of it is called

    out = nl.ndarray((4, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
    tile, first, last = (nl.ndarray(t.shape, dtype=t.dtype, buffer=nl.sbuf) for t in (x, low, high))
    result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    one = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    for to, source in ((tile, x), (first, low), (last, high)):
        nisa.dma_copy(dst=to, src=source)
    nisa.range_select(
        dst=result, on_true_tile=tile, comp_op0=nl.greater_equal, comp_op1=nl.less, bound0=first,
        bound1=last, on_false_value=-1.0,
    )
    nisa.dma_copy(dst=out[0], src=result)
    nisa.exponential(dst=result, src=tile, max_value=first)
    nisa.dma_copy(dst=out[1], src=result)
    nisa.tensor_partition_reduce(dst=one, op=nl.add, data=tile)
    nisa.dma_copy(dst=out[2, 0:1], src=one)
    nisa.dma_copy(dst=out[2, 1:32], src=tile[1:32])
    nisa.dma_copy(dst=out[3], src=nl.silu_dx(tile))
    assert nisa.get_nc_version() == nisa.nc_version.gen2 and nl.is_sbuf(tile)
    return out
"""
