"""The machine's FMA peak, measured: a loop of independent register-resident multiply-adds.

Figures are quoted as fractions of this, taken in the same interleaved run, because clocks drift.
"""

from __future__ import annotations

from codegen.native.kernel import NativeKernel, compile_program
from search_space.compute import ComputeDefinition, Stage, Tensor, axis
from search_space.lowering import lower
from search_space.scalar import call, load
from search_space.schedule import Schedule
from search_space.target import Target

STEPS = 1 << 16
UNROLL = 16
"""Steps in one iteration, so that the loop's own branch costs nothing."""


def peak_kernel(target: Target) -> tuple[NativeKernel, int]:
    """A kernel of pure FMAs and the number of floating-point operations of one call.

    Enough accumulators to hide the FMA latency on every port, both factors in registers:

        for step: unroll i: vector lane: c[i, lane] += x[lane] * y[lane]
    """
    lanes = target.integer("vector.lanes")
    chains = min(target.integer("vector.registers") - 4, 28)
    i, lane, step = axis("i", chains), axis("lane", lanes), axis("step", STEPS)
    chain = Stage(
        "c", (i, lane), call("multiply", load("x", lane.var), load("y", lane.var)), (step,), "sum"
    )
    tensors = (Tensor("x", (lanes,)), Tensor("y", (lanes,)))
    schedule = Schedule(ComputeDefinition("peak", tensors, (chain,)))
    schedule = schedule.split("c", "step", UNROLL, "outer", "inner")
    schedule = schedule.split("c", "i", chains, "once", "chain")
    schedule = schedule.reorder("c", ("once", "outer", "inner", "chain", "lane"))
    schedule = schedule.unroll("c", "inner", "chain").vectorize("c", "lane")
    schedule = schedule.cache_write("c", "register", "once")
    return NativeKernel(compile_program(lower(schedule), target)), 2 * STEPS * chains * lanes
