"""Whether the machine has time: what others compute, read from files of a made-up machine."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tilesmith.capabilities.first_use import following
from tilesmith.capabilities.first_use.priority import MachineLoad, Pause


class Machine:
    """A clock and the files of a machine with the cores of this process."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.stat, self.group = folder / "stat", folder / "cpu.stat"
        self.user = self.niced = self.idle = 0
        self.tell()

    def clock(self) -> float:
        return self.now

    def tell(self, user: int = 0, niced: int = 0, idle: int = 0, throttled: int = 0) -> None:
        """A second goes by in which every core does so much."""
        self.now += 1
        self.user, self.niced, self.idle = self.user + user, self.niced + niced, self.idle + idle
        line = f"{self.user} {self.niced} 0 {self.idle} 0 0 0 0 0 0"
        cores = sorted(os.sched_getaffinity(0))
        lines = ["cpu  1 2 3", *(f"cpu{number} {line}" for number in cores), "intr 5"]
        self.stat.write_text("\n".join(lines))
        self.group.write_text(f"usage_usec 1\nnr_throttled {throttled}\n")

    def load(self) -> MachineLoad:
        return MachineLoad(self.stat, self.group, self.clock)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_niced_processes_make_way_and_do_not_count(machine: Machine) -> None:
    load = machine.load()
    machine.tell(user=25, niced=50, idle=25)
    assert load.share() == pytest.approx(0.25)
    machine.tell(user=90, niced=10)
    assert load.share() == pytest.approx(0.9)


def test_it_pauses_while_others_are_at_work_and_counts_for_how_long(machine: Machine) -> None:
    pause = Pause(machine.load(), lambda: False, machine.clock)
    said = []
    for user in (50, 80, 70, 70, 50, 70):
        machine.tell(user=user, idle=100 - user)
        said.append(bool(pause()))
    assert said == [False, True, True, True, False, False], "between two marks it stays as it was"
    assert pause.seconds == 3


def test_a_group_at_its_quota_is_left_alone(machine: Machine) -> None:
    load = machine.load()
    machine.tell(idle=100, throttled=3)
    assert load.share() == 1
    machine.now += 20
    machine.tell(idle=100, throttled=3)
    assert load.share() == 0


def test_where_nothing_is_told_it_goes_on(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.stat.write_text("damaged")
    load = machine.load()
    machine.now += 5
    assert load.share() == 0
    assert not Pause(load, lambda: True)()


def test_nothing_is_waited_for_at_the_end(machine: Machine) -> None:
    pause = Pause(machine.load(), lambda: True, machine.clock)
    machine.tell(user=100)
    assert pause() == ""


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="of Linux")
def test_the_lowest_priority_is_inherited() -> None:
    code = (
        "from tilesmith.capabilities.first_use.priority import lowest_priority as low; low();"
        "import subprocess, sys;"
        "subprocess.run([sys.executable, '-c',"
        "'import os; print(os.sched_getscheduler(0) == os.SCHED_IDLE, os.nice(0))'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True 19\n"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="of Linux")
@pytest.mark.parametrize(("threads", "kept"), [(1, lambda n: max(1, n // 2)), (64, lambda n: n)])
def test_cores_are_left_to_others(threads: int, kept: Callable[[int], int]) -> None:
    code = (
        "import os; from tilesmith.capabilities.first_use.priority import leave_cores as leave;"
        f"leave({threads}); print(len(os.sched_getaffinity(0)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == kept(len(os.sched_getaffinity(0)))


def test_a_tuner_is_of_the_session_that_starts_it(
    products: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where schedulers divide time between sessions, no priority reaches into another one."""
    started: list[dict[str, object]] = []

    def popen(*_: object, **asked: object) -> None:
        started.append(asked)

    monkeypatch.setattr(subprocess, "Popen", popen)
    products.parent.joinpath("root").mkdir()
    following.started(products.parent / "root")
    assert [(s.get("start_new_session"), s.get("process_group")) for s in started] == [(None, 0)]
