"""What kernels written by hand cost on a simulated core: latency, bound, traffic, engines at work.

    python benchmarks/accelerator/hand_written.py [--target trn2] [--only softmax,rope]
        [--set KEY=VALUE ...]

A kernel's roofline is the larger of its inputs and outputs moved once at the bandwidth of the DMA
engines, and its products at the tensor engine's peak (fp32 takes four passes). Many kernels do
little but elementwise work, which the roofline does not count: there the last columns say which
engine is busy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import mamba
from subjects import kernels
from written import attention, elementwise, indexing, products, rows, windows

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import (
    DTYPE_BYTES,
    DTYPES,
    InstructionStream,
)
from tilesmith.families.trainium.simulator.timelines.timeline import Timeline, timeline
from tilesmith.search_space.hardware.target import load_target

HALF = "bfloat16"
Make = Callable[[Core], InstructionStream]

KERNELS: dict[str, Make] = {
    "tensor_add 4096x4096": lambda c: elementwise.tensor_add(c, 4096, 4096),
    "tensor_add 4096x4096 bf16": lambda c: elementwise.tensor_add(c, 4096, 4096, HALF),
    "gelu 4096x4096": lambda c: elementwise.gelu(c, 4096, 4096),
    "silu 4096x7168": kernels.silu,
    "adamw 4096x4096": lambda c: elementwise.adamw(c, 4096, 4096),
    "rope 4096x16x128": lambda c: elementwise.rope(c, 4096, 16, 128),
    "layer_norm 4096x2048": lambda c: rows.layer_norm(c, 4096, 2048),
    "layer_norm 4096x2048 bf16": lambda c: rows.layer_norm(c, 4096, 2048, dtype=HALF),
    "rms_norm 4096x2048": lambda c: rows.rms_norm(c, 4096, 2048),
    "softmax 4096x4096": lambda c: rows.softmax(c, 4096, 4096),
    "cumulative_sum 4096x8192": lambda c: rows.cumulative_sum(c, 4096, 8192),
    "largest 32 of 4096x4096": lambda c: rows.largest(c, 4096, 4096, 32),
    "swiglu 4096x1024x3072": kernels.swiglu,
    "add_rms_norm_matmul 4096x2048x2048": lambda c: products.add_rms_norm_matmul(
        c, 4096, 2048, 2048
    ),
    "add_rms_norm_matmul 4096x2048x2048 bf16": lambda c: products.add_rms_norm_matmul(
        c, 4096, 2048, 2048, HALF
    ),
    "matmul_add_rms_norm 4096x2048x1024": lambda c: products.matmul_add_rms_norm(
        c, 4096, 2048, 1024
    ),
    "lora 4096x4096x2048 rank 128": lambda c: products.lora(c, 4096, 4096, 2048, 128, block=512),
    "lora 4096x4096x2048 rank 16 bf16": lambda c: products.lora(
        c, 4096, 4096, 2048, 16, dtype=HALF
    ),
    "bmm_softmax 16x1024x64x1024": lambda c: products.bmm_softmax(c, 16, 1024, 64, 1024),
    "attention 8 heads 4096x128 bf16": lambda c: attention.attention(
        c, 8, 4096, 4096, 128, dtype=HALF
    ),
    "causal attention 8 heads 4096x128 bf16": lambda c: attention.attention(
        c, 8, 4096, 4096, 128, causal=True, dtype=HALF
    ),
    "grouped attention 16/4 heads 1024x128": lambda c: attention.attention(
        c, 16, 1024, 1024, 128, groups=4
    ),
    "depthwise_conv1d 8x512x2048 taps 4": lambda c: windows.depthwise_conv1d(c, 8, 512, 2048, 4),
    "conv1d 4x256x2048 to 256 taps 3": lambda c: windows.conv1d(c, 4, 256, 2048, 256, 3),
    "max pool 2x2 of 512x64x64": lambda c: windows.pool2d(c, 512, 64, 64, 2),
    "average pool 2x2 of 512x64x64": lambda c: windows.pool2d(c, 512, 64, 64, 2, "average"),
    "upsample_bilinear 512x32x32": lambda c: windows.upsample_bilinear(c, 512, 32, 32),
    "embedding 8192 of 50257x1024": lambda c: indexing.embedding(c, 50257, 1024, 8192),
    "select 1024 of 4096x4096 columns": lambda c: indexing.select_columns(c, 4096, 4096, 1024),
    "transpose2d 4096x4096": lambda c: indexing.transpose2d(c, 4096, 4096),
    "mamba v2 4096x512": lambda c: mamba.v2(c, 4096, 512),
}


def roofline(played: Timeline) -> float:
    """ns: see the module's docstring. Of a table only what was moved counts."""
    core, stream, cost = played.core, played.stream, played.costs
    kept = [t for t in stream.tensors if t.role != "temporary"]
    size = sum(t.elements * int(DTYPE_BYTES[DTYPES.index(t.dtype)]) for t in kept)
    bandwidth = min(core.dma_engines * core.dma_bytes_per_ns, core.hbm_bytes_per_ns)
    moved = min(size, cost.total_bytes) / bandwidth
    first = stream.accesses["dtype"][stream.rows["in0"]]
    fp32 = (stream.rows["in0"] >= 0) & (first == DTYPES.index("float32"))
    passes = 1 + (core.fp32_factor - 1) * fp32
    return max(moved, float((cost.flops * passes).sum()) / core.peak_flops_per_ns)


def row(name: str, make: Make, core: Core) -> str:
    """One line of the table."""
    begun = time.perf_counter()
    played = timeline(make(core), schedule=True)
    elapsed = time.perf_counter() - begun
    least = roofline(played)
    busy = " ".join(
        f"{engine} {share:.0%}" for engine, share in played.engines.items() if share >= 0.01
    )
    return (
        f"{name:40s} {played.makespan / 1e3:9.1f} us  {least / 1e3:9.1f} us  "
        f"{played.makespan / least:5.2f}  {played.costs.total_bytes / 1e6:8.1f} MB  "
        f"{played.bound:15s} {busy}  [{len(played.stream)} instructions, {elapsed:.1f} s]"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", default="trn1")
    parser.add_argument("--only", default="", help="words, comma-separated, of names to show")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    target = load_target(arguments.target).with_settings(
        dict(s.split("=", 1) for s in arguments.set)
    )
    core = Core.of(target)
    print(f"{'kernel':40s} {'latency':>12s}  {'roofline':>12s}  ratio     moved     bound, engines")
    for name, make in KERNELS.items():
        if any(word in name for word in arguments.only.split(",")):
            print(row(name, make, core), flush=True)


if __name__ == "__main__":
    main()
