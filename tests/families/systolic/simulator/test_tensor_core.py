"""Chips of systolic arrays against measured kernels, and against what no chip can beat."""

import csv
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tests.end_to_end.command import refuse, succeed
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import TargetError, WorkloadError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge, simulate, simulators

CHIPS = ("tpu_v4", "tpu_v6e")
PEAK = {"tpu_v4": (275e12, 1200e9), "tpu_v6e": (918e12, 1638e9)}
"""FLOP/s and bytes/s of the data sheets."""

SIZES = [(1, 1, 1), (1, 4096, 4096), (7, 300, 2), (128, 128, 128), (2048, 2048, 384),
         (5120, 5120, 5120), (16, 4096, 20000), (4097, 3, 129), (300, 5000, 1)]  # fmt: skip

FASTER = ("array.ghz", "array.count", "vmem.gbps", "hbm.gbps", "vmem.mib")
SLOWER = ("kernel.floor_us", "kernel.fill_us", "vpu.pass_us")


def us(target: str, m: int, n: int, k: int, **settings: str) -> float:
    changed = load_target(target).with_settings(settings)
    return simulate(Workload.parse(f"matmul m={m} n={n} k={k} dtype=bf16"), changed).latency_us


@pytest.mark.parametrize("chip", CHIPS)
def test_rows_that_did_not_calibrate_are_within_ten_percent_in_the_mean(chip):
    root = Path(__file__).parents[4] / "benchmarks" / "accelerator" / "tpu"
    name = chip.removeprefix("tpu_")
    with (root / f"gemm_{name}.csv").open() as file:
        held = [row for place, row in enumerate(csv.DictReader(file)) if place % 3]
    with (root / f"further_{name}.csv").open() as file:
        held += csv.DictReader(file)
    errors = [us(chip, *(int(row[a]) for a in "mnk")) / float(row["us"]) - 1 for row in held]
    assert len(errors) > 200
    assert np.abs(errors).mean() < 0.09
    assert abs(np.median(errors)) < 0.04


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("size", SIZES)
def test_no_product_beats_the_data_sheet_or_depends_on_which_operand_is_first(chip, size):
    m, n, k = size
    flops, bandwidth = PEAK[chip]
    least = max(2 * m * n * k / flops, 2 * m * n / bandwidth) * 1e6
    assert us(chip, m, n, k) >= least * 0.999
    assert us(chip, m, n, k) == pytest.approx(us(chip, n, m, k), rel=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_a_faster_fact_makes_no_kernel_slower(size):
    for chip in CHIPS:
        base = us(chip, *size)
        for name in FASTER + SLOWER:
            value = load_target(chip).number(name)
            doubled = us(chip, *size, **{name: f"{value * 2:g}"})
            assert doubled <= base if name in FASTER else doubled >= base


def test_operands_that_do_not_fit_on_chip_come_from_hbm():
    fits, not_ = us("tpu_v6e", 16, 8192, 7000), us("tpu_v6e", 16, 8192, 7000, **{"vmem.mib": "64"})
    operands = 2 * (16 * 7040 + 8192 * 7000) / 1e3
    assert not_ - fits == pytest.approx(operands / 1638 - operands / 4990, rel=0.01)


def test_attention_is_two_kernels_and_a_batch_one():
    target = load_target("tpu_v4")
    floor = target.number("kernel.floor_us")
    attention = simulate(Workload.parse("attention m=2 n=2 k=2 heads=3 dtype=bf16"), target)
    batch = simulate(Workload.parse("matmul batch=3 m=2 n=2 k=2 dtype=bf16"), target)
    assert 2 * floor < attention.latency_us < 2.1 * floor
    assert floor < batch.latency_us < 1.1 * floor


def test_results_say_bound_and_precision():
    large, tiny = (Workload.parse(f"matmul m={n} n={n} k={n} dtype=bf16") for n in (4096, 8))
    result = simulate(large, load_target("tpu_v4"))
    assert (result.bound, result.details["precision"]) == ("mxu", "bfloat16")
    assert 0.8 < result.engines["mxu"] <= 1 and result.compute_cycles < result.cycles
    assert any("only bfloat16 products were compared" in note for note in result.notes)
    assert simulate(tiny, load_target("tpu_v4")).bound == "start"
    wide = simulate(Workload.parse("matmul m=8 n=8 k=8"), load_target("tpu_v4"))
    assert wide.details["precision"] == "float32, products in bfloat16"


def test_configurations_are_judged_alike():
    target, workload = load_target("tpu_v6e"), Workload.parse("matmul m=64 n=64 k=64 dtype=bf16")
    judged = judge(workload, target, [None, None])
    seconds = simulate(workload, target).latency_us * 1e-6
    assert judged.latency.tolist() == pytest.approx([seconds] * 2)


def test_what_is_not_described_is_refused():
    with pytest.raises(WorkloadError, match="operator 'softmax' is none"):
        simulate(Workload.parse("softmax shape=4x4"), load_target("tpu_v4"))
    with pytest.raises(TargetError, match="no model of area and power"):
        simulators["systolic"].hardware_cost(load_target("tpu_v4"))
    with pytest.raises(TargetError, match="dataflow = 'os' is unknown; one of ws"):
        load_target("tpu_v6e").with_settings({"dataflow": "os"})


def test_commands_take_the_chips_like_other_targets(tmp_path):
    op = ("--op", "matmul m=96 n=96 k=96 dtype=bf16")
    assert succeed("targets", "tpu_v6e")["targets"][0]["facts"]["hbm.gbps"]["value"] == 1638.0
    one = succeed("simulate", *op, "--target", "tpu_v6e")
    assert one["precision"] == "bfloat16" and one["target"] == "tpu_v6e"
    tuned = ts.tune(Workload.parse(op[1]), "tpu_v6e", tmp_path / "t.db", trials=3)
    assert tuned.tasks[0].best_us == pytest.approx(one["latency_us"])
    assert "no_such" in refuse("simulate", *op, "--target", "tpu_v4", "--set", "hbm.no_such=1")
