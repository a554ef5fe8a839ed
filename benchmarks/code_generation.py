"""Where the time of making a kernel goes, and what the short list of LLVM passes costs and gains.

    python benchmarks/code_generation.py [--rounds 8] [--json]

For the default schedule of each operator: processor milliseconds of every step (least of several
rounds), then the speed of the kernel from our passes over that from LLVM's standard pipeline (both
timed in turns on one pinned core), and the standard pipeline's milliseconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from kernels import bound

from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.kernel import KernelCode, NativeKernel
from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.display.output import table
from tilesmith.jobs.measures.timing import interleave, pinned
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.workloads.workload import Workload

WORKLOADS = (
    "matmul m=512 n=512 k=512 const=b",
    "matmul m=64 n=512 k=784 const=b epilogue=bias,gelu",
    "conv2d c=64 h=56 w=56 oc=64 kh=3 kw=3 pad=1 const=weight",
    "conv2d c=256 h=56 w=56 oc=64 kh=1 kw=1 const=weight",
    "depthwise_conv2d c=96 h=112 w=112 kh=3 kw=3 pad=1 const=weight",
    "pool2d kind=max c=64 h=112 w=112 kh=3 kw=3 stride=2 pad=1",
    "softmax shape=1536x128",
    "layer_norm shape=128x384",
)


class Clock:
    """Processor time of named steps, the least of several rounds."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = {}

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = work()
        taken = 1e3 * (time.process_time() - start)
        self.milliseconds[name] = min(taken, self.milliseconds.get(name, taken))
        return result


def make(workload: Workload, target: Target, clock: Clock, standard: bool) -> NativeKernel:
    """One kernel, step by step, past the code cache."""
    config = default_of(workload, target)
    program = clock.step("lower", lambda: lowered(workload, target, config))
    clock.step("verify", lambda: verify(program, target))
    module = clock.step("emit", lambda: emit_module(program, target))
    name = "standard" if standard else "optimise"
    ready = clock.step(name, lambda: toolchain.optimise(module.text, target, standard))
    name = "standard object" if standard else "object"
    found = clock.step(name, lambda: bytes(toolchain.machine(target).emit_object(ready)))
    code = KernelCode(program.parameters, found, None, module.shared_bytes, module.local_bytes)
    return clock.step("load", lambda: NativeKernel(code))  # type: ignore[no-any-return]


def measure(text: str, rounds: int) -> dict[str, float]:
    """Milliseconds of each step, and the speed of the short pipeline over the standard one."""
    workload, target, clock = Workload.parse(text), host_target(), Clock()
    with pinned(1):
        for _ in range(rounds):
            short, standard = (make(workload, target, clock, s) for s in (False, True))
        timings = interleave({"short": bound(short), "standard": bound(standard)})
    steps = ("lower", "verify", "emit", "optimise", "object", "load")
    found = {name: clock.milliseconds[name] for name in steps}
    found["total"] = float(np.sum(list(found.values())))
    found["standard"] = clock.milliseconds["standard"]
    found["speed"] = timings["standard"].min_ms / timings["short"].min_ms
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = {text: measure(text, options.rounds) for text in WORKLOADS}
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    names = list(next(iter(figures.values())))
    rows = [(t, *(f"{f[n]:.2f}" if n == "speed" else f"{f[n]:.1f}" for n in names))
            for t, f in figures.items()]  # fmt: skip
    print(table(("workload", *names), rows))


if __name__ == "__main__":
    main()
