"""Names of a profile's rows, and what share of peak is of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilesmith.capabilities.profile.profiling import _arithmetic, _least_arithmetic
from tilesmith.capabilities.profile.report import OperatorTime, ProfileReport, parted
from tilesmith.capabilities.profile.tables import text
from tilesmith.codegen.programs.structures import space_of
from tilesmith.compiler.backends.timed import cost_of_notes
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.workload import Workload


def test_rows_of_one_node_are_told_apart() -> None:
    ops = [
        OperatorTime("a", "transpose", 1.0), OperatorTime("a", "matmul", 2.0, flops=9),
        OperatorTime("b", "matmul", 2.0, flops=9), OperatorTime("a", "transpose", 1.0),
        OperatorTime("a", "elementwise", 1.0, flops=3),
        OperatorTime("a", "matmul", 1.0, flops=4),
    ]  # fmt: skip
    labels = [op.label for op in parted(ops)]
    assert labels == ["a (transpose 1)", "a (main)", "b", "a (transpose 2)", "a (elementwise)",
                      "a (matmul)"]  # fmt: skip
    assert len({*labels}) == len(ops)


def test_what_looking_costs_is_taken_off_by_calls_and_never_more_than_a_note_takes() -> None:
    assert cost_of_notes([1, 20, 4], [5.0, 5.0, 0.01], 0.25) == [0.01, 0.2, 0.01]
    assert cost_of_notes([1, 1], [5.0, 5.0], 3.0) == [0.015, 0.015]
    assert cost_of_notes([1, 1], [5.0, 5.0], -3.0) == [0.0, 0.0]
    assert cost_of_notes([], [], 1.0) == []


def test_the_bound_is_of_kernels_and_names_the_largest_gaps() -> None:
    ops = (
        OperatorTime("a", "conv2d", 50.0, roofline_us=20.0),
        OperatorTime("b", "matmul", 10.0, roofline_us=30.0),  # its operands were in a cache
        OperatorTime("c", "layout_transform", 8.0, kind="conversion", roofline_us=3.0),
        OperatorTime("d", "Unique", 12.0, kind="host"),
        OperatorTime("e", "exp", 5.0, roofline_us=4.0),
    )
    report = ProfileReport("m", "cpu", 1, "fp32", "hardware", 90.0, ops, plain_us=90.0)
    assert report.bound_us == pytest.approx(20 + 10 + 4)
    assert report.share_of_bound == pytest.approx(34 / 90)
    gaps = "a (conv2d) 30.00 us, d (Unique) 12.00 us, c (layout_transform) 8.00 us"
    assert gaps in " ".join(text(report).split())
    near = replace(report, total_us=40.0)
    assert "it is 85% of a run" in " ".join(text(near).split())
    assert "largest gaps" not in text(near)
    unknown = replace(report, ops=(*ops, OperatorTime("f", "conv2d", 1.0)))
    assert unknown.bound_us is None and "bound 3" not in text(unknown)


def test_the_least_arithmetic_is_winograds_where_it_may_be_used() -> None:
    target = load_target("skylake_avx512")
    square = Workload.parse("conv2d c=64 h=56 w=56 oc=64 kh=3 kw=3 pad=1 const=b")
    direct = _arithmetic(square, target, scheduler_of(square, target).default(square, target))
    assert direct == 1.0 and 0.25 <= _least_arithmetic(square, target) < 0.3
    strided = Workload.parse("conv2d c=64 h=56 w=56 oc=64 kh=3 kw=3 pad=1 stride=2 const=b")
    assert _least_arithmetic(strided, target) == 1.0


def test_what_is_faster_than_memory_allows_may_gain_by_arithmetic() -> None:
    cached = OperatorTime("a", "matmul", 2.0, roofline_us=9.0, share_of_peak=0.25)
    assert cached.gain_us == pytest.approx(1.5)
    assert replace(cached, roofline_us=1.5).gain_us == pytest.approx(0.5)


@pytest.mark.parametrize(("algorithm", "side", "share"), [
    ("channels", 0, 1.0), ("im2col", 0, 1.0), ("winograd2", 2, None), ("winograd4", 4, None),
])  # fmt: skip
def test_share_of_peak_is_of_what_the_algorithm_multiplies(
    algorithm: str, side: int, share: float | None
) -> None:
    workload = Workload.parse("conv2d n=1 c=16 h=14 w=14 oc=32 kh=3 kw=3 pad=1 const=weight")
    target = load_target("neoverse_n1")
    space = space_of(workload, target)
    config = next(
        next(iter(type(space)((one,))))
        for one in space.subspaces
        if Config.of(dict(one.fixed)).get("algorithm") == algorithm
    )
    if share is None:  # (m + 2)^2 products for each tile and pair of channels, not 9 m^2
        tiles = -(-14 // side) * -(-14 // side)
        share = tiles * (side + 2) ** 2 / (14 * 14 * 9)
    assert _arithmetic(workload, target, config) == pytest.approx(share)
