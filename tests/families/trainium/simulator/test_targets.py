"""The shipped targets say what the public documents say; impossible ones are refused by name."""

from __future__ import annotations

import pytest

from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.search_space.hardware.target import load_target, parse_target
from tilesmith.search_space.support.errors import TargetError, WorkloadError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import check_target, simulate


@pytest.mark.parametrize(
    ("name", "bf16", "fp32", "sbuf_kib", "hbm", "dma"),
    [
        ("trn1", 92, 23, 192, 410, 17),
        ("inf2", 92, 23, 192, 410, 17),
        ("trn2", 79, 20, 224, 362.5, 23),
        ("trn3", 79, 20, 256, 612.5, 33),
    ],
)
def test_derived_figures_are_the_published_ones(name, bf16, fp32, sbuf_kib, hbm, dma):
    core = Core.of(load_target(name))
    assert core.peak_flops_per_ns / 1e3 == pytest.approx(bf16, rel=0.01)
    assert core.peak_flops_per_ns / 1e3 / core.fp32_factor == pytest.approx(fp32, rel=0.02)
    assert core.sbuf_bytes == sbuf_kib * 1024
    assert (core.psum_bytes, core.bank_bytes) == (16 * 1024, 2048)
    assert (core.hbm_bytes_per_ns, core.dma_bytes_per_ns, core.dma_engines) == (hbm, dma, 16)


def test_trainium2_lifts_the_exclusions_of_trainium():
    one, two = (Core.of(load_target(name)) for name in ("trn1", "trn2"))
    assert one.exclusive_sbuf and one.exclusive_psum
    assert not two.exclusive_sbuf and not two.exclusive_psum


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sbuf.partitions": "64"}, "tensor.rows = 128 is out of range; allowed: 1 to 64"),
        ({"psum.partitions": "64"}, "tensor.cols = 128 is out of range; allowed: 1 to 64"),
        ({"tensor.rows": "64"}, r"tensor.rows = 64 is out of range; allowed: 128 \(tensor.cols"),
        ({"psum.banks": "3"}, "psum.banks = 3 is out of range; allowed: divisors of 4096"),
        ({"sbuf.partitions": "1000"}, "sbuf.mib = 24 does not divide into 1000 partitions"),
    ],
)
def test_sizes_that_do_not_fit_each_other_name_field_value_and_range(settings, message):
    with pytest.raises(TargetError, match=message):
        check_target(load_target("trn1").with_settings(settings))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('family = "quantum"', "unknown family of simulated targets 'quantum'; one of cpu, "),
        ('family = "trainium"', "'odd' has no 'tensor.rows'; it has none at all"),
        ('family = "systolic"\n[array]\nrows = 4.5', "array.rows = 4.5 is not an integer"),
    ],
)
def test_incomplete_targets_are_refused_before_anything_runs(text, message):
    with pytest.raises(TargetError, match=message):
        check_target(parse_target("odd", text))


@pytest.mark.parametrize(
    "text",
    ["matmul m=8 n=8 k=8 dtype=int8", "elementwise shape=8x8 expression=relu(x0) dtype=float64"],
)
def test_dtypes_without_instructions_are_refused(text):
    with pytest.raises(WorkloadError, match=r"has no instructions for dtype .* one of float32, "):
        simulate(Workload.parse(text), load_target("trn1"))


def test_a_target_like_another_has_its_facts_but_for_its_own():
    one, two = load_target("trn1"), load_target("inf2")
    assert two.family == one.family
    differ = [name for name in one if one.fact(name).value != two.fact(name).value]
    assert differ == ["link.gbps_chip"]
    assert two.fact("sbuf.mib").source == "as trn1: A1"
    with pytest.raises(TargetError, match="unknown target 'trn9'"):
        parse_target("mine", 'like = "trn9"')
