"""What a job tried: its list of trials and the charts of its knobs, against what was put in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.capabilities.dashboard.conftest import HOSTILE, LATER, PRODUCT, Serve
from tests.capabilities.dashboard.test_pages import Page
from tilesmith.records import Database

if TYPE_CHECKING:
    from starlette.testclient import TestClient


def listed(client: TestClient, query: str) -> list[int]:
    text = client.get(f"/jobs/1?show=trials{query}").text
    return [int(number) for number in re.findall(r'data-key="trial (\d+)"', text)]


def test_trials_are_listed_newest_first_by_workload_and_status(client: TestClient) -> None:
    assert listed(client, "") == [8, 7, 6, 5, 4, 3, 2, 1]
    assert listed(client, "&status=crash") == [8]
    assert listed(client, "&workload=SOFTMAX+axis") == [8, 7]
    assert listed(client, "&workload=softmax&status=ok") == [7]
    assert listed(client, "&before=3") == [2, 1]
    assert listed(client, "&workload=%25&status=nothing") == []
    page = Page(client.get("/jobs/1?show=trials&workload=softmax").text)
    assert page.row("8")[4:6] == ["crash", "–"] and "no luck" in page.row("8")[1]
    assert page.row("7")[4:6] == ["ok", "3 us"] and page.row("7")[1] == LATER.key
    assert "/records/7" in page.loaded


def test_trials_are_shown_a_page_at_a_time(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilesmith.capabilities.dashboard.pages import trial_pages

    monkeypatch.setattr(trial_pages, "TRIALS_SHOWN", 3)
    seen: list[int] = []
    address, pages = "/jobs/1?show=trials&status=ok", 0
    while address:
        text = client.get(address).text
        seen += map(int, re.findall(r'data-key="trial (\d+)"', text))
        further = re.search(r'href="([^"]*)" rel="next"', text)
        address, pages = further[1].replace("&amp;", "&") if further else "", pages + 1
    assert seen == [7, 6, 5, 4, 3, 2, 1] and pages == 3


def test_a_knob_is_drawn_with_every_trial_and_the_best_marked(
    client: TestClient, file: Path
) -> None:
    with Database.open(str(file), read_only=True) as database:
        configs = [dict(database.record(number).config) for number in range(1, 7)]
    varied = [name for name in configs[0] if len({c.get(name) for c in configs}) > 1]
    text = client.get(f"/jobs/1?show=knobs&workload={PRODUCT.key}").text
    drawn = re.findall(r'aria-label="Latency over values of ([^"]*)"', text)
    assert sorted(drawn) == sorted(varied) and varied
    knob = varied[0]
    text = client.get(f"/jobs/1?show=knobs&workload={PRODUCT.key}&knob={knob}").text
    page = Page(text)
    assert {f"/records/{n}" for n in range(1, 7)} <= set(page.loaded)
    assert f"<title>best, {configs[4][knob]}: 4 µs</title>" in text
    latencies = (8.0, 9.0, 6.0, 4.1, 4.0, 7.0)
    for value in {c[knob] for c in configs}:
        of = [us for c, us in zip(configs, latencies, strict=True) if c[knob] == value]
        assert [str(value), str(len(of)), f"{min(of):.3g}"] in page.cells


def test_the_best_stays_drawn_when_it_is_not_among_the_last(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilesmith.capabilities.dashboard.pages import trial_pages

    monkeypatch.setattr(trial_pages, "POINTS_OF_EACH", 1)
    text = client.get(f"/jobs/1?show=knobs&workload={PRODUCT.key}").text
    assert "The last 2 trials" in text and ": 4 µs</title>" in text


@pytest.mark.parametrize("query", ["", "&workload=none&knob=none", f"&workload={HOSTILE}"])
@pytest.mark.parametrize("section", ["knobs", "trials"])
def test_whatever_is_asked_is_answered(
    serve: Serve, client: TestClient, tmp_path: Path, section: str, query: str
) -> None:
    with Database.open(str(tmp_path / "own.db")) as database:
        database.start_job("tilesmith tune a.onnx", seed=0, strategy="random")
        empty = serve(tmp_path / "own.db")
        for reply in (
            client.get(f"/jobs/2?show={section}{query}"),
            empty.get(f"/jobs/1?show={section}{query}"),
        ):
            assert reply.status_code == 200
            page = Page(reply.text)
            assert page.open == [] and page.running == []
