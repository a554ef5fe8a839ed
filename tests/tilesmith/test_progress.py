"""The progress line says what matters, also before anything is known."""

from __future__ import annotations

import io
import sys
import time
import types
from pathlib import Path

import pytest
from rich.console import Console

import tilesmith as ts
from tilesmith.display.counting import telling
from tilesmith.display.notebook import in_notebook
from tilesmith.display.progress import headline, panel, progress_display
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.session.progress import Progress, TaskReport


def task(default_s: float | None, best_s: float | None, weight: float = 1.0) -> TaskReport:
    workload = Workload.parse("matmul m=8 n=8 k=8")
    return TaskReport(workload, weight, default_s, best_s, None, ("", ""), "hardware", 4)


def test_headline_sums_the_model_up() -> None:
    tasks = (task(0.002, 0.001, weight=2), task(0.004, 0.004))
    progress = Progress("hardware", 40, 100, 65.4, 125.0, tasks)
    assert headline(progress) == (
        "hardware, 2 of 2 tasks, 40 of 100 trials, 8 ms -> 6 ms (1.33x), 1:05 gone, 2:05 left"
    )


def test_headline_before_anything_is_known() -> None:
    progress = Progress("simulator", 0, None, 0.0, None, (task(None, None),))
    assert headline(progress) == "simulator, 0 of 1 tasks, 0 trials, 0:00 gone"


def test_away_from_a_terminal_progress_is_lines_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress_display() as observer:
        for trials in range(5):
            observer(Progress("hardware", trials, 9, 0.0, None, (task(1e-3, 1e-3),)))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1  # the rest would come ten seconds later


def test_on_a_terminal_progress_is_a_table() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    tasks = (task(0.002, 0.001), task(None, None))
    console.print(panel(Progress("hardware", 40, None, 1.0, None, tasks)))
    text = console.export_text()
    assert "2000.0" in text
    assert "1000.0" in text
    assert "2.00x" in text


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_loses_no_number_and_tells_workloads_apart(width: int) -> None:
    keys = [
        f"conv2d n=1 c={c} h=56 w=56 oc=64 kh=3 kw=3 stride=1 pad=1 const=w epilogue={end}"
        for c in (64, 128, 256) for end in ("bias,relu", "bias,residual,relu")
    ]  # fmt: skip
    tasks = tuple(
        TaskReport(Workload.parse(key), 1.0, 0.02, 0.01 / (i + 1), None, ("", ""), "hardware", 4)
        for i, key in enumerate(keys)
    )
    console = Console(width=width, height=24, record=True, file=io.StringIO())
    console.print(panel(Progress("hardware", 40, 1000, 1.0, 9.0, tasks)))
    text = console.export_text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= width and len(lines) <= 24
    assert all(f"{10000 / (i + 1):.1f}" in text for i in range(len(keys)))
    assert all(text.count(f" c={c} ") == 2 for c in (64, 128, 256))
    assert text.count("residual,relu") == 3


class Cell:
    """A cell's output: what is shown in it, by the handle that may replace it."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []
        self.updates = 0

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Cell:
        assert raw and display_id
        self.shown.append(content)
        return self

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        self.shown[-1], self.updates = content, self.updates + 1


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """A process that says it is a notebook's kernel."""
    found = Cell()
    ipython, inner = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    shell = types.SimpleNamespace(kernel=object())
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    inner.display = found.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", inner)
    return found


def test_in_a_notebook_progress_is_one_table_that_changes(
    cell: Cell, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_display() as observer:
        for trials in range(5):
            observer(Progress("hardware", trials, 9, 0.0, None, (task(2e-3, 1e-3),)))
    (content,) = cell.shown
    assert "4 of 9 trials" in content["text/plain"] and "2.00x" in content["text/plain"]
    assert content["text/html"].startswith("<pre>") and "-&gt;" in content["text/html"]
    assert cell.updates == 1, "the others came sooner than anyone looks"
    assert capsys.readouterr() == ("", "")


def test_tuning_in_a_notebook_shows_itself_unless_watched(
    cell: Cell, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workload, database = Workload.parse("softmax shape=8x16"), str(tmp_path / "t.db")
    seen: list[Progress] = []
    asked = {"database": database, "measure": "simulator", "trials": 3}
    with caplog.at_level("INFO", logger="tilesmith"):
        ts.tune(workload, observer=seen.append, **asked)
    assert seen and not cell.shown
    assert "job 1 in" in caplog.text and "measured by simulator" in caplog.text
    ts.tune(workload, seed=1, **asked)
    assert len(cell.shown) == 1 and "softmax" in cell.shown[0]["text/plain"]


def test_a_terminal_of_ipython_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace()  # type: ignore[attr-defined]
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not in_notebook()


def test_the_headline_counts_in_words_that_fit() -> None:
    at = Progress("simulator", 1, 64, 1.0, 58654.0, (), screening=True)
    assert "1 of 64 simulated to choose trials" in headline(at)
    assert headline(at).endswith("16:17:34 left")
    assert "1 of 1 trial," in headline(Progress("hardware", 1, 1, 1.0, None, ()))
    busy = Progress("hardware", 8, 8, 1.0, None, (), doing="comparing schedules inside the model")
    assert "8 of 8 trials, comparing schedules inside the model" in headline(busy)


def test_away_from_a_terminal_a_long_stage_is_said_again_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tilesmith.display.counting._LINE_EVERY_S", 0.01)
    said, until = "", time.monotonic() + 300
    with telling() as tell:
        tell("comparing 3 tensors")
        while said.count("comparing 3 tensors (") < 3:
            assert time.monotonic() < until, "nothing is said of what goes on"
            time.sleep(0.01)
            said += capsys.readouterr().err
    time.sleep(0.05)
    assert capsys.readouterr().err.count("\n") <= 1, "nothing is said of what is over"
