"""Choices of products: the stationary operand, what sums begin with, parts, small memories."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.accelerator_checks import check
from tests.conformance.template_checks import expected, random_inputs
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.families.trainium.codegen.isa.instructions import Opcode, Space
from tilesmith.families.trainium.codegen.timing.costs import costs
from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.families.trainium.simulator.skeletons import instruction_stream
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import ConfigError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge, measure, simulate

TARGET = load_target("trn1")
WORKLOADS = (
    "matmul m=300 n=700 k=260",
    "matmul m=131 n=67 k=257 ta=1",
    "matmul m=129 n=513 k=131 batch=2 tb=1 epilogue=scale,residual,relu",
    "matmul m=64 n=600 k=384 dtype=bfloat16 tb=1 epilogue=silu,multiply",
    "matmul m=600 n=140 k=300 dtype=bfloat16 epilogue=bias,gelu",
    "matmul m=1 n=300 k=200 ta=1 epilogue=bias",
    "matmul m=520 n=1 k=130",
)
DEEP = (
    "matmul m=130 n=140 k=1031",
    "matmul m=5 n=600 k=769 ta=1 tb=1 dtype=bfloat16 epilogue=bias,relu",
    "matmul m=140 n=130 k=521 batch=2 epilogue=residual",
)
"""Reductions of prime length, or of whole tiles and one element."""


def some(workload, target, seed, count=1, **wanted):
    """Configurations that have some knob values."""
    space = space_of(workload, target)
    drawn = space.sample(np.random.default_rng(seed), 64 * count)
    return [c for c in drawn if all(c.get(n) == v for n, v in wanted.items())][:count]


@given(st.sampled_from(WORKLOADS), st.sampled_from("ab"), st.integers(0, 10_000))
@settings(max_examples=16, deadline=None)
def test_either_operand_may_be_stationary(text, stationary, seed):
    workload = Workload.parse(text)
    (config,) = some(workload, TARGET, seed, algorithm="tiled", stationary=stationary)
    check(workload, config, np.random.default_rng(seed))


@pytest.mark.parametrize(("stationary", "longest"), [("a", 600), ("b", 300)])
def test_the_other_operand_moves(stationary, longest):
    """No matmul moves more than the moving operand has, nor fewer than the knob says."""
    workload = Workload.parse("matmul m=300 n=600 k=256 ta=1")
    (config,) = some(workload, TARGET, 0, stationary=stationary, algorithm="tiled")
    stream = instruction_stream(workload, TARGET, config)
    products = stream.rows["op"] == Opcode.MATMUL
    moved = stream.access_elements[stream.rows["in1"][products]]
    held = stream.access_elements[stream.rows["in0"][products]]
    assert moved.max() == min(longest, 512) and held.max() <= 128
    assert int((moved * held).sum()) == 300 * 600 * 2  # two tiles of k


@pytest.mark.parametrize(
    ("text", "better"),
    [
        ("matmul m=130 n=2048 k=2048 ta=1", "b"),  # rows fill 1 1/64 tiles of 128
        ("matmul m=4096 n=128 k=4096 ta=1", "b"),  # four fp32 passes over 128 columns, or over 512
        ("matmul m=1024 n=2048 k=1024", "a"),
        ("matmul m=2048 n=2048 k=128 ta=1", "a"),
    ],
)
def test_each_choice_wins_somewhere(text, better):
    workload = Workload.parse(text)
    best = {}
    for stationary in "ab":
        configs = some(workload, TARGET, 0, 40, algorithm="tiled", stationary=stationary)
        order = np.argsort(judge(workload, TARGET, configs).latency)[:6]
        best[stationary] = measure(workload, TARGET, [configs[i] for i in order]).latency.min()
    assert min(best, key=best.__getitem__) == better, best


BIASED = (
    "matmul m=300 n=700 k=260 const=b,bias0 epilogue=bias,gelu",
    "matmul m=64 n=520 k=130 dtype=bfloat16 ta=1 epilogue=bias",
    "matmul m=129 n=40 k=70 tb=1 const=bias0 epilogue=bias,residual,relu",
)


@given(st.sampled_from(BIASED), st.sampled_from(["tensor", "vector"]), st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_either_engine_may_add_the_bias(text, engine, seed):
    workload = Workload.parse(text)
    (config,) = some(workload, TARGET, seed, bias=engine)
    check(workload, config, np.random.default_rng(seed))


def test_a_bias_that_sums_begin_with_is_loaded_once():
    """One row of it, where the vector engine adds a row for each of 128 partitions."""
    workload = Workload.parse("matmul m=128 n=384 k=384 dtype=bfloat16 const=b,bias0 epilogue=bias")
    usual = default_of(workload, TARGET)
    moved, added = {}, {}
    for engine in ("tensor", "vector"):
        stream = instruction_stream(workload, TARGET, type(usual).of({**usual, "bias": engine}))
        moved[engine] = costs(stream).total_bytes
        added[engine] = int((stream.rows["op"] == Opcode.TENSOR_TENSOR).sum())
    assert moved["vector"] - moved["tensor"] == 127 * 384 * 2
    assert added == {"tensor": 0, "vector": 1} and usual["bias"] == "tensor"


def test_a_bias_is_added_beside_a_busy_tensor_engine():
    """One more pass of fp32 for every three, or none: the vector engine has the time."""
    workload = Workload.parse("matmul m=2048 n=2048 k=384 const=b,bias0 epilogue=bias")
    assert default_of(workload, TARGET)["bias"] == "vector"


RESIDUALS = (
    "conv2d c=24 h=9 w=11 oc=40 kh=1 kw=1 epilogue=bias,residual,relu",
    "conv2d n=2 c=20 h=8 w=8 oc=256 kh=3 kw=3 pad=1 epilogue=residual",
    "conv2d c=130 h=7 w=7 oc=384 kh=1 kw=1 dtype=bfloat16 epilogue=bias,residual,relu",
)


@given(st.sampled_from(RESIDUALS), st.sampled_from(["tensor", "vector"]), st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_either_engine_may_add_the_residual(text, engine, seed):
    workload = Workload.parse(text)
    (config,) = some(workload, TARGET, seed, algorithm="shifted", residual=engine)
    check(workload, config, np.random.default_rng(seed))


def test_sums_begin_with_whole_blocks_of_the_residual_only():
    """The last block of 140 channels has 12: nothing is in the other partitions of its tile."""
    workload = Workload.parse("conv2d n=2 c=20 h=8 w=8 oc=140 kh=3 kw=3 pad=1 epilogue=residual")
    configs = some(workload, TARGET, 0, count=20, algorithm="shifted")
    assert not any("residual" in config for config in configs)
    for config in configs[:4]:
        check(workload, config, np.random.default_rng(0))


def test_sums_that_begin_with_the_residual_leave_psum_once():
    """In bf16 bias and activation are one instruction then, and the vector engine has no part."""
    text = "conv2d c=64 h=56 w=56 oc=256 kh=1 kw=1 const=weight epilogue=bias,residual,relu"
    workload = Workload.parse(f"{text} dtype=bfloat16")
    usual = default_of(workload, TARGET)
    found = {e: type(usual).of({**usual, "residual": e}) for e in ("tensor", "vector")}
    assert usual == found["tensor"]
    latency = {e: simulate(workload, TARGET, c, "timeline").latency_us for e, c in found.items()}
    assert latency["tensor"] < 0.9 * latency["vector"]
    wide = default_of(Workload.parse(text), TARGET)
    assert wide["residual"] == "vector", "four passes of fp32 take longer"


def test_a_first_layer_is_packed_where_matmuls_take_longest():
    """Two kernel columns on partitions halve the matmuls and double the loads: fp32 has four passes
    for each matmul; in bf16 it is what loads cost that decides."""
    dear = TARGET.with_settings({"dma.row_overhead_bytes": "2000"})
    for dtype, target, algorithm in (
        ("float32", TARGET, "packed"), ("bfloat16", TARGET, "packed"), ("bfloat16", dear, "stacked")
    ):  # fmt: skip
        text = f"conv2d c=3 h=224 w=224 oc=64 kh=7 kw=7 stride=2 pad=3 const=weight dtype={dtype}"
        assert default_of(Workload.parse(text), target)["algorithm"] == algorithm


BATCHES = (
    "matmul m=128 n=128 k=64 batch=12 tb=1 dtype=bfloat16",
    "matmul m=130 n=60 k=300 batch=5 epilogue=bias,residual",
    "matmul m=33 n=100 k=140 batch=7 ta=1 tb=1 epilogue=bias,relu",
)


@given(st.sampled_from(BATCHES), st.sampled_from([2, 4]), st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_products_of_a_batch_may_go_together(text, group, seed):
    workload = Workload.parse(text)
    (config,) = some(workload, TARGET, seed, group=group)
    check(workload, config, np.random.default_rng(seed))


def test_a_group_of_small_products_hides_latencies():
    workload = Workload.parse(BATCHES[0])
    alone = default_of(workload, TARGET)
    assert alone["group"] == 4
    alone = type(alone).of({**alone, "group": 1})
    # The overhead of rows of 128 bytes hides all else.
    target = TARGET.with_settings({"dma.row_overhead_bytes": "0"})
    together = simulate(workload, target, None, "timeline").latency_us
    assert together < 0.75 * simulate(workload, target, alone, "timeline").latency_us


@given(st.sampled_from(DEEP), st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_sums_in_parts_need_not_be_even(text, seed):
    workload = Workload.parse(text)
    (config,) = some(workload, TARGET, seed, algorithm="split")
    check(workload, config, np.random.default_rng(seed))


@pytest.mark.parametrize("text", ["matmul m=128 n=640 k=100003", "matmul m=2048 n=2048 k=65537"])
def test_prime_depths_beyond_sbuf_have_a_default(text):
    workload = Workload.parse(text)
    config = default_of(workload, TARGET)
    assert config["algorithm"] == "split"
    found = simulate(workload, TARGET, config, "timeline")
    assert found.latency_us <= 1.5 * found.details["roofline_us"]


@pytest.mark.parametrize("text", (*WORKLOADS, *DEEP))
def test_the_smallest_memory_is_enough(text):
    """Sampled configurations fit 1 MiB of SBUF and compute the reference."""
    target = TARGET.with_settings({"sbuf.mib": "1"})
    workload = Workload.parse(text)
    configs = {default_of(workload, target), *some(workload, target, 0, 3)}
    inputs = random_inputs(workload, np.random.default_rng(0))
    for config in sorted(configs, key=lambda c: c.key):
        stream = instruction_stream(workload, target, config)
        tops = [a.offset + a.bytes for a in stream.allocations if a.space == Space.SBUF]
        assert max(tops) <= 8192
        names = {t.name for t in stream.tensors if t.role == "input"}
        (got,) = execute(stream, {n: x for n, x in inputs.items() if n in names}).values()
        wide = {n: x.astype(np.float32) for n, x in inputs.items()}
        want = expected(workload, wide)
        scale = np.abs(want).max() + workload.integer("k") ** 0.5
        limit = 2e-2 if workload.dtype == "bfloat16" else 1e-5
        assert np.abs(got.astype(np.float64).reshape(want.shape) - want).max() <= limit * scale


def test_a_small_memory_only_makes_large_products_slower():
    workload = Workload.parse("matmul m=4096 n=4096 k=4096 dtype=bfloat16")
    small = TARGET.with_settings({"sbuf.mib": "2"})
    slow, fast = (simulate(workload, t, None, "analytical").latency_us for t in (small, TARGET))
    assert slow > fast


def test_what_cannot_fit_is_refused_in_a_sentence():
    target = TARGET.with_settings({"sbuf.mib": "1", "sbuf.partitions": "1024"})
    workload = Workload.parse("matmul m=512 n=512 k=512 epilogue=residual,gelu_tanh")
    with pytest.raises(
        ConfigError, match=r"bytes of SBUF a partition .* exceeds the limit of 1024"
    ):
        default_of(workload, target)
