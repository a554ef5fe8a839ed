"""Stages that write by index, and scans: what the loop IR makes of them, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.search_space.programs import lowered
from tilesmith.search_space.expressions.expression import as_expr, element, var
from tilesmith.search_space.expressions.scalar import Index, call, load
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.program import blocks, print_program
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.operator_parts.indexing import copied
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.support.errors import ScheduleError, VerificationError

T, C = axis("t", 5), axis("c", 4)


def scatter(reducer: str | None, extent: int = 3) -> ComputeDefinition:
    """y = x of 3 x 5; y[places[c], t] reducer= updates[c, t]"""
    places = (element("places", C.var, extent), T.var)
    written = Stage(
        "y", (T,), load("updates", C.var, T.var), (C,), reducer, places,
        (as_expr(3), as_expr(5)),
    )  # fmt: skip
    tensors = (
        Tensor("x", (3, 5)), Tensor("places", (4,), "int64"), Tensor("updates", (4, 5)),
    )  # fmt: skip
    return ComputeDefinition("scatter", tensors, (copied("x", written), written))


@pytest.mark.parametrize(
    ("reducer", "combine"),
    [(None, None), ("sum", np.add), ("max", np.maximum), ("product", np.multiply)],
)
def test_what_is_written_by_index_starts_from_what_is_there(
    reducer: str | None, combine: np.ufunc | None
) -> None:
    rng = np.random.default_rng(0)
    x, updates = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((3, 5), (4, 5)))
    places = np.array([2, -3, 2, -1])
    want = x.copy()
    if combine is None:
        want[places] = updates  # the last of several stays
    else:
        combine.at(want, places, updates)
    schedule = Schedule(scatter(reducer)).split("y", "t", 2, "outer", "inner")
    schedule = schedule.reorder("y", ("outer", "c", "inner")).vectorize("y", "inner")
    arrays = {"x": x, "places": places, "updates": updates}
    for program in (lowered(Schedule(scatter(reducer))), lowered(schedule)):
        np.testing.assert_array_equal(interpret(program, arrays)["y"], want)


def test_what_is_written_by_index_is_written_in_order() -> None:
    program = lowered(Schedule(scatter(None)))
    assert "y[places[c], t] = updates[c, t]" in print_program(program)
    (written,) = (block for block in blocks(program.body) if block.stage == "y")
    assert written.indices[0].tensors() == {"places"}
    assert scatter("sum").output.reads == {"places", "updates"}


def test_a_place_that_may_lie_outside_is_refused() -> None:
    with pytest.raises(VerificationError, match=r"index 0 of y\[places\[c\], t\] can leave 0\.\.2"):
        verify(lower(Schedule(scatter(None, extent=4))))


def test_indices_are_read_inside_their_tensor() -> None:
    compute = scatter(None)
    written = compute.output
    beyond = replace(written, store=(element("places", C.var + 1, 3), T.var))
    with pytest.raises(VerificationError, match=r"index 0 of places\[c \+ 1\] can leave 0\.\.3"):
        verify(lower(Schedule(replace(compute, stages=(copied("x", beyond), beyond)))))


def scan(kind: str) -> ComputeDefinition:
    """y[t, c] = x[t, 0] + ... + x[t, c]"""
    at = (T.var, C.var)
    stage = Stage("y", (T,), load("x", *at), (C,), "sum", at, (as_expr(5), as_expr(4)), scan=kind)  # type: ignore[arg-type]
    return ComputeDefinition("scan", (Tensor("x", (5, 4)),), (stage,))


def test_a_scan_writes_every_partial_sum() -> None:
    x = np.random.default_rng(0).integers(-4, 5, (5, 4)).astype(np.float32)
    want = np.cumsum(x, axis=1)
    for kind, result in (("inclusive", want), ("exclusive", want - x)):
        schedule = Schedule(scan(kind)).split("y", "t", 2, "outer", "inner")
        schedule = schedule.reorder("y", ("outer", "c", "inner")).unroll("y", "inner")
        program = lowered(schedule.cache_write("y", "register", "outer"))
        np.testing.assert_array_equal(interpret(program, {"x": x})["y"], result)


def test_a_scan_keeps_its_sum_in_a_tile() -> None:
    with pytest.raises(ScheduleError, match="stage 'y' keeps partial results: cache_write it"):
        lower(Schedule(scan("inclusive")))


def test_an_index_is_a_number() -> None:
    value = call("multiply", Index(T.var * 2 + 1), load("x", T.var))
    compute = ComputeDefinition("f", (Tensor("x", (5,)),), (Stage("y", (T,), value),))
    program = lowered(Schedule(compute))
    assert "(index(t*2 + 1) * x[t])" in print_program(program)
    found = interpret(program, {"x": np.full(5, 2, np.float32)})["y"]
    np.testing.assert_array_equal(found, [2, 6, 10, 14, 18])
    loose = replace(
        compute, stages=(Stage("y", (T,), Index(var("c"))), Stage("z", (C,), load("y", C.var)))
    )
    with pytest.raises(VerificationError, match="uses variable 'c' in 'c', outside its loop"):
        verify(lower(Schedule(loose)))
