"""What the pages say, against what was put into the database."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.capabilities.dashboard.conftest import HOSTILE, LATER, PRODUCT, Serve, configs, trial
from tilesmith.records import Database
from tilesmith.search_space.hardware.target import Target

if TYPE_CHECKING:
    from starlette.testclient import TestClient

PAGES = (
    "/",
    "/?q=matmul",
    "/?state=lost",
    *(f"/jobs/{n}?show={s}" for n in (1, 2) for s in ("convergence", "tasks", "failures")),
    *(f"/jobs/{n}?show={s}" for n in (1, 2) for s in ("workers", "about")),
    "/workers",
    "/schedules",
    "/schedules?workload=*m=16&operator=matmul&target=cpu",
    "/records/1",
    "/records/10?code=program",
    "/compare",
    "/compare?a=1&b=2",
    "/jobs/2/report",
    "/jobs/77",
    f"/?q={HOSTILE}",
    f"/schedules?workload={HOSTILE}&target={HOSTILE}",
)


class Page(HTMLParser):
    """Text by tag; tags must close; attributes that load or run something are collected."""

    VOID = ("meta", "link", "input", "img", "line", "rect", "polyline", "circle")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.running: list[str] = []
        self.words: list[str] = []
        self.cells: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = dict(attributes)
        self.running += [k for k in names if k.startswith("on") or k == "style"]
        self.loaded += [v or "" for k, v in attributes if k in ("src", "srcset", "action")]
        self.loaded += [names.get("href") or ""] if "href" in names else []
        if tag == "script" and not names.get("src"):
            self.running.append("inline script")
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th") and self.cells:
            self.cells[-1].append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if {"td", "th"} & set(self.open) and self.cells and self.cells[-1]:
            self.cells[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def row(self, start: str) -> list[str]:
        """Cells of the row whose first one starts so."""
        rows = [[" ".join(cell.split()) for cell in row] for row in self.cells]
        return next(row for row in rows if row and row[0].startswith(start))


@pytest.mark.parametrize("address", PAGES)
def test_every_page_is_whole_loads_only_ours_and_runs_nothing_of_the_database(
    client: TestClient, address: str
) -> None:
    reply = client.get(address)
    assert reply.status_code == (404 if "77" in address else 200), reply.text
    page = Page(reply.text)
    assert page.open == []
    assert all(place.startswith(("/", "#")) for place in page.loaded), page.loaded
    assert page.running == []
    assert "<script>alert" not in reply.text and "<img src=x" not in reply.text


def test_jobs_are_listed_with_owner_trials_gain_and_heartbeat(client: TestClient) -> None:
    page = Page(client.get("/").text)
    assert page.row("1 matmul")[1:] == [
        "finished", page.row("1 matmul")[2], "8", *page.row("1 matmul")[4:6], "–", "1.57×",
        page.row("1 matmul")[8],
    ]  # fmt: skip
    assert "@" in page.row("1 matmul")[2]
    assert page.row("1 matmul")[8].endswith("ago")
    assert page.row("2 ")[1] == "running"
    assert page.row("2 ")[4] == "1/s"


def test_a_job_shows_tasks_best_first_measured_again(client: TestClient) -> None:
    page = Page(client.get("/jobs/1?show=tasks").text)
    assert page.row(PRODUCT.key)[4:] == ["8 us", "4 us", "2.00×", "", "measured", "6", "0"]
    assert page.row(LATER.key)[4:] == ["3 us", "3 us", "1.00×", "", "measured", "2", "1"]


def test_charts_have_axes_units_and_a_table(client: TestClient) -> None:
    text = client.get("/jobs/1").text
    page = Page(text)
    assert text.count("<polyline") == 2 and text.count('class="default"') >= 2
    assert "best, µs" in page.text and "trials" in page.text
    values = [row for row in page.cells if len(row) == 2]
    assert ["5", "4"] in values and ["3", "6"] in values and ["4", "4.1"] in values


def test_failures_and_workers_are_told_with_their_reasons(client: TestClient) -> None:
    page = Page(client.get("/jobs/2?show=failures").text)
    assert page.row("1") == ["1", HOSTILE, PRODUCT.key]
    for address in ("/jobs/2?show=workers", "/workers"):
        page = Page(client.get(address).text)
        assert "set aside" in page.text and "50 %" in page.text
        assert f"w {HOSTILE}" in " ".join(cell for row in page.cells for cell in row)
    assert "1 worker is set aside" in Page(client.get("/jobs/2").text).text


def test_jobs_are_searched_by_words_and_state(client: TestClient) -> None:
    def numbers(address: str) -> list[str]:
        return re.findall(r'data-key="job (\d+)"', client.get(address).text)

    assert numbers("/") == ["2", "1"]
    assert numbers("/?q=MATMUL+spent") == ["1"]
    assert numbers("/?q=%25") == [], "a sign of LIKE is a sign"
    assert numbers("/?state=running") == ["2"]
    assert numbers("/?state=lost") == []
    assert numbers("/?before=2") == ["1"]
    assert "No job fits" in client.get("/?q=nothing+like+it").text


def test_best_schedules_are_found_by_workload_operator_and_target(client: TestClient) -> None:
    page = Page(client.get("/schedules").text)
    assert page.row(PRODUCT.key)[3] == "4 us"
    assert page.row(LATER.key)[3] == "3 us"
    for where in ("operator=softmax", "workload=axis*1", "workload=softmax&target=cpu"):
        rows = Page(client.get(f"/schedules?{where}").text).cells
        assert [row[3] for row in rows[1:]] == ["3 us"], where
    assert "No schedule fits" in client.get("/schedules?target=trn1").text


def test_a_record_shows_knobs_and_its_code(client: TestClient, file: Path) -> None:
    with Database.open(str(file)) as database:
        knobs = dict(database.record(5).config)
    page = Page(client.get("/records/5").text)
    assert "best of its workload" in page.text
    for name, value in knobs.items():
        assert page.row(name) == [name, str(value)]
    assert "for " in client.get("/records/5?code=program").text
    assert "define" in client.get("/records/5?code=llvm").text
    assert "The best of its workload here is 5" in Page(client.get("/records/1").text).text


def test_two_jobs_side_by_side(client: TestClient) -> None:
    page = Page(client.get("/compare?a=1&b=2").text)
    row = page.row(PRODUCT.key)
    assert row[2:7] == ["4 us", "4.15 us", "0.964", "4", "3"], "4.1 and 4.15 are within 5 % of 4.0"
    assert "1 workload in both, 1 only in A" in page.text
    assert "A is 1.04× as fast" in page.text
    assert client.get("/compare?a=1&b=2").text.count("<polyline") == 2
    assert "no job 9" in client.get("/compare?a=1&b=9").text


def test_the_report_is_served_with_its_style_and_nothing_else(client: TestClient) -> None:
    reply = client.get("/jobs/1/report")
    assert reply.text.startswith("<!doctype html>") and "Roofline" in reply.text
    assert "style-src 'sha256-" in reply.headers["content-security-policy"]
    assert Page(reply.text).loaded == []


@pytest.mark.parametrize("path", ["/jobs/9", "/jobs/x", "/records/99", "/jobs/9/report", "/nowhere",
                                  "/jobs/99999999999999999999", "/static/server.py"])  # fmt: skip
def test_what_is_not_there_is_said_in_a_sentence(client: TestClient, path: str) -> None:
    reply = client.get(path)
    assert reply.status_code == 404
    assert "Traceback" not in reply.text


def test_a_database_that_goes_away_is_said_and_comes_back(
    file: Path, serve: Serve, tmp_path: Path
) -> None:
    place = tmp_path / "own.db"
    with Database.open(str(place)) as database:
        database.start_job("tilesmith tune a.onnx", seed=0, strategy="random")
    client = serve(place)
    assert "a.onnx" in client.get("/").text
    place.rename(tmp_path / "away.db")
    reply = client.get("/?q=")
    assert reply.status_code == 503 and "does not exist" in reply.text
    with Database.open(str(place)) as database:
        database.start_job("tilesmith tune b.onnx", seed=0, strategy="random")
    reply = client.get("/?state=")
    assert reply.status_code == 200 and "b.onnx" in reply.text and "a.onnx" not in reply.text


def test_the_page_cannot_write(file: Path) -> None:
    from tilesmith.search_space.support.errors import DatabaseError

    with Database.open(str(file), read_only=True) as database:
        with pytest.raises(DatabaseError, match="read-only"):
            database.start_job("x", seed=0, strategy="random")
        with pytest.raises(DatabaseError), database.reading() as connection:
            connection.exec_driver_sql("DELETE FROM jobs")


def test_unchanged_pages_are_not_sent_again(client: TestClient) -> None:
    first = client.get("/schedules")
    again = client.get("/schedules", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.text) == (304, "")


def test_a_report_that_cannot_be_made_says_why(
    serve: Serve, tmp_path: Path, cpu: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilesmith.capabilities.dashboard.pages import schedule_pages

    place = tmp_path / "own.db"
    with Database.open(str(place)) as database:
        database.start_job("tilesmith tune a.onnx", seed=0, strategy="random", targets=[cpu])
        client = serve(place)
        reply = client.get("/jobs/1/report")
        assert reply.status_code == 422 and "no trials to report on" in reply.text
        monkeypatch.setattr(schedule_pages, "MOST_TRIALS", 1)
        tried = configs(cpu, PRODUCT, 2)
        database.add([trial(cpu, PRODUCT, config, 5.0) for config in tried], job=1)
        reply = serve(place).get("/jobs/1/report")
        assert reply.status_code == 422 and "tilesmith report --job 1" in Page(reply.text).text


def test_a_large_job_is_read_a_part_at_a_time(
    serve: Serve, tmp_path: Path, cpu: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilesmith.capabilities.dashboard.pages import job_pages

    monkeypatch.setattr(job_pages, "READ_AT_ONCE", 4)
    monkeypatch.setattr(job_pages, "_COUNTED_WHOLE", 1)
    place = tmp_path / "own.db"
    tried = configs(cpu, PRODUCT, 10)
    with Database.open(str(place)) as database:
        database.start_job("tilesmith tune a.onnx", seed=0, strategy="random", targets=[cpu])
        database.add([trial(cpu, PRODUCT, c, 20.0 - n) for n, c in enumerate(tried)], job=1)
        client = serve(place)
        assert Page(client.get("/").text).row("1 a.onnx")[3] == "10"
        told = [
            re.findall(r"Counting its trials: (\d+) of 10", client.get(f"/jobs/1?q={n}").text)
            for n in range(4)
        ]
        assert told == [["4"], ["8"], [], []]
        assert Page(client.get("/jobs/1?show=tasks").text).row(PRODUCT.key)[6] == "1.82×"


def test_one_job_is_compared_with_none(client: TestClient, serve: Serve, tmp_path: Path) -> None:
    assert 'href="/compare?a=1&amp;b=2">Compare the newest two' in client.get("/").text
    with Database.open(str(tmp_path / "own.db")) as database:
        database.start_job("tilesmith tune a.onnx", seed=0, strategy="random")
        assert "newest two" not in serve(tmp_path / "own.db").get("/").text
