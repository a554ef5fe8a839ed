"""Traces of single operators: what Perfetto needs, and a lane of the operator beside engines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.command import refuse, succeed

OPERATORS = {
    "trn1": ("matmul m=128 n=128 k=256", "softmax shape=256x64"),
    "lpu1": ("matmul m=64 n=320 k=320 dtype=float16", "softmax shape=32x320 dtype=float16"),
}


@pytest.mark.parametrize(("target", "text"), [(t, o) for t, os in OPERATORS.items() for o in os])
def test_a_single_operator_has_a_lane(target: str, text: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    found = succeed("simulate", "--op", text, "--target", target, "--trace", trace,
                    "--fidelity", "timeline")  # fmt: skip
    events = json.loads(trace.read_text())["traceEvents"]
    for event in events:
        assert event["ph"] in ("M", "X", "s", "f", "C") and isinstance(event["name"], str)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert event["ts"] >= 0 and (event["ph"] != "X" or event["dur"] >= 0)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= named
    (lane,) = (e for e in events if e.get("cat") == "operator")
    assert lane["name"] == text.split()[0]
    assert json.loads(lane["args"]["config"]) == found["config"]
    engines = [e for e in events if e["ph"] == "X" and e is not lane]
    assert lane["ts"] + lane["dur"] == pytest.approx(max(e["ts"] + e["dur"] for e in engines))
    assert lane["ts"] >= min(e["ts"] for e in engines) - 1e-9
    picture = tmp_path / "trace.html"
    of = ("simulate", "--op", text, "--target", target)
    succeed(*of, "--page", picture)
    assert ">operators</text>" in picture.read_text()
    former = tmp_path / "former.html"
    succeed(*of, "--trace", former)
    assert former.read_text() == picture.read_text()
    assert "--page or --trace" in refuse(*of, "--page", picture, "--trace", tmp_path / "t.json")
    assert "ends in .html" in refuse(*of, "--page", tmp_path / "t.json")
