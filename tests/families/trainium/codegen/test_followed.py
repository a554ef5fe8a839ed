"""Reductions along an axis that others follow: numbers, and where they are the default."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.accelerator_checks import check
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import simulate

TARGET = load_target("trn1")


@pytest.mark.parametrize(
    "text",
    [
        "reduce shape=7x1020 kind=max axes=0",
        "reduce shape=3x5x300 kind=min axes=1 epilogue=residual",
        "reduce shape=2x9x260 kind=product axes=1 epilogue=bias",
        "reduce shape=150x3 kind=mean axes=0 keepdims=0",
        "reduce shape=4x6x134 kind=max axes=1 dtype=bfloat16 epilogue=relu",
    ],
)
def test_every_width_is_right(text: str) -> None:
    workload = Workload.parse(text)
    found = {
        config.integer("width"): config
        for config in space_of(workload, TARGET)
        if config.text("algorithm") == "followed"
    }
    assert len(found) > 1
    for config in list(found.values())[1::3]:
        check(workload, config, np.random.default_rng(0))


@pytest.mark.parametrize(
    "text", ["reduce shape=21x16384 kind=max axes=0", "reduce shape=2x16x3136 kind=min axes=1"]
)
def test_the_default_is_near_the_best_width(text: str) -> None:
    workload = Workload.parse(text)
    default = default_of(workload, TARGET)
    copies = default.integer("copies")
    alike = [
        c
        for c in space_of(workload, TARGET)
        if c.text("algorithm") == "followed"
        and c.integer("copies") == copies
        and c.integer("width") > 30
    ]
    times = [simulate(workload, TARGET, config, "timeline").latency_us for config in alike]
    assert simulate(workload, TARGET, default, "timeline").latency_us <= 1.1 * min(times)


def test_rows_that_lie_in_memory_stay_rows() -> None:
    for text in ("reduce shape=150x9x4 kind=min axes=1", "reduce shape=300x70 kind=max axes=1"):
        assert default_of(Workload.parse(text), TARGET).text("algorithm") == "rows"
