"""Every exception becomes one sentence and the right exit code."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest
import sqlalchemy.exc

from tilesmith.cli.failures import HungUp, Terminated, explain, signals_as_exceptions
from tilesmith.cli.stopping import resuming_command
from tilesmith.search_space.support.errors import CodegenError, JobError, ModelError, TilesmithError


@pytest.mark.parametrize(
    ("error", "message", "exit_code"),
    [
        (ModelError("model file 'x' does not exist"), "model file 'x' does not exist", 2),
        (JobError("no candidate worked"), "no candidate worked", 1),
        (CodegenError("two\nlines"), "two lines", 1),
        (TilesmithError("a limit"), "a limit", 1),
        (ModelError(f"'{'x' * 70_000}' does not exist"), "xxx...xxx", 2),
        (click.UsageError("bad"), "bad (see 'tilesmith --help')", 2),
        (click.FileError("f", "gone"), "Could not open file 'f': gone", 1),
        (KeyboardInterrupt(), "interrupted", 130),
        (click.Abort(), "interrupted", 130),
        (Terminated(), "stopped by SIGTERM", 143),
        (HungUp(), "stopped by SIGHUP", 129),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "what a pipe led to closed it", 1),
        (MemoryError(), "out of memory", 1),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"), "not UTF-8", 2),
        (RuntimeError("can't start new thread"), "starts no more threads", 1),
        (OSError(errno.ENOSPC, "No space left on device", "a.tsm"), "No space left on device", 1),
        (PermissionError(errno.EACCES, "Permission denied", "a.tsm"), "denied: 'a.tsm'", 2),
        (OSError(errno.EIO, "Input/output error"), "Input/output error", 1),
        (sqlalchemy.exc.OperationalError("q", {}, Exception("disk full")), "database failed", 1),
        (ZeroDivisionError("division by zero"), "internal error, please report it", 1),
    ],
)
def test_explain(error: BaseException, message: str, exit_code: int) -> None:
    failure = explain(error)
    assert message in failure.message
    assert "\n" not in failure.message and len(failure.message) < 1000
    assert failure.exit_code == exit_code


def test_an_interrupt_that_a_library_wrapped_is_one() -> None:
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as cause:
            raise RuntimeError("Error calling __set_name__") from cause
    except RuntimeError as error:
        assert explain(error).message == "interrupted"


def test_sigterm_unwinds_like_an_interrupt_and_the_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), signals_as_exceptions():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    with pytest.raises(KeyboardInterrupt), signals_as_exceptions():
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_comes_while_another_is_dropped_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread starts in no known time: the signal may be sent again before the hook is done."""
    start = threading.Thread.start

    def slow(thread: threading.Thread) -> None:
        start(thread)
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)

    class Ends:
        def __del__(self) -> None:
            monkeypatch.setattr(threading.Thread, "start", slow)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), signals_as_exceptions():
        Ends()
        threading.Event().wait(30)


def importing_numpy() -> None:
    """As numpy's core does, which prints what happened and raises something else."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())  # PyErr_Print
    raise ImportError("Error importing numpy: you should not try to import numpy from its source")


def test_what_a_library_makes_of_an_interrupt_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), signals_as_exceptions():
        importing_numpy()
    assert capsys.readouterr().err == ""
    with pytest.raises(ImportError), signals_as_exceptions():
        raise ImportError("without a signal it stays what it is")


def test_an_interrupt_that_a_finalizer_drops_arrives_again() -> None:
    class Ends:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def dropping() -> None:
        with signals_as_exceptions():
            Ends()
            threading.Event().wait(30)

    with pytest.raises(KeyboardInterrupt):
        dropping()


ENDS = """
import signal
from tilesmith.cli.stopping import leave
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a shell starts with '&'
try:
    exec("signal.raise_signal(signal.SIGINT)")
except KeyboardInterrupt:
    leave(1)
"""


def test_an_interrupt_that_went_through_an_exec_leaves_the_exit_code(tmp_path: Path) -> None:
    """Run by -m, Python kills itself by SIGINT for it."""
    (tmp_path / "ends.py").write_text(ENDS)
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))
    ended = subprocess.run([sys.executable, "-m", "ends"], env={**os.environ, "PYTHONPATH": path})
    assert ended.returncode == 1


def test_going_on_is_asked_for_before_files_that_look_like_options() -> None:
    words = ["tune", "--database", "t.db", "--", "-m.onnx"]
    assert resuming_command(words) == "tilesmith tune --database t.db --resume -- -m.onnx"
    assert resuming_command(["tune", "m.onnx"]) == "tilesmith tune m.onnx --resume"
