"""Area and power of LPU-like chips and plain arrays: closed forms, orders, growth."""

from __future__ import annotations

import pytest

from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import TargetError
from tilesmith.simulator import simulators
from tilesmith.simulator.designs.hardware_cost import HardwareCost

NUMBERS = {
    "lpu1": ("clock.ghz", "mem.slices", "mem.words", "stream.each_way", "sxm.shifters",
             "sxm.transposers", "mxm.k_float16", "c2c.links", "c2c.gbps", "host.gbps"),
    "systolic": ("array.rows", "array.cols", "array.ghz", "sbuf.mib", "psum.mib"),
}  # fmt: skip


def cost(name: str, **settings: float) -> HardwareCost:
    target = load_target(name)
    simulator = simulators[target.family]
    return simulator.hardware_cost(simulator.with_settings(target, settings))


def test_parts_are_their_formulas() -> None:
    found = {part.name: part for part in cost("lpu1").parts}
    bits = 88 * 8192 * 320 * 8 * 137 / 128
    assert found["mem"].area_mm2 == pytest.approx(bits * 0.027 / 0.7 / 1e6)
    alu = (7700 + 4184) * 3.33 / 91.2 * 1.5 / 1e6
    assert found["vxm"].area_mm2 == pytest.approx(16 * 320 * alu)
    halves = 2 * 320 * 160 * (0.34 + 0.38) * 1.5 * 0.9e-3  # more than those of bytes
    assert found["mxm"].power_w == pytest.approx(halves + 0.03 * found["mxm"].area_mm2)
    array = {part.name: part for part in cost("systolic").parts}
    assert array["psum"].area_mm2 == pytest.approx(2 * array["sbuf"].area_mm2 * 2 / 24)


def test_orders_are_those_of_the_chip_that_was_built() -> None:
    transistors = 26.8e9 / 91.2e6  # mm2 of the same process
    found = cost("lpu1")
    assert found.piece == "chip" and cost("systolic").piece == "array"
    assert transistors / 3 < found.area_mm2 < transistors
    assert 100 < found.power_w < 400


@pytest.mark.parametrize(("name", "number"), [(t, n) for t, ns in NUMBERS.items() for n in ns])
def test_more_is_never_cheaper(name: str, number: str) -> None:
    value = load_target(name).fact(number).value
    assert isinstance(value, int | float)
    less, more = cost(name), cost(name, **{number: value * 2})
    assert more.area_mm2 >= less.area_mm2 and more.power_w >= less.power_w
    assert more.area_mm2 + more.power_w > less.area_mm2 + less.power_w


def test_what_has_a_roofline_only_has_no_cost() -> None:
    with pytest.raises(TargetError, match="only a roofline is public"):
        cost("lp30")
