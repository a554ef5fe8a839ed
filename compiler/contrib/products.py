"""Products of com.microsoft: of transposed operands, with what follows them, by packed weights.

    FusedMatMul(a, b)    alpha a b; transA, transB swap the last two axes; transBatchA, transBatchB
                         move the first axis behind the batch, before that
    TransposeMatMul(a, b)    the same without transBatch*
    FusedMatMulActivation(a, b)    FusedMatMul, then `activation`
    FusedGemm(a, b, c?)  Gemm, then `activation` with activation_alpha, activation_beta
    GemmFastGelu(x, w, bias?)    the tanh form of GELU of x w + bias
    BiasAdd(x, bias, skip)   x + bias + skip
    MatMulNBits(a, b, scales, zero_points?, g_idx?, bias?)
        a w, w = (q - z) s of N columns and K rows; b holds q as [N, blocks, bytes], `bits` (2, 4 or
        8) a number, the lowest first; scales one for each block of `block_size` rows, [N, blocks];
        zero points likewise, packed as b is or numbers of the scales' type, 2^(bits - 1) if left
        out; g_idx, one for each row, says which block's scale it has.
    GatherBlockQuantized(data, indices, scales, zero_points?)
        rows of such a table, `quantize_axis` being its last axis

Packed weights of MatMulNBits of 4 or 8 bits stay packed, and activations are multiplied as int8
where accuracy_level is 4, else as float32 (`search_space/operators/block_quantised_matmul.py`);
others, and those whose rows `g_idx` orders anew, are unpacked when a model is read. Source: ONNX
Runtime, docs/ContribOperators.md.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.numerics.block_quantised import OPERATOR, kept_scales
from tilesmith.compiler.rewriting.expansion import Expansion, operator
from tilesmith.search_space.workloads.workload import shape_text


def activated(e: Expansion, x: str, name: str, numbers: tuple[float, ...]) -> str:
    """An activation of ONNX's by name, its numbers in the order of its attributes.

    Raises:
        ModelError: none that optimisers fuse.
    """
    match name:
        case "":
            return x
        case "Relu" | "Sigmoid" | "Tanh" | "Softplus" | "Softsign":
            return e.apply(name, x)
        case "HardSwish":
            return e.newest("hard_swish", x)
        case "LeakyRelu" | "Elu" | "ThresholdedRelu":
            return e.apply(name, x, **dict(zip(("alpha",), numbers, strict=False)))
        case "HardSigmoid":
            return e.apply(name, x, **dict(zip(("alpha", "beta"), numbers, strict=False)))
        case "Clip" if len(numbers) == 2:
            low, high = (e.number(value, x) for value in numbers)
            return e.since(11, "Clip", x, low, high)
    raise e.wrong(f"attribute 'activation' is '{name}', which is none that is understood")


_PRODUCT: dict[str, Any] = {"alpha": 1.0, "transA": 0, "transB": 0}
_BATCHED = {**_PRODUCT, "transBatchA": 0, "transBatchB": 0}
_NUMBERS: dict[str, Any] = {
    "activation_alpha": 0.01,
    "activation_beta": 0.0,
    "activation_gamma": 0.0,
}


@operator("com.microsoft.FusedMatMul", 2, 2, **_BATCHED)
def fused_matmul(e: Expansion) -> str:
    return _product(e)


def _product(e: Expansion) -> str:
    a = _turned(e, e.input(0), e.attribute("transBatchA"), e.attribute("transA"))
    b = _turned(e, e.input(1), e.attribute("transBatchB"), e.attribute("transB"))
    return _scaled(e, e.apply("MatMul", a, b))


@operator("com.microsoft.TransposeMatMul", 2, 2, **_PRODUCT)
def transpose_matmul(e: Expansion) -> str:
    a, b = _turned(e, e.input(0), 0, e.attribute("transA")), e.input(1)
    return _scaled(e, e.apply("MatMul", a, _turned(e, b, 0, e.attribute("transB"))))


@operator(
    "com.microsoft.FusedMatMulActivation", 2, 2, activation=str, activation_axis=0, **_BATCHED,
    **_NUMBERS,
)  # fmt: skip
def fused_matmul_activation(e: Expansion) -> str:
    return activated(e, _product(e), e.attribute("activation"), _numbers(e))


@operator("com.microsoft.FusedGemm", 2, 3, activation="", beta=1.0, **_PRODUCT, **_NUMBERS)
def fused_gemm(e: Expansion) -> str:
    names = ("alpha", "beta", "transA", "transB")
    y = e.apply("Gemm", *e.node.inputs, **{name: e.attribute(name) for name in names})
    return activated(e, y, e.attribute("activation"), _numbers(e))


def _numbers(e: Expansion) -> tuple[float, ...]:
    return tuple(float(e.attribute(name)) for name in ("activation_alpha", "activation_beta"))


def _turned(e: Expansion, name: str, batch: int, last: int) -> str:
    rank = e.rank(name)
    order = [*range(1, rank - 1), 0, rank - 1] if batch and rank > 2 else list(range(rank))
    if last and rank > 1:
        order[-2:] = order[:-3:-1]
    return name if order == list(range(rank)) else e.transpose(name, *order)


def _scaled(e: Expansion, name: str) -> str:
    alpha = float(e.attribute("alpha"))
    return name if alpha == 1.0 else e.apply("Mul", name, e.number(alpha, name))


@operator("com.microsoft.GemmFastGelu", 2, 3)
def gemm_fast_gelu(e: Expansion) -> str:
    return e.newest("gelu_tanh", e.add(e.apply("MatMul", e.input(0), e.input(1)), e.input(2)))


@operator("com.microsoft.BiasAdd", 3, 3)
def bias_add(e: Expansion) -> str:
    return e.apply("Add", e.apply("Add", e.input(0), e.input(1)), e.input(2))


# -- packed weights -----------------------------------------------------------------------------
@operator(
    "com.microsoft.MatMulNBits", 3, 6, K=int, N=int, accuracy_level=0, bits=4, block_size=int,
    weight_prepacked=0,
)  # fmt: skip
def matmul_nbits(e: Expansion) -> str:
    rows, columns, size = e.count("K"), e.count("N"), e.count("block_size")
    if int(e.attribute("weight_prepacked")):
        raise e.wrong("attribute 'weight_prepacked' is not 0; only weights as ONNX packs them are")
    blocks = -(-rows // size)
    scales = e.constant_input(2).reshape(columns, blocks)
    zeros = _zero_points(e, (columns, blocks))
    group = np.arange(blocks * size) // size
    regular = not e.input(4) or np.array_equal(e.constant_input(4)[:rows], group[:rows])
    given = e.shape(e.input(0))
    if given is not None and given[-1:] != (rows,):
        raise e.wrong(f"attribute 'K' is {rows}, and its input is {shape_text(given)}")
    if regular and given is not None and _by_blocks(e, zeros):
        return e.add(_block_quantised(e, scales, zeros), e.input(5))
    if not regular:
        group[:rows] = e.constant_input(4)[:rows]
    codes = _unpacked(e, e.constant_input(1).reshape(columns, blocks, -1))[..., :size]
    flat = codes.reshape(columns, -1).astype(np.float32)
    wide = (flat - zeros[:, group]) * scales.astype(np.float32)[:, group]
    weight = np.ascontiguousarray(wide[:, :rows].T).astype(scales.dtype)
    return e.add(e.apply("MatMul", e.input(0), e.constant(weight)), e.input(5))


def _by_blocks(e: Expansion, zeros: NDArray[Any]) -> bool:
    """Whether kernels take the weights as they are packed."""
    bits, size = int(e.attribute("bits")), e.count("block_size")
    whole = np.array_equal(zeros, np.clip(np.rint(zeros), 0, 255))
    return bits in (4, 8) and size % 16 == 0 and whole and e.constant_input(1).dtype == np.uint8


def _block_quantised(e: Expansion, scales: NDArray[Any], zeros: NDArray[Any]) -> str:
    """The product with weights that stay packed, activations in float32, or in 8 bits where the
    model allows it (accuracy_level 4)."""
    bits, columns = int(e.attribute("bits")), e.count("N")
    q = e.constant_input(1).reshape(*scales.shape, -1)
    given = [e.constant(q), e.constant(kept_scales(scales))]
    if not np.all(zeros == 1 << bits - 1):
        given.append(e.constant(zeros.astype(np.uint8)))
    stated: dict[str, Any] = {
        "n": columns,
        "k": e.count("K"),
        "bits": bits,
        "block": e.count("block_size"),
    }
    stated["activations"] = "int8" if int(e.attribute("accuracy_level")) == 4 else "float32"
    a = e.cast(e.input(0), "float32")
    return e.cast(e.newest(OPERATOR, a, *given, **stated), e.dtype(e.input(0)))


@operator(
    "com.microsoft.GatherBlockQuantized", 3, 4, bits=4, block_size=128, gather_axis=0,
    quantize_axis=1,
)  # fmt: skip
def gather_block_quantized(e: Expansion) -> str:
    data, scales = e.constant_input(0), e.constant_input(2)
    if int(e.attribute("quantize_axis")) % data.ndim != data.ndim - 1:
        raise e.wrong("attribute 'quantize_axis' has to be the last axis")
    packed = data.dtype == np.uint8
    codes = _unpacked(e, data) if packed else data.astype(np.int32)
    zeros = _zero_points(e, scales.shape) if packed or e.input(3) else np.zeros(1, np.float32)
    size = e.count("block_size")
    rows = int(e.attribute("gather_axis")) == 0 and codes.ndim == 2 and codes.shape[1] % size == 0
    if rows and e.shape(e.input(1)) is not None:
        return _rows_of(e, codes, scales, np.broadcast_to(zeros, scales.shape))
    wide = [
        np.repeat(np.broadcast_to(value, scales.shape), size, axis=-1)[..., : codes.shape[-1]]
        for value in (zeros, scales.astype(np.float32))
    ]
    table = ((codes - wide[0]) * wide[1]).astype(scales.dtype)
    axis = int(e.attribute("gather_axis"))
    return e.apply("Gather", e.constant(table), e.input(1), axis=axis)


def _rows_of(e: Expansion, codes: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any]) -> str:
    """Rows of a table whose codes stay bytes, or halves of bytes; only what is read is unpacked."""
    chosen, size = e.dims(e.input(1)), e.count("block_size")
    low = int(codes.min()) if codes.size else 0
    halves = bool(np.all((codes >= low) & (codes < low + 16)))
    bytes_ = (codes - low).astype(np.uint8)
    kept = bytes_[:, ::2] | bytes_[:, 1::2] << 4 if halves else bytes_
    rows = e.apply("Gather", e.constant(kept), e.input(1), axis=0)
    if halves:
        lower = e.newest("BitwiseAnd", rows, e.constant(np.array(15, np.uint8)))
        shift = e.constant(np.array(4, np.uint8))
        upper = e.newest("BitShift", rows, shift, direction="RIGHT")
        rank = len(chosen) + 1
        rows = e.newest("Concat", *(e.unsqueeze(part, rank) for part in (lower, upper)), axis=rank)
    shape = (*chosen, scales.shape[1], size)
    wide = e.reshape(e.cast(rows, "float32"), *shape)
    shifts = (zeros - low).astype(np.float32)
    for name, table in (("Sub", shifts), ("Mul", scales.astype(np.float32))):
        if name == "Sub" and np.all(shifts == shifts.flat[0]):
            own = e.constant(np.array(shifts.flat[0], np.float32))
        else:
            own = e.apply("Gather", e.constant(table), e.input(1), axis=0)
            own = e.unsqueeze(own, len(shape) - 1)
        wide = e.apply(name, wide, own)
    result = e.reshape(wide, *chosen, codes.shape[1])
    return e.cast(result, "float32" if scales.dtype == np.float32 else e.dtype(e.input(2)))


def _unpacked(e: Expansion, packed: NDArray[Any]) -> NDArray[Any]:
    """Numbers from bytes along the last axis, the lowest bits first."""
    bits = int(e.attribute("bits"))
    if bits not in (2, 4, 8) or packed.dtype != np.uint8:
        raise e.wrong(f"weights are {packed.dtype} of {bits} bits; uint8 of 2, 4 or 8 bits are")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return np.asarray(parts.reshape(*packed.shape[:-1], -1), dtype=np.int32)


def _zero_points(e: Expansion, shape: tuple[int, ...]) -> NDArray[Any]:
    """One for each block."""
    if not e.input(3):
        return np.full(shape, 2 ** (int(e.attribute("bits")) - 1), np.float32)
    given = e.constant_input(3)
    if given.dtype != np.uint8:
        return given.reshape(shape).astype(np.float32)
    codes = _unpacked(e, given.reshape(*shape[:-1], -1))
    return np.asarray(codes[..., : shape[-1]].astype(np.float32))
