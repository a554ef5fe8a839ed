"""Area and power: closed forms, growth, and what goes with an array's size."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.support.errors import TargetError
from tilesmith.simulator import simulators
from tilesmith.simulator.designs.hardware_cost import (
    CELL_UM2,
    HardwareCost,
    memory_mm2,
    memory_pj_a_byte,
    overdrive,
)
from tilesmith.simulator.dispatch import check_target

BASE = load_target("trn1")


def cost(target: Target) -> HardwareCost:
    return simulators[target.family].hardware_cost(target)


def changed(**settings: str) -> Target:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return simulators[BASE.family].with_settings(BASE, named)


def test_parts_sum_up_and_are_of_the_right_order() -> None:
    found = cost(BASE)
    assert found.area_mm2 == pytest.approx(sum(part.area_mm2 for part in found.parts))
    assert found.to_json()["power_w"] == pytest.approx(sum(p.power_w for p in found.parts))
    assert 10 < found.area_mm2 < 200  # a chip of two cores is below a reticle's 800 mm2
    assert 20 < found.power_w < 200


def test_memory_is_its_bits() -> None:
    assert memory_mm2(2**20) == pytest.approx(2**23 * CELL_UM2 / 0.7 / 1e6)
    assert memory_pj_a_byte(8 * 1024) * 8 == pytest.approx(7.5)
    assert memory_pj_a_byte(32 * 1024) * 8 == pytest.approx(8.5)
    assert memory_pj_a_byte(2**20) * 8 == pytest.approx(14.0)
    assert memory_pj_a_byte(2**22) * 8 == pytest.approx(28.0)


def test_a_faster_clock_costs_its_cube_a_slower_one_its_share() -> None:
    assert overdrive(2.0, 1.0) == 4.0
    assert overdrive(0.5, 1.0) == 1.0
    parts = [
        {p.name: p for p in cost(target).parts}["tensor"]
        for target in (BASE, changed(tensor__ghz="5.6"), changed(tensor__ghz="1.4"))
    ]
    leakage = parts[0].area_mm2 * 0.03
    dynamic = [part.power_w - leakage for part in parts]
    assert dynamic[1] == pytest.approx(8 * dynamic[0])
    assert dynamic[2] == pytest.approx(dynamic[0] / 2)


GROWING = ("sbuf.mib", "psum.mib", "dma.engines", "tensor.ghz", "vector.ghz", "hbm.gbps_core",
           "link.gbps_chip", "dma.gbps_practical", "vector.per_lane_other")  # fmt: skip


@given(st.sampled_from(GROWING), st.integers(2, 4))
def test_more_is_never_cheaper(name: str, times: int) -> None:
    value = BASE.fact(name).value
    assert isinstance(value, int | float)
    less, more = cost(BASE), cost(BASE.with_settings({name: str(value * times)}))
    assert more.area_mm2 + more.power_w > less.area_mm2 + less.power_w
    assert more.area_mm2 >= less.area_mm2
    assert more.power_w >= less.power_w


@pytest.mark.parametrize("side", ["32", "64", "128", "256"])
def test_an_array_takes_with_it_what_it_stands_on(side: str) -> None:
    target = changed(tensor__rows=side)
    check_target(target)
    assert target.integer("tensor.cols") == int(side)
    assert target.integer("sbuf.partitions") == max(128, int(side))
    banks = target.integer("psum.mib") * 2**20 / target.integer("psum.partitions")
    assert banks == 16 * 1024
    assert math.isclose(
        {p.name: p.area_mm2 for p in cost(target).parts}["tensor"] / int(side) ** 2,
        {p.name: p.area_mm2 for p in cost(BASE).parts}["tensor"] / 128**2,
    )


def test_what_is_set_by_hand_stays() -> None:
    target = changed(tensor__rows="256", psum__mib="8", sbuf__partitions="512")
    assert target.integer("psum.mib") == 8
    assert target.integer("sbuf.partitions") == 512


def test_a_family_without_a_model_says_so() -> None:
    with pytest.raises(TargetError, match="no model of area and power is known"):
        cost(load_target("aarch64"))
