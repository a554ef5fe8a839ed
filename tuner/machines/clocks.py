"""Clocks that measure, watched: inside one process against each other, between machines by rate.

A latency is a difference of `time.perf_counter`. Where that clock jumps (a virtual machine that was
moved or frozen, a broken time-stamp counter) a trial's samples are wrong without a sign of it. So a
process compares what several of its clocks say has passed (`ClockWatch`), and whoever gives work to
another machine compares how fast time passes there (`ClockRate`). A wall clock that is set, by hand
or by NTP, spoils no latency: it is told, and nothing follows.

Invariants: no clock of one machine is ever compared with the reading of another's, only how much
passed; a delay on the way can never look like a clock that lies, since it widens the bounds.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

JUMP_S = 0.01
"""Seconds that clocks may disagree by over a trial, for being read one after the other."""
RATE = 0.01
"""Share by which a clock may run faster or slower than another: a hundred times more than NTP slews
(500 parts in a million: adjtimex(2))."""
_WALL_S = 1.0
_READINGS = 1000
"""Of a clock, one after the other, to see by what it moves on."""

Clock = Callable[[], float]


def raw() -> float:
    """Return seconds of the clock that NTP does not slew (CLOCK_MONOTONIC_RAW)."""
    which = getattr(time, "CLOCK_MONOTONIC_RAW", None)
    return time.monotonic() if which is None else time.clock_gettime(which)


def since_boot() -> float:
    """Seconds of the clock that goes on while the machine is suspended (CLOCK_BOOTTIME)."""
    which = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if which is None else time.clock_gettime(which)


@cache
def boot() -> str:
    """What `since_boot` may be compared within: this boot of this machine; "" if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class ClockJump:
    """What clocks of one process disagree about.

    Attributes:
        spoils: whether latencies measured meanwhile are wrong.
        message: a sentence for people.
    """

    spoils: bool
    message: str


@dataclass(frozen=True)
class _Reading:
    """All clocks at about one moment; reading them `took` so many seconds."""

    measuring: float
    took: float
    others: dict[str, float]
    wall: float


class ClockWatch:
    """Compares the clocks of this process from one `look` to the next.

    Args:
        measuring, others, wall: the clocks, given by tests.
    """

    def __init__(
        self,
        measuring: Clock = time.perf_counter,
        others: dict[str, Clock] | None = None,
        wall: Clock = time.time,
    ) -> None:
        named: dict[str, Clock] = {
            "the monotonic clock": time.monotonic,
            "the raw hardware clock": raw,
            "the clock that counts suspension": since_boot,
        }
        self._measuring, self._others, self._wall = measuring, others or named, wall
        self._before = self._read()

    def _read(self) -> _Reading:
        first = self._measuring()
        others = {name: clock() for name, clock in self._others.items()}
        wall = self._wall()
        return _Reading(first, max(0.0, self._measuring() - first), others, wall)

    def look(self) -> ClockJump | None:
        """What jumped since the last look, if anything did."""
        before, now = self._before, self._read()
        self._before = now
        passed, slack = now.measuring - before.measuring, JUMP_S + before.took + now.took
        for name, reading in now.others.items():
            other = reading - before.others[name]
            if passed < 0 or abs(passed - other) > slack + RATE * max(passed, other):
                return ClockJump(
                    True,
                    f"the clock that measures jumped: it says that {passed:.3f} s passed, {name} "
                    f"{other:.3f} s; what was measured meanwhile does not count",
                )
        moved = now.wall - before.wall - passed
        if abs(moved) > _WALL_S + slack:
            return ClockJump(
                False,
                f"the wall clock was set {'forward' if moved > 0 else 'back'} by {abs(moved):.3g} "
                "s; latencies do not depend on it, and times in the record are the database's",
            )
        return None


def step_of(clock: Clock = time.perf_counter) -> float:
    """Seconds that a clock moves on by, at least: the smallest of many differences that are any."""
    readings = [clock() for _ in range(_READINGS)]
    steps = [later - first for first, later in itertools.pairwise(readings) if later > first]
    return min(steps, default=float("inf"))


def unreadable(results: Sequence[Mapping[str, Any]], step: float) -> ClockJump | None:
    """Return a fault if a kernel's time is zero or below the clock's resolution, else None.

    Args:
        results: of trials (`search_space.results.measure`).
        step: see `step_of`.
    """
    taken = [statistics.median(result["samples"]) for result in results if result["status"] == "ok"]
    shortest = min(taken, default=float("inf"))
    if shortest > 0 and shortest >= step:
        return None
    return ClockJump(
        True,
        f"a kernel took {shortest:.3g} s by the clock that measures, which cannot tell less than "
        f"{step:.3g} s; it is too coarse, or stands, or was slowed",
    )


class ClockRate:
    """How fast another machine's measuring clock runs, from its readings in replies.

    A reading was taken between sending the request and receiving the reply, so that two of them
    bound the rate from both sides however long messages travelled.
    """

    def __init__(self) -> None:
        self._first: tuple[float, float, float] | None = None

    def heard(self, sent: float, reading: float, received: float) -> str | None:
        """A reading by `since_boot` there; `sent` and `received` are by `since_boot` here.

        Returns a sentence if the clock there cannot be right; None if it may be, or if it is too
        early to tell.
        """
        if self._first is None:
            self._first = sent, reading, received
            return None
        least, most = sent - self._first[2], received - self._first[0]
        passed = reading - self._first[1]
        if passed < least * (1 - RATE) - JUMP_S:
            return _rate(passed, least, "at least")
        if passed > most * (1 + RATE) + JUMP_S:
            return _rate(passed, most, "at most")
        return None

    def restart(self) -> None:
        """Another process, or another clock, from now on."""
        self._first = None


def _rate(there: float, here: float, bound: str) -> str:
    return (
        f"has a clock that lies: {there:.3f} s passed by it, {bound} {here:.3f} s passed here; "
        "its latencies cannot be believed"
    )
