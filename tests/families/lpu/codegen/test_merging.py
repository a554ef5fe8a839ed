"""Chains that one could do become one, and compute the same; others stay two."""

from __future__ import annotations

import numpy as np
import pytest

from tests.families.lpu.codegen.chains import chip
from tilesmith.families.lpu.codegen.dataflow import (
    Chain,
    ChainBuilder,
    Compute,
    Dataflow,
    Operation,
    Rows,
    VectorTensor,
)
from tilesmith.families.lpu.codegen.scheduling.rewriting.simplifying import simplified
from tilesmith.families.lpu.codegen.scheduling.scheduler import schedule
from tilesmith.families.lpu.codegen.verification.checker import check
from tilesmith.families.lpu.simulator.execution.functional import execute

ROWS = 8
WHOLE = (ROWS, 1)
SCALED = (Operation("convert", (0,), "float32"), Operation("multiply", (1, -1), "float32", 0.5))
NARROWED = (Operation("convert", (0,), "float16"),)
ADDED = (Operation("add", (0, 1), "float32"),)
ADDED_TWICE = (Operation("add", (0, 0), "float32"),)


def chain(name: str, reads: tuple[Rows, ...], operations: tuple[Operation, ...], to: Rows) -> Chain:
    builder = ChainBuilder(name, len(to))
    values = [builder.read(rows) for rows in reads]
    builder.write(builder.compute(values, *operations), to)
    return builder.chain()


def whole(tensor: str) -> Rows:
    return Rows.of(tensor, 0, WHOLE)


def program(*chains: Chain) -> Dataflow:
    tensors = [
        VectorTensor("x", ROWS, "int32", "input"), VectorTensor("z", ROWS, "float32", "input"),
        VectorTensor("t", ROWS, "float32"), VectorTensor("u", ROWS, "float32"),
        VectorTensor("y", ROWS, "float16", "output"), VectorTensor("v", ROWS, "float32", "output"),
    ]  # fmt: skip
    used = {
        name
        for one in chains
        for s in one.steps
        if (name := getattr(getattr(s, "rows", None), "tensor", ""))
    }
    return Dataflow("program", {t.name: t for t in tensors if t.name in used}, chains)


def values(flow: Dataflow) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    given = {
        "x": random.integers(-999, 999, (ROWS, 320), dtype=np.int32),
        "z": random.normal(size=(ROWS, 320)).astype(np.float32),
    }
    placed = schedule(flow, chip())
    check(placed)
    inputs = {name: rows for name, rows in given.items() if name in flow.tensors}
    found = execute(placed, inputs).tensors
    return {n: found[n] for n, t in flow.tensors.items() if t.role == "output"}


SCALE = chain("scale", (whole("x"),), SCALED, whole("t"))
NARROW = chain("narrow", (whole("t"),), NARROWED, whole("y"))
ADD = chain("add", (whole("t"), whole("z")), ADDED, whole("v"))


@pytest.mark.parametrize("behind", [NARROW, ADD], ids=["conversion", "with another operand"])
def test_who_reads_alone_what_another_wrote_joins_it(behind: Chain) -> None:
    flow = program(SCALE, behind)
    found = simplified(flow, lambda _: None)
    (joined,) = found.flow.chains
    assert (joined.name, found.numbers) == ("scale", (0,))
    assert "t" not in found.flow.tensors
    for name, wanted in values(flow).items():
        np.testing.assert_array_equal(values(found.flow)[name], wanted)


def test_three_become_one() -> None:
    again = chain("again", (whole("t"),), ADDED_TWICE, whole("u"))
    narrow = chain("narrow", (whole("u"),), NARROWED, whole("y"))
    flow = program(SCALE, again, narrow)
    found = simplified(flow, lambda _: None)
    assert [len(c.steps) for c in found.flow.chains] == [3]
    np.testing.assert_array_equal(values(found.flow)["y"], values(flow)["y"])


LONG = tuple(Operation("tanh", (n,), "float32") for n in range(16))


@pytest.mark.parametrize(
    "chains",
    [
        (SCALE, NARROW, ADD),
        (SCALE, chain("part", (Rows.of("t", 0, (4, 1)),), NARROWED, Rows.of("y", 0, (4, 1)))),
        (SCALE, chain("turned", (Rows.of("t", 7, (8, -1)),), NARROWED, whole("y"))),
        (SCALE, chain("long", (whole("t"),), LONG, whole("v"))),
    ],
    ids=["two readers", "a part", "another order", "too many operations"],
)
def test_others_stay_apart(chains: tuple[Chain, ...]) -> None:
    found = simplified(program(*chains), lambda _: None)
    assert len(found.flow.chains) == len(chains)


def test_what_is_overwritten_between_the_two_is_read_before() -> None:
    """x becomes u, u becomes t, u is written anew, and t read: joined, the last would see it so."""
    first = chain("first", (whole("x"),), SCALED, whole("u"))
    second = chain("second", (whole("u"),), ADDED_TWICE, whole("t"))
    third = chain("third", (whole("z"),), ADDED_TWICE, whole("u"))
    last = chain("last", (whole("t"), whole("z")), ADDED, whole("v"))
    other = chain("other", (whole("u"),), NARROWED, whole("y"))
    flow = program(first, second, third, last, other)
    found = simplified(flow, lambda _: None).flow
    for name, wanted in values(flow).items():
        np.testing.assert_array_equal(values(found)[name], wanted)


def test_a_factor_that_several_take_goes_into_the_constants() -> None:
    """GELU's: x / sqrt(2) and x / 2 of what was scaled, and a factor behind the product."""
    operations = (
        Operation("convert", (0,), "float32"), Operation("multiply", (2, 1), "float32"),
        Operation("multiply", (3, -1), "float32", 0.7), Operation("tanh", (4,), "float32"),
        Operation("multiply", (3, -1), "float32", 0.5), Operation("multiply", (5, 6), "float32"),
        Operation("multiply", (7, -1), "float32", 4.0), Operation("convert", (8,), "float16"),
    )  # fmt: skip
    scales = np.linspace(0.01, 0.02, 320, dtype=np.float32)[None]
    builder = ChainBuilder("gelu", ROWS)
    reads = [builder.read(whole("x")), builder.read(Rows.of("s", 0, (ROWS, 0)))]
    builder.write(builder.compute(reads, *operations), whole("y"))
    plain = program(builder.chain())
    flow = Dataflow(
        "program", {**plain.tensors, "s": VectorTensor("s", 1, "float32", "constant")}, plain.chains
    )
    found = simplified(flow, {"s": scales}.get)
    (step,) = (s for s in found.flow.chains[0].steps if isinstance(s, Compute))
    assert len(step.operations) == 6
    (held,) = (c for n, c in found.contents.items() if n in found.flow.tensors)
    np.testing.assert_allclose(held, scales * 0.7, rtol=1e-6)
    x = np.random.default_rng(3).integers(-999, 999, (ROWS, 320), dtype=np.int32)
    placed = schedule(found.flow, chip())
    y = execute(placed, {"x": x, **found.contents}).tensors["y"]
    wanted = np.tanh(x * scales * 0.7) * (x * scales * 0.5) * 4
    np.testing.assert_allclose(y.astype(np.float64), wanted, rtol=2e-3, atol=1e-6)
