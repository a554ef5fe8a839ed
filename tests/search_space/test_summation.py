"""Orders of summation: what keeps them, what changes them, beside every order summed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.scalar import call, load
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.summation.reading import adds, summation_of

ROW, K, L = axis("i", 4), axis("k", 24), axis("l", 6)


def sums(*, product: bool = True, reducer: str = "sum", dtype: str = "float32") -> Schedule:
    """c[i] = sum over k, l of x[i, k, l] * w[k, l]."""
    x, w = load("x", ROW.var, K.var, L.var), load("w", K.var, L.var)
    value = call("multiply", x, w) if product else x
    stage = Stage("c", (ROW,), value, (K, L), reducer, dtype=dtype)
    inputs = (Tensor("x", (4, 24, 6), dtype), Tensor("w", (24, 6), dtype))
    return Schedule(ComputeDefinition("sums", inputs, (stage,)))


def tiled(order: tuple[str, ...]) -> Schedule:
    """k in tiles: its loops and that over l in an order."""
    schedule = sums().split("c", "k", var("tile"), "ko", "ki")
    return schedule.reorder("c", ("i", *order))


def steps(schedule: Schedule, **tiles: int) -> str:
    (one,) = summation_of(schedule).at(tiles)
    return " ".join(f"{axis}{how}:{step}" for axis, how, step in one.steps)


@pytest.mark.parametrize(
    "order, tile, expected",
    [
        (("ko", "ki", "l"), 4, "k:1 l:1"),
        (("ko", "l", "ki"), 4, "k:4 l:1 k:1"),
        (("ko", "l", "ki"), 24, "l:1 k:1"),
        (("ko", "l", "ki"), 1, "k:1 l:1"),
        (("l", "ko", "ki"), 8, "l:1 k:1"),
    ],
)
def test_the_order_of_loops(order: tuple[str, ...], tile: int, expected: str) -> None:
    assert steps(tiled(order), tile=tile) == expected


def added(schedule: Schedule, tile: int) -> tuple[float, ...]:
    """What a schedule adds up, by the interpreter, in numbers whose sums show their order."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 24, 6)).astype(np.float32) * 10.0 ** rng.integers(0, 6, (4, 24, 6))
    inputs = {"x": x.astype(np.float32), "w": rng.standard_normal((24, 6)).astype(np.float32)}
    return tuple(interpret(lower(schedule).bind({"tile": tile}), inputs)["c"].tolist())


def test_equal_orders_add_equally_and_unequal_ones_do_not() -> None:
    outputs: dict[str, set[tuple[float, ...]]] = {}
    for order in (("ko", "ki", "l"), ("ko", "l", "ki"), ("l", "ko", "ki")):
        for tile in (1, 4, 6, 24):
            schedule = tiled(order)
            outputs.setdefault(steps(schedule, tile=tile), set()).add(added(schedule, tile))
    assert all(len(sums) == 1 for sums in outputs.values()), outputs
    assert len(set().union(*outputs.values())) == len(outputs) == 4


def test_copies_layouts_registers_and_loops_over_outputs_do_not_matter() -> None:
    plain = sums()
    other = plain.cache_read("x", "c", "x.copy").split("c", "i", 2, "io", "ii")
    other = other.vectorize("c", "ii").cache_write("c", "register", "io").parallel("c", "io")
    assert summation_of(plain).at({}) == summation_of(other).at({})


def test_partial_sums_matter_and_the_step_between_them() -> None:
    orders = {summation_of(sums().rfactor("c", "k", size, "c.parts")).at({}) for size in (1, 2, 4)}
    assert len({*orders, summation_of(sums()).at({})}) == 4


def test_lanes_of_a_sum_and_products_matter() -> None:
    assert steps(sums().vectorize("c", "l")) == "k:1 l@lanes:1"
    rounded_twice = sums().compute
    product = Stage("p", (ROW, K, L), rounded_twice.output.value)
    total = Stage("c", (ROW,), load("p", ROW.var, K.var, L.var), (K, L), "sum")
    apart = Schedule(ComputeDefinition("sums", rounded_twice.inputs, (product, total)))
    assert summation_of(apart).at({}) != summation_of(sums()).at({})


def test_extremes_and_whole_numbers_have_no_order() -> None:
    for schedule in (sums(reducer="max", product=False), sums(dtype="int32")):
        assert steps(schedule) == ""
        assert not adds(schedule.compute)
    assert adds(sums().compute)
