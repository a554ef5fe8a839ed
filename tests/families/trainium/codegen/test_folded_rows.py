"""Short rows, several to a partition or of several axes in one piece: numbers and time saved."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.accelerator_checks import check
from tilesmith.codegen.programs.structures import default_of, inside_of, space_of
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import simulate

TARGET = load_target("trn1")

SHORT = [
    "softmax shape=258x128",
    "softmax shape=134x50 dtype=bfloat16",
    "softmax shape=6x40x5 axis=1",
    "layer_norm shape=260x96 scale=1 bias=1",
    "rms_norm shape=130x64",
]


@pytest.mark.parametrize("text", SHORT)
def test_rows_of_every_fold_are_right(text: str) -> None:
    workload = Workload.parse(text)
    folds = {c.integer("fold"): c for c in space_of(workload, TARGET)}
    assert len(folds) > 2
    for config in list(folds.values())[:4]:
        check(workload, config, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("softmax shape=1536x128", 0.7),
        ("softmax shape=3072x128 dtype=bfloat16", 0.6),
        ("softmax shape=2048x512 dtype=bfloat16", 0.9),
        ("layer_norm shape=4096x128", 0.75),
    ],
)
def test_the_default_has_longer_rows_and_is_near_the_best(text: str, most: float) -> None:
    workload = Workload.parse(text)
    folds = {c.integer("fold"): c for c in space_of(workload, TARGET) if c.integer("copies") == 3}
    times = {n: simulate(workload, TARGET, c, "timeline").latency_us for n, c in folds.items()}
    default = simulate(workload, TARGET, None, "timeline").latency_us
    assert default <= 1.1 * min(times.values())
    assert default < most * times[1]
    assert default_of(workload, TARGET).integer("fold") > 1
    assert inside_of(workload, TARGET).integer("fold") == 1


PAIRS = "elementwise shape={0}x24x24 expression=where(less(x0,x1),x0,x1) x0={0}x1x24 x1={0}x24x1"


@pytest.mark.parametrize("rows", [130, 2])
def test_pairs_of_a_row_are_one_piece_where_that_is_faster(rows: int) -> None:
    workload = Workload.parse(PAIRS.format(rows))
    found = {c.text("algorithm"): c for c in space_of(workload, TARGET) if c.integer("copies") == 2}
    assert set(found) == {"rows", "whole"}
    for config in found.values():
        check(workload, config, np.random.default_rng(0))
    times = {n: simulate(workload, TARGET, c, "timeline").latency_us for n, c in found.items()}
    assert times[default_of(workload, TARGET).text("algorithm")] <= 1.1 * min(times.values()), times


def test_long_rows_are_not_folded() -> None:
    for text in ("softmax shape=512x2048", "layer_norm shape=256x4096"):
        assert default_of(Workload.parse(text), TARGET).integer("fold") == 1


@pytest.mark.parametrize(
    "text",
    [
        "attention m=128 n=128 k=64 heads=2 dtype=bfloat16",
        "attention m=40 n=72 k=16 batch=2 heads=3 mask=full",
        "attention m=512 n=1024 k=32 dtype=bfloat16 mask=row",
    ],
)
def test_queries_and_keys_of_every_fold_are_right(text: str) -> None:
    workload = Workload.parse(text)
    space = space_of(workload, TARGET)
    subspaces = {dict(s.fixed).get("fold", 1): s for s in space.subspaces}
    assert max(subspaces) >= 8
    for subspace in subspaces.values():
        (config,) = SearchSpace((subspace,)).sample(np.random.default_rng(0), 1)
        check(workload, config, np.random.default_rng(0))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_of_short_rows_is_near_the_best_of_its_folds(dtype: str) -> None:
    workload = Workload.parse(f"attention m=128 n=128 k=64 heads=12 dtype={dtype}")
    default = default_of(workload, TARGET)
    assert inside_of(workload, TARGET).integer("fold") == 1
    latency = simulate(workload, TARGET, default, "timeline").latency_us
    for fold, pair in ((1, 1), (1, 2), (2, 1), (4, 1), (8, 1)):
        folded = type(default).of({**default, "fold": fold, "pair": pair})
        assert latency < 1.2 * simulate(workload, TARGET, folded, "timeline").latency_us
