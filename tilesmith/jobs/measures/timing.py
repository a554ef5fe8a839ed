"""Fair timing of several ways to do one thing: interleaved, on the same pinned cores.

A processor's clock drifts by 10 % within seconds, so contenders that are timed one after the other
are not comparable. Here they take turns in short blocks, and only figures of one run are set side
by side.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_BLOCK_S = 0.01
"""A contender's turn: long enough to be over the disturbance of taking turns."""

_SETTLE_S = 0.1
"""Untimed calls before a turn on several threads: those of the contender before look for work for
some milliseconds, on the cores that are needed now."""


@dataclass(frozen=True)
class Timing:
    """Wall-clock samples of one contender, in seconds, in the order taken.

    Attributes:
        wall_s: that all runs took together, where several ran at once; else their sum.
    """

    samples: tuple[float, ...]
    wall_s: float | None = None

    @property
    def median_ms(self) -> float:
        return statistics.median(self.samples) * 1e3

    @property
    def min_ms(self) -> float:
        return min(self.samples) * 1e3

    @property
    def runs_per_s(self) -> float:
        """Runs that a second holds: one after the other, by their mean, or so many at once."""
        return len(self.samples) / (self.wall_s or sum(self.samples))

    def percentile_ms(self, percent: float) -> float:
        """What so many percent of the runs take at most: the nearest rank, a run that happened."""
        ordered = sorted(self.samples)
        return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)] * 1e3

    def to_json(self) -> dict[str, float]:
        """Everything told of it, under the names that scripts know."""
        return {
            "median_ms": self.median_ms,
            "min_ms": self.min_ms,
            **{f"p{percent}_ms": self.percentile_ms(percent) for percent in (50, 90, 99)},
            "runs": len(self.samples),
            "runs_per_s": self.runs_per_s,
        }


@contextmanager
def pinned(threads: int) -> Iterator[None]:
    """Keep this process's threads, and those they start, on `threads` of the cores it may use.

    The highest-numbered cores are taken, as the first one usually serves interrupts. Does nothing
    where the operating system offers no affinity.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = {number: os.sched_getaffinity(number) for number in _thread_numbers()}
    chosen = sorted(os.sched_getaffinity(0))[-threads:]
    for number in before:
        os.sched_setaffinity(number, chosen)
    try:
        yield
    finally:
        for number, cores in before.items():
            with suppress(ProcessLookupError):  # it may have ended meanwhile
                os.sched_setaffinity(number, cores)


def _thread_numbers() -> list[int]:
    """The operating system's numbers of this process's threads; 0 stands for the calling one."""
    folder = Path("/proc/self/task")
    return [int(entry.name) for entry in folder.iterdir()] if folder.exists() else [0]


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    budget_s: float = 3.0,
    least_rounds: int = 5,
    threads: int = 1,
    warm_up: int = 0,
    runs: int | None = None,
) -> dict[str, Timing]:
    """Time every contender in turns.

    Each round gives each contender one untimed call, which refills the caches its rivals emptied
    (on several threads more of them, until those of its rivals sleep), and then a block of timed
    ones.

    Args:
        contenders: by name, a call that does the work once.
        budget_s: rounds are played until this many seconds are over.
        least_rounds: but never fewer than this.
        threads: that contenders use.
        warm_up: untimed calls of each before the first round.
        runs: timed calls of each, in place of `budget_s` and `least_rounds`.
    """
    for call in contenders.values():
        for _ in range(warm_up):
            call()
    settle_s = _SETTLE_S if threads > 1 else 0.0
    blocks = {name: _block(call) for name, call in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + budget_s
    rounds = 0
    while _goes_on(samples, runs) if runs else rounds < least_rounds or time.perf_counter() < end:
        for name, call in contenders.items():
            settled = time.perf_counter() + settle_s
            call()
            while time.perf_counter() < settled:
                call()
            wanted = blocks[name] if runs is None else min(blocks[name], runs - len(samples[name]))
            samples[name].extend(_timed(call) for _ in range(wanted))
        rounds += 1
    return {name: Timing(tuple(taken)) for name, taken in samples.items()}


def _goes_on(samples: Mapping[str, list[float]], runs: int) -> bool:
    return any(len(taken) < runs for taken in samples.values())


def at_once(
    calls: Sequence[Callable[[], object]],
    budget_s: float = 3.0,
    warm_up: int = 0,
    runs: int | None = None,
) -> Timing:
    """Time calls that run at the same time, each over and over on a thread of its own.

    Args:
        calls: as many as are to be in flight; they must not disturb each other.
        budget_s: no call begins later than so many seconds.
        warm_up: untimed calls of each before.
        runs: timed calls in all, in place of `budget_s`.

    Raises:
        Exception: what a call raised.
    """
    for call in calls:
        for _ in range(max(1, warm_up)):
            call()
    left = None if runs is None else iter(range(runs))
    begin = time.perf_counter()
    end = begin + budget_s

    def work(call: Callable[[], object]) -> list[float]:
        taken: list[float] = []
        while next(left, None) is not None if left else time.perf_counter() < end:
            taken.append(_timed(call))
        return taken

    with ThreadPoolExecutor(len(calls)) as pool:
        samples = [one for taken in pool.map(work, calls) for one in taken]
    return Timing(tuple(samples), time.perf_counter() - begin)


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _block(call: Callable[[], object]) -> int:
    """How many calls make a block, by the fastest of three: the first warms up, and what disturbs
    another must not make blocks short."""
    fastest = min(_timed(call) for _ in range(3))
    return max(1, min(200, round(_BLOCK_S / max(fastest, 1e-6))))
