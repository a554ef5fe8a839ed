"""Sizes and symbolic workloads: their texts, their numbers, and what is refused."""

from __future__ import annotations

import itertools

import pytest

from tilesmith.search_space.expressions.expression import ceildiv, const, maximum, minimum, var
from tilesmith.search_space.expressions.sizes import (
    Size,
    extent_parts,
    extent_text,
    limits,
    parse_extent,
    samples,
)
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload, shape_text

B, S = var("batch"), var("sequence")
EXTENTS = [
    const(7), B, B * S, 12 * B * S + 1, S - 3, ceildiv(S, 2) * B, (S * 5 + B) % 7,
    minimum(S, 1024), maximum(B * 2, S + 1),
]  # fmt: skip


@pytest.mark.parametrize("extent", EXTENTS, ids=str)
def test_an_extent_has_one_text(extent) -> None:
    assert parse_extent(extent_text(extent)) == extent
    assert " " not in extent_text(extent)


@pytest.mark.parametrize("extent", EXTENTS, ids=str)
def test_limits_hold_and_are_reached_by_polynomials(extent) -> None:
    sizes = (Size("batch", 1, 4), Size("sequence", 3, 9))
    values = [
        extent.evaluate({"batch": b, "sequence": s})
        for b, s in itertools.product(range(1, 5), range(3, 10))
    ]
    low, high = limits(extent, sizes)
    assert low <= min(values) and max(values) <= high
    if "%" not in str(extent):
        assert (low, high) == (min(values), max(values))


@pytest.mark.parametrize(
    "text", ["", "[]", "batch +", "f(batch)", "batch/2", "2**batch", "'a'", "batch.x", "x//0"]
)
def test_what_is_no_extent_is_refused(text) -> None:
    with pytest.raises(WorkloadError, match="is no extent"):
        parse_extent(text)


@pytest.mark.parametrize("size", [("min", 1, 2), ("a b", 1, 2), ("n", 0, 2), ("n", 3, 2)])
def test_sizes_have_names_and_ranges(size) -> None:
    with pytest.raises(WorkloadError, match="size"):
        Size(*size)


def test_samples_cover_the_ends_and_what_lies_beside_tiles() -> None:
    sizes = (Size("n", 2, 100), Size("m", 5, 5))
    found = list(samples(sizes, (16,)))
    assert {v["n"] for v in found} >= {2, 100, 15, 16, 17, 33, 31}
    assert {v["m"] for v in found} == {5}
    assert all(s.low <= v[s.name] <= s.high for v in found for s in sizes)


def test_a_part_of_a_shape_may_contain_an_x() -> None:
    assert extent_parts("[max(x,2)]x12x[index]") == ["[max(x,2)]", "12", "[index]"]


def test_symbolic_workloads_keep_their_text_and_get_numbers() -> None:
    workload = Workload.parse("matmul m=[sequence*batch] n=768 k=768 const=b")
    assert workload.key == "matmul m=[batch*sequence] n=768 k=768 const=b"
    assert Workload.parse(workload.key) == workload
    assert workload == Workload.of("matmul", {"m": B * S, "n": 768, "k": 768}, constants="b")
    assert workload.sizes == {"batch", "sequence"}
    assert workload.extent("m") == B * S and workload.extent("n") == 768
    assert workload.at({"batch": 2, "sequence": 3, "other": 1}).key == (
        "matmul m=6 n=768 k=768 const=b"
    )


def test_shapes_may_vary() -> None:
    text = f"elementwise shape={shape_text((B, 12, S))} expression=exp(x0)"
    workload = Workload.parse(text)
    assert workload.extents("shape") == (B, 12, S)
    assert workload.at({"batch": 1, "sequence": 5}).shape("shape") == (1, 12, 5)
    assert template_of("elementwise").output(workload).extents == (B, 12, S)


def test_a_symbolic_workload_gives_no_numbers() -> None:
    workload = Workload.parse("matmul m=[s] n=4 k=4")
    operand = template_of("matmul").output(workload)
    for ask in (
        lambda: workload.integer("m"),
        lambda: workload.at({"t": 3}),
        lambda: operand.shape,
        lambda: template_of("matmul").flops(workload),
        lambda: Workload.parse("elementwise shape=[s]x3 expression=exp(x0)").shape("shape"),
    ):
        with pytest.raises(WorkloadError):
            ask()


def test_parameters_that_cannot_vary_are_refused() -> None:
    with pytest.raises(WorkloadError, match=r"ta=\[s\] cannot vary"):
        Workload.parse("matmul m=4 n=4 k=4 ta=[s]")
    with pytest.raises(WorkloadError, match="is not an integer"):
        Workload.parse("matmul m=[s]x[s] n=4 k=4")


def test_contradictions_show_at_given_sizes() -> None:
    workload = Workload.parse("elementwise shape=[s]x3 expression=exp(x0) x0=[t]x3")
    workload.at({"s": 5, "t": 1})
    with pytest.raises(WorkloadError, match="does not broadcast"):
        workload.at({"s": 5, "t": 4})
