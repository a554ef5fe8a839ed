"""`tilesmith measure` and `tilesmith space` as a user meets them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.end_to_end.command import SMALL, invoke, refuse, succeed
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.jobs.inspection import measuring
from tilesmith.jobs.inspection.configurations import filled, parsed
from tilesmith.records import Database
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ConfigError
from tilesmith.search_space.workloads.workload import Workload

ON_TRN1 = ("--op", "matmul m=128 n=128 k=256", "--target", "trn1")


def test_given_knobs_are_measured_over_the_default_and_checked() -> None:
    found = succeed("measure", "--op", SMALL, "--config", "m_tile=2,block_order=n,m,k")
    assert found["measured_by"] == "hardware" and found["status"] == "ok"
    assert found["config"]["m_tile"] == 2 and found["config"]["block_order"] == "n,m,k"
    assert found["base"]["is"].startswith("default") and found["numbers"] == "right"
    others = {n for n, v in found["base"]["config"].items() if v != found["config"][n]}
    assert others <= {"m_tile", "block_order"}
    assert found["gflops"] == pytest.approx(2 * 16 * 32 * 8 / found["latency_us"] / 1e3)
    assert found["speedup"] == pytest.approx(found["base"]["latency_us"] / found["latency_us"])


def test_the_base_is_the_best_of_the_database(tmp_path: Path) -> None:
    database = tmp_path / "t.db"
    ts.tune([Workload.parse(ON_TRN1[1])], "trn1", str(database), trials=8)
    with Database.open(str(database)) as opened:
        best = opened.bests([Workload.parse(ON_TRN1[1])], load_target("trn1"))
    (record,) = (found.record for found in best.values())
    found = succeed("measure", *ON_TRN1, "--database", database)
    assert found["base"]["is"] == f"best of the database (record {record.id})"
    assert found["config"] == dict(record.config) and record.latency is not None
    assert found["latency_us"] == pytest.approx(record.latency * 1e6)
    assert found["measured_by"] == "simulator" and found["numbers"] == "right"
    assert found["max_error"] < 1e-5
    with Database.open(str(database)) as opened:
        assert opened.stats()["trials"] == 8  # nothing is written


@pytest.mark.parametrize("target", ["trn1", "lpu1", "systolic"])
def test_simulated_kernels_compute_right_numbers(target: str) -> None:
    dtype = " dtype=float16" if target == "lpu1" else ""
    found = ts.measure(f"matmul m=32 n=32 k=64{dtype}", target=target)
    assert found.asked.result.ok and not found.wrong
    assert found.asked.numbers == "right" or target == "systolic"


@pytest.mark.parametrize(
    "text",
    [
        "depthwise_conv2d c=16 h=6 w=6 kh=3 kw=3 pad=1",
        "pool2d kind=max c=16 h=6 w=6 kh=2 kw=2 stride=2",
        "gather shape=3x7x5 indices=11 axis=1",
    ],
)
def test_kernels_of_any_layout_and_of_indices_are_checked(text: str) -> None:
    assert ts.measure(text, None, "cpu", None, by="simulator").asked.numbers == "right"


def test_float32_is_checked_as_models_compute_it() -> None:
    found = ts.measure("layer_norm shape=8x128", target="lpu1").asked
    assert found.numbers == "right, in float16 as models there"
    assert found.max_error is not None and 0 < found.max_error < 2e-3


@pytest.mark.parametrize("expression", ["sqrt(x0)", "log(x0)"])
def test_what_has_no_value_is_right_where_the_reference_has_the_same(
    expression: str,
) -> None:
    text = f"elementwise shape=16x16 expression={expression}"
    found = succeed("measure", "--op", text, "--target", "trn1")
    assert found["numbers"] == "right" and found["max_error"] < 1e-3


def test_wrong_numbers_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = measuring._computed

    def off(*given: Any) -> Any:
        values = real(*given).copy()
        values.flat[3] += 1.0
        return values

    monkeypatch.setattr(measuring, "_computed", off)
    result = invoke("measure", *ON_TRN1)
    assert result.exit_code == 1 and "wrong: off by" in result.stdout


def test_what_is_no_configuration_is_refused_with_what_is() -> None:
    op = ("--op", SMALL)
    said = refuse("measure", *op, "--config", "m_tle=2")
    assert "unknown knob 'm_tle'" in said and "did you mean 'm_tile'" in said
    assert "allowed: 1, 2, 3" in refuse("measure", *op, "--config", "m_tile=1000")
    broken = refuse("measure", *op, "--config", "m_tile=16,n_vectors=2")
    assert "exceeds the limit" in broken and "m_tile can be 1, 2" in broken
    assert "write KEY=VALUE" in refuse("measure", *op, "--config", "=2")
    assert "given twice" in refuse("measure", *op, "--config", "m_tile=2", "--config", "m_tile=3")
    assert "a single operator" in refuse("measure", *op, "--op", "reduce shape=8x8")


def test_another_algorithm_is_filled_in_by_the_simulator() -> None:
    workload = Workload.parse(
        "conv2d n=1 c=16 h=14 w=14 oc=16 kh=3 kw=3 stride=1 pad=1 const=weight"
    )
    target = ts.resolve_target("cpu")
    space, base = space_of(workload, target), default_of(workload, target)
    names = {s_name: value for s in space.subspaces for s_name, value in s.fixed}
    others = {
        value
        for s in space.subspaces
        for name, value in s.fixed
        if name == "algorithm" and value != base["algorithm"]
    }
    assert "algorithm" in names and others
    for value in sorted(map(str, others)):
        found = filled(space, {"algorithm": value}, base, np.random.default_rng(0))
        assert all(c in space and c["algorithm"] == value for c in found.candidates)


def test_configurations_are_read_in_both_forms() -> None:
    assert parsed(["a=1,order=n,m,k", "b=2"]) == {"a": "1", "order": "n,m,k", "b": "2"}
    assert parsed([Config.of(a=1, order="n,m").key]) == {"a": "1", "order": "n,m"}
    with pytest.raises(ConfigError, match="JSON object"):
        parsed(["{a"])


def test_a_space_is_what_enumeration_says() -> None:
    found = succeed("space", *ON_TRN1, "--samples", 5000)
    target, workload = load_target("trn1"), Workload.parse(ON_TRN1[1])
    every = list(space_of(workload, target))
    assert found["size"] == len(every) == found["judged"]["drawn"]
    latency = np.sort(ts_judged(workload, every))
    assert found["judged"]["quantiles_us"]["0.5"] == pytest.approx(float(np.median(latency)))
    assert sum(b["count"] for b in found["judged"]["histogram"]) == len(latency)
    assert found["best_drawn"]["latency_us"] == pytest.approx(latency[0])
    assert found["importance_from"] == "judged sample"
    assert sum(found["importance"].values()) == pytest.approx(1.0)


def ts_judged(workload: Workload, configs: list[Config]) -> np.ndarray:
    from tilesmith.simulator import judge

    return judge(workload, load_target("trn1"), configs).latency * 1e6


def test_limits_and_knobs_are_what_the_space_has() -> None:
    found = succeed("space", "--op", "matmul m=64 n=64 k=64", "--target", "cpu", "--samples", 50)
    target, workload = ts.resolve_target("cpu"), Workload.parse("matmul m=64 n=64 k=64")
    (subspace,) = space_of(workload, target).subspaces
    illegal = broken = 0
    for limit in subspace.constraints[:1]:
        used = [k for k in subspace.knobs if k.name in limit.value.variables()]
        for values in itertools.product(*(k.values for k in used)):
            at = {k.name: np.array([v]) for k, v in zip(used, values, strict=True)}
            illegal += int(limit.value.evaluate(at)[0] > limit.limit)
            broken += 1
        (told,) = [one for one in found["limits"] if one["meaning"] == limit.meaning]
        assert told["breaks"] == pytest.approx(illegal / broken, abs=0.05)
    assert found["legal"] == pytest.approx(found["size"] / found["combinations"])
    text = invoke("space", "--op", "matmul m=64 n=64 k=64", "--samples", 50).stdout
    assert "vector registers" in text and "m_tile" in text and "best drawn" in text


def test_importance_is_learnt_from_enough_records(tmp_path: Path) -> None:
    database = tmp_path / "t.db"
    ts.tune([Workload.parse(ON_TRN1[1])], "trn1", str(database), trials=90)
    found = succeed("space", *ON_TRN1, "--database", database, "--samples", 100)
    assert found["importance_from"] == "records (simulator)"
    assert found["best"]["latency_us"] <= found["default"]["latency_us"]
