"""Every scheduling primitive: what it makes (golden) computes what the unscheduled program does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.search_space.programs import check, inputs_of, lowered, result
from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.scalar import call, load
from tilesmith.search_space.ir.program import print_program
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.support.errors import ScheduleError, VerificationError

M, N, K = 5, 7, 6


def product(constant: bool = False) -> ComputeDefinition:
    """c = a b, then out = max(c + bias, 0)."""
    i, j, k = axis("i", M), axis("j", N), axis("k", K)
    value = call("multiply", load("a", i.var, k.var), load("b", k.var, j.var))
    c = Stage("c", (i, j), value, (k,), "sum")
    biased = call("add", load("c", i.var, j.var), load("bias", j.var))
    out = Stage("out", (i, j), call("maximum", biased, 0.0))
    tensors = (
        Tensor("a", (M, K)), Tensor("b", (K, N), constant=constant), Tensor("bias", (N,))
    )  # fmt: skip
    return ComputeDefinition("product", tensors, (c, out))


def blur() -> ComputeDefinition:
    """p = 2x; y[i] = p[i] + p[i+1] + p[i+2]."""
    i, j = axis("i", 12), axis("j", 10)
    p = Stage("p", (i,), call("multiply", load("x", i.var), 2.0))
    near = call("add", load("p", j.var), load("p", j.var + 1))
    return ComputeDefinition(
        "blur",
        (Tensor("x", (12,)),),
        (p, Stage("y", (j,), call("add", near, load("p", j.var + 2)))),
    )


Build = Callable[[Schedule], Schedule]

ON_PRODUCT: dict[str, Build] = {
    "none": lambda s: s,
    "split": lambda s: s.split("c", "j", 3, "jo", "ji"),
    "split_exact": lambda s: s.split("c", "k", 2, "ko", "ki"),
    "split_symbol": lambda s: s.split("c", "i", var("f"), "io", "ii"),
    "split_twice": lambda s: s.split("c", "j", 2, "jt", "ji").split("c", "jt", 3, "jo", "jm"),
    "reorder": lambda s: s.reorder("c", ("k", "j", "i")),
    "vectorize": lambda s: s.split("c", "j", 4, "jo", "ji").reorder(
        "c", ("jo", "k", "ji")).vectorize("c", "ji"),
    "unroll": lambda s: s.split("c", "j", 3, "jo", "ji").unroll("c", "ji"),
    "parallel": lambda s: s.parallel("c", "i").parallel("out", "i", "j"),
    "pipeline": lambda s: s.cache_read("a", "c", "a.row", "local").compute_at(
        "a.row", "c", "i").pipeline("c", "i", 2),
    "assign_engine": lambda s: s.assign_engine("c", "tensor").assign_engine("out", "vector"),
    "cache_write": lambda s: s.reorder("c", ("i", "k", "j")).unroll("c", "j").cache_write(
        "c", "register", "i"),
    "cache_write_inside_reduction": lambda s: s.split("c", "k", 4, "ko", "ki").reorder(
        "c", ("ko", "i", "ki", "j")).unroll("c", "j").cache_write("c", "register", "i"),
    "reverse_compute_at": lambda s: s.reorder("c", ("i", "k", "j")).unroll("c", "j").cache_write(
        "c", "register", "i").reverse_compute_at("out", "c", "i"),
    "epilogue_after_split_reduction": lambda s: s.split("c", "k", 4, "ko", "ki").reorder(
        "c", ("ko", "i", "ki", "j")).unroll("c", "j").cache_write(
        "c", "register", "i").reverse_compute_at("out", "c", "i"),
    "cache_read": lambda s: s.cache_read("b", "c", "b.copy"),
    "cache_result": lambda s: s.cache_result("out", "kept"),
    "set_layout": lambda s: s.cache_read("b", "c", "b.packed").set_layout(
        "b.packed", Layout.blocked(2, 1, 4, [1, 0])),
    "set_scope": lambda s: s.set_scope("a", "hbm").set_scope("c", "hbm"),
    "rfactor": lambda s: s.rfactor("c", "k", 4, "partial"),
}  # fmt: skip

ON_BLUR: dict[str, Build] = {
    "inline": lambda s: s.inline("p"),
    "compute_at": lambda s: s.split("y", "j", 4, "jo", "ji").compute_at("p", "y", "jo"),
    "compute_at_symbol": lambda s: s.split("y", "j", var("f"), "jo", "ji").compute_at(
        "p", "y", "jo"),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_PRODUCT)
def test_primitive_on_a_product(name: str, golden: Callable[[str, str], None]) -> None:
    compute = product()
    arrays = inputs_of(compute)
    expected = np.maximum(arrays["a"] @ arrays["b"] + arrays["bias"], 0)
    for f in (1, 2, 3, 5):
        program = check(ON_PRODUCT[name](Schedule(compute)), expected, arrays, {"f": f})
    golden(f"primitives/{name}.txt", print_program(program))


@pytest.mark.parametrize("name", ON_BLUR)
def test_primitive_on_a_chain(name: str, golden: Callable[[str, str], None]) -> None:
    compute = blur()
    arrays = inputs_of(compute)
    p = 2 * arrays["x"]
    for f in (1, 3, 4, 10):
        program = check(
            ON_BLUR[name](Schedule(compute)), p[:-2] + p[1:-1] + p[2:], arrays, {"f": f}
        )
    golden(f"primitives/{name}.txt", print_program(program))


def test_compile_time_moves_a_stage_to_the_prologue(golden: Callable[[str, str], None]) -> None:
    compute = product(constant=True)
    arrays = inputs_of(compute)
    schedule = Schedule(compute).cache_read("b", "c", "b.packed").compile_time("b.packed")
    schedule = schedule.set_layout("b.packed", Layout.blocked(2, 1, 4, [1, 0]))
    expected = np.maximum(arrays["a"] @ arrays["b"] + arrays["bias"], 0)
    program = check(schedule, expected, arrays)
    assert program.prologue is not None
    assert program.parameter("b.packed").role == "prepared"
    golden("primitives/compile_time.txt", print_program(program))


def test_tensorize_wraps_a_loop_in_an_instruction(golden: Callable[[str, str], None]) -> None:
    compute = product()
    schedule = Schedule(compute).cache_write("c", "psum", "i").reorder("c", ("i", "k", "j"))
    schedule = schedule.tensorize("c", "k", "tensor.matmul", "memset")
    program = lowered_text(schedule)
    golden("primitives/tensorize.txt", program)


def lowered_text(schedule: Schedule) -> str:
    from tilesmith.search_space.scheduling.lowering import lower

    return print_program(lower(schedule))


def test_output_layout_is_physical() -> None:
    compute = product()
    arrays = inputs_of(compute)
    layout = Layout.blocked(2, 1, 4, [1, 0])
    program = lowered(Schedule(compute).set_layout("out", layout))
    found = layout.unpack(result(program, arrays), (M, N))
    np.testing.assert_array_equal(found, np.maximum(arrays["a"] @ arrays["b"] + arrays["bias"], 0))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.split("d", "i", 2, "io", "ii").cache_write("d", "register", "i"),
         "has no stage 'd'"),
        (lambda s: s.split("c", "x", 2, "xo", "xi"), "stage 'c' has no loop 'x'; it has i, j"),
        (lambda s: s.reorder("c", ("i", "i")), "names a loop twice"),
        (lambda s: s.cache_read("bias", "c", "copy"), "stage 'c' does not read 'bias'"),
        (lambda s: s.inline("c"), "'c' is a reduction or the output"),
        (lambda s: s.inline("out"), "cannot be inlined"),
        (lambda s: s.rfactor("c", "i", 2, "r"), "does not reduce over 'i'"),
        (lambda s: s.set_layout("z", Layout.plain(2)), "no tensor 'z'"),
        (lambda s: s.set_scope("z", "hbm"), "no tensor 'z'"),
        (lambda s: s.compile_time("c"), "depends on inputs that are not constant"),
        (lambda s: s.compute_at("out", "c", "i"), "attached to 'c', which does not read it"),
        (lambda s: s.split("d", "i", 2, "io", "ii"), "has no stage 'd'; it has c, out"),
    ],
)  # fmt: skip
def test_misapplied_primitives_are_named(build: Build, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        lowered(build(Schedule(product())))


def test_a_tail_outside_the_loop_over_its_tiles_is_refused() -> None:
    """The extent of the short tile depends on which tile it is."""
    schedule = Schedule(product()).split("c", "j", 3, "jo", "ji")
    with pytest.raises(VerificationError, match="the extent of loop 'ji' uses variable 'jo'"):
        lowered(schedule.reorder("c", ("ji", "jo")))
    exact = Schedule(product()).split("c", "k", 3, "ko", "ki").reorder("c", ("ki", "ko"))
    arrays = inputs_of(product())
    check(exact, np.maximum(arrays["a"] @ arrays["b"] + arrays["bias"], 0), arrays)


def test_schedules_are_values_and_print_their_steps() -> None:
    first = Schedule(product()).split("c", "i", 2, "io", "ii")
    second = Schedule(product()).split("c", "i", 2, "io", "ii")
    assert first.primitives == second.primitives
    assert "Split(stage='c', loop='i', factor=2" in str(first)
