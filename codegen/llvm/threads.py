"""The frame around emitted functions: their signature, and the barrier their threads meet at."""

from __future__ import annotations

from tilesmith.codegen.llvm.builder import Builder
from tilesmith.codegen.llvm.ir import INDEX, INT32, POINTER, VOID, Function, Module

SIGNATURE = (POINTER, INDEX, INDEX, POINTER, POINTER, POINTER)
"""arguments, thread, threads, barrier, shared workspace, local workspace."""

SPINS = 1024
"""Rounds of the barrier's loop between two offers of the core."""


def export(module: Module, name: str, body: Function, parameters: int) -> None:
    """The function callers see: unpacks the argument pointers."""
    function = Function(module, name, VOID, SIGNATURE)
    builder = Builder(function.append_block("entry"))
    arguments = []
    for position in range(parameters):
        slot = builder.gep(function.arguments[0], INDEX(position), POINTER)
        arguments.append(builder.load(slot, POINTER))
    builder.call(body, [*arguments, *function.arguments[1:]])
    builder.ret_void()


def barrier_function(module: Module) -> Function:
    """A barrier of two counters, {arrived, generation}, i64 on lines of their own, zero at first.

    The last to arrive moves the generation on; the others spin on it. Every `SPINS` rounds they
    offer the core to others, so that a machine with busy cores loses little.
    """
    known = module.functions.get("barrier")
    if known is not None:
        return known
    function = Function(module, "barrier", VOID, (POINTER, INDEX))
    function.internal = True
    give_way = module.declare("sched_yield", INT32, ())
    entry, last, spin, again, tired, done = (
        function.append_block(name) for name in ("entry", "last", "spin", "again", "tired", "done")
    )
    builder = Builder(entry)
    arrived, everyone = function.arguments
    generation = builder.gep(arrived, INDEX(8), INDEX)
    old = builder.load_atomic(generation, INDEX, "acquire", 8)
    before = builder.atomic_rmw("add", arrived, INDEX(1), "acq_rel")
    is_last = builder.icmp_signed("==", builder.add(before, INDEX(1)), everyone)
    builder.cbranch(is_last, last, spin)
    builder.position_at_end(last)
    builder.atomic_rmw("xchg", arrived, INDEX(0), "monotonic")
    builder.atomic_rmw("add", generation, INDEX(1), "release")
    builder.branch(done)
    builder.position_at_end(spin)
    rounds = builder.phi(INDEX)
    rounds.add_incoming(INDEX(1), entry)
    now = builder.load_atomic(generation, INDEX, "acquire", 8)
    builder.cbranch(builder.icmp_signed("==", now, old), again, done)
    builder.position_at_end(again)
    following = builder.add(rounds, INDEX(1))
    rest = builder.urem(rounds, INDEX(SPINS))
    rounds.add_incoming(following, again)
    builder.cbranch(builder.icmp_signed("==", rest, INDEX(0)), tired, spin)
    builder.position_at_end(tired)
    builder.call(give_way, [])
    rounds.add_incoming(following, tired)
    builder.branch(spin)
    builder.position_at_end(done)
    builder.ret_void()
    return function
