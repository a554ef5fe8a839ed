"""`tilesmith simulate --set KEY=A,B,C` as a user meets it."""

from __future__ import annotations

import csv
import multiprocessing
import os
import signal
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tilesmith as ts
from tests.end_to_end.command import invoke, refuse, succeed
from tilesmith.capabilities.exploration.mapping import mapped_over
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import JobError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import simulators

OP = ("--op", "matmul m=256 n=256 k=256", "--target", "trn1")
ALONE = ("--jobs", "1")
SWEPT = ("--set", "sbuf.mib=12,24", "--set", "dma.engines=8:32")


def test_points_are_what_single_runs_say() -> None:
    found = succeed("simulate", *OP, *SWEPT, "--schedules", "chosen")
    assert [point["settings"] for point in found["points"]] == [
        {"sbuf.mib": mib, "dma.engines": engines}
        for mib in ("12", "24")
        for engines in ("8", "16", "32")
    ]
    assert found["baseline"]["settings"] == {"sbuf.mib": "24", "dma.engines": "16"}
    for point in (found["baseline"], *found["points"]):
        sets = [word for name, value in point["settings"].items()
                for word in ("--set", f"{name}={value}")]  # fmt: skip
        alone = succeed("simulate", *OP, *sets)
        assert point["latency_us"] == pytest.approx(alone["latency_us"])
        assert (point["cycles"], point["bound"]) == (alone["cycles"], alone["bound"])
        base = found["baseline"]["latency_us"]
        assert point["latency_change"] == pytest.approx(alone["latency_us"] / base - 1)


@pytest.mark.parametrize("schedules", ["best", "kept", "searched"])
def test_a_better_machine_is_never_slower(schedules: str) -> None:
    found = succeed("simulate", *OP, "--set", "dma.engines=16:64", "--schedules", schedules,
                    *ALONE)  # fmt: skip
    base = found["baseline"]["latency_us"]
    assert all(point["latency_us"] <= base * (1 + 1e-9) for point in found["points"])
    assert found["schedules"] == schedules


@pytest.mark.parametrize("budget", ["area", "power"])
def test_cost_and_front_are_what_they_say(budget: str) -> None:
    found = succeed("simulate", *OP, *SWEPT, "--budget", budget)
    target, rows = load_target("trn1"), [found["baseline"], *found["points"]]
    name = {"area": "area_mm2", "power": "power_w"}[budget]
    for row in rows:
        simulator = simulators["trainium"]
        cost = simulator.hardware_cost(simulator.with_settings(target, row["settings"]))
        assert row["area_mm2"] == pytest.approx(cost.area_mm2)
        assert row["power_w"] == pytest.approx(cost.power_w)
        beaten = any(
            other[name] <= row[name]
            and other["latency_us"] <= row["latency_us"]
            and (other[name], other["latency_us"]) != (row[name], row["latency_us"])
            for other in rows
        )
        assert row["front"] != beaten


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]
        assert tag not in ("script", "link", "img", "iframe")


def test_files_say_the_same_as_the_table(tmp_path: Path) -> None:
    page, lines = tmp_path / "sweep.html", tmp_path / "sweep.csv"
    text = invoke("simulate", *OP, *SWEPT, "--csv", lines, "--page", page).stdout
    rows = list(csv.DictReader(lines.read_text().splitlines()))
    assert [row["point"] for row in rows] == ["baseline"] + [""] * 6
    assert float(rows[0]["latency_us"]) > 0 and rows[1]["sbuf.mib"] == "12"
    assert "baseline" in text and "front" in text and len(text.splitlines()) == 10
    html = page.read_text()
    links = _Links()
    links.feed(html)
    assert not links.found and html.count("<svg") == 3 and "dma.engines=8:32" in html


def test_models_and_compiled_models_are_swept(model: Path, tmp_path: Path) -> None:
    on = ("--target", "trn1")
    found = succeed("simulate", model, *on, "--set", "hbm.gbps_core=410,820", *ALONE)
    alone = succeed("simulate", model, *on)
    assert found["baseline"]["latency_us"] == pytest.approx(alone["latency_us"])
    assert found["baseline"]["fidelity"] == "timeline"
    artifact = tmp_path / "m.tsm"
    succeed("compile", model, *on, "-o", artifact)
    again = succeed("simulate", artifact, "--set", "dma.engines=4,16", *ALONE)
    assert again["baseline"]["latency_us"] == pytest.approx(alone["latency_us"])
    assert again["points"][0]["latency_us"] >= again["points"][1]["latency_us"]
    said = refuse("simulate", artifact, "--set", "dma.engines=4,16", "--schedules", "searched")
    assert "keeps its schedules" in said


def test_python_says_the_same() -> None:
    found = succeed("simulate", *OP, *SWEPT)
    values = {"sbuf.mib": [12, 24], "dma.engines": "8:32"}
    assert ts.sweep(Workload.parse(OP[1]), values, "trn1", None).to_json() == {
        name: value
        for name, value in found.items()
        if name != "schema" and not name.startswith("database")
    }


def test_processes_give_the_same(model: Path) -> None:
    values = {"dma.engines": [8, 32]}
    alone = ts.sweep(model, values, "trn1", None)
    assert ts.sweep(model, values, "trn1", None, jobs=2).to_json() == alone.to_json()


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_a_sentence_and_others_end() -> None:
    with pytest.raises(JobError, match="was killed"), mapped_over(2, "") as mapped:
        list(mapped(_killed, [()]))
    with pytest.raises(KeyboardInterrupt), mapped_over(2, "") as mapped:
        answers = iter(mapped(time.sleep, [(0,), (600,), (600,)]))
        next(answers)  # they are at work
        working = multiprocessing.active_children()
        assert len(working) == 2
        raise KeyboardInterrupt
    assert not any(one.is_alive() for one in working)


def test_choices_and_machines_without_a_model_of_cost() -> None:
    found = succeed("simulate", "--op", "matmul m=64 n=64 k=64", "--target", "systolic",
                    "--set", "dataflow=ws,os")  # fmt: skip
    assert [point["settings"]["dataflow"] for point in found["points"]] == ["ws", "os"]
    assert found["baseline"]["area_mm2"] == found["points"][1]["area_mm2"]
    found = succeed("simulate", "--op", "matmul m=64 n=64 k=64", "--target", "aarch64",
                    "--set", "l1.kib=32,64")  # fmt: skip
    assert "area_mm2" not in found["baseline"] and "no front is shown" in found["notes"][0]


def test_what_cannot_be_swept_is_refused() -> None:
    assert "did you mean 'sbuf.mib'" in refuse("simulate", *OP, "--set", "sbuf.mb=1,2")
    for name, like in (("sbuf.mb", "sbuf.mib"), ("mib", "sbuf.mib"), ("clock", "tensor.*")):
        said = refuse("simulate", *OP, "--set", f"{name}=1")
        assert like in said and len(said) < 330, "not every number there is"
    assert "values are numbers" in refuse("simulate", *OP, "--set", "sbuf.mib=1,two")
    many = ("--set", "sbuf.mib=1:4000:100", "--set", "dma.start_ns=1:1000:100")
    assert "at most 1,000" in refuse("simulate", *OP, *many)
    both = ("--target", "systolic", "--set", "array.ghz=1,2")
    assert "one target" in refuse("simulate", *OP[:2], "--target", "systolic", *both)
    assert "--set with several values" in refuse("simulate", *OP, "--csv", "x.csv")
    assert "one value" in refuse("simulate", *OP, "--set", "sbuf.mib=12,24", "--trace", "t.json")
    found = succeed("simulate", *OP, "--set", "sbuf.mib=24,100000")
    assert found["points"][1]["latency_us"] is None and "sbuf.mib" in found["points"][1]["reason"]
