"""Fused attention in blocks of keys: any number of them fits, and a key costs what a key costs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.accelerator_checks import TARGET, check, run
from tests.conformance.template_checks import random_inputs
from tilesmith.codegen.programs.structures import default_of, inside_of, space_of
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import measure, simulate


def blocks(workload: Workload, **fixed: object) -> list[Config]:
    """A configuration of every structure in blocks of keys that has these values."""
    found = []
    for subspace in space_of(workload, TARGET).subspaces:
        values = dict(subspace.fixed)
        if values.items() >= {"algorithm": "blocks", **fixed}.items():
            (row,) = subspace.draw(np.random.default_rng(len(found)), 1)
            found.append(subspace.config(row))
    return found


@pytest.mark.parametrize("text", [
    "attention m=24 n=1100 k=16 v=9",
    "attention m=1 n=600 k=8 heads=3 dtype=bfloat16",
    "attention m=256 n=530 k=136 dtype=bfloat16",
    "attention m=130 n=1030 k=8 batch=2 mask=row",
    "attention m=10 n=2100 k=8 heads=2 mask=each dtype=bfloat16",
])  # fmt: skip
def test_blocks_compute_the_reference(text):
    workload, rng = Workload.parse(text), np.random.default_rng(3)
    found = blocks(workload)
    assert {c.text("hold") for c in found} >= ({"head", "block"} if "m=1 " in text else {"head"})
    for config in found if "mask" not in text else found[::2]:
        check(workload, config, rng)


@pytest.mark.parametrize("guard", [0, 1])
@pytest.mark.parametrize("kind", ["row", "full"])
def test_a_mask_may_leave_out_whole_blocks_and_queries(kind, guard):
    workload = Workload.parse(f"attention m=9 n=1300 k=8 batch=2 mask={kind} guard={guard}")
    inputs = random_inputs(workload, np.random.default_rng(1))
    inputs["mask"][0, ..., :600] = -np.inf
    inputs["mask"][1] = -np.inf
    with np.errstate(invalid="ignore"):
        want = template_of("attention").reference(workload, inputs)
    assert np.isnan(want[1]).all() == (not guard)
    for config in blocks(workload, block=512):
        np.testing.assert_allclose(run(workload, config, inputs), want, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_may_grow_or_shrink_from_block_to_block(dtype):
    """By thousands: a block's sums are faded to nothing, or all others' are."""
    workload = Workload.parse(f"attention m=2 n=1500 k=8 scale=1 dtype={dtype}")
    inputs = random_inputs(workload, np.random.default_rng(1))
    inputs["q"][..., 0, :] = 1
    inputs["q"][..., 1, :] = -1
    inputs["k"][...] = np.arange(1500, dtype=np.float32)[:, None]
    exact = {name: x.astype(np.float64) for name, x in inputs.items()}
    want = template_of("attention").reference(workload, exact)
    for config in blocks(workload, block=512):
        got = run(workload, config, inputs).astype(np.float64)
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, want, atol=1e-5 if dtype == "float32" else 2e-2)


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_number_of_keys_is_a_cliff(dtype, target):
    """A key more costs what a key costs: 16 times as many take at most 16 times as long."""
    each = {}
    for n in (1024, 4096, 16384):
        workload = Workload.parse(f"attention m=128 n={n} k=128 heads=2 dtype={dtype}")
        config = inside_of(workload, load_target(target))  # blocks of keys have no folded rows
        each[n] = simulate(workload, load_target(target), config, "timeline").latency_us / n
    assert each[4096] <= 1.02 * each[1024]
    assert each[16384] <= 1.1 * each[4096]


@pytest.mark.parametrize("n", [512, 2048, 8192])
def test_the_default_is_among_the_best(n):
    workload, rng = Workload.parse(f"attention m=128 n={n} k=64 heads=2"), np.random.default_rng(0)
    space = space_of(workload, TARGET)
    configs = [default_of(workload, TARGET), *space.sample(rng, 6)]
    times = measure(workload, TARGET, configs).latency
    assert times[0] <= 1.2 * np.nanmin(times)


def test_long_attention_has_a_schedule():
    for text in ("m=8192 n=8192 k=128 heads=16", "m=16384 n=16384 k=128 heads=32 mask=shared"):
        for dtype in ("float32", "bfloat16"):
            workload = Workload.parse(f"attention {text} dtype={dtype}")
            default = default_of(workload, TARGET)
            assert default in space_of(workload, TARGET)
            assert default.text("algorithm") == "blocks"
