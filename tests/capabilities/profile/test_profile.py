"""`tilesmith profile`: names, sums, loops, hosts, files. How long things take is not looked at."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.cells import cell_len

import tilesmith as ts
from tests.compiler.model_builder import model_of, random
from tests.end_to_end.command import SEARCH, TUNE, invoke, refuse, save_model, succeed
from tilesmith.capabilities.profile import advice as profile_advice
from tilesmith.capabilities.profile.advice import advised, tune_command
from tilesmith.capabilities.profile.notes import shared_core
from tilesmith.capabilities.profile.page import page
from tilesmith.capabilities.profile.report import OperatorTime, ProfileReport
from tilesmith.capabilities.profile.tables import text as profile_text
from tilesmith.codegen.host.machine import host_target
from tilesmith.jobs.requests.request import Request


@pytest.fixture
def all_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advice however little a run spends on it: what has weight depends on how long things take."""
    monkeypatch.setattr(profile_advice, "MATTERS", 0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network with a loop in it."""
    proto = model_of(
        """g (float[5,1,3] x) => (float[5,1,1,4] y, float[5,1,3] z)
        { y = LSTM <hidden_size=4> (x, w, r, b)  t = Tanh(x)  z = Softmax(t) }""",
        w=random(1, 16, 3), r=random(1, 16, 4), b=random(1, 32),
    )  # fmt: skip
    proto.graph.node[0].name = "mem[ory]<b>"
    path = tmp_path_factory.mktemp("profile") / "model.onnx"
    onnx.save(proto, str(path))
    return path


@pytest.fixture(scope="module")
def found(model: Path) -> dict[str, Any]:
    folder = model.parent
    return dict(
        succeed(
            "profile", model, "--runs", 20, "--threads", 2,
            "--trace", folder / "t.json", "--report", folder / "p.html",
        )
    )  # fmt: skip


def test_operators_have_the_models_names_and_add_up(found: dict[str, Any]) -> None:
    names = {name for op in found["ops"] for name in op["sources"]}
    assert names == {"mem[ory]<b>", "t", "z"}
    assert all(op["sources"] for op in found["ops"] if op["kind"] == "kernel")
    total = sum(op["us"] for op in found["ops"])
    assert total == pytest.approx(found["ops_us"])
    assert total + found["remainder_us"] == pytest.approx(found["total_us"])
    assert 0 < total <= found["total_us"] * (1 + 1e-6)
    assert sum(op["share"] for op in found["ops"]) == pytest.approx(total / found["total_us"])
    for op in found["ops"]:
        assert {"name", "operator", "us", "predicted_us", "bound", "share_of_peak", "origin"} <= {
            *op
        }
        assert op["us"] >= op["wait_us"] >= 0
        if op["kind"] == "kernel":
            assert op["origin"] == "unmeasured"
            assert op["predicted_us"] > 0
            assert op["bound"]


def test_what_a_loop_runs_is_counted(found: dict[str, Any]) -> None:
    inside = [op for op in found["ops"] if op["inside"]]
    assert inside
    assert all(op["calls"] == 5 for op in inside)
    (loop,) = (op for op in found["ops"] if op["kind"] == "loop")
    assert loop["operator"] == "loop"
    assert loop["calls"] == 1
    outside = [op for op in found["ops"] if not op["inside"]]
    assert all(op["calls"] == 1 for op in outside)


def test_the_trace_has_a_track_for_each_thread(found: dict[str, Any], model: Path) -> None:
    events = json.loads((model.parent / "t.json").read_text())["traceEvents"]
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for times in tracks.values():  # nothing of a track overlaps
        times.sort()
        assert all(b[0] >= a[1] - 2e-3 for a, b in pairwise(times))
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"thread 0", "runs"} <= names
    assert sum(event.get("cat") == "run" for event in events) > 1
    shown = {event["name"] for event in events if event["ph"] == "X"}
    assert {"mem[ory]<b>", "z"} <= shown


def test_the_page_needs_nothing_else_and_escapes(found: dict[str, Any], model: Path) -> None:
    text = (model.parent / "p.html").read_text()
    seen: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.append(tag)
            assert not {name for name, _ in attrs} & {"src", "href"}

    Reader().feed(text)
    assert "script" not in seen
    assert "b" not in seen[seen.index("table") :]  # the name's
    assert "mem[ory]&lt;b&gt;" in text


@pytest.mark.usefixtures("all_advice")
@pytest.mark.parametrize("columns", [80, 140])
def test_the_table_fits_its_terminal(
    model: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = invoke("profile", model, "--runs", 5, "--top", 0)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    rows = [line for line in lines if "unmeasured" in line and not line.startswith("-")]
    assert rows
    assert max(map(len, rows)) <= columns
    assert "mem[ory]<b>" in result.stdout
    assert any(line.lstrip().startswith("tilesmith tune ") for line in lines)


@pytest.mark.usefixtures("all_advice")
def test_host_operators_are_apart(tmp_path: Path) -> None:
    proto = model_of(
        """g (float[16] x) => (float[n] u, float[16] y)
        { y = Exp(x)  v = Exp(y)  u = Unique(v) }"""
    )
    onnx.save(proto, str(tmp_path / "m.onnx"))
    report = ts.profile(tmp_path / "m.onnx", {"x": np.ones(16, np.float32)}, runs=5)
    (host,) = (op for op in report.ops if op.kind == "host")
    assert (host.name, host.operator) == ("u", "Unique")
    assert report.of("host") == host.us > 0
    assert any(advice.kind == "host" for advice in report.advice)


@pytest.mark.usefixtures("all_advice")
def test_artifacts_and_described_machines(model: Path, tmp_path: Path) -> None:
    succeed("compile", model, "--target", "cpu", "--threads", 2, "-o", tmp_path / "m.tsm")
    report = succeed("profile", tmp_path / "m.tsm", "--runs", 5)
    assert "mem[ory]<b>" in {op["name"] for op in report["ops"]}
    command = next(a["command"] for a in report["advice"] if a["command"])
    assert command.startswith("tilesmith tune model.onnx --threads 2 --database ")

    proto = model_of(
        "g (float[64,32] x) => (float[64,16] y) { h = MatMul(x, w)  y = Relu(h) }",
        w=random(32, 16),
    )
    onnx.save(proto, str(tmp_path / "p.onnx"))
    for target in ("trn1", "lpu1"):
        found = succeed("profile", tmp_path / "p.onnx", "--target", target)
        played = succeed("simulate", tmp_path / "p.onnx", "--target", target)
        assert found["measured_by"] == "simulator"
        assert found["total_us"] == pytest.approx(played["latency_us"])
        assert {name for op in found["ops"] for name in op["sources"]} == {"h", "y"}


@pytest.mark.usefixtures("all_advice")
def test_schedules_of_other_thread_counts_are_mentioned(tmp_path: Path) -> None:
    path = save_model(tmp_path / "m.onnx", (64, 8))
    database = tmp_path / "t.db"
    succeed("tune", path, "--database", database, "--threads", 2, *TUNE)
    report = succeed("profile", path, "--database", database, "--runs", 5)
    assert not {op["origin"] for op in report["ops"]} & {"searched", "measured"}
    (said,) = (advice for advice in report["advice"] if advice["kind"] == "elsewhere")
    assert "for other thread counts (1 for 2)" in said["text"]
    assert said["command"].startswith(f"tilesmith tune {path} --database {database} ")
    succeed("tune", path, "--database", database, *TUNE)
    report = succeed("profile", path, "--database", database, "--runs", 5)
    assert {op["origin"] for op in report["ops"]} == {"measured"}
    assert any("too few trials for a search" in advice["text"] for advice in report["advice"])
    database.unlink()
    succeed("tune", path, "--database", database, *SEARCH)
    report = succeed("profile", path, "--database", database, "--runs", 5)
    assert {op["origin"] for op in report["ops"]} == {"searched"}
    assert not [advice for advice in report["advice"] if advice["command"]]


@pytest.mark.parametrize("us", [1.9, 2.1])
def test_advice_is_of_what_has_weight(us: float) -> None:
    ops = (
        OperatorTime("u", "Unique", us, kind="host"),
        OperatorTime(
            "y", "exp", 100.0 - us, kind="kernel", origin="searched", roofline_us=100.0 - us
        ),
    )
    report = ProfileReport("m", "cpu", 1, "fp32", "simulator", 100.0, ops)
    kinds = [advice.kind for advice in advised(report, Request("m.onnx"), host_target(), "")]
    assert kinds == (["host"] if us > 2 else ["roofline"])


@pytest.mark.parametrize(("plain", "said"), [(90.0, True), (17_000.0, False)])
def test_only_short_runs_are_little_beside_their_call(plain: float, said: bool) -> None:
    op = OperatorTime("y", "exp", plain, kind="kernel", origin="searched", roofline_us=plain)
    report = ProfileReport("m", "cpu", 1, "fp32", "hardware", plain, (op,))
    report = replace(report, plain_us=plain, call_us=1.2 * plain)
    kinds = [advice.kind for advice in advised(report, Request("m.onnx"), host_target(), "")]
    assert ("python" in kinds) == said


def test_a_shared_core_is_told_of() -> None:
    assert shared_core(0.97, 9.0, 100.0) == () == shared_core(1.8, 0.0, 100.0)
    (said,) = shared_core(0.25, 0.01, 100.0)
    assert "had 25% of a core" in said and "had the core to themselves" in said
    assert "by itself" not in said, "the middle runs of a short model were not interrupted"
    (said,) = shared_core(0.25, 1.5, 100.0)
    assert "25% of a core" in said and "about 25 us" in said


def test_commands_hold_no_password() -> None:
    report = ProfileReport("m", "cpu", 1, "fp32", "hardware", 1.0, ())
    request = Request("a model.onnx", database="postgresql://me:secret@host/db", threads=1)
    command = tune_command(request, report, "", ["matmul"])
    assert "secret" not in command
    assert command.startswith("tilesmith tune 'a model.onnx' --database ")


def test_what_cannot_be_profiled_is_said(model: Path, tmp_path: Path) -> None:
    assert "does not exist" in refuse("profile", tmp_path / "none.onnx")
    before = model.read_bytes()
    refuse("profile", model, "--report", model)
    assert model.read_bytes() == before
    said = refuse("profile", model, "--target", "trn1", "--trace", tmp_path / "t.json")
    assert "simulate" in said


def test_names_of_any_length_and_script_leave_the_columns_alone() -> None:
    name = "a\x1b[31m\n" + "very/" * 60 + "\u202e\u65e5\u672c"
    ops = tuple(OperatorTime(name + str(i), "matmul" * 9, 0.0123, 0.5, "compute") for i in (1, 2))
    report = ProfileReport("<evil>\x1b" + name, "cpu", 1, "fp32", "hardware", 0.9, ops)
    for width in ("80", "100"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", width)
            lines = profile_text(report).splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("node"))
        assert "foretold  bound" in lines[start] and "schedule" in lines[start]
        assert all("0.012" in line and "compute" in line for line in lines[start + 1 : start + 3])
        assert all(line.isprintable() and cell_len(line) <= int(width) for line in lines)
    shown = page(report)
    assert "\x1b" not in shown and "\u202e" not in shown and "<evil>" not in shown


def test_a_model_without_operators_has_no_empty_tables() -> None:
    lines = profile_text(ProfileReport("m", "cpu", 1, "fp32", "hardware", 0.1, ())).splitlines()
    assert "no operators" in lines[1] and not any(line.startswith("node") for line in lines)
