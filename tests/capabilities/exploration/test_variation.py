"""Design points: what varies, which points come of it, and what is said of what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.capabilities.exploration.variation import Variation, designs
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import InputError, TargetError

TRN1 = load_target("trn1")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("sbuf.mib=12:96", (12, 24, 48, 96)),
        ("sbuf.mib=12:80", (12, 24, 48, 80)),
        ("sbuf.mib=10:40:3", (10, 20, 40)),
        ("tensor.rows=256,64,128,64", (64, 128, 256)),
        ("vector.ghz=0.5,1.12", (0.5, 1.12)),
        (" dma.engines = 8 , 16 ", (8, 16)),
    ],
)
def test_values(text: str, values: tuple[float, ...]) -> None:
    assert Variation.parse(text, TRN1).values == pytest.approx(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sbuf.mib", "varies nothing"),
        ("sbuf.mib=", "varies nothing"),
        ("sbuf.mib=a,b", "values are numbers"),
        ("sbuf.mib=1,inf", "values are finite"),
        ("sbuf.mib=96:12", "LOW:HIGH"),
        ("sbuf.mib=1:2:1", "LOW:HIGH"),
        ("sbuf.mib=1:2:3:4", "LOW:HIGH"),
        ("sbuf.mib=12:96:1001", "at most 1,000 values"),
        ("sbuf.mib=1e-300:1e300", "at most 1,000 values"),
        ("sbuf.mib=12.5,24", "whole numbers"),
        ("exclusive.vector_gpsimd_sbuf=0,1", "no number to vary"),
    ],
)
def test_what_is_no_variation(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Variation.parse(text, TRN1)


def test_an_unknown_number_is_named() -> None:
    with pytest.raises(TargetError, match=r"has no 'sbuf.size'"):
        Variation.parse("sbuf.size=1,2", TRN1)


def of(*texts: str, most: int = 1000, seed: int = 0):
    variations = [Variation.parse(text, TRN1) for text in texts]
    return designs(TRN1, variations, most, np.random.default_rng(seed))


def test_the_base_then_single_changes_then_the_grid() -> None:
    found = of("sbuf.mib=12,24,48", "dma.engines=8,16")
    assert found.points[0] == (("sbuf.mib", "24"), ("dma.engines", "16"))
    assert found.one_at_a_time == 3
    assert found.grid == len(found) == len(set(found.points)) == 6
    for settings, target in zip(found.points, found.targets, strict=True):
        for name, value in settings:
            assert target.integer(name) == int(value)


def test_of_a_large_grid_so_many_are_drawn_by_the_seed() -> None:
    names = ("scalar.ghz", "gpsimd.ghz", "vector.ghz", "tensor.ghz")
    texts = tuple(f"{name}=0.5:4:20" for name in names)
    found = of(*texts, most=200)
    assert found.grid == 20**4
    assert 190 <= len(found) == len(set(found.points)) <= 200
    assert of(*texts, most=200).points == found.points
    assert of(*texts, most=200, seed=1).points != found.points


def test_designs_that_cannot_be_built_are_listed_with_the_reason() -> None:
    found = of("psum.banks=8,7", "sbuf.mib=12,24")
    assert {dict(settings)["psum.banks"] for settings, _ in found.refused} == {"7"}
    assert all("divisors of 4096" in reason for _, reason in found.refused)
    assert {target.integer("psum.banks") for target in found.targets} == {8}


def test_an_array_of_another_size_stands_on_partitions() -> None:
    found = of("tensor.rows=64,256")
    assert [target.integer("sbuf.partitions") for target in found.targets] == [128, 128, 256]


def test_nothing_or_the_same_twice_is_refused() -> None:
    with pytest.raises(InputError, match="nothing is varied"):
        of()
    with pytest.raises(InputError, match="varied twice"):
        of("sbuf.mib=1,2", "sbuf.mib=3,4")
    with pytest.raises(InputError, match="no design beside the base can be built"):
        of("psum.banks=7")
    with pytest.raises(InputError, match="only the base itself"):
        of("sbuf.mib=24")
