"""`tilesmith db knobs`, `history` and `regress`: what trials tell of knobs, workloads, versions."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tilesmith.command_line import command_line
from tilesmith.jobs.inspection.knob_effects import knob_effects
from tilesmith.records import Database, Toolchain, TuningRecord
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config

KEY = "matmul m=16 n=32 k=8 const=b"
OTHER = "matmul m=8 n=8 k=8"
OLD = Toolchain(tilesmith="0.0.9", codegen="0", space="0", llvm="0")
START = datetime(2026, 1, 1, tzinfo=UTC)


def said(*words: object, code: int = 0) -> Any:
    """What a command says with --json."""
    done = CliRunner().invoke(command_line, ["db", *map(str, words), "--json"])
    assert done.exit_code == code, done.output
    return json.JSONDecoder().raw_decode(done.stdout)[0]


def text(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(command_line, ["db", *map(str, words)])
    assert done.exit_code == code and "internal error" not in done.output, done.output
    return done.output


def trial(
    seconds: float | tuple[float, ...], key: str = KEY, config: Config | None = None, **more: Any
) -> TuningRecord:
    samples = seconds if isinstance(seconds, tuple) else (seconds,)
    result = MeasureResult("ok", more.pop("measured_by", "hardware"), samples)
    return TuningRecord(key, "cpu-1", config or Config.of(m_tile=4), result, **more)


def write(path: Path, *records: TuningRecord) -> Path:
    with Database.open(str(path)) as database:
        database.add(records)
    return path


# -- knobs ----------------------------------------------------------------------------------------
TILES = {1: 3.0, 2: 1.5, 4: 1.0}
ORDERS = {"mn": 1.0, "nm": 1.25}


def factorial(*, balanced: bool = True) -> list[TuningRecord]:
    """Trials whose latency is a product of what two knobs do; a third does nothing."""
    return [
        trial(1e-5 * tile * order, config=Config.of(m_tile=m, order=name, unroll=u))
        for m, tile in TILES.items()
        for name, order in ORDERS.items()
        for u in (1, 2)
        if balanced or m != 1 or name == "nm"
    ]


@pytest.mark.parametrize("balanced", [True, False])
def test_effects_are_the_factors_that_latency_is_made_of(balanced: bool) -> None:
    effects = {one.knob: one for one in knob_effects(factorial(balanced=balanced))}
    assert list(effects) == ["m_tile", "order", "unroll"], "the most to lose first"
    for name, factors in (("m_tile", TILES), ("order", ORDERS), ("unroll", {1: 1.0, 2: 1.0})):
        got = {value.value: value.effect for value in effects[name].values}
        assert got.keys() == factors.keys()
        for value, factor in factors.items():
            assert got[value] == pytest.approx(factor, rel=0.03), (name, value)


def test_effects_do_not_depend_on_the_order_of_trials() -> None:
    records = factorial()
    turned = [records[i] for i in np.random.default_rng(3).permutation(len(records))]
    assert knob_effects(turned) == knob_effects(records)


def test_a_knob_that_an_algorithm_lacks_has_a_level_of_its_own() -> None:
    lacking = [trial(9e-5, config=Config.of(m_tile=m, order="mn")) for m in TILES]
    effects = {one.knob: one for one in knob_effects([*factorial(), *lacking])}
    assert {value.value for value in effects["unroll"].values} == {1, 2, None}


def test_knobs_are_told_of_one_machine(tmp_path: Path) -> None:
    path = write(tmp_path / "t.db", *factorial(), trial(1e-9, threads=2))
    told = said("knobs", KEY, "--database", path)
    assert (told["trials"], told["threads"], told["target"]) == (12, 1, "cpu-1")
    first = told["knobs"][0]
    assert (first["knob"], first["values"][0]["value"]) == ("m_tile", 4)
    assert first["values"][-1]["median_us"] == pytest.approx(33.75)
    alone = said("knobs", KEY, "--database", path, "--knob", "order")["knobs"]
    assert [one["knob"] for one in alone] == ["order"]
    assert "12 trials on cpu-1" in text("knobs", KEY, "--database", path)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((OTHER,), "has 0 working trials of"),
        ((KEY, "--threads", "2"), "has 1 working trials of"),
        ((KEY, "--knob", "m_tiel"), "knob 'm_tiel' had one value; several had m_tile, order"),
    ],
)
def test_what_cannot_be_studied(tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    path = write(tmp_path / "t.db", *factorial(), trial(1e-9, threads=2))
    assert sentence in text("knobs", *words, "--database", path, code=2)


# -- history --------------------------------------------------------------------------------------
def test_history_tells_what_each_version_and_machine_made_of_a_workload(tmp_path: Path) -> None:
    day = timedelta(days=1)
    path = write(
        tmp_path / "t.db",
        trial(3e-5, toolchain=OLD, created_at=START),
        trial(2e-5, config=Config.of(m_tile=8), toolchain=OLD, created_at=START + day),
        trial(1e-5, config=Config.of(m_tile=8), created_at=START + 2 * day),
        trial(5e-5, threads=2, created_at=START + 3 * day),
        trial(1e-7, OTHER),
    )
    first, second, third = said("history", KEY, "--database", path)["history"]
    assert (first["trials"], first["stale"], first["latency_us"]) == (2, True, pytest.approx(20))
    assert (first["since"][:10], first["until"][:10]) == ("2026-01-01", "2026-01-02")
    assert (second["trials"], second["stale"], second["config"]) == (1, False, {"m_tile": 8})
    assert third["threads"] == 2
    shown = text("history", KEY, "--database", path)
    assert "2.00" in shown and "codegen 0" in shown, "twice as fast as the version before"
    assert len(said("history", KEY, "--database", path, "--threads", 2)["history"]) == 1
    assert "no working schedule of" in text("history", OTHER, "--database", path, "--threads", 9)


# -- regress --------------------------------------------------------------------------------------
def noisy(middle: float, spread: float) -> tuple[float, ...]:
    """Eleven samples about a median."""
    return tuple(middle * (1 + spread * (place - 5) / 5) for place in range(11))


def test_what_is_slower_beyond_noise_is_told_and_what_is_noise_is_not(tmp_path: Path) -> None:
    keys = [f"matmul m={m} n=8 k=8" for m in range(1, 6)]
    spreads = zip(keys, (0.01, 0.3, 0.01, 0.01, 0.01), strict=True)
    before = write(tmp_path / "a.db", *(trial(noisy(1e-5, spread), key) for key, spread in spreads))
    after = write(
        tmp_path / "b.db",
        trial(noisy(1.05e-5, 0.01), keys[0]),  # slower than its samples explain
        trial(noisy(1.05e-5, 0.3), keys[1]),  # as much slower, among samples that scatter
        trial(noisy(0.9e-5, 0.01), keys[2]),
        trial(1.5e-5, keys[3], measured_by="simulator"),
    )
    told = said("regress", before, after, code=1)
    assert told["summary"] == {"slower": 1, "faster": 1, "noise": 1, "gone": 1, "other way": 1}
    (slower,) = told["slower"]
    assert slower["workload"] == keys[0] and slower["same_schedule"] is True
    assert slower["ratio"] == pytest.approx(1.05) and 1.01 <= slower["noise"] < 1.05
    assert "1 of 5 workloads became slower beyond noise" in text("regress", before, after, code=1)


def test_a_chance_of_three_errors_is_kept(tmp_path: Path) -> None:
    """Medians of equal distributions are told apart as seldom as three standard errors say."""
    from tilesmith.jobs.inspection.regressions import BeforeAndAfter
    from tilesmith.records import Best

    rng, slower = np.random.default_rng(5), 0
    for _ in range(400):
        pair = [Best(trial(tuple(np.exp(rng.normal(-11, 0.05, 21))))) for _ in range(2)]
        slower += BeforeAndAfter(KEY, "cpu-1", 1, *pair).verdict == "slower"
    assert slower <= 8, "two per cent of 400; chance alone gives half a per cent"


def test_of_one_database_the_versions_are_compared(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.db",
        trial(1e-5, toolchain=OLD, created_at=START),
        trial(2e-5, config=Config.of(m_tile=8)),
        trial(1e-5, OTHER, toolchain=OLD, created_at=START),
        trial(1e-5, OTHER),
    )
    told = said("regress", path, code=1)
    assert told["summary"] | {"noise": 1, "slower": 1} == told["summary"]
    assert told["slower"][0]["workload"] == KEY and not told["slower"][0]["same_schedule"]
    fresh = write(tmp_path / "u.db", trial(1e-5))
    assert "nothing became slower" in text("regress", fresh)
    assert "name one database, or two" in text("regress", path, path, path, code=2)
