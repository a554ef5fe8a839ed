"""The verifier: each rule of the loop IR broken once, and the message that names it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilesmith.search_space.expressions.expression import (
    ExprLike,
    as_expr,
    const,
    element,
    minimum,
    var,
)
from tilesmith.search_space.expressions.scalar import Const, Load, Scalar, Select, call, load
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.ir.program import (
    Allocate,
    Block,
    Buffer,
    If,
    Intrinsic,
    Loop,
    LoopKind,
    Program,
    Statement,
    sequence,
)
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.support.errors import VerificationError

i, j = var("i"), var("j")
TARGET = load_target("systolic")


def buffer(name: str, *shape: ExprLike, scope: str = "global", **more: object) -> Buffer:
    return Buffer(name, tuple(as_expr(e) for e in shape), scope=scope, **more)  # type: ignore[arg-type]


def loop(variable: str, extent: ExprLike, body: Statement, kind: LoopKind = "serial") -> Loop:
    return Loop(variable, as_expr(extent), kind, body)


def block(write: Load, value: Scalar, **more: object) -> Block:
    return Block("s", write.buffer, write.indices, value, **more)  # type: ignore[arg-type]


def program(body: Statement, *temporaries: Buffer) -> Program:
    """x: 8 elements in, y: 8 elements out."""
    x, y = buffer("x", 8, role="input"), buffer("y", 8, role="output")
    for temporary in reversed(temporaries):
        body = Allocate(temporary, body)
    return Program("test", (x, y), body)


COPY = block(load("y", i), load("x", i))


def test_a_plain_copy_is_fine() -> None:
    verify(program(loop("i", 8, COPY)))


def test_what_a_loop_of_no_iterations_would_do_is_not_asked_after() -> None:
    beyond = loop("i", 16, COPY)
    verify(program(loop("j", 0, beyond)))
    with pytest.raises(VerificationError, match=r"can leave 0\.\.7"):
        verify(program(loop("j", 1, beyond)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (sequence(loop("i", 8, COPY), COPY), "block 's' uses variable 'i' in 'i', outside"),
        (loop("i", 8, loop("i", 8, COPY)), "loop 'i' stands inside a loop of that name"),
        (loop("i", 9, COPY), r"index 0 of y\[i\] can leave 0..7"),
        (loop("i", 8, block(load("y", i), load("x", i + 1))),
         r"index 0 of x\[i \+ 1\] can leave 0..7, the range of buffer 'x'"),
        (loop("i", 8, block(load("y", i), load("x", i - 1))), r"x\[i - 1\] can leave 0..7"),
        (loop("i", 8, block(load("y", i), load("z", i))),
         "uses buffer 'z', which is neither a parameter nor allocated around it"),
        (loop("i", 8, block(load("y", i, 0), load("x", i))),
         "uses 2 indices in .*; buffer 'y' has 1 dimensions"),
        (loop("i", 8, block(load("x", i), Const(1.0))), "writes 'x', which is an input"),
        (loop("i", 4, loop("j", 2, block(load("y", i * 2 + j), Const(0.0))), "vector"),
         "vector loop 'i' holds another loop"),
        (loop("i", var("j") + 1, loop("j", 4, COPY)), "extent of loop 'i' uses variable 'j'"),
        (loop("i", 8, If((var("k"),), COPY, loop("k", 1, COPY))), "the condition of an if uses"),
        (Intrinsic("vpdpbusd", COPY), "intrinsic 'vpdpbusd' is no instruction of any target"),
        (loop("i", 8, Intrinsic("transpose", Intrinsic("transpose", COPY))),
         "'transpose' stands inside intrinsic 'transpose'"),
        (Loop("i", const(8), "serial", COPY, stages=0), "loop 'i' is pipelined 0 deep"),
    ],
)  # fmt: skip
def test_broken_rules_are_named(body: Statement, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(program(body))


def test_conditions_keep_accesses_inside() -> None:
    inside = (i - 1, 7 - (i - 1))
    shifted = Select(inside, load("x", i - 1), Const(0.0))
    verify(program(loop("i", 8, block(load("y", i), shifted))))
    verify(program(loop("i", 20, block(load("y", i), load("x", i), guard=(7 - i,)))))
    verify(program(loop("i", 20, If((7 - i,), COPY))))
    verify(program(loop("i", 8, If((i - 8,), block(load("y", i + 9), Const(0.0)), COPY))))
    with pytest.raises(VerificationError, match="can leave"):
        verify(program(loop("i", 20, If((8 - i,), COPY))))


def test_the_else_branch_knows_the_opposite() -> None:
    value = Select((i - 8,), Const(0.0), load("x", i))
    body = loop("i", 16, block(load("t", i), value))
    verify(program(body, buffer("t", 16)))


def test_tails_are_proved() -> None:
    tail = loop("i", 3, loop("j", minimum(3, 8 - 3 * i), block(load("y", i * 3 + j), Const(0.0))))
    verify(program(tail))
    wrong = loop("i", 3, loop("j", minimum(3, 9 - 3 * i), block(load("y", i * 3 + j), Const(0.0))))
    with pytest.raises(VerificationError, match="can leave"):
        verify(program(wrong))


def test_indices_read_at_run_time_are_bounded() -> None:
    """`element` stays inside the axis it indexes; where it is read is checked like any access."""
    table = buffer("n", 8, dtype="int64")
    good = block(load("y", i), load("x", element("n", i, 8)))
    verify(program(loop("i", 8, good), table))
    wide = block(load("y", i), load("x", element("n", i, 9)))
    with pytest.raises(VerificationError, match=r"can leave 0..7"):
        verify(program(loop("i", 8, wide), table))
    beyond = block(load("y", i), load("x", element("n", i + 1, 8)))
    with pytest.raises(VerificationError, match=r"n\[i \+ 1\] can leave 0..7"):
        verify(program(loop("i", 8, beyond), table))
    with pytest.raises(VerificationError, match=r"uses buffer 'n', which is neither"):
        verify(program(loop("i", 8, good)))


def test_symbolic_programs_are_checked_but_for_ranges() -> None:
    verify(program(loop("i", var("n"), COPY)))
    with pytest.raises(VerificationError, match="outside its loop"):
        verify(program(sequence(loop("i", var("n"), COPY), COPY)))


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_registers_are_indexed_by_unrolled_loops_only(kind: LoopKind) -> None:
    tile = buffer("t", 8, scope="register")
    body = block(load("t", i), load("x", i))
    verify(program(loop("i", 8, body, "unroll"), tile))
    verify(program(loop("i", 8, body, "vector"), tile))
    verify(program(loop("i", 1, body, kind), tile))
    with pytest.raises(VerificationError, match=f"by the {kind} loop 'i'; unroll or vectorize it"):
        verify(program(loop("i", 8, body, kind), tile))


def test_a_buffer_lives_once() -> None:
    with pytest.raises(VerificationError, match="'t' is allocated inside its own lifetime"):
        verify(program(loop("i", 8, COPY), buffer("t", 8), buffer("t", 8)))
    with pytest.raises(VerificationError, match="has 0 versions"):
        verify(program(loop("i", 8, COPY), buffer("t", 8, versions=0)))


@pytest.mark.parametrize(
    ("temporary", "message"),
    [
        (buffer("t", 8, scope="register"),
         "in 'register', which target 'systolic' lacks; it has global, packed, hbm"),
        (buffer("t", 129, 4, scope="sbuf"), "'t' in sbuf takes 129 partitions; there are 128"),
        (buffer("t", 128, 513, scope="psum"), "takes 2052 bytes of each .*; a bank holds 2048"),
        (buffer("t", 128, 1, scope="psum", versions=9), "in use to 18432 of each .*; it has 16384"),
        (buffer("t", 128, 24577, scope="sbuf", versions=2),
         "in use to 196616 of each partition; it has 196608"),
    ],
)  # fmt: skip
def test_capacities_of_the_target(temporary: Buffer, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(program(loop("i", 8, COPY), temporary), TARGET)


def matmul(
    k: int = 128, m: int = 128, n: int = 512, engine: str = "tensor", scope: str = "sbuf"
) -> Program:
    """One tensor.matmul, alone."""
    a, b = buffer("a", k, m, scope=scope), buffer("b", k, n, scope="sbuf")
    c = buffer("c", m, n, scope="psum")
    value = call("multiply", load("a", var("k"), var("m")), load("b", var("k"), var("n")))
    inner = block(load("c", var("m"), var("n")), value, reducer="sum", engine=engine)
    body: Statement = Intrinsic("tensor.matmul", loop("k", k, loop("m", m, loop("n", n, inner))))
    for found in (a, b, c):
        body = Allocate(found, body)
    return Program("one", (), body)


def test_a_full_matmul_instruction_fits() -> None:
    verify(matmul(), TARGET)


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (matmul(k=64, m=129), "takes 129 partitions"),
        (matmul(engine="vector"), "does not run on 'vector'; allowed: tensor"),
        (matmul(engine="warp"), "assigned to engine 'warp'; one of dma, tensor"),
        (matmul(n=128, scope="psum"), "stationary is 'a' in psum; allowed: sbuf"),
    ],
)
def test_limits_of_the_tensor_engine(built: Program, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(built, TARGET)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"array.rows": "64"}, "stage 's': K = 128 exceeds the limit of 64"),
        ({"array.cols": "64"}, "stage 's': M = 128 exceeds the limit of 64"),
        ({"psum.banks": "16"}, "a bank holds 1024"),
    ],
)
def test_limits_are_the_targets(setting: dict[str, str], message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(matmul(), TARGET.with_settings(setting))


def test_an_instruction_must_compute_what_it_says() -> None:
    good = matmul()

    def changed(**fields: object) -> Program:
        statement = good.body
        layers: list[Statement] = []
        while not isinstance(statement, Block):
            layers.append(statement)
            statement = statement.body  # type: ignore[union-attr]
        inner: Statement = replace(statement, **fields)  # type: ignore[arg-type]
        for layer in reversed(layers):
            inner = replace(layer, body=inner)  # type: ignore[call-arg]
        return replace(good, body=inner)

    with pytest.raises(VerificationError, match=r"computes out\[m, n\] \+= .*, not c"):
        verify(changed(reducer=None), TARGET)
    with pytest.raises(VerificationError, match="computes"):
        verify(changed(value=load("a", var("k"), var("m"))), TARGET)
    swapped = call("multiply", load("b", var("k"), var("n")), load("a", var("k"), var("m")))
    with pytest.raises(VerificationError, match=r"runs along [kmn] elsewhere and along [kmn]"):
        verify(changed(value=swapped), TARGET)
    verify(good, TARGET)


def test_a_tensorized_program_is_all_instructions() -> None:
    one = matmul()
    extra = loop("z", 4, block(load("y", var("z")), Const(0.0)))
    whole = replace(
        one, body=sequence(one.body, extra), parameters=(buffer("y", 8, role="output"),)
    )
    with pytest.raises(VerificationError, match="is no part of an instruction"):
        verify(whole, TARGET)
