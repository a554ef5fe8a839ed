"""The report of a tuning job: the right numbers on one page that needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilesmith.capabilities.dashboard.report.job_report import gather
from tilesmith.capabilities.dashboard.report.job_whole import shares, wholes
from tilesmith.capabilities.dashboard.report.page import page
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.command_line import command_line
from tilesmith.display.html.charts import Box, ChartAxis, Labels, number, staircase
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.records import Database, Toolchain, TuningRecord
from tilesmith.search_space.results.measure import MeasureResult, Status
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload

WORKLOAD = Workload.parse("matmul m=16 n=32 k=8 const=b")
CPU = resolve_target("cpu")
DEFAULT = default_of(WORKLOAD, CPU)
START = datetime.now(UTC) - timedelta(hours=1)


def record(config: Config, status: Status, samples: tuple[float, ...], at: int) -> TuningRecord:
    message = "" if status == "ok" else "the <b>worker</b> died"
    result = MeasureResult(status, "hardware", samples, message, elapsed=2.0)
    made = TuningRecord.of(WORKLOAD, CPU, config, result)
    return TuningRecord(**{**_fields(made), "created_at": START + timedelta(seconds=at)})


def _fields(made: TuningRecord) -> dict[str, object]:
    return {name: getattr(made, name) for name in TuningRecord.__dataclass_fields__}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A job of five trials: default, worse, crash, better, and the better one measured again."""
    space = iter(space_of(WORKLOAD, CPU))
    worse, crash, better = [c for c in (next(space) for _ in range(9)) if c != DEFAULT][:3]
    with Database.open(str(tmp_path / "t.db"), toolchain=Toolchain("9.9")) as opened:
        job = opened.start_job("tilesmith tune <x>", seed=3, strategy="random", targets=[CPU])
        opened.add(
            [
                record(DEFAULT, "ok", (4e-6, 5e-6, 6e-6), 0),
                record(worse, "ok", (8e-6,), 3),
                record(crash, "crash", (), 6),
                record(better, "ok", (2e-6,), 9),
                record(better, "ok", (2.5e-6,), 12),
            ],
            job=job,
        )
        opened.finish_job(job, "finished", "all trials are spent")
        yield opened


def test_a_report_gathers_curve_failures_and_time(database: Database) -> None:
    found = gather(database)
    (task,) = found.tasks
    assert (task.trials, task.failed) == (5, 1)
    assert task.points == ((1, 5e-6), (3, 5e-6), (4, 2e-6), (5, 2.5e-6))
    assert (task.default_s, task.best_s, task.gain) == (5e-6, 2.5e-6, 2.0)
    assert task.flops == 2 * 16 * 32 * 8
    assert task.bytes_ == 4 * (16 * 8 + 8 * 32 + 16 * 32)
    assert task.roofline_s is not None and 0 < task.roofline_s < task.best_s
    assert task.bound in ("compute", "memory")
    assert re.search(rf"{task.bound}: [\d.]+ G(FLOP|B)/s</text>", page(found)), "a labelled peak"
    assert task.elapsed_s == 10.0
    assert task.spread == pytest.approx(0.4), "of the one trial with several samples"
    (failure,) = found.failures
    assert (failure.status, failure.count) == ("crash", 1)
    assert {spent.what: spent.seconds for spent in found.spent}["measuring on hardware"] == 10.0
    assert found.toolchains[0]["tilesmith"] == "9.9"


class Page(HTMLParser):
    """Tags must close; what is loaded from elsewhere is collected."""

    VOID = ("meta", "line", "circle", "polyline")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loaded += [v or "" for k, v in attributes if k in ("src", "href", "srcset")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_escaped_and_loads_nothing(database: Database) -> None:
    text = page(gather(database))
    parser = Page()
    parser.feed(text)
    assert parser.open == []
    assert parser.loaded == []
    assert {"svg", "polyline", "circle"} <= set(parser.seen)
    assert "script" not in parser.seen
    assert "&lt;b&gt;worker" in text and "<b>worker" not in text
    assert "tilesmith tune &lt;x&gt;" in text
    for words in ("Convergence", "Roofline", "Failures", "Time", "Provenance", "vector.bytes"):
        assert words in text
    assert "http" not in text


def test_the_command_writes_it(database: Database, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    arguments = ["report", "--database", database.name, "-o", str(output), "--json"]
    result = CliRunner().invoke(command_line, arguments)
    assert result.exit_code == 0, result.stderr
    values = json.loads(result.stdout)
    assert (values["job"], values["trials"], values["file"]) == (1, 5, str(output))
    assert output.read_text().startswith("<!doctype html>")
    nowhere = [*arguments[:3], "-o", str(tmp_path / "no" / "page.html")]
    result = CliRunner().invoke(command_line, nowhere)
    assert result.exit_code == 2 and "cannot be written" in result.stderr


def test_a_job_that_is_not_there_is_named(database: Database, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no job 7; its newest jobs: 1"):
        gather(database, 7)
    empty = database.start_job("nothing yet", seed=0, strategy="random")
    with pytest.raises(InputError, match=f"job {empty} .* no trials"):
        gather(database, empty)
    with (
        Database.open(str(tmp_path / "new.db")) as new,
        pytest.raises(InputError, match="has no job"),
    ):
        gather(new)


def test_axes_place_values_and_choose_round_ticks() -> None:
    linear = ChartAxis(0, 10, 100, 200)
    assert [linear.at(v) for v in (0, 5, 10)] == [100, 150, 200]
    assert [tick.text for tick in linear.ticks(5)] == ["0", "2", "4", "6", "8", "10"]
    falling = ChartAxis(1, 100, 50, 0, logarithmic=True)
    assert [falling.at(v) for v in (1, 10, 100)] == [50, 25, 0]
    assert [tick.text for tick in falling.ticks(3)] == ["1", "10", "100"]
    assert len(ChartAxis(1e-3, 1e6, 0, 1, logarithmic=True).ticks(4)) <= 4
    assert staircase([(1, 5), (3, 2)]) == [(1, 5), (3, 5), (3, 2)]
    assert (number(1234.6), number(0.01234)) == ("1,235", "0.0123")


def told(database: Database, job: int) -> None:
    """The job says how often a model runs the workload, and of one more that it found known."""
    tasks = [
        {"workload": WORKLOAD.key, "weight": 3, "default_us": 5.0, "best_us": 2.5},
        {"workload": "softmax shape=8x8", "weight": 2, "default_us": 4.0, "best_us": 1.0},
    ]
    database.tell(job, {"measured_by": "hardware", "tasks": tasks})


def test_the_whole_model_stands_first(database: Database) -> None:
    once = wholes(gather(database))
    assert [(one.before_s, one.after_s) for one in once] == [(5e-6, 2.5e-6)]
    assert "each once" in once[0].how
    told(database, 1)
    found = gather(database)
    (whole,) = wholes(found)
    assert whole.before_s == pytest.approx(3 * 5e-6 + 2 * 4e-6)
    assert whole.after_s == pytest.approx(3 * 2.5e-6 + 2 * 1e-6)
    assert "as often as the model runs it" in whole.how
    assert shares(found.tasks) == {("hardware", WORKLOAD.key): 1.0}
    text = page(found)
    assert text.index("The whole model") < text.index("Best against default")


def second(database: Database, *trials: TuningRecord) -> int:
    job = database.start_job("tilesmith tune <y>", seed=4, strategy="random", targets=[CPU])
    database.add(list(trials), job=job)
    database.finish_job(job, "finished", "")
    return job


def test_nothing_is_drawn_where_there_is_nothing_to_see(database: Database) -> None:
    job = second(database, record(DEFAULT, "crash", (), 20))
    text = page(gather(database, job))
    assert "polyline" not in text and "Convergence" not in text and "Roofline" not in text
    assert "Nothing worked" in text
    job = second(database, record(DEFAULT, "ok", (4e-6,), 30))
    text = page(gather(database, job))
    assert (
        text.count("<polyline") == text.count('class="peak"') == 1
        and "Convergence" not in text
        and "circle" in text
    )


def test_a_job_beside_another(database: Database, tmp_path: Path) -> None:
    told(database, 1)
    job = second(database, record(DEFAULT, "ok", (5e-6,), 40), record(DEFAULT, "ok", (5e-6,), 43))
    output = tmp_path / "page.html"
    arguments = ["report", "--database", database.name, "--job", str(job), "--against", "1"]
    result = CliRunner().invoke(command_line, [*arguments, "-o", str(output), "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)["against"]
    (both,) = found["together"]
    assert (both["us"], both["other_us"]) == pytest.approx((3 * 5, 3 * 2.5))
    assert {pair["workload"]: pair["ratio"] for pair in found["workloads"]} == {
        WORKLOAD.key: pytest.approx(0.5),
        "softmax shape=8x8": None,
    }
    assert {name: (here, there) for name, here, there in found["differs"]} == {
        "command": ("tilesmith tune <y>", "tilesmith tune <x>"),
        "seed": ("4", "3"),
        "trials": ("2", "5"),
        "time": (found["differs"][-1][1], found["differs"][-1][2]),
    }
    parser = Page()
    parser.feed(output.read_text())
    assert parser.open == [] and parser.loaded == [] and parser.seen.count("polyline") == 3, (
        "curves and a peak"
    )
    assert "tilesmith tune &lt;y&gt;" in output.read_text()
    result = CliRunner().invoke(command_line, [*arguments[:-1], "77", "-o", str(output)])
    assert result.exit_code == 2 and "no job 77" in result.stderr


def test_labels_lie_neither_on_each_other_nor_on_dots() -> None:
    room = Box(0.0, 0.0, 400.0, 360.0)
    labels = Labels(room)
    labels.keep_off(300.0, 100.0, 5.0)
    for place in range(12):
        assert labels.place(f"{place}: 50%", 300.0, 100.0) is not None
    assert all(room.holds(box) for box in labels.taken)
    pairs = [(a, b) for a in labels.taken for b in labels.taken if a is not b]
    assert not any(a.meets(b) for a, b in pairs)
    assert labels.place("x" * 100, 300.0, 100.0) is None, "there is no room for it"


def test_short_logarithmic_axes_have_ticks() -> None:
    axis = ChartAxis.over([36.9, 39.2], 0, 100, logarithmic=True)
    ticks = axis.ticks(4)
    assert len(ticks) >= 2 and all(0 <= tick.at <= 100 for tick in ticks)
