"""Jobs that are stopped or fail half-way: no trial lost, one sentence, the exit code of each."""

from __future__ import annotations

import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.command import SMALL, TUNE, invoke, start, succeed, trials_in

PATIENT = """
import tilesmith.cli.stopping
tilesmith.cli.stopping.LONGEST_S = 600  # on a busy machine order takes longer than it may
"""
"""Begins a script whose ends are in order, however long they take."""


def script(text: str, *words: object) -> subprocess.Popen[str]:
    """Python running a text, `words` its arguments."""
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, words)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def one_sentence(process: subprocess.Popen[str]) -> str:
    """The last line of stderr of a process that must not show a traceback."""
    _, errors = process.communicate(timeout=300)
    assert "Traceback" not in errors
    return errors.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_in_the_middle_of_tuning_loses_no_trial(
    number: signal.Signals, tmp_path: Path
) -> None:
    database = tmp_path / "tuning.db"
    job = ["tune", "--op", SMALL, "--database", database, "--measure", "hardware"]
    process = script(f"{PATIENT}from tilesmith.command_line import main\nmain()", *job)
    deadline = time.monotonic() + 300
    while trials_in(database) < 3:
        assert process.poll() is None, one_sentence(process)
        assert time.monotonic() < deadline, "tuning does not get on"
        time.sleep(0.05)
    os.killpg(process.pid, number)  # a terminal's Ctrl-C reaches the worker process too
    sentence = one_sentence(process)
    assert process.returncode == 128 + number
    assert number.name in sentence
    kept = trials_in(database)
    assert f"after {kept} trials" in sentence
    resuming = shlex.split(sentence.partition("to go on: ")[2])
    assert resuming == ["tilesmith", *map(str, job), "--resume"]
    more = succeed(*resuming[1:], "--trials", str(kept + 1))
    assert more["trials"] == kept + 1


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGINT, "interrupted"), (signal.SIGHUP, "stopped by SIGHUP")]
)
def test_an_interrupt_before_everything_is_imported_is_one_sentence(
    number: signal.Signals, said: str
) -> None:
    slow = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "tilesmith.command_line":
            print("importing", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from tilesmith.entry import main
main()
"""
    process = script(slow)
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    assert one_sentence(process) == f"tilesmith: {said}"
    assert process.returncode == 128 + number


def test_a_job_that_does_not_come_to_an_end_is_torn_out_of(tmp_path: Path) -> None:
    """A cost model in training polls nothing; the exception finds it, and the trials stay."""
    endless = f"""{PATIENT}
import time, tilesmith.tuner.learning.predictor
from tilesmith.command_line import main
def train(self):
    print("training", flush=True)
    while True:
        time.sleep(0.01)
tilesmith.tuner.learning.predictor.Predictor.train_if_due = train
main()
"""
    job = ["tune", "--op", SMALL, "--database", str(tmp_path / "t.db"), "--measure", "simulator"]
    process = script(endless, *job)
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n"
    process.send_signal(signal.SIGINT)
    sentence = one_sentence(process)
    assert process.returncode == 130
    assert f"after {trials_in(tmp_path / 't.db')} trials" in sentence
    assert sentence.endswith("--resume")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_native_code_that_does_not_come_back_is_ended(number: signal.Signals) -> None:
    """A lock that nobody gives back, taken without the interpreter's: Python has no turn to answer
    a signal in."""
    stuck = """
import ctypes
from tilesmith.command_line import main
from tilesmith.jobs.subjects import targets
def stuck():
    lock = ctypes.create_string_buffer(256)
    print("in native code", flush=True)
    while True:
        ctypes.CDLL(None).pthread_mutex_lock(lock)
targets.all_targets = stuck
main()
"""
    process = script(stuck, "targets")
    assert process.stdout is not None
    assert process.stdout.readline() == "in native code\n"
    process.send_signal(number)
    said = {signal.SIGINT: "interrupted", signal.SIGTERM: "stopped by SIGTERM"}[number]
    assert one_sentence(process) == f"tilesmith: {said}"
    assert process.returncode == 128 + number


def test_a_database_that_another_holds_does_not_keep_a_stopped_job(tmp_path: Path) -> None:
    """A commit waits for the other writer and cannot be torn; the process ends all the same."""
    waiting = """
from tilesmith.command_line import main
from tilesmith.records.schema import engine
def told(driver, statement, waits=engine._patiently):
    print("waiting", flush=True)
    waits(driver, statement)
engine._patiently = told
main()
"""
    database = tmp_path / "t.db"
    succeed("tune", "--op", SMALL, "--database", database, *TUNE)
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("begin immediate")
    job = ["tune", "--op", SMALL, "--database", str(database), "--measure", "simulator"]
    process = script(waiting, *job)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    sentence = one_sentence(process)
    other.close()
    assert process.returncode == 130
    assert "stopped" in sentence or "interrupted" in sentence


def test_a_full_disk_ends_the_job_with_a_sentence(model: Path, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    process = start("compile", model, "-o", "/dev/full")
    assert "No space left on device" in one_sentence(process)
    assert process.returncode == 1
    with Path("/dev/full").open("w") as full:
        process = start("operators", "--json", stdout=full)
    assert "No space left on device" in one_sentence(process)
    assert process.returncode == 1


def test_a_reader_that_goes_away_ends_the_job_without_a_word() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start("operators", stdout=writer)
    os.close(writer)
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (1, "")


def test_a_job_whose_schedules_all_fail_says_where_to_look(tmp_path: Path) -> None:
    database = tmp_path / "t.db"
    operator = "transpose shape=300000x300000 perm=1x0"
    job = ["tune", "--op", operator, "--database", database, *TUNE]
    result = invoke(*job)
    assert result.exit_code == 1
    command = result.stderr.splitlines()[-1].split("'")[-2]
    found = succeed(*shlex.split(command)[1:])
    assert "out of memory" in found["records"][0]["message"]
