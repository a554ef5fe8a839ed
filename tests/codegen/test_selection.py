"""The intrinsic `select`: its routine against sorting, and which bodies become a call of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.template_checks import run
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.llvm.intrinsics.selection import largest, recognise
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.search_space.expressions.scalar import call
from tilesmith.search_space.ir.program import Intrinsic, walk
from tilesmith.search_space.ir.transforms.specialisation import finish
from tilesmith.search_space.operator_parts.formula import evaluate, operand
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload

HOST = host_target()
HEAP, COUNTING = (Config.of(algorithm=name) for name in ("heap", "counting"))


@given(st.sets(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40), st.data())
@settings(max_examples=40, deadline=None)
def test_the_routine_finds_the_largest(keys: set[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(sorted(keys)))
    k = data.draw(st.integers(1, len(keys)))
    given_keys, wanted = np.array(order, np.int64), sorted(keys, reverse=True)[:k]
    for function in (largest, largest.python):
        heap = np.zeros(k, np.int64)
        function(given_keys, len(keys), heap, k)
        np.testing.assert_array_equal(heap, wanted)


def test_a_body_becomes_a_call() -> None:
    program = lowered(Workload.parse("top_k shape=3x137 k=5 axis=1"), HOST, HEAP)
    (statement,) = (s for s in walk(finish(program).body) if isinstance(s, Intrinsic))
    found = recognise(statement)
    assert found is not None and (found.n, found.k) == (137, 5)
    text = emit_module(program, HOST).text
    assert text.count('define internal void @"largest') == 1 and '@"largest' in text


@pytest.mark.parametrize("text", ["top_k shape=1x5 k=1 axis=1", "top_k shape=1 k=1"])
def test_a_single_one_needs_no_selection(text: str) -> None:
    workload = Workload.parse(text)
    config = default_of(workload, HOST)
    assert "largest" not in emit_module(lowered(workload, HOST, config), HOST).text
    x = np.float32([3, 1, 4, 1, 5])[: workload.shape("shape")[-1]].reshape(workload.shape("shape"))
    np.testing.assert_array_equal(run(workload, config, {"x": x}).ravel(), [x.argmax()])


@pytest.mark.parametrize("kind", ["max", "min"])
@given(st.lists(st.floats(width=32), min_size=2, max_size=40))
@settings(max_examples=15, deadline=None)
def test_both_ways_agree_on_any_numbers(kind: str, numbers: list[float]) -> None:
    """Infinities and both zeros among them, by the order that ordinals give; not-a-number, with
    its sign set or not, is the largest."""
    x = np.array((numbers * 20)[:40], np.float32)
    workload = Workload.parse(f"top_k shape=40 k=7 kind={kind}")
    order = np.asarray(evaluate(call("ordinal", operand(0)), [x])).astype(np.int64)
    order[np.isnan(x)] = np.iinfo(np.int32).max
    wanted = np.argsort(order if kind == "min" else -order, kind="stable")[:7]
    for config in (HEAP, COUNTING):
        np.testing.assert_array_equal(run(workload, config, {"x": x}), wanted)


def test_ordinals_order_as_numbers_do() -> None:
    x = np.float32([-np.inf, -3e38, -1.5, -1e-45, -0.0, 0.0, 1e-45, 1.5, 3e38, np.inf, np.nan])
    workload = Workload.parse(
        "elementwise shape=11 expression=ordinal(x0) types=float32 dtype=int32"
    )
    (config,) = [Config.of(algorithm="vectors", unroll=1)]
    found = run(workload, config, {"x0": x}).astype(np.int64)
    steps = np.diff(found)
    assert steps[4] == 0 and (np.delete(steps, 4) > 0).all()
