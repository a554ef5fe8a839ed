"""Kernels of aws-neuron/nki-samples, unedited: which run, which are right.

    python benchmarks/accelerator/nki_samples.py CHECKOUT [CHECKOUT ...] [--only attn]

Each is traced, run on seeded inputs and compared with numpy; a table row each. Its reference
kernels left the repository (a checkout of commit 8370e11 has them), so several checkouts may be
named: a kernel is looked for in each. Simulated times are on trn1 at these small sizes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.families.trainium.nki.kernels import NkiKernel, trace
from tilesmith.search_space.support.errors import TilesmithError

Array = Any


@dataclass(frozen=True)
class Case:
    """A kernel, its arguments, and what its first result is."""

    file: str
    function: str
    arguments: dict[str, Any]
    wanted: Callable[..., Array]
    grid: tuple[int, ...] = ()
    target: str = "trn1"


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def attention(q: Array, k: Array, v: Array) -> Array:
    return softmax(q.T @ k) @ v.T


def heads(q: Array, k: Array, v: Array, causal: bool = False, scale: float = 0.125) -> Array:
    """Of q and k (batch, features, tokens) and v (batch, tokens, features)."""
    scores = scale * np.swapaxes(q, -1, -2) @ k
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -1e30)
    return softmax(scores) @ v


def mamba(delta: Array, u: Array, **rest: Array) -> Array:
    A, B, C = rest["A"], rest["B"], rest["C"]  # noqa: N806
    state = np.zeros((*delta.shape[:2], A.shape[1]))
    out = np.zeros(delta.shape)
    for t in range(delta.shape[2]):
        d = delta[:, :, t, None]
        state = np.exp(d * A) * state + d * u[:, :, t, None] * B[:, None, :, t]
        out[:, :, t] = (state * C[:, None, :, t]).sum(-1)
    return out


def pooled(x: Array, size: int) -> Array:
    c, h, w = x.shape
    return x.reshape(c, h // size, size, w // size, size).mean((2, 4))


def largest(x: Array, pool_size: int) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, (pool_size, pool_size))
    return windows.max((-1, -2))


def turned(in_tensor: Array, **rest: Any) -> Array:
    x, (f1, f2) = in_tensor, rest["shape2D"]
    return np.swapaxes(x.reshape(-1, f1, f2), 1, 2).reshape(x.shape)


def doubled(x: Array, axes: int) -> Array:
    """Interpolated to twice its extents along the last axes, ends repeated."""
    for axis in range(x.ndim - axes, x.ndim):
        n = x.shape[axis]
        place = np.clip((np.arange(2 * n) + 0.5) / 2 - 0.5, 0, n - 1)
        low = np.floor(place).astype(int)
        high = np.minimum(low + 1, n - 1)
        share = (place - low).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        x = np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share
    return x


def normed(hidden: Array, weights: Array) -> Array:
    rms = np.sqrt(np.mean(hidden**2, -1, keepdims=True))
    return (hidden / (rms + 1e-6)) @ weights


def scattered(operand_tensor: Array, source_tensor: Array) -> Array:
    """Gradients of a pooling by 3x3 with steps of 2 and a border of 1."""
    n, c, h, w = operand_tensor.shape
    padded = np.pad(operand_tensor, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros((n, c, h + 2, w + 2))
    for at in np.ndindex(source_tensor.shape):
        y, x = 2 * at[2], 2 * at[3]
        window = padded[at[0], at[1], y : y + 3, x : x + 3]
        row, column = divmod(int(window.argmax()), 3)
        out[at[0], at[1], y + row, x + column] += source_tensor[at]
    return out[:, :, 1:-1, 1:-1]


def nearest(data_tensor: Array, out_shape: tuple[int, ...]) -> Array:
    rows = np.arange(out_shape[1]) * data_tensor.shape[1] // out_shape[1]
    columns = np.arange(out_shape[2]) * data_tensor.shape[2] // out_shape[2]
    return data_tensor[:, rows][:, :, columns]


def adaptive(x: Array, size: int) -> Array:
    _, _, h, w = x.shape
    return np.stack([
        np.stack([
            x[:, :, i * h // size : -(-(i + 1) * h // size),
              j * w // size : -(-(j + 1) * w // size)].mean((2, 3)) for j in range(size)
        ], -1) for i in range(size)
    ], -2)  # fmt: skip


F, H, B = "float32", "float16", "bfloat16"
TUTORIALS = "src/nki_samples/tutorials"
REFERENCE = "src/nki_samples/reference"


def by(**operands: Array) -> Array:
    one, two = operands.values()
    return one.T @ two


def plus(a_input: Array, b_input: Array) -> Array:
    return a_input + b_input


def cases() -> list[Case]:
    """All of them."""
    return [*tutorials(), *contributed()]


def tutorials() -> list[Case]:
    """Of the tutorials."""
    product = {"lhsT": ((1024, 2048), B), "rhs": ((1024, 2048), B)}
    ssm = {
        "delta": ((1, 256, 512), F), "u": ((1, 256, 512), F), "A": ((256, 16), F),
        "B": ((1, 16, 512), F), "C": ((1, 16, 512), F),
    }  # fmt: skip
    added = {"a_input": ((256, 1024), F), "b_input": ((256, 1024), F)}
    matmul = f"{TUTORIALS}/matrix_multiplication/matrix_multiplication_nki_kernels.py"
    performance = f"{TUTORIALS}/attention_fwd_performance/attention_kernels.py"
    add = f"{TUTORIALS}/tensor_addition"

    small = {"lhsT": ((128, 64), B), "rhs": ((128, 512), B)}
    return [
        Case(matmul, "nki_matmul_basic_", small, by),
        *(
            Case(matmul, f"nki_matmul_{name}_", product, by)
            for name in ("tiled", "hoist_load", "block_free_dimension", "fully_optimized")
        ),
        *(
            Case(performance, f"attn_fwd_v{version}",
                 dict.fromkeys("qkv", ((128, 128 if version in "12" else 4096), F)), attention)
            for version in ("1", "2", "3", "4", "5", "6", "7", "8", "8a", "9", "10", "11")
        ),
        Case(f"{TUTORIALS}/average_pool2d/average_pool2d_nki_kernels.py", "tensor_avgpool_kernel",
             {"in_tensor": ((128, 8, 8), F), "pool_size": 2},
             lambda in_tensor, pool_size: pooled(in_tensor, pool_size)),
        *(
            Case(f"{TUTORIALS}/fused_mamba/mamba_nki_kernels.py", f"mamba_v{n}", ssm, mamba)
            for n in (1, 2, 3)
        ),
        Case(f"{add}/tensor_addition_nki_kernels.py", "nki_tensor_add_kernel_",
             dict.fromkeys(added, ((128, 512), F)), plus),
        Case(f"{add}/tensor_addition_nki_kernels.py", "nki_tensor_add",
             dict.fromkeys(added, ((128, 512), F)), plus),
        Case(f"{add}/spmd_tensor_addition_nki_kernels.py", "nki_tensor_add_kernel_", added, plus,
             grid=(2, 2)),
        Case(f"{add}/spmd_tensor_addition_nki_kernels.py", "nki_tensor_add", added, plus),
        Case(f"{add}/spmd_multiple_nc_tensor_addition_nki_kernels.py", "nki_tensor_add_nc2",
             dict.fromkeys(added, ((512, 1024), F)), plus),
        Case(f"{TUTORIALS}/transpose2d/transpose2d_nki_kernels.py", "tensor_transpose2D_kernel_",
             {"in_tensor": ((128, 12), F), "shape2D": (3, 4)},
             turned),
        Case(f"{TUTORIALS}/softmax/softmax_nki_kernels.py", "nki_softmax_kernel",
             {"a_tensor": ((256, 512), F)}, lambda a_tensor: softmax(a_tensor)),
    ]  # fmt: skip


def contributed() -> list[Case]:
    """What users gave, and the former reference kernels."""
    batched = {
        "q_ref": ((1, 128, 4096), B), "k_ref": ((1, 128, 4096), B), "v_ref": ((1, 4096, 128), B),
    }  # fmt: skip
    many = {"q": ((1, 2, 128, 2048), B), "k": ((1, 2, 128, 2048), B), "v": ((1, 2, 2048, 128), B)}
    return [
        Case("contributed/matmul.py", "matmul",
             {"A_DRAM": ((1024, 4096), H), "B_DRAM": ((1024, 2048), H)},
             by),
        Case("contributed/interpolate_bilinear_fwd.py", "interpolate_bilinear_2x_fwd",
             {"src_arr": ((2, 64, 32, 32), F)}, lambda src_arr: doubled(src_arr, 2)),
        Case("contributed/interpolate_trilinear_fwd.py", "interpolate_trilinear_2x_fwd",
             {"src_arr": ((1, 64, 13, 13, 13), F)}, lambda src_arr: doubled(src_arr, 3)),
        Case("contributed/maxpooling.py", "max_pooling_2d_stride_1",
             {"in_tensor": ((448, 448), F), "pool_size": 3},
             lambda in_tensor, pool_size: largest(in_tensor, pool_size)),
        Case(f"{REFERENCE}/tutorial.py", "add_kernel_nx8x128x512",
             {"a_ptr": ((1, 8, 128, 512), F), "b_ptr": ((1, 8, 128, 512), F),
              "n_elements": 8 * 128 * 512}, lambda a_ptr, b_ptr, n_elements: a_ptr + b_ptr),
        Case(f"{REFERENCE}/attention.py", "fused_self_attn_for_SD_small_head_size",
             {**batched, "k_ref": ((1, 4096, 128), B)},
             lambda q_ref, k_ref, v_ref: heads(q_ref, np.swapaxes(k_ref, 1, 2), v_ref), grid=(1,)),
        Case(f"{REFERENCE}/attention.py", "flash_fwd",
             {**many, "seed": ((1,), "int32"), "use_causal_mask": True},
             lambda q, k, v, **_: heads(q, k, v, True, 128**-0.5), grid=(1, 2)),
        Case(f"{REFERENCE}/allocated_attention.py",
             "allocated_fused_self_attn_for_SD_small_head_size", batched,
             lambda q_ref, k_ref, v_ref: np.swapaxes(heads(q_ref, k_ref, v_ref), 1, 2),
             grid=(1,)),
        Case(f"{REFERENCE}/allocated_fused_linear.py", "allocated_fused_rms_norm_qkv",
             {"hidden": ((1, 128, 1024), B), "weights": ((1024, 512), B)}, normed),
        Case(f"{REFERENCE}/vision.py", "select_and_scatter_kernel",
             {"operand_tensor": ((8, 64, 32, 32), F), "source_tensor": ((8, 64, 16, 16), F)},
             scattered),
        Case(f"{REFERENCE}/vision.py", "resize_nearest_fixed_dma_kernel",
             {"data_tensor": ((1, 30, 20, 1280), F), "out_shape": (1, 59, 38, 1280)}, nearest,
             grid=(1,)),
        Case(f"{REFERENCE}/vision.py", "adaptive_avg_pool2d_kernel",
             {"in_tensor": ((1, 64, 56, 56), F), "output_size": 7},
             lambda in_tensor, output_size: adaptive(in_tensor, output_size)),
    ]  # fmt: skip


def error(case: Case, kernel: NkiKernel) -> float:
    """How far the first result is off, by its largest element."""
    inputs = kernel.inputs(1)
    if "delta" in inputs:  # a state that decays
        inputs |= {"A": -np.abs(inputs["A"]), "delta": np.abs(inputs["delta"])}
    result = next(iter(kernel.run(inputs).values())).astype(np.float64)
    plain = {n: v for n, v in case.arguments.items() if n not in inputs}
    given = {n: v.astype(np.float64) for n, v in inputs.items()}
    wanted = np.asarray(case.wanted(**given, **plain)).reshape(result.shape)
    return float(np.abs(result - wanted).max() / np.abs(wanted).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkouts", type=Path, nargs="+")
    parser.add_argument("--only", default="", help="words of functions to show, comma-separated")
    arguments = parser.parse_args()
    words = arguments.only.split(",")
    counts = {"right": 0, "wrong": 0, "not read": 0}
    print("| kernel | simulated us | off | |\n|---|--:|--:|---|")
    for case in cases():
        files = [root / case.file for root in arguments.checkouts if (root / case.file).exists()]
        if not files or not any(word in case.function for word in words):
            continue
        name = f"{Path(case.file).stem}.{case.function}"
        try:
            kernel = trace(f"{files[0]}::{case.function}", case.arguments, case.target, case.grid)
            off, time = error(case, kernel), kernel.time().makespan / 1e3
        except (TilesmithError, ValueError) as failure:
            counts["not read"] += 1
            text = str(failure).replace(str(files[0].parent) + "/", "").replace("|", "/")
            print(f"| {name} | | | not read: {text[:150]} |", flush=True)
            continue
        said = "right" if off < 0.02 else "wrong"
        counts[said] += 1
        print(f"| {name} | {time:.1f} | {off:.0e} | {said} |", flush=True)
    print(", ".join(f"{count} {said}" for said, count in counts.items()))


if __name__ == "__main__":
    main()
