"""The frame around emitted functions: their signature, and the barrier their threads meet at."""

from __future__ import annotations

from llvmlite import ir

from codegen.llvm.types import INDEX, POINTER, VOID

SIGNATURE = ir.FunctionType(VOID, [POINTER, INDEX, INDEX, POINTER, POINTER, POINTER])
"""arguments, thread, threads, barrier, shared workspace, local workspace."""

SPINS = 1024
"""Rounds of the barrier's loop between two offers of the core."""


def export(module: ir.Module, name: str, body: ir.Function, parameters: int) -> None:
    """The function callers see: unpacks the argument pointers."""
    function = ir.Function(module, SIGNATURE, name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    arguments = []
    for position in range(parameters):
        slot = builder.gep(function.args[0], [INDEX(position)], source_etype=POINTER)
        arguments.append(builder.load(slot, typ=POINTER))
    builder.call(body, [*arguments, *function.args[1:]])
    builder.ret_void()


def barrier_function(module: ir.Module) -> ir.Function:
    """A barrier of two counters, {arrived, generation}, i64 on lines of their own, zero at first.

    The last to arrive moves the generation on; the others spin on it. Every `SPINS` rounds they
    offer the core to others, so that a machine with busy cores loses little.
    """
    known = module.globals.get("barrier")
    if isinstance(known, ir.Function):
        return known
    function = ir.Function(module, ir.FunctionType(VOID, [POINTER, INDEX]), "barrier")
    function.linkage = "internal"
    give_way = ir.Function(module, ir.FunctionType(ir.IntType(32), []), "sched_yield")
    entry, last, spin, again, tired, done = (
        function.append_basic_block(name)
        for name in ("entry", "last", "spin", "again", "tired", "done")
    )
    builder = ir.IRBuilder(entry)
    arrived = function.args[0]
    generation = builder.gep(arrived, [INDEX(8)], source_etype=INDEX)
    old = builder.load_atomic(generation, "acquire", 8, typ=INDEX)
    before = builder.atomic_rmw("add", arrived, INDEX(1), "acq_rel")
    everyone = builder.icmp_signed("==", builder.add(before, INDEX(1)), function.args[1])
    builder.cbranch(everyone, last, spin)
    builder.position_at_end(last)
    builder.atomic_rmw("xchg", arrived, INDEX(0), "monotonic")
    builder.atomic_rmw("add", generation, INDEX(1), "release")
    builder.branch(done)
    builder.position_at_end(spin)
    rounds = builder.phi(INDEX)
    rounds.add_incoming(INDEX(1), entry)
    now = builder.load_atomic(generation, "acquire", 8, typ=INDEX)
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
