"""What a process of the lowest priority is, and whether the machine has time for it.

The operating system gives such a process what nobody else wants, but caches and memory it shares,
and a group of processes with a quota spends that on it. So it pauses altogether while others keep
most of the cores that it may use busy, or the group is held back by its quota.
"""

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_BUSY, _FREE = 0.75, 0.6
"""Share of its cores that others use above which it pauses, and below which it goes on."""
_HELD_BACK_S = 10.0
"""Seconds that it pauses after its group was held back."""
_STAT, _GROUP = Path("/proc/stat"), Path("/sys/fs/cgroup/cpu.stat")
_CORE = re.compile(r"^cpu(\d+) (.*)$", re.MULTILINE)
_NICE, _IDLE, _IO = 1, 3, 4  # fields of a core's line
_CORES = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()
"""Cores that this process could use when it began; none where that is not told."""
_OWN = 8
"""Fields of such a line that add up to all time: what is behind them is counted in them."""


def lowest_priority() -> None:
    """Let this process, and those it starts, run only where nobody else wants to."""
    with suppress(OSError):
        os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def leave_cores(threads: int) -> None:
    """Run, with what is started from here on, on the last half of the cores only, or on as many as
    kernels have threads: whoever computes there is put on another at once."""
    if _CORES:
        kept = max(threads, len(_CORES) // 2)
        with suppress(OSError):
            os.sched_setaffinity(0, sorted(_CORES)[-kept:])


class MachineLoad:
    """How busy others keep the cores that this process may use; made at the start of a watch.

    What niced processes compute is not counted: theirs and ours make way alike.

    Args:
        stat: in the form of /proc/stat.
        group: in the form of a control group's cpu.stat.
    """

    every_s = 0.5
    """Seconds that a share is counted over at least."""

    def __init__(
        self,
        stat: Path = _STAT,
        group: Path = _GROUP,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stat, self._group, self._clock = stat, group, clock
        self._at, self._before = clock(), self._times()
        self._share = 0.0
        self._held_back, self._held_back_at = self._throttled(), -_HELD_BACK_S

    def share(self) -> float:
        """The part of their time that others computed since the last look; 1 where this process's
        group is held back."""
        now = self._clock()
        if now - self._at >= self.every_s:
            times = self._times()
            total, free = (new - old for new, old in zip(times, self._before, strict=True))
            self._share = 1 - free / total if total > 0 else 0.0
            self._at, self._before = now, times
            if (throttled := self._throttled()) > self._held_back:
                self._held_back, self._held_back_at = throttled, now
        return 1.0 if now - self._held_back_at < _HELD_BACK_S else self._share

    def _times(self) -> tuple[float, float]:
        """All time of the cores, and what is idle or niced; nothing where that is not told."""
        total = free = 0.0
        with suppress(OSError, ValueError, IndexError):
            for number, said in _CORE.findall(self._stat.read_text()):
                if not _CORES or int(number) in _CORES:
                    times = [float(text) for text in said.split()[:_OWN]]
                    total += sum(times)
                    free += times[_NICE] + times[_IDLE] + times[_IO]
        return total, free

    def _throttled(self) -> int:
        """How often the group was held back by its quota."""
        with suppress(OSError, ValueError):
            for line in self._group.read_text().splitlines():
                if line.startswith("nr_throttled "):
                    return int(line.split()[1])
        return 0


class Pause:
    """Says why to wait, if there is a reason: what a tuning job asks between its batches.

    Args:
        over: whether nothing is waited for any more.

    Attributes:
        seconds: that were waited so far, as far as it was asked.
    """

    def __init__(
        self,
        load: MachineLoad,
        over: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load, self._over, self._clock = load, over, clock
        self._since: float | None = None
        self.seconds = 0.0

    def __call__(self) -> str:
        share = self._load.share()
        busy = share > (_BUSY if self._since is None else _FREE) and not self._over()
        now = self._clock()
        if self._since is not None:
            self.seconds += now - self._since
        self._since = now if busy else None
        return "waiting: others keep the machine busy" if busy else ""
