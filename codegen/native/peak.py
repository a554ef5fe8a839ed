"""The machine's FMA peak, measured: a loop of independent register-resident multiply-adds.

Figures are quoted as fractions of this, taken in the same interleaved run, because clocks drift.
"""

from __future__ import annotations

from tilesmith.codegen.native.kernel import NativeKernel, compile_program
from tilesmith.search_space.instruction_set import vector_width
from tilesmith.search_space.ir.scalar import call, load
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.target import Target

STEPS = 1 << 16
UNROLL = 16
"""Steps in one iteration, so that the loop's own branch costs nothing."""


def peak_kernel(target: Target) -> tuple[NativeKernel, int]:
    """A kernel of pure FMAs and the number of floating-point operations of one call.

    Enough accumulators to hide the FMA latency on every port, all factors in registers; each
    accumulator has a product of its own, so that no optimiser may share them:

        for step: unroll i, j: vector lane: c[i, j, lane] += x[i, lane] * y[j, lane]
    """
    lanes = vector_width(target)
    rows, columns = (4, 5) if target.integer("vector.registers") >= 32 else (3, 3)
    i, j, lane = axis("i", rows), axis("j", columns), axis("lane", lanes)
    product = call("multiply", load("x", i.var, lane.var), load("y", j.var, lane.var))
    chain = Stage("c", (i, j, lane), product, (axis("step", STEPS),), "sum")
    tensors = (Tensor("x", (rows, lanes)), Tensor("y", (columns, lanes)))
    schedule = Schedule(ComputeDefinition("peak", tensors, (chain,)))
    schedule = schedule.split("c", "step", UNROLL, "outer", "inner")
    schedule = schedule.split("c", "i", rows, "once", "row")
    schedule = schedule.reorder("c", ("once", "outer", "inner", "row", "j", "lane"))
    schedule = schedule.unroll("c", "inner", "row", "j").vectorize("c", "lane")
    schedule = schedule.cache_write("c", "register", "once")
    flops = 2 * STEPS * rows * columns * lanes
    return NativeKernel(compile_program(lower(schedule), target)), flops
