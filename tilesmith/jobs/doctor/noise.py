"""Noise: how far one reading of a latency can be believed on this machine, now.

A product that fits the first caches takes the same number of cycles each time. It is timed again
and again on a core alone, and then beside a copy of itself on another core: what differs from
reading to reading is the machine's doing.
"""

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator

from tilesmith.jobs.doctor.finding import Finding
from tilesmith.jobs.doctor.sample import product
from tilesmith.jobs.measures.timing import pinned
from tilesmith.tuner.machines.clocks import ClockWatch
from tilesmith.tuner.machines.cores import physical, usable

_SECTION = "measuring"
_READINGS = 300
_NOISY, _SLOWED = 0.05, 1.15
"""Spread of readings, and slowing beside a busy neighbour, from which on they are worth a note."""


def findings() -> Iterator[Finding]:
    """Of this machine at this moment; takes less than a second."""
    watch = ClockWatch()
    call = _busy()
    with pinned(1):
        yield _spread(_seconds(call, _READINGS))
    if len(physical(usable())) > 1:
        yield _beside(call, _busy())
    jump = watch.look()
    if jump is not None and jump.spoils:
        advice = "do not tune here: latencies would be wrong without a sign of it"
        yield Finding(_SECTION, "clocks", "problem", jump.message, advice)
    else:
        yield Finding(_SECTION, "clocks", "fine", "agree with each other")


def _spread(samples: list[float]) -> Finding:
    """How far the middle half of the readings lies apart, of their median."""
    low, middle, high = statistics.quantiles(samples, n=4)
    spread = (high - low) / middle
    value = f"{spread:.1%} between quartiles of {len(samples)} readings"
    if spread <= _NOISY:
        return Finding(_SECTION, "noise", "fine", value)
    advice = "end what else runs here, or tune longer: measure again what looks best"
    return Finding(_SECTION, "noise", "note", value, advice)


def _beside(call: Callable[[], None], neighbour: Callable[[], None]) -> Finding:
    """How much slower a core is while another one works: they may share more than they say."""
    first, second = physical(usable())[-2:]
    alone, beside = [], []
    with _pinned_thread(neighbour, first) as switch:
        os.sched_setaffinity(0, {second})
        for _ in range(10):
            switch(False)
            alone += _seconds(call, 20)
            switch(True)
            beside += _seconds(call, 20)
    ratio = statistics.median(beside) / statistics.median(alone)
    value = f"{ratio:.2f} times the time beside a busy neighbour"
    if ratio <= _SLOWED:
        return Finding(_SECTION, "a second core", "fine", value)
    advice = "cores share units or clock: measure on one at a time, or leave the others idle"
    return Finding(_SECTION, "a second core", "note", value, advice)


class _pinned_thread:  # noqa: N801 (used as a context)
    """Calls something again and again on a core of its own while it is switched on."""

    def __init__(self, call: Callable[[], None], core: int) -> None:
        self._call, self._core = call, core
        self._on, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        os.sched_setaffinity(0, {self._core})
        while not self._over.is_set():
            if self._on.wait(0.01):
                self._call()

    def __enter__(self) -> Callable[[bool], None]:
        self._before = os.sched_getaffinity(0)
        self._thread.start()
        return self._switch

    def _switch(self, on: bool) -> None:
        (self._on.set if on else self._on.clear)()
        time.sleep(0.005)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        os.sched_setaffinity(0, self._before)


def _busy() -> Callable[[], None]:
    """Some work that stays in the first caches."""
    model, x, _ = product(96, 96, 96)
    return model.bind({"x": x}).run


def _seconds(call: Callable[[], None], count: int) -> list[float]:
    call()
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds
