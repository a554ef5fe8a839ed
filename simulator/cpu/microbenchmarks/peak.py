"""The machine's peaks, measured: loops of independent register-resident multiply-adds.

Figures are quoted as fractions of these, taken in the same interleaved run, because clocks drift.
There is one for float32, and one for every dot product that the target has.
"""

from tilesmith.codegen.native.kernel import NativeKernel, compile_program
from tilesmith.search_space.expressions.dtypes import is_floating
from tilesmith.search_space.expressions.scalar import call, load
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.vectorisation.dot_products import group_of
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule

STEPS = 1 << 16
"""Multiply-adds of each accumulator."""
UNROLL = 16
"""Steps in one iteration, so that the loop's own branch costs nothing."""


def peak_kernel(target: Target) -> tuple[NativeKernel, int]:
    """A kernel of pure FMAs and the number of floating-point operations of one call.

    Enough accumulators to hide the FMA latency on every port, all factors in registers; each
    accumulator has a product of its own, so that no optimiser may share them:

        for step: unroll i, j: vector lane: c[i, j, lane] += x[i, lane] * y[j, lane]
    """
    lanes = vector_width(target)
    rows, columns = _accumulators(target)
    i, j, lane = axis("i", rows), axis("j", columns), axis("lane", lanes)
    product = call("multiply", load("x", i.var, lane.var), load("y", j.var, lane.var))
    chain = Stage("c", (i, j, lane), product, (axis("step", STEPS),), "sum")
    tensors = (Tensor("x", (rows, lanes)), Tensor("y", (columns, lanes)))
    schedule = _unrolled(Schedule(ComputeDefinition("peak", tensors, (chain,))), rows, ())
    flops = 2 * STEPS * rows * columns * lanes
    return NativeKernel(compile_program(lower(schedule), target)), flops


def dot_peak_kernel(target: Target, left: str, right: str) -> tuple[NativeKernel, int] | None:
    """As `peak_kernel`, of dot products of two element types; None if the target has none:

    for step: unroll i, j: dot_product p, lane: c[i, j, lane] += x[i, p] * y[j, lane, p]
    """
    products = group_of(target, left, right)
    if products == 1:
        return None
    lanes, (rows, columns) = vector_width(target), _accumulators(target)
    i, j, lane = axis("i", rows), axis("j", columns), axis("lane", lanes)
    p = axis("p", products)
    x, y = load("x", i.var, p.var), load("y", j.var, lane.var, p.var)
    sums = "float32" if is_floating(left) else "int32"
    factors = (x, y) if is_floating(left) else (call("to_int32", x), call("to_int32", y))
    product = call("multiply", *factors)
    chain = Stage("c", (i, j, lane), product, (axis("step", STEPS), p), "sum", dtype=sums)
    tensors = (
        Tensor("x", (rows, products), left),
        Tensor("y", (columns, lanes, products), right),
    )
    schedule = _unrolled(Schedule(ComputeDefinition("peak", tensors, (chain,))), rows, ("p",))
    schedule = schedule.tensorize("c", "p", "dot_product")
    operations = 2 * STEPS * rows * columns * lanes * products
    return NativeKernel(compile_program(lower(schedule), target)), operations


def _accumulators(target: Target) -> tuple[int, int]:
    """Rows and columns of accumulators: as many as hide the latency beside their factors."""
    return (4, 5) if target.integer("vector.registers") >= 32 else (3, 3)


def _unrolled(schedule: Schedule, rows: int, inner: tuple[str, ...]) -> Schedule:
    """Several steps of everything in straight-line code."""
    schedule = schedule.split("c", "step", UNROLL, "outer", "inner")
    schedule = schedule.split("c", "i", rows, "once", "row")
    schedule = schedule.reorder("c", ("once", "outer", "inner", "row", "j", *inner, "lane"))
    schedule = schedule.unroll("c", "inner", "row", "j", *inner).vectorize("c", "lane")
    return schedule.cache_write("c", "register", "once")
