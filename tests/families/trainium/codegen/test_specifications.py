"""Instructions do what their specifications say: the body interpreted, against the stream executed.

Every specification of the family is tensorized in a small program, for every memory its operands
may be in: operands come from HBM, the instruction runs, its result is stored. What the interpreter
makes of the program is compared with numpy executing the instructions that were selected for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import Opcode
from tilesmith.families.trainium.codegen.selection.from_program import EMITTERS, generate
from tilesmith.families.trainium.schedules.building_blocks.machine import INTRINSICS
from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.search_space.expressions.expression import Expr, as_expr, var
from tilesmith.search_space.expressions.scalar import (
    REDUCERS,
    Const,
    Load,
    Scalar,
    Select,
    call,
    load,
    loads,
    rewrite,
)
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.intrinsics import IntrinsicSpec
from tilesmith.search_space.ir.program import (
    Allocate,
    Block,
    Buffer,
    Intrinsic,
    Loop,
    Program,
    Statement,
    children,
    sequence,
)
from tilesmith.search_space.support.errors import CodegenError, VerificationError

SIZES = {"k": 6, "m": 4, "n": 9, "p": 5, "f": 7}
ROWS = 16
"""Of a tensor that is picked from, as the specification has it."""

OPERATION = {
    "memset": Opcode.MEMSET, "select": Opcode.SELECT, "tensor.matmul": Opcode.MATMUL,
    "tensor.transpose": Opcode.TRANSPOSE, "dma.gather": Opcode.GATHER, "dma.load": Opcode.LOAD,
    "dma.store": Opcode.STORE,
}  # fmt: skip
"""What a specification becomes, where it is one operation always."""

_P, _F = var("p"), var("f")
FORMULAS: tuple[Scalar, ...] = (
    load("source", _P, _F),
    call("exp", call("add", call("multiply", load("source", _P, _F), 0.5), load("column", _P))),
    call("maximum", call("subtract", load("source", _P, _F), load("other", _P, _F)), 0.25),
    call("multiply", load("source", _P, _F), load("other", _P, _F)),
)
"""Functions of operands that stand for "any"."""


def variants(spec: IntrinsicSpec) -> Iterator[Block]:
    """The body of a specification; a pointwise one's for several functions and reducers."""
    formulas = FORMULAS if spec.pointwise else (spec.body.value,)
    reducers = (spec.body.reducer, *spec.reducers)
    for value, reducer in product(formulas, reducers):
        yield replace(spec.body, stage="it", value=value, reducer=reducer)


def cases() -> Iterator[Any]:
    """(specification, block, memory of each operand), the memories being every choice there is."""
    for spec in INTRINSICS:
        for number, block in enumerate(variants(spec)):
            names = dict.fromkeys(["out", *(found.buffer for found in loads(block.value))])
            allowed = [
                ["global" if scope == "hbm" else scope for scope in spec.scopes.get(
                    name, spec.scopes.get("source", ())) if scope in ("hbm", "sbuf", "psum")]
                for name in names
            ]  # fmt: skip
            for scopes in product(*allowed):
                marks = "-".join((spec.name, str(number), *scopes))
                yield pytest.param(spec, block, dict(zip(names, scopes, strict=True)), id=marks)


def tensorized(name: str, block: Block) -> Intrinsic:
    """A block in a loop for each of its variables, as one instruction."""
    indices = [index for access, _ in block.accesses() for index in access.indices]
    names = dict.fromkeys(n for index in indices for n in sorted(index.variables()))
    statement: Statement = block
    for variable in reversed(names):
        statement = Loop(variable, as_expr(SIZES[variable]), "serial", statement)
    return Intrinsic(name, statement)


def shape(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """As large as its variables' loops; what is picked from is larger."""
    return tuple(as_expr(SIZES.get(str(index), ROWS)) for index in indices)


def program(spec: IntrinsicSpec, block: Block, scopes: dict[str, str]) -> Program:
    """The instruction alone, its operands brought and its result taken away."""

    def indexed(access: Load) -> Load:
        """HBM without indices is read and written turned, on chip as the tile is."""
        anywhere = (_F, _P) if scopes[access.buffer] == "global" else (_P, _F)
        return Load(access.buffer, access.indices or anywhere)

    value = rewrite(block.value, lambda e: e, indexed)
    block = replace(block, indices=indexed(block.write).indices, value=value)
    parameters: dict[str, Buffer] = {}
    tiles: list[Buffer] = []
    before: list[Statement] = []
    for access in dict.fromkeys(loads(value)):
        bring(access, scopes[access.buffer], parameters, tiles, before)
    if "index" in str(value):
        parameters["index"] = Buffer("index", shape((_P,)), "int32", "global", "input")
    out = Buffer("out", shape(block.indices), "float32", scopes["out"])
    after: list[Statement] = []
    if out.scope == "global":
        parameters["out"] = replace(out, role="output")
    else:
        tiles.append(out)
        take_away(block.indices, out, parameters, tiles, after)
    if block.reducer is not None:
        begin = replace(block, value=Const(REDUCERS[block.reducer]), reducer=None)
        before.append(tensorized("memset", begin))
    body: Statement = sequence(*before, tensorized(spec.name, block), *after)
    for tile in tiles:
        body = Allocate(tile, body)
    return Program("alone", tuple(parameters.values()), body)


def bring(
    access: Load,
    scope: str,
    parameters: dict[str, Buffer],
    tiles: list[Buffer],
    before: list[Statement],
) -> None:
    """An operand in its memory; by way of SBUF to PSUM."""
    name, indices = access.buffer, access.indices
    source = Buffer(name, shape(indices), "float32", "global", "input")
    if scope == "global":
        parameters[name] = source
        return
    previous = f"{name}.hbm"
    parameters[previous] = replace(source, name=previous)
    for step, memory in ((f"{name}.sbuf", "sbuf"), (name, "psum"))[scope == "sbuf" :]:
        step, memory = (name, scope) if scope == "sbuf" else (step, memory)
        tiles.append(Buffer(step, source.shape, "float32", memory))
        by = "dma.load" if memory == "sbuf" else "pointwise"
        before.append(tensorized(by, Block(step, step, indices, Load(previous, indices))))
        previous = step


def take_away(
    indices: tuple[Expr, ...],
    out: Buffer,
    parameters: dict[str, Buffer],
    tiles: list[Buffer],
    after: list[Statement],
) -> None:
    """A result on its way to HBM; out of PSUM by way of SBUF."""
    name = out.name
    if out.scope == "psum":
        name = "taken"
        tiles.append(replace(out, name=name, scope="sbuf"))
        after.append(tensorized("pointwise", Block(name, name, indices, Load(out.name, indices))))
    parameters["result"] = replace(out, name="result", scope="global", role="output")
    after.append(tensorized("dma.store", Block("result", "result", indices, Load(name, indices))))


@pytest.mark.parametrize(("spec", "block", "scopes"), list(cases()))
def test_an_instruction_does_what_its_specification_says(
    spec: IntrinsicSpec, block: Block, scopes: dict[str, str], trn1: Core
) -> None:
    made = program(spec, block, scopes)
    rng = np.random.default_rng(0)
    arrays = {
        b.name: rng.standard_normal([e.constant or 0 for e in b.shape]).astype(np.float32)
        for b in made.parameters
        if b.role == "input"
    }
    if "index" in arrays:
        arrays["index"] = rng.integers(-ROWS, ROWS, SIZES["p"]).astype(np.int32)
    stream = generate(made, trn1)
    if spec.name in OPERATION:
        assert OPERATION[spec.name] in {instruction.op for instruction in stream}
    (found,) = execute(stream, arrays).values()
    want = interpret(made, arrays)[made.parameters[-1].name]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_every_specification_has_an_emitter() -> None:
    """Gathers and choices have planners that write their own."""
    assert set(EMITTERS) | {"dma.gather", "chosen"} == {spec.name for spec in INTRINSICS}


def test_a_condition_on_two_loops_is_cut_loop_by_loop(trn1: Core) -> None:
    """A load below a diagonal: no box of constant stride has its edge."""
    (spec,) = (found for found in INTRINSICS if found.name == "framed")
    value = Select((_P - _F,), Load("source", ()), Const(0.5))
    block = replace(spec.body, stage="it", value=value)
    made = program(spec, block, {"out": "sbuf", "source": "global"})
    source = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
    (found,) = execute(generate(made, trn1), {"source": source}).values()
    np.testing.assert_array_equal(found, np.where(np.tri(5, 7) > 0, source.T, np.float32(0.5)))


@pytest.mark.parametrize(
    ("value", "scopes", "message"),
    [
        (call("exp", load("source", _F, _P)), "sbuf", "no instruction computes that with 'out'"),
        (load("source", _P, _F), "global", "'out' in global, 'source' in global; there are memset"),
        (Select((_P,), call("exp", load("source", _P, _F)), Const(0.0)), "sbuf", "by position"),
    ],
)
def test_what_no_specification_fits_is_refused(
    value: Scalar, scopes: str, message: str, trn1: Core
) -> None:
    """A turned operand, a copy within HBM, an expression chosen by position."""
    block = Block("it", "out", (_P, _F), value)
    shapes = {"source": (7, 7), "out": (5, 7)}
    buffers = [
        Buffer(name, tuple(map(as_expr, shape)), "float32", scopes, "temporary")
        for name, shape in shapes.items()
    ]
    body = tensorized("pointwise", block).body
    with pytest.raises(CodegenError, match=message):
        generate(Program("odd", tuple(buffers), body), trn1)


def test_a_tensorized_nest_is_the_instruction_it_names(trn1: Core) -> None:
    (spec,) = (found for found in INTRINSICS if found.name == "dma.load")
    made = program(spec, replace(spec.body, stage="it"), {"out": "sbuf", "source": "global"})
    wrong = transformed(made.body, "dma.load", "dma.store")
    with pytest.raises(
        VerificationError, match=r"'dma\.store' in stage 'it': out is 'out' in sbuf"
    ):
        generate(replace(made, body=wrong), trn1)


def transformed(statement: Statement, old: str, new: str) -> Statement:
    """A program's body with one instruction called another."""
    match statement:
        case Intrinsic(name, body) if name == old:
            return Intrinsic(new, body)
        case Allocate(buffer, body):
            return Allocate(buffer, transformed(body, old, new))
        case _ if isinstance(statement, Intrinsic):
            return statement
        case _:
            return sequence(*(transformed(inner, old, new) for inner in children(statement)))
