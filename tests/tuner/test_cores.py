"""Claims of cores: one owner each, over processes, freed by any death, refused in a sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tilesmith.search_space.support.errors import InputError, JobError
from tilesmith.tuner.machines import cores
from tilesmith.tuner.machines.cores import NoCoreError, claim, free_cores, parse_list, physical

HOLD = """
import sys
from pathlib import Path
from tilesmith.tuner.machines import cores
cores.siblings = lambda thread: (thread,)
held = cores.claim(1, [0, 1], folder=Path(sys.argv[1]))
print(held.cores[0], flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def single_threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores without hardware threads, whatever machine this is."""
    monkeypatch.setattr(cores, "siblings", lambda thread: (thread,))


def holder(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    process.wait()


def test_a_core_has_one_owner_over_processes_and_a_killed_one_frees_it(tmp_path: Path) -> None:
    other = holder(tmp_path)
    assert other.stdout is not None and other.stdout.readline() == "1\n"
    with claim(1, [0, 1], folder=tmp_path) as mine:
        assert mine.cores == (0,) and free_cores([0, 1], tmp_path) == []
        with pytest.raises(NoCoreError) as refused:
            claim(1, [0, 1], folder=tmp_path)
        assert str(other.pid) in str(refused.value) and str(os.getpid()) in str(refused.value)
        assert "1 core to measure on is not free: others measure on" in str(refused.value)
    assert free_cores([0, 1], tmp_path) == [0]
    other.send_signal(signal.SIGKILL)
    ended(other)
    assert free_cores([0, 1], tmp_path) == [0, 1]
    assert claim(2, [0, 1], folder=tmp_path).cores == (0, 1)


def test_many_at_once_never_share(tmp_path: Path) -> None:
    started = [holder(tmp_path) for _ in range(4)]
    said = [process.stdout.readline().strip() for process in started if process.stdout]
    for process in started:
        ended(process)
    assert Counter(said) == {"0": 1, "1": 1, "": 2}


def test_more_cores_than_there_are_is_a_mistake_and_some_can_be_kept_free(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"3 cores cannot be measured on: .* may use 2 cores"):
        claim(3, [0, 1], folder=tmp_path)
    with pytest.raises(InputError, match="1 kept free"):
        claim(2, [0, 1], keep_free=1, folder=tmp_path)
    first = claim(1, [0, 1, 2], keep_free=1, folder=tmp_path)
    assert first.cores == (2,)
    second = claim(1, [0, 1, 2], keep_free=1, folder=tmp_path)
    with pytest.raises(NoCoreError, match="1 of them kept free"):
        claim(1, [0, 1, 2], keep_free=1, folder=tmp_path)
    first.release(), second.release()


def test_a_core_of_several_hardware_threads_is_claimed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "siblings", lambda thread: (thread % 2, thread % 2 + 2))
    monkeypatch.setattr(cores, "usable", lambda: [0, 1, 2, 3])
    assert physical([0, 1, 2, 3]) == [0, 1]
    held = claim(1, folder=tmp_path)
    assert held.cores == (1,) and held.others == [0, 2]
    held.release()


def test_lists_are_read_as_the_kernel_writes_them() -> None:
    assert parse_list("0-2,8\n") == (0, 1, 2, 8) and parse_list("3") == (3,)


def test_the_folder_may_be_named_and_must_be_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cores.ENVIRONMENT, str(tmp_path / "own"))
    with claim(1, [0]):
        assert (tmp_path / "own" / "core-0").exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cores.ENVIRONMENT, str(tmp_path / "file"))
    with pytest.raises(JobError, match=r"the folder of core claims '.*file' cannot be made"):
        claim(1, [0])
