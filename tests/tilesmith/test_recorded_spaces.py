"""Recorded spaces: files in the community's formats, written here, read, searched and refused."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tilesmith
from tilesmith.command_line import command_line
from tilesmith.jobs.tuning import recorded_file
from tilesmith.jobs.tuning.recorded_file import read_recorded
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import ConfigError, InputError
from tilesmith.tuner.ledgers.listed import listed_space
from tilesmith.tuner.tasks.strategy import strategies


def milliseconds(x: int, y: int, method: str) -> float:
    """A made-up kernel: best at x = 64, y = 4, by method "b"."""
    return (1 + abs(np.log2(x / 64)) + 0.5 * abs(np.log2(y / 4))) * (1.0 if method == "b" else 1.3)


def results() -> list[dict[str, Any]]:
    """All combinations that a made-up limit allows; the largest of them fail."""
    found = []
    for x, y, method in itertools.product((16, 32, 64, 128, 256), (1, 2, 4, 8, 16), "ab"):
        if x * y > 1024:
            continue
        failed, time = x * y == 1024, milliseconds(x, y, method)
        measured: Any = "RuntimeFailedConfig" if failed else time
        found.append(
            {
                "configuration": {"x": x, "y": y, "method": method, "half": 0.5},
                "times": {
                    "compilation": 900.0,
                    "framework": 1.0,
                    "search_algorithm": 0,
                    "runtimes": [] if failed else [time, 1.5 * time],
                },
                "invalidity": "runtime" if failed else "correct",
                "correctness": 0 if failed else 1,
                "measurements": [
                    {"name": "time", "value": measured, "unit": ""},
                    {"name": "GFLOP/s", "value": "" if failed else 1 / time, "unit": ""},
                ],
                "objectives": ["time"],
            }
        )
    return found


def written(path: Path, document: Any) -> Path:
    text = document if isinstance(document, str) else json.dumps(document)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture
def t4() -> dict[str, Any]:
    return {
        "metadata": {"timeunit": "milliseconds"},
        "results": results(),
        "schema_version": "1.0.0",
    }


def cache_of(t4: dict[str, Any]) -> dict[str, Any]:
    """The same as Kernel Tuner's cache."""
    entries = {}
    for result in t4["results"]:
        values, failed = result["configuration"], result["invalidity"] != "correct"
        entry = {**values, "time": result["measurements"][0]["value"]}
        entry |= {"compile_time": 900.0, "verification_time": 0, "framework_time": 1.0}
        entry |= {} if failed else {"times": result["times"]["runtimes"]}
        entries[",".join(map(str, values.values()))] = entry
    knobs = list(t4["results"][0]["configuration"])
    return {"tune_params_keys": knobs, "objective": "time", "cache": entries}


def test_a_file_becomes_a_space_of_just_its_configurations(
    t4: dict[str, Any], tmp_path: Path
) -> None:
    found = read_recorded(written(tmp_path / "kernel.json.gz", t4)).space()
    given = {
        Config.of({**r["configuration"], "half": "0.5"}): r["measurements"][0]["value"]
        for r in t4["results"]
    }
    assert set(found.space) == set(given) == set(found.results)
    assert found.space.size == len(given) < 5 * 5 * 2
    assert found.default in given and found.workload.key == "recorded space=kernel"
    for config, result in found.results.items():
        if isinstance(given[config], str):
            assert result.status == "crash" and result.latency is None
        else:
            assert result.latency == pytest.approx(1e-3 * given[config])
            assert result.warm_samples == pytest.approx(
                (1e-3 * given[config], 1.5e-3 * given[config])
            )
            assert result.elapsed == pytest.approx(0.901 + 2.5e-3 * given[config])


@pytest.mark.parametrize("ending", ["", "cut", "comma"])
def test_a_cache_of_kernel_tuner_says_the_same(
    t4: dict[str, Any], tmp_path: Path, ending: str
) -> None:
    text = json.dumps(cache_of(t4))
    text = {"": text, "cut": text.rstrip("}") + "}", "comma": text.rstrip("}") + "},\n"}[ending]
    found = read_recorded(written(tmp_path / "kernel.json", text)).space()
    other = read_recorded(written(tmp_path / "t4.json", t4)).space()
    assert dict(found.results) == dict(other.results)
    for config, result in found.results.items():
        assert result.elapsed == pytest.approx(other.results[config].elapsed)


def test_an_objective_may_be_another_measurement(t4: dict[str, Any], tmp_path: Path) -> None:
    opened = read_recorded(written(tmp_path / "kernel.json", t4))
    times, rates = opened.space(), opened.space("GFLOP/s")
    for config, result in rates.results.items():
        if result.latency is not None:
            assert result.latency == pytest.approx(1e3 * (times.results[config].latency or 0))
    assert (
        opened.space("min:GFLOP/s").results[rates.default].latency
        != rates.results[rates.default].latency
    )
    with pytest.raises(InputError, match="no result of it has a valid 'lifetime'; measured were"):
        opened.space("lifetime")
    with pytest.raises(InputError, match="name it min:watts or max:watts"):
        opened.space("watts")


def test_moves_stay_among_what_is_listed() -> None:
    rng = np.random.default_rng(0)
    columns = {"a": rng.integers(0, 40, 500).tolist(), "b": rng.integers(0, 40, 500).tolist()}
    columns["c"], columns["d"] = rng.choice(["p", "q", "r"], 500).tolist(), [7] * 500
    space = listed_space(columns)
    listed = {
        Config.of(dict(zip(columns, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    }
    assert set(space) == listed and space.size == len(listed)
    breeder = space.breeder
    population = breeder.sample(rng, 200)
    for moved in (
        population,
        breeder.mutate(population, rng),
        breeder.cross(population, breeder.sample(rng, 200), rng),
        breeder.neighbours(population),
    ):
        assert set(breeder.decode(moved)) <= listed
    one = breeder.decode(population)[0]
    apart = [c for c in listed if sum(c[k] != one[k] for k in c) == 1]
    assert set(breeder.decode(breeder.neighbours(breeder.encode([one])))) == set(apart)
    outside = next(c for a in range(40) if (c := Config.of(a=a, b=39, c="p", d=7)) not in listed)
    assert outside not in space
    with pytest.raises(ConfigError, match="is not among those of this space"):
        space.validate(outside)


def test_draws_are_uniform_over_what_is_listed() -> None:
    space = listed_space({"a": [0, 1, 2, 2], "b": [0, 0, 0, 9]})
    drawn = space.sample(np.random.default_rng(1), 4000)
    counts = [drawn.count(config) for config in space]
    assert len(counts) == 4 and max(abs(np.array(counts) - 1000)) < 150


@pytest.mark.parametrize("strategy", list(strategies))
def test_every_strategy_finds_the_best(strategy: str, t4: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / "kernel.json.gz", t4)
    report = tilesmith.replay(path, trials=100, strategy=strategy, seed=3)
    (task,) = report.tasks
    assert task.best_us == pytest.approx(1000.0) and report.trials == len(t4["results"])
    assert task.config is not None and dict(task.config)["x"] == 64
    assert report.failures == {"crash": 6} or report.failures["crash"] > 0


def test_the_command_reports_as_any_job(t4: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / "kernel.json.gz", t4)
    asked = ["tune", "--space", str(path), "--measure", "replay", "--trials", "20", "--json"]
    first, second = (CliRunner().invoke(command_line, asked) for _ in range(2))
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)
    assert told["trials"] == 20 and told["tasks"][0]["key"] == "recorded space=kernel"
    assert told["tasks"] == json.loads(second.stdout)["tasks"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--database", "x.db"], "leave --database out"),
        (["--measure", "simulator"], "leave a model, --op or --measure out"),
        (["--strategy", "nonsense"], "nonsense"),
        (["--objective", "watts"], "name it min:watts or max:watts"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    words: list[str], message: str, t4: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path / "kernel.json", t4)
    found = CliRunner().invoke(command_line, ["tune", "--space", str(path), *words])
    assert found.exit_code == 2 and message in found.output and "Traceback" not in found.output


BAD: dict[str, Any] = {
    "empty": "",
    "text": "hello",
    "list": [],
    "other": {"results": 3},
    "nothing": {"results": []},
    "deep": "[" * 100_000,
    "no configuration": {"results": [{"times": {}, "invalidity": "correct"}]},
    "no parameters": {"results": [{"configuration": {}, "times": {}, "invalidity": "correct"}]},
    "nested": {"results": [{"configuration": {"a": [1]}, "times": {}, "invalidity": "x"}]},
    "unit": {"metadata": {"timeunit": "weeks"}, "results": [{}]},
    "times": {"results": [{"configuration": {"a": 1}, "times": 3, "invalidity": "correct"}]},
    "cache": {"cache": {"1": {"a": 1}}},
    "cache of lists": {"tune_params_keys": ["a"], "cache": {"1": [1]}},
    "all failed": {"results": [{"configuration": {"a": 1}, "times": {}, "invalidity": "compile"}]},
    "negative": {
        "results": [
            {
                "configuration": {"a": 1},
                "times": {},
                "invalidity": "correct",
                "measurements": [{"name": "time", "value": -1.0}],
            }
        ]
    },
}


@pytest.mark.parametrize("name", list(BAD))
def test_what_is_no_recorded_space_is_a_sentence(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "bad.json", BAD[name])
    with pytest.raises(InputError) as found:
        read_recorded(path).space()
    assert "bad" in str(found.value) and len(str(found.value)) < 400


def test_results_of_other_parameters_are_refused(t4: dict[str, Any], tmp_path: Path) -> None:
    t4["results"][3]["configuration"].pop("x")
    with pytest.raises(InputError, match="do not all have the same parameters"):
        read_recorded(written(tmp_path / "kernel.json", t4)).space()


def test_packed_files_are_read_to_a_bound(
    t4: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b" " * (64 << 20)))
    monkeypatch.setattr(recorded_file, "MOST_BYTES", 8 << 20)
    with pytest.raises(InputError, match="more than 8 MiB unpacked"):
        read_recorded(bomb)
    whole = written(tmp_path / "kernel.json.gz", t4).read_bytes()
    for damaged in (whole[:-30], whole[:20] + b"\0\0\0\0" + whole[24:]):
        bomb.write_bytes(damaged)
        with pytest.raises(InputError, match="damaged"):
            read_recorded(bomb)
    with pytest.raises(InputError, match="cannot read"):
        read_recorded(tmp_path / "absent.json")


def test_numbers_that_are_none_count_as_failures(t4: dict[str, Any], tmp_path: Path) -> None:
    for result, value in zip(t4["results"], (float("nan"), float("inf"), 1e20), strict=False):
        result["measurements"][0]["value"] = value
    found = read_recorded(written(tmp_path / "kernel.json", t4)).space()
    assert [r.status for r in list(found.results.values())[:3]] == ["crash"] * 3
