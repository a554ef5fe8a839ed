"""Which algorithm is used untuned: the default's, or one that is estimated to be clearly faster."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.programs import structures
from tilesmith.codegen.programs.structures import CLEARLY_FASTER, default_of, space_of
from tilesmith.search_space.hardware.instruction_set import instruction_set
from tilesmith.search_space.hardware.target import Fact, Target
from tilesmith.search_space.results.judging import judges
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.dispatch import judge


def target_of(isa: str) -> Target:
    """A described CPU of an instruction set."""
    return cpu_target(isa, isa, instruction_set(isa).triple)


X86 = "x86_64-unknown-linux-gnu"
WIDE = "conv2d c=64 h=28 w=28 oc=64 kh=3 kw=3 pad=1 const=weight"
SHAPES = (
    WIDE,
    "conv2d c=3 h=64 w=64 oc=32 kh=3 kw=3 pad=1 const=weight",
    "conv2d c=128 h=7 w=7 oc=128 kh=3 kw=3 pad=1 const=weight",
    "conv2d c=32 h=16 w=16 oc=32 kh=3 kw=3 pad=1",
    "conv2d c=64 h=14 w=14 oc=64 kh=3 kw=3 stride=2 pad=1 const=weight",
    "conv2d c=64 h=14 w=14 oc=64 kh=1 kw=1 const=weight",
    "conv2d c=136 h=28 w=28 oc=136 kh=1 kw=1 groups=4 const=weight",
    "conv2d c=20 h=14 w=14 oc=20 kh=3 kw=3 pad=1 groups=2 const=weight dtype=float16",
)


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("key", SHAPES)
def test_it_is_legal_and_none_is_estimated_to_be_clearly_faster(key: str, isa: str) -> None:
    workload, target = Workload.parse(key), target_of(isa)
    scheduler, chosen = scheduler_of(workload, target), default_of(workload, target)
    assert chosen in space_of(workload, target)
    offered = [scheduler.default(workload, target), *scheduler.alternatives(workload, target)]
    assert chosen in offered
    seconds = judge(workload, target.uncalibrated, offered).latency
    place = offered.index(chosen)
    assert seconds[place] <= seconds.min() / CLEARLY_FASTER
    assert (seconds[:place] > seconds.min() / CLEARLY_FASTER).all(), "the more accurate comes first"


def test_a_wide_convolution_is_transformed_and_a_thin_one_is_not() -> None:
    target = target_of("avx512")
    assert default_of(Workload.parse(WIDE), target).text("algorithm").startswith("winograd")
    thin = Workload.parse("conv2d c=3 h=64 w=64 oc=32 kh=3 kw=3 pad=1 const=weight")
    assert default_of(thin, target) == scheduler_of(thin, target).default(thin, target)


def test_groups_whose_channels_fill_no_vectors_are_vectors_of_pixels() -> None:
    target = target_of("avx512")
    thin = Workload.parse("conv2d c=136 h=28 w=28 oc=136 kh=1 kw=1 groups=4 const=weight")
    whole = Workload.parse("conv2d c=128 h=28 w=28 oc=128 kh=1 kw=1 groups=4 const=weight")
    chosen, usual = default_of(thin, target), scheduler_of(thin, target).default(thin, target)
    assert chosen.text("algorithm") == "width"
    for name in ("input_layout", "output_layout"):
        assert chosen.text(name) == usual.text(name)
    assert default_of(whole, target).text("algorithm") == "channels"


def test_the_kind_of_processor_has_a_say_in_it() -> None:
    """One multiply-add a cycle makes the fewest of them worth more of the transforms' loads."""
    workload = Workload.parse("conv2d c=256 h=14 w=14 oc=256 kh=3 kw=3 pad=1 const=weight")
    chosen = {
        name: default_of(workload, cpu_target(name, "avx512", X86, name)).text("algorithm")
        for name in ("znver4", "znver5", "icelake-server", "generic")
    }
    assert chosen == {
        "znver4": "winograd4", "znver5": "winograd2", "icelake-server": "winograd2",
        "generic": "winograd2",
    }  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint8 weights=int8"])
def test_formats_without_a_stated_bound_are_not_transformed(dtype: str) -> None:
    workload, target = Workload.parse(f"{WIDE} dtype={dtype}"), target_of("avx512")
    assert scheduler_of(workload, target).alternatives(workload, target) == ()


def test_what_was_measured_of_a_machine_changes_nothing() -> None:
    workload, target = Workload.parse(WIDE), target_of("avx512")
    slow = Fact(0.01, "microbenchmark", "F", "bytes/cycle", calibratable=True, minimum=0.01)
    facts = {**dict(target.facts), "l2.bytes_per_cycle": slow, "l3.bytes_per_cycle": slow}
    measured = Target.of(target.name, target.family, facts, target.doc)
    assert measured != target and measured.uncalibrated == target.uncalibrated
    assert default_of(workload, measured) == default_of(workload, target)


def test_an_algorithm_that_cannot_be_estimated_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload, target = Workload.parse(WIDE), target_of("avx512")
    usual = scheduler_of(workload, target).default(workload, target)

    def unknown(_: Workload, __: Target, configs: object) -> NDArray[np.float64]:
        return np.array([1.0, *[np.nan] * (len(list(configs)) - 1)])  # type: ignore[call-overload]

    monkeypatch.setitem(judges._entries, "cpu", unknown)
    assert structures.default_of.__wrapped__(workload, target) == usual
    monkeypatch.setattr(judges, "find", lambda name: None)
    assert structures.default_of.__wrapped__(workload, target) == usual
