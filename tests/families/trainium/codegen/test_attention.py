"""Fused attention: scores stay on the chip, iterations overlap; interleaving keeps values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.accelerator_checks import TARGET, check, run
from tests.conformance.template_checks import random_inputs
from tests.families.trainium.codegen.random_kernels import F, P, unfinished
from tilesmith.codegen.programs.structures import default_of, inside_of, space_of
from tilesmith.families.trainium.codegen.isa.core import ENGINES, Core
from tilesmith.families.trainium.codegen.isa.instructions import Opcode
from tilesmith.families.trainium.simulator.estimation.roofline import compulsory_bytes
from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.families.trainium.simulator.skeletons import instruction_stream
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import measure, simulate

HEADS = Workload.parse("attention m=128 n=128 k=64 heads=12 dtype=bfloat16")


def test_scores_never_leave_the_chip():
    result = simulate(HEADS, TARGET, None, "timeline")
    assert result.details["bytes_moved"] == compulsory_bytes(HEADS)


def test_the_default_is_within_one_and_three_quarters_times_the_roofline():
    """Where its inputs come in long rows, or are in SBUF as in a model; the roofline has no floor
    of the first and the last transfer, a third of the rest."""
    settings = {"dma.row_overhead_bytes": "0"}
    long_rows = TARGET.with_settings(settings)
    result = simulate(HEADS, long_rows, None, "timeline")
    assert result.latency_us <= 1.75 * result.details["roofline_us"]


@pytest.mark.parametrize("turn", ["scores", "powers"])
@pytest.mark.parametrize("text", [
    "attention m=128 n=128 k=64 heads=4 dtype=bfloat16",
    "attention m=256 n=600 k=32 v=40 heads=2 dtype=bfloat16",
    "attention m=64 n=1100 k=16",
    "attention m=19 n=40 k=16 heads=6 dtype=bfloat16",
])  # fmt: skip
def test_both_ways_to_turn_compute_the_same(text, turn):
    workload, rng = Workload.parse(text), np.random.default_rng(3)
    space = space_of(workload, TARGET)
    (subspaces,) = [[s for s in space.subspaces if ("turn", turn) in s.fixed]]
    for subspace in (subspaces[0], subspaces[-1]):
        (config,) = type(space)((subspace,)).sample(rng)
        check(workload, config, rng)


def test_interleaved_heads_overlap_and_compute_the_same():
    workload = Workload.parse("attention m=140 n=200 k=24 heads=3")
    default = default_of(workload, TARGET)
    one = Config.of({**default, "copies": 1})
    inputs = random_inputs(workload, np.random.default_rng(0))
    np.testing.assert_array_equal(run(workload, default, inputs), run(workload, one, inputs))
    times = measure(workload, TARGET, [default, one]).latency
    assert times[0] < 0.85 * times[1]


def test_pairs_of_heads_are_turned_at_once():
    default = inside_of(HEADS, TARGET)
    space = space_of(HEADS, TARGET)
    turned = {}
    for turn, pair, more in (
        ("scores", 2, {}),
        ("scores", 1, {}),
        ("powers", 2, {"powers": "scalar"}),
    ):
        config = Config.of({**default, "turn": turn, "pair": pair, **more})
        assert config in space
        stream = instruction_stream(HEADS, TARGET, config)
        turned[turn, pair] = int((stream.rows["op"] == Opcode.TRANSPOSE).sum())
    assert turned == {("scores", 2): 12, ("scores", 1): 24, ("powers", 2): 12 + 12}


def test_any_engine_named_may_take_a_copy():
    default = default_of(HEADS, TARGET)
    assert "|" in default.text("keys")
    stream = instruction_stream(HEADS, TARGET, Config.of({**default, "keys": "scalar|vector"}))
    copies = stream.rows["queue"][stream.rows["op"] == Opcode.COPY]
    assert set(copies.tolist()) <= {ENGINES.index("scalar"), ENGINES.index("vector")}
    for engine in ("scalar", "vector"):
        stream = instruction_stream(HEADS, TARGET, Config.of({**default, "keys": engine}))
        copies = stream.rows["queue"][stream.rows["op"] == Opcode.COPY]
        assert set(copies.tolist()) == {ENGINES.index(engine)}


@given(
    st.integers(1, 150), st.integers(1, 600), st.integers(1, 140), st.integers(1, 3),
    st.sampled_from(["none", "row", "full", "shared", "heads", "each"]),
    st.sampled_from(["float32", "bfloat16"]), st.integers(0, 999),
)  # fmt: skip
@settings(max_examples=10, deadline=None)
def test_any_shape(m, n, k, heads, mask, dtype, seed):
    workload = Workload.parse(
        f"attention m={m} n={n} k={k} heads={heads} mask={mask} dtype={dtype}"
    )
    rng = np.random.default_rng(seed)
    (config,) = space_of(workload, TARGET).sample(rng)
    check(workload, config, rng)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [3.0, 30.0, 100.0])
def test_large_scores_do_not_overflow(dtype, size):
    """Scores of tens of thousands, far beyond where exponentials overflow or vanish."""
    workload = Workload.parse(f"attention m=9 n=20 k=8 scale=1 dtype={dtype}")
    template, space = template_of("attention"), space_of(workload, TARGET)
    inputs = {n: size * x for n, x in random_inputs(workload, np.random.default_rng(1)).items()}
    inputs = {n: x.astype(to_numpy(dtype)) for n, x in inputs.items()}
    want = template.reference(workload, {n: x.astype(np.float64) for n, x in inputs.items()})
    for subspace in space.subspaces:
        config = next(iter(type(space)((subspace,))))
        got = run(workload, config, inputs).astype(np.float64)
        assert np.isfinite(got).all()
        tolerance = (1e-3 if dtype == "float32" else 2e-2) * size
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attention m=2 n=2 k=2 dtype=int64", "dtype=int64; one of float32, bfloat16, float16"),
        ("attention m=2 n=2 k=2 scale=wide", "scale=wide is no finite number"),
        ("attention m=2 n=2 k=2 mask=triangle", "mask=triangle; one of none, row, full, shared"),
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
    other.interleave(0)
    assert other.length == kernel.length
    (want,), (got,) = (execute(k.finish(), inputs).values() for k in (kernel, other))
    np.testing.assert_array_equal(got, want)
