"""Rows that no partition holds: reduced piece by piece, the numbers those of the reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.accelerator_checks import check, stream_of
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.workloads.workload import Workload

TARGET = load_target("trn1")

LONG = (
    "reduce shape=3x65537 axes=1",
    "reduce shape=130x50000 kind=max axes=1 dtype=int8",
    "reduce shape=3x196x400 kind=mean axes=1x2 dtype=float16 epilogue=relu",
    "reduce shape=2x129x5x130 kind=min axes=1x3",
    "reduce shape=2x70000 kind=max axes=1 dtype=int64",
    "reduce shape=60000x3 axes=0",
    "reduce shape=2x70000x2 kind=mean axes=1 dtype=bfloat16",
    "reduce shape=70000x2 kind=max axes=0 dtype=int64",
    "softmax shape=3x30000",
    "softmax shape=2x40000 log=1 dtype=bfloat16",
    "softmax shape=2x127x300 axis=1",
    "layer_norm shape=2x30000 epilogue=gelu",
    "layer_norm shape=3x129x131 axes=2 dtype=float16 epilogue=residual",
    "rms_norm shape=2x50001",
)


@pytest.mark.parametrize("text", LONG)
def test_long_rows_are_right(text: str) -> None:
    workload = Workload.parse(text)
    config = default_of(workload, TARGET)
    assert config["algorithm"] in ("pieces", "followed") and "piece" in config
    check(workload, config, np.random.default_rng(0))


@pytest.mark.parametrize(
    "text", ["softmax shape=2x60000", "reduce shape=2x129x5x300 axes=1x3", "rms_norm shape=1x60000"]
)
def test_every_piece_is_right(text: str) -> None:
    """Of all sizes, kept elements and copies some."""
    workload = Workload.parse(text)
    configs = list(space_of(workload, TARGET))
    assert {config["algorithm"] for config in configs} == {"pieces"}
    for config in configs[1 :: max(1, len(configs) // 3)]:
        check(workload, config, np.random.default_rng(1))


def test_rows_that_fit_are_not_cut() -> None:
    workload = Workload.parse("reduce shape=128x4096 axes=1")
    assert all(config["algorithm"] == "rows" for config in space_of(workload, TARGET))


def test_softmax_beside_neighbours_sums_powers_of_many_at_once() -> None:
    """Powers stand in SBUF, so that one instruction sums those of all neighbours."""
    workload = Workload.parse("softmax shape=129x64 axis=0")
    assert len(stream_of(workload, default_of(workload, TARGET))) < 129
