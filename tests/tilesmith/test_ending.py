"""Jobs stopped at any moment: one end for each, and what the database says of it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

import pytest

import tilesmith as ts
from tests.end_to_end.command import trials_in
from tilesmith.api import tune
from tilesmith.jobs.tuning import job as tuning
from tilesmith.jobs.tuning.ending import JobStopped
from tilesmith.records import Database
from tilesmith.search_space.support.ending import STOPPED, exit_code, heeded
from tilesmith.search_space.support.errors import InputError, JobError
from tilesmith.tuner.tasks import cancel

WORKLOAD = "matmul m=16 n=32 k=8 const=b"


def tuned(path: Path, *, resume: bool = False) -> None:
    tune(
        [ts.Workload.parse(WORKLOAD)], "trn1", path,
        trials=6, measure="simulator", strategy="random", resume=resume,
    )  # fmt: skip


def statuses(path: Path) -> list[tuple[str, bool]]:
    """How the jobs of a database stand, and whether they are taken for dead."""
    if not path.exists():
        return []
    with Database.open(str(path)) as database:
        return [(job.status, job.lost) for job in database.jobs()]


class At:
    """Sends a signal to this process at a call of the package's, counted from one of them on."""

    def __init__(self, number: int, call: int, begin: str) -> None:
        self._number, self._left, self._begin = number, call, begin
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self._begin and frame.f_code.co_name == self._begin:
            self._begin = ""
        if event != "call" or self._begin or "tilesmith" not in frame.f_code.co_filename:
            return
        self.calls += 1
        if self.calls == self._left:
            sys.setprofile(None)
            signal.raise_signal(self._number)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is under way is torn at once."""
    monkeypatch.setattr(cancel, "PATIENCE_S", 1e-6)
    monkeypatch.setattr(cancel, "_AGAIN_S", 1e-4)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> int:
    """What a whole job makes, from the moment it is registered."""
    whole = At(signal.SIGINT, 0, "_runners")
    sys.setprofile(whole)
    try:
        tuned(tmp_path_factory.mktemp("whole") / "t.db")
    finally:
        sys.setprofile(None)
    return whole.calls


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a finalizer
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("share", "number"),
    list(zip([0.0, 0.1, 0.25, 0.45, 0.6, 0.75, 0.9, 0.97], 3 * list(STOPPED), strict=False)),
)
def test_a_job_torn_anywhere_is_marked_and_keeps_its_trials(
    share: float, number: int, calls: int, tmp_path: Path
) -> None:
    path = tmp_path / "torn.db"
    sys.setprofile(At(number, 1 + int(share * calls), "_runners"))
    try:
        tuned(path)
        ended = "finished"
    except JobStopped as stopped:
        ended = "interrupted"
        assert stopped.exit_code == 128 + number
        assert signal.Signals(number).name in str(stopped)
        if stopped.report is not None:
            assert stopped.report.trials == trials_in(path)
    except KeyboardInterrupt:  # while everything is being closed
        ended = statuses(path)[0][0]
    finally:
        sys.setprofile(None)
    assert statuses(path) == [(ended, False)]
    tuned(path, resume=True)
    assert trials_in(path) >= 6


def test_what_fails_beside_the_search_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise JobError("no runner here")

    monkeypatch.setattr(tuning, "_runners", none)
    with pytest.raises(JobError, match="no runner here"):
        tuned(tmp_path / "t.db")
    assert statuses(tmp_path / "t.db") == [("failed", False)]


def test_exit_codes_are_those_of_shells() -> None:
    assert [exit_code(n) for n in (signal.SIGINT, "SIGTERM", signal.SIGHUP)] == [130, 143, 129]
    assert exit_code("a test") == exit_code("") == 1 and InputError("x").exit_code == 2


def test_a_job_that_outlives_its_terminal_on_purpose_does_not_hear_of_it() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert heeded() == [signal.SIGINT, signal.SIGTERM]
        with cancel.cancel_on_signals(cancel.CancelToken()) as token:
            signal.raise_signal(signal.SIGHUP)
            assert not token.cancelled
    finally:
        signal.signal(signal.SIGHUP, before)
    with cancel.cancel_on_signals(cancel.CancelToken()) as token:
        signal.raise_signal(signal.SIGHUP)
    assert token.reason == "SIGHUP"
