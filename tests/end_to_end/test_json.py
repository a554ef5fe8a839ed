"""What scripts read after --json: a version, one unit, one shape, an object of a failure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.end_to_end.command import SMALL, invoke, save_model, succeed
from tilesmith.command_line import command_line
from tilesmith.display.output import print_json


def _keys(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key, item
            yield from _keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item)


def _error(result: Result) -> dict[str, Any]:
    """The one object on stdout, which says what stderr says."""
    said = json.loads(result.stdout)
    assert set(said) == {"schema", "error"} and said["schema"] == 1
    assert said["error"]["exit_code"] == result.exit_code
    assert f"tilesmith: {said['error']['message']}\n" in result.stderr
    found: dict[str, Any] = said["error"]
    return found


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("simulat --json", "UsageError"),
        ("simulate --json --fidelity high", "BadParameter"),
        ("--nothing simulate --json", "NoSuchOption"),
        ("run absent.onnx --json", "InputError"),
        ("simulate --op nothing --json", "InputError"),
        ("compile absent.onnx -o a.tsm --database none --json", "InputError"),
    ],
)
def test_a_failure_is_an_object(words: str, kind: str) -> None:
    error = _error(invoke(*words.split()))
    assert error["exit_code"] == 2 and (error["kind"] == kind or kind == "InputError")


def test_without_json_a_failure_leaves_stdout_empty() -> None:
    assert invoke("run", "absent.onnx").stdout == ""


def test_an_interrupted_command_says_so_in_its_object(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tilesmith.jobs.evaluation.simulation.simulated", interrupt)
    result = CliRunner().invoke(command_line, ["simulate", "--op", SMALL, "--json"])
    assert _error(result)["message"] == "interrupted"


def test_what_is_printed_before_a_failure_stays_the_one_object(tmp_path: Path) -> None:
    model = save_model(tmp_path / "m.onnx")
    absent = tmp_path / "absent.onnx"
    result = invoke("bench", model, absent, "--time-limit", "0.1", "--json", "--database", "none")
    assert result.exit_code == 2
    good, bad = json.loads(result.stdout)["models"]
    assert good["median_us"] == pytest.approx(1e3 * good["median_ms"])
    assert bad["error"]["exit_code"] == 2 and "absent" in bad["error"]["message"]


def test_latencies_have_one_unit_and_configurations_one_shape(tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    model = save_model(tmp_path / "m.onnx")
    tuned = ("--op", SMALL, "--target", "trn1", "--database", database)
    said = [
        succeed("tune", *tuned, "--trials", "3"),
        succeed("db", "top", "--database", database),
        succeed("db", "query", "--database", database),
        succeed("profile", model, "--target", "trn1", "--database", database),
    ]
    for one in said:
        assert one["schema"] == 1
        names = {key for key, _ in _keys(one)}
        assert not [name for name in names if name == "ms" or name.endswith("_ms")]
        for key, item in _keys(one):
            assert key != "config" or item is None or isinstance(item, dict)
    top = said[1]["records"][0]
    assert top["latency_us"] == pytest.approx(1e6 * top["latency_s"])


def test_milliseconds_become_microseconds_however_deep(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json({"ms": 2.0, "a_ms": {"p50": 0.5, "p99": None}, "b": [{"min_ms": 1}], "alarms": 3})
    said = json.loads(capsys.readouterr().out)
    assert said == {
        "schema": 1, "us": 2000.0, "a_us": {"p50": 500.0, "p99": None},
        "b": [{"min_us": 1000.0, "min_ms": 1}], "alarms": 3,
    }  # fmt: skip
