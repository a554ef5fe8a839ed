"""Bounds hold, and windows of CP-SAT do no harm."""

import itertools

import pytest

from benchmarks.accelerator.subjects.lpu_bounds import bounds
from benchmarks.accelerator.subjects.lpu_windows import scheduled_by_windows
from tests.families.lpu.codegen.chains import chip, matmul
from tilesmith.families.lpu.codegen.scheduling.scheduler import SchedulerOptions, schedule
from tilesmith.families.lpu.codegen.verification.checker import check


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_no_order_is_shorter_than_the_bound(dtype: str) -> None:
    flow, _, _ = matmul(24, 330, 700, dtype)
    least = bounds(flow, chip()).least
    for ranks in itertools.islice(itertools.permutations(range(len(flow.chains))), 0, 5000, 600):
        assert least <= schedule(flow, chip(), SchedulerOptions(ranks=ranks)).cycles


def test_the_bound_of_a_long_product_is_that_of_its_planes() -> None:
    flow, _, _ = matmul(600, 640, 640, "float16")
    found = bounds(flow, chip())
    assert found.binding == "mxm"
    assert found.cycles["mxm"] == 4 * 600 * 2 // 2 + chip().tiles + chip().delay("read")


def test_windows_give_the_shorter_schedule_and_a_proven_bound() -> None:
    pytest.importorskip("ortools")
    flow, _, _ = matmul(60, 640, 960, "int8")
    found = scheduled_by_windows(flow, chip(), work=1.0)
    check(found.schedule)
    assert found.windows == 1
    assert bounds(flow, chip()).cycles["path"] <= found.proven <= found.schedule.cycles
    assert found.schedule.cycles <= found.listed
    several = scheduled_by_windows(flow, chip(), window=3, work=0.2)
    check(several.schedule)
    assert several.windows == 3 and several.proven == 0 and several.over_bound > 0
