"""bfloat16 by dot products or by multiply-adds of what is widened: whichever is the faster."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.test_dot_products import target_of
from tilesmith.codegen.native.kernel import compile_config
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.compiler.backends.backend import backends
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.schedules.cpu.vectorisation.dot_products import prefers_dot
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu import CpuSimulator
from tilesmith.simulator.cpu.microbenchmarks.calibration import with_calibration

UNMEASURED = target_of("avx512", "+avx512bf16,+avx512vnni")
"""A processor with `vdpbf16ps`, two FMAs a cycle."""

PRODUCTS = {
    "matmul m=128 n=64 k=64 const=b": ("algorithm", "dot", "blocked"),
    "conv2d c=32 h=8 w=8 oc=32 kh=3 kw=3 pad=1 const=weight": ("algorithm", "dot", "channels"),
    "attention m=32 n=32 k=16 heads=2": ("turn", "pairs", "keys"),
}
"""By workload a knob, and its value by each way."""


def measured(ports: float, dtype: str = "bfloat16") -> Target:
    return with_calibration(UNMEASURED, {f"dot.{dtype}.ports": ports})


def narrow(text: str) -> Workload:
    return Workload.parse(f"{text} dtype=bfloat16")


@pytest.mark.parametrize("text", PRODUCTS)
def test_the_first_choice_is_the_faster_way(text: str) -> None:
    knob, dot, widened = PRODUCTS[text]
    for target, expected in (
        (UNMEASURED, dot),  # nothing is known against it
        (measured(2.0), dot),  # as many products again as FMAs have
        (measured(1.0), dot),  # as many, and nothing to widen
        (measured(0.5), widened),
    ):
        assert default_of(narrow(text), target).text(knob) == expected


def test_one_row_uses_what_is_widened_only_once() -> None:
    slow, row = measured(0.5), "matmul m={} n=64 k=64 const=b"
    assert default_of(narrow(row.format(1)), slow).text("algorithm") == "dot"
    assert default_of(narrow(row.format(8)), slow).text("algorithm") == "blocked"


def test_whole_numbers_have_no_such_choice() -> None:
    slow = measured(0.1, "uint8")
    assert prefers_dot(slow, "uint8", "int8")
    workload = Workload.parse("matmul m=128 n=64 k=64 dtype=uint8 weights=int8 const=b")
    assert {dict(s.fixed)["algorithm"] for s in space_of(workload, slow).subspaces} == {"dot"}


@pytest.mark.parametrize("text", PRODUCTS)
def test_a_space_does_not_depend_on_what_was_measured(text: str) -> None:
    """Else a schedule on record would be none for who has not measured."""
    knob, dot, widened = PRODUCTS[text]
    spaces = [space_of(narrow(text), target) for target in (UNMEASURED, measured(0.5))]
    assert spaces[0] == spaces[1]
    for target in (measured(0.5), measured(2.0)):
        assert default_of(narrow(text), target) in spaces[0]
    assert {dot, widened} <= set(map(str, spaces[0].describe()[knob]))


def test_both_ways_give_the_same_sums() -> None:
    """Of small whole numbers sums are exact in float32, and only the result is rounded."""
    try:
        backends["cpu"].check(UNMEASURED)
    except TargetError:
        pytest.skip("this processor has no vdpbf16ps")
    workload, rng = narrow("matmul m=29 n=50 k=41 const=b"), np.random.default_rng(3)
    inputs = {
        operand.name: rng.integers(-4, 5, operand.shape).astype(to_numpy("bfloat16"))
        for operand in template_of("matmul").inputs(workload)
    }
    a, b = (inputs[name].astype(np.float32) for name in "ab")
    for target in (measured(0.5), measured(2.0)):
        found = compile_config(workload, target, default_of(workload, target))(inputs)
        assert np.array_equal(found, (a @ b).astype(to_numpy("bfloat16")))


def test_widening_is_simulated() -> None:
    """Two vectors of b, for twelve rows of a tile, are two operations each beside 24."""
    workload, plain = narrow("matmul m=120 n=64 k=64 const=b"), "matmul m=120 n=64 k=64 const=b"
    target = measured(0.5)
    config = default_of(workload, target)
    assert (config.integer("m_tile"), config.integer("n_vectors")) == (12, 2)
    judge = CpuSimulator(weights="warm")
    cycles = [
        judge.simulate(w, target, config, "analytical", None).compute_cycles
        for w in (workload, Workload.parse(plain))
    ]
    updates = 120 * 64 * 64 / 16 / 2  # vectors of sums, two FMAs a cycle
    assert cycles[0] - cycles[1] >= updates * 4 / 24  # and a, once
    assert cycles[0] - cycles[1] < updates * 6 / 24
