"""Fused attention: scores stay on the chip, iterations overlap; interleaving keeps values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_kernels import F, P, unfinished

from codegen.accelerator.core import Core
from codegen.accelerator.instructions import Op
from codegen.accelerator.interleaving import interleave
from search_space.config import Config
from search_space.errors import WorkloadError
from search_space.target import load_target
from search_space.template import template_of
from search_space.workload import Workload
from simulator import measure, simulate
from simulator.accelerator.family import instruction_stream
from simulator.accelerator.functional import execute
from simulator.accelerator.roofline import compulsory_bytes
from tests.conformance.accelerator_checks import TARGET, check, run
from tests.conformance.template_checks import random_inputs

HEADS = Workload.parse("attention m=128 n=128 k=64 heads=12 dtype=bfloat16")


def test_scores_never_leave_the_chip():
    result = simulate(HEADS, TARGET, None, "timeline")
    assert result.details["bytes_moved"] == compulsory_bytes(HEADS)


def test_the_default_is_within_twice_the_roofline():
    result = simulate(HEADS, TARGET, None, "timeline")
    assert result.latency_us <= 2.0 * result.details["roofline_us"]


def test_interleaved_heads_overlap_and_compute_the_same():
    workload = Workload.parse("attention m=140 n=200 k=24 heads=3")
    default = template_of("attention").default(workload, TARGET)
    one = Config.of({**default, "copies": 1})
    inputs = random_inputs(workload, np.random.default_rng(0))
    np.testing.assert_array_equal(run(workload, default, inputs), run(workload, one, inputs))
    times = measure(workload, TARGET, [default, one]).latency
    assert times[0] < 0.8 * times[1]


def test_pairs_of_heads_are_turned_at_once():
    pairs, single = (
        instruction_stream(HEADS, TARGET, Config.of({**default, "pair": pair}))
        for pair in (2, 1)
        for default in [template_of("attention").default(HEADS, TARGET)]
    )
    turned = [int((stream.rows["op"] == Op.TRANSPOSE).sum()) for stream in (pairs, single)]
    assert turned == [12 + 12, 24 + 12]  # of queries and keys; of probabilities


@given(
    st.integers(1, 150), st.integers(1, 600), st.integers(1, 140), st.integers(1, 3),
    st.sampled_from(["none", "row", "full"]), st.sampled_from(["float32", "bfloat16"]),
    st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=10, deadline=None)
def test_any_shape(m, n, k, heads, mask, dtype, seed):
    workload = Workload.parse(
        f"attention m={m} n={n} k={k} heads={heads} mask={mask} dtype={dtype}"
    )
    rng = np.random.default_rng(seed)
    (config,) = template_of("attention").space(workload, TARGET).sample(rng)
    check(workload, config, rng)


def test_large_scores_do_not_overflow():
    workload = Workload.parse("attention m=9 n=20 k=8 scale=1")
    inputs = {n: 30 * x for n, x in random_inputs(workload, np.random.default_rng(1)).items()}
    got = run(workload, template_of("attention").default(workload, TARGET), inputs)
    want = template_of("attention").reference(
        workload, {n: x.astype(np.float64) for n, x in inputs.items()}
    )
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attention m=2 n=2 k=2 dtype=int64", "dtype=int64; one of float32, bfloat16, float16"),
        ("attention m=2 n=2 k=2 scale=wide", "scale=wide is no finite number"),
        ("attention m=2 n=2 k=2 mask=triangle", "mask=triangle; one of none, row, full"),
    ],
)
def test_bad_parameters_are_named(text, message):
    with pytest.raises(WorkloadError, match=message):
        Workload.parse(text)


@given(st.integers(0, 10_000), st.integers(1, 60))
@settings(max_examples=15, deadline=None)
def test_interleaving_keeps_what_a_program_computes(seed, steps):
    core = Core.of(load_target("trn1"))
    inputs = {"x": np.random.default_rng(seed).standard_normal((4 * P, F)).astype(np.float32)}
    kernel, other = (unfinished(core, seed, steps) for _ in range(2))
    interleave(other, 0)
    assert other.length == kernel.length
    (want,), (got,) = (execute(k.finish(), inputs).values() for k in (kernel, other))
    np.testing.assert_array_equal(got, want)
