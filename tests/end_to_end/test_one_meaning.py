"""One job, told by every command, page and JSON: the same words, the same figures.

A tiny model is tuned with too few trials for a search, then with enough; the simulator measures.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.end_to_end.command import invoke, refuse, succeed
from tilesmith.capabilities.dashboard.report.job_report import gather
from tilesmith.records import Database


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model; its graph is called as exporters call graphs."""
    rng = np.random.default_rng(0)
    weights = {"v": rng.standard_normal((8, 6)), "w": rng.standard_normal((6, 4))}
    nodes = [("MatMul", ["x", "v"], "h"), ("Relu", ["h"], "r"), ("MatMul", ["r", "w"], "y")]
    graph = helper.make_graph(
        [helper.make_node(name, inputs, [output]) for name, inputs, output in nodes],
        "main_graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 4))],
        [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = tmp_path_factory.mktemp("meaning")
    onnx.save(model, str(folder / "tiny.onnx"))
    return folder


def words(place: Path, trials: int, *more: str) -> tuple[Any, Any]:
    """What `tune` says, and what everybody else must say then: checked against it."""
    model, database = place / "tiny.onnx", place / "t.db"
    of = ("--target", "trn1", "--database", database)
    told = succeed("tune", model, *of, "--trials", trials, *more)
    tasks = {task["workload"]: task for task in told["tasks"]}
    origins = Counter(task["schedule"] for task in tasks.values())

    compiled = succeed("compile", model, *of, "-o", place / "m.tsm")
    counts = {word: n for word, n in compiled["schedules"].items() if n}
    assert counts == origins, "as many kernels as workloads"
    assert compiled["tuned"] == origins["searched"]
    assert compiled["tuned"] + compiled["fallback"] + compiled["stale"] == len(tasks)
    assert {u["workload"]: u["schedule"] for u in compiled["untuned"]} == {
        key: task["schedule"] for key, task in tasks.items() if task["schedule"] != "searched"
    }
    profile = succeed("profile", model, *of)
    assert Counter(op["origin"] for op in profile["ops"]) == origins
    assert profile["model"] == "tiny.onnx"

    top = {r["workload"]: r for r in succeed("db", "top", "--database", database)["records"]}
    for key, task in tasks.items():
        assert top[key]["schedule"] == task["schedule"]
        assert top[key]["latency_us"] == pytest.approx(task["best_us"])
        assert top[key]["default_us"] == pytest.approx(task["default_us"])
        assert top[key]["gain"] == pytest.approx(task["gain"])
    return told, compiled


def test_every_place_says_the_same(place: Path) -> None:
    few, _ = words(place, 3)
    assert {task["schedule"] for task in few["tasks"]} == {"measured"}
    of = ("--target", "trn1", "--database", place / "t.db")
    required = ("compile", place / "tiny.onnx", *of, "-o", place / "r.tsm", "--require-tuned")
    assert "(2 measured)" in refuse(*required)
    assert "2 measured" in invoke("compile", *required[1:-1]).stdout

    told, _ = words(place, 20)
    assert {task["schedule"] for task in told["tasks"]} == {"searched"}
    assert invoke(*required).exit_code == 0
    assert told["trials"] == 20 == sum(task["trials"] for task in told["tasks"])
    default, best = (
        sum(task["weight"] * task[name] for task in told["tasks"])
        for name in ("default_us", "best_us")
    )
    assert told["gain"] == pytest.approx(default / best) and told["gain"] >= 1
    report = succeed("report", "--database", place / "t.db", "-o", place / "r.html")
    assert report["title"] == "tiny.onnx" and report["trials"] == 20
    assert report["schedules"] == {"searched": 2}
    added = next(w for w in report["whole"] if "added up" in w["how"])
    assert added["gain"] == pytest.approx(told["gain"])
    whole = report["whole"][0]
    assert whole["how"] == "in the whole model" and whole["measured_by"] == "simulator"
    assert whole["gain"] == pytest.approx(told["in_model"]["gain"])
    assert whole["after_us"] == pytest.approx(told["in_model"]["after_us"])
    kept = [task["in_model"]["kept"] for task in told["tasks"] if task["in_model"]]
    assert Counter(kept) == Counter(
        default=len(told["in_model"]["reverted"]), other=len(told["in_model"]["pinned"])
    )

    stats = succeed("db", "stats", "--database", place / "t.db")
    jobs = succeed("db", "jobs", "--database", place / "t.db")["jobs"]
    assert [job["trials"] for job in jobs] == [20, 3]
    assert stats["trials"] == 23 and stats["measured_again"] == 0 and stats["models"] >= 1
    page = (place / "r.html").read_text()
    assert report["sentence"] in page and "20 trials" in report["sentence"]
    assert "main_graph" not in page and "<title>tiny.onnx" in page
    check_pages(place, told)


def check_pages(place: Path, told: Any) -> None:
    """The dashboard's pages of the newest job say what `tune` said."""
    for library in ("starlette", "httpx2"):
        pytest.importorskip(library, reason=f"the live page is tested with {library}")
    from starlette.testclient import TestClient

    from tilesmith.capabilities.dashboard.application import Dashboard

    dashboard = Dashboard(str(place / "t.db"))
    with TestClient(dashboard.application()) as client:
        listed = client.get("/").text
        assert f"{told['gain']:.2f}×" in listed and "tiny.onnx" in listed
        tasks = client.get("/jobs/2?show=tasks").text
        assert re.search(r"<dt>Trials</dt><dd>20<", tasks)
        for task in told["tasks"]:
            row = next(r for r in tasks.split("<tr") if task["workload"] in r)
            assert f"{task['gain']:.2f}×" in row and f"<td>{task['schedule']}</td>" in row
        schedules = client.get("/schedules").text
        assert schedules.count(">searched</td>") == 2


def test_a_curve_rises_only_where_it_is_marked(place: Path) -> None:
    if not (place / "t.db").exists():
        words(place, 3)
    with Database.open(str(place / "t.db")) as database:
        report = gather(database)
    for task in report.tasks:
        marked = set(task.again)
        for (_, before), (count, after) in zip(task.points, task.points[1:], strict=False):
            assert after <= before or (count, after) in marked
