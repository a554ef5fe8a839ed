"""Laws of the timeline, its agreement with plain Python, and the published facts it must show."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.families.trainium.codegen.random_kernels import random_kernel
from tilesmith.families.trainium.codegen.isa.core import DMA_QUEUES, ENGINES, Core
from tilesmith.families.trainium.codegen.isa.instructions import Opcode
from tilesmith.families.trainium.codegen.isa.verification import verify_synchronisation
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.codegen.timing import dependences, ordering
from tilesmith.families.trainium.codegen.timing.costs import costs, transfer_time
from tilesmith.families.trainium.simulator.timelines import timeline as timeline_module
from tilesmith.families.trainium.simulator.timelines.timeline import timeline
from tilesmith.search_space.hardware.target import load_target

TRN1 = Core.of(load_target("trn1"))
FASTER = {
    "tensor.ghz": "5.6",
    "vector.ghz": "2.5",
    "scalar.ghz": "3.0",
    "gpsimd.ghz": "3.0",
    "dma.gbps_practical": "30",
    "dma.start_ns": "500",
    "dma.transfer_floor_ns": "100",
    "hbm.gbps_core": "2000",
    "semaphore.ns": "10",
    "vector.latency": "5",
}

seeds = st.integers(0, 10_000)


@given(seeds, st.sampled_from(sorted(FASTER)))
@settings(max_examples=60, deadline=None)
def test_a_faster_part_never_makes_a_fixed_program_slower(seed, setting):
    stream = random_kernel(TRN1, seed, 40)
    target = load_target("trn1").with_settings({setting: FASTER[setting]})
    before, after = timeline(stream), timeline(stream, Core.of(target))
    assert after.makespan <= before.makespan + 1e-6
    assert (after.end <= before.end + 1e-6).all()


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_times_are_consistent(seed):
    stream = random_kernel(TRN1, seed, 40)
    played = timeline(stream)
    assert (played.end >= played.start).all() and (played.start >= 0).all()
    for i, instruction in enumerate(stream):
        for earlier in instruction.waits:
            assert played.end[earlier] <= played.start[i] + 1e-6
    for share in played.engines.values():
        assert 0 <= share <= 1 + 1e-9
    for time in played.occupied.values():
        assert time <= played.makespan + 1e-6


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_grant_order_keeps_queues_in_order_and_the_program_correct(seed):
    stream = random_kernel(TRN1, seed, 40)
    for queue in np.unique(stream.rows["queue"]):
        positions = stream.rows["position"][stream.rows["queue"] == queue]
        assert (np.diff(positions) > 0).all()
    verify_synchronisation(stream)
    moved = timeline(stream).costs.bytes
    assert moved[stream.rows["op"] == Opcode.STORE].sum() >= 8 * 128 * 256 * 4


@given(seeds)
@settings(max_examples=5, deadline=None)
def test_native_passes_equal_python(seed):
    stream = random_kernel(TRN1, seed, 30)

    def passes():
        order, pairs = ordering.grant_order(stream), dependences.dependences(stream)
        waits = dependences.required_waits(stream, pairs, prune=True)
        return timeline(stream).end, order, pairs.earlier, pairs.flow, *waits

    native = passes()
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((timeline_module, "_run"), (ordering, "_grant")):
            patch.setattr(module, name, getattr(module, name).python)
        for name in ("_find", "_derive"):
            patch.setattr(dependences, name, getattr(dependences, name).python)
        plain = passes()
    for one, other in zip(native, plain, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("stationary", "moving"), [
    ("bfloat16", "float32"), ("float32", "bfloat16"), ("float8_e4m3", "bfloat16"),
])  # fmt: skip
def test_a_product_is_priced_by_both_operands(trn1, stationary, moving):
    """The slower type decides (the verifier refuses fp32 with others, but prices stay true)."""

    def issue(one, two):
        kernel = Kernel("product", trn1)
        tiles = kernel.sbuf((128, 128), one), kernel.sbuf((128, 512), two)
        kernel.matmul(kernel.psum((128, 512)), *tiles)
        return costs(kernel.draft()).issue[0]

    slower = "float32" if "float32" in (stationary, moving) else "bfloat16"
    assert issue(stationary, moving) == issue(slower, slower)
    assert issue("float32", "float32") > 4 * issue("bfloat16", "bfloat16")


def test_one_matmul_tile_takes_512_cycles(trn1):
    kernel = Kernel("tiles", trn1)
    x = kernel.input("x", (128, 640), "bfloat16")
    tile, total = kernel.sbuf((128, 640), "bfloat16"), kernel.psum((128, 512))
    kernel.load(tile, x)
    for i in range(8):
        kernel.matmul(total, tile[:, :128], tile[:, 128:], accumulate=i > 0)
    played = timeline(kernel.finish())
    starts = played.start[played.stream.rows["op"] == Opcode.MATMUL]
    assert np.diff(starts) == pytest.approx(512 / 2.8)
    assert pytest.approx(91.75, abs=0.01) == 2 * 128 * 128 * 512 / (512 / 2.8) / 1e3


def test_two_fp8_values_a_row_double_the_peak_of_trainium2(trn2):
    kernel = Kernel("double", trn2)
    x = kernel.input("x", (128, 2, 640), "float8_e4m3")
    tile, total = kernel.sbuf((128, 2, 640), "float8_e4m3"), kernel.psum((128, 512))
    kernel.load(tile, x)
    for i in range(8):
        kernel.matmul_double_row(total, tile[:, :, :128], tile[:, :, 128:], accumulate=i > 0)
    played = timeline(kernel.finish())
    steps = np.diff(played.start[played.stream.rows["op"] == Opcode.MATMUL])
    assert played.costs.flops[-1] / steps[-1] / 1e3 == pytest.approx(158, rel=0.01)


def load_time(core: Core, row_bytes: int, transfers: int = 64) -> float:
    """ns a transfer of 128 strided rows takes, of so many on different queues."""
    kernel = Kernel("rows", core)
    x = kernel.input("x", (128, transfers, 2, row_bytes // 4))
    places = kernel.buffers(transfers, (128, row_bytes // 4))
    for i in range(transfers):
        kernel.load(places.next(), x[:, i, 0], queue=i % DMA_QUEUES)
    played = timeline(kernel.finish())
    return (played.makespan - core.dma_start_ns) / transfers


@pytest.mark.parametrize(
    ("row", "published"), [(256, 0.10), (512, 0.21), (1024, 0.42), (2048, 0.81), (4096, 0.97)]
)
def test_one_transfers_throughput_against_row_size_follows_the_published_curve(
    trn2, row, published
):
    peak = trn2.dma_engines * trn2.dma_bytes_per_ns
    assert 128 * row / load_time(trn2, row, 1) / peak == pytest.approx(published, abs=0.035)


@pytest.mark.parametrize("row", [64, 256, 1024])
def test_transfers_side_by_side_cost_their_rows_and_hide_the_floor(trn2, row):
    work = 8 * (row + trn2.dma_row_overhead) / trn2.dma_bytes_per_ns
    assert work < trn2.dma_transfer_floor_ns
    assert load_time(trn2, row, 64) == pytest.approx(work, rel=0.01)


def test_one_engine_moves_32_kib_in_1416_ns():
    core = Core.of(load_target("trn2").with_settings({"dma.engines": "1"}))
    _, time = transfer_time(np.array([1]), np.array([32 * 1024]), core)
    assert time[0] == pytest.approx(1416, rel=0.015)


def test_bound_names_the_busiest_resource(trn1):
    kernel = Kernel("copy", trn1)
    x, y = kernel.input("x", (1024, 4096)), kernel.output("y", (1024, 4096))
    places = kernel.buffers(4, (128, 4096))
    for i in range(8):
        tile = places.next()
        kernel.load(tile, x[i * 128 : (i + 1) * 128])
        kernel.store(y[i * 128 : (i + 1) * 128], tile)
    played = timeline(kernel.finish())
    assert played.bound == "dma"
    assert set(played.engines) == {*ENGINES, "dma"}


def test_more_dma_engines_help_until_hbm_binds(trn1):
    kernel = Kernel("wide", trn1)
    x = kernel.input("x", (4096, 4096))
    places = kernel.buffers(4, (128, 4096))
    for i in range(32):
        kernel.load(places.next(), x[i * 128 : (i + 1) * 128])
    stream = kernel.finish()
    more = Core.of(load_target("trn1").with_settings({"dma.engines": "32"}))
    played = timeline(stream, more)
    rate = played.costs.total_bytes / (played.makespan - more.dma_start_ns)
    assert played.makespan < timeline(stream).makespan
    assert rate == pytest.approx(more.hbm_bytes_per_ns, rel=0.01)


def test_loads_to_neighbouring_partitions_do_not_wait_for_each_other():
    kernel = Kernel("neighbours", TRN1)
    x, y = kernel.input("x", (9, 64)), kernel.output("y", (9, 64))
    tile = kernel.sbuf((9, 64))
    for first in range(0, 9, 3):
        kernel.load(tile[first : first + 3], x[first : first + 3])
    kernel.store(y, tile)
    stream = kernel.finish()
    waits = [stream.waits[a:b] for a, b in pairwise(stream.wait_start)]
    assert [len(found) for found in waits] == [0, 0, 0, 1]
