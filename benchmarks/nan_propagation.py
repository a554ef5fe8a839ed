"""What it costs that maxima and minima keep NaN: each kernel as it is, and one that loses it.

    python benchmarks/nan_propagation.py [--isa avx2] [--only TEXT ...] [--seconds-each 3]

Both are made of the same default schedule; the second has an ordered comparison and a choice, one
instruction on x86, for each maximum and minimum. They are timed in turns on one pinned core. `time`
is the first over the second, the least of all calls of each.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from unittest.mock import patch

from kernels import bound

from tilesmith.codegen.llvm import emitter
from tilesmith.codegen.llvm.functions.vector_math import VectorMath
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.llvm.text.ir import Value
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.kernel import NativeKernel, compile_program
from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.display.output import table
from tilesmith.jobs.measures.timing import interleave, pinned
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.workloads.workload import Workload

WORKLOADS = (
    "elementwise shape=8192 expression=relu(x0)",
    "elementwise shape=8192 expression=clip(x0,0,6)",
    "elementwise shape=8192 expression=leaky_relu(x0,0.1)",
    "elementwise shape=4194304 expression=relu(x0)",
    "elementwise shape=8192 expression=maximum(x0,x1)",
    "elementwise shape=1048576 expression=maximum(x0,x1)",
    "matmul m=128 n=256 k=256 const=b epilogue=bias,relu",
    "conv2d c=64 h=56 w=56 oc=64 kh=3 kw=3 pad=1 const=weight epilogue=bias,clip",
    "pool2d kind=max c=64 h=56 w=56 kh=2 kw=2 stride=2",
    "pool2d kind=max c=64 h=112 w=112 kh=3 kw=3 stride=2 pad=1",
    "pool2d kind=max c=512 h=14 w=14 global=1",
    "reduce shape=64x1024 kind=max axes=1",
    "reduce shape=1024x64 kind=max axes=0",
    "softmax shape=1536x128",
    "softmax shape=64x2048",
    "attention m=256 n=256 k=64 heads=4",
)


class Losing(VectorMath):
    """Maxima and minima as an ordered comparison and a choice, over lanes as LLVM likes them."""

    def extreme(self, name: str, left: Value, right: Value) -> Value:
        bits = self.builder.fcmp_ordered(">" if name == "maximum" else "<", left, right)
        return self.builder.select(bits, left, right, flags="nsz")

    def extreme_across(self, name: str, values: Value) -> Value:
        names = {"maximum": "fmax", "minimum": "fmin"}
        return self.across(names[name], values, flags="nnan nsz")


def make(workload: Workload, target: Target, keeps: bool) -> NativeKernel:
    """One kernel, past the code cache."""
    program = lowered(workload, target, default_of(workload, target))
    with patch.object(emitter, "VectorMath", VectorMath if keeps else Losing):
        module = emit_module(program, target)
    code = compile_program(program, target)
    return NativeKernel(replace(code, object=toolchain.emit_object(module.text, target)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", default="", help="vector instruction set, if not the host's")
    parser.add_argument("--only", nargs="*", help="parts of workloads to time")
    parser.add_argument("--seconds-each", type=float, default=3.0)
    options = parser.parse_args()
    target = resolve_target("cpu", {"isa.name": options.isa} if options.isa else None)
    rows = []
    for text in WORKLOADS:
        if options.only and not any(part in text for part in options.only):
            continue
        workload = Workload.parse(text)
        keeping, losing_it = (make(workload, target, keeps) for keeps in (True, False))
        with pinned(1):
            found = interleave(
                {"keeps": bound(keeping), "loses": bound(losing_it)}, options.seconds_each
            )
        keeps, loses = found["keeps"].min_ms, found["loses"].min_ms
        rows.append((text, f"{1e3 * loses:.2f}", f"{1e3 * keeps:.2f}", f"{keeps / loses:.3f}"))
    print(table(("workload", "us, loses NaN", "us, keeps NaN", "time"), rows))


if __name__ == "__main__":
    main()
