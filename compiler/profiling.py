"""How long every step of a model takes inside its runs.

Native code writes down when each step ran (`compiler.timed`), the host's nodes are timed between;
ordinary runs take turns with these in short blocks, so that what the looking costs is known too.
An executable is looked at in a workspace of its own.

Invariant: of what is kept of a run, steps, waits and the rest add up to the whole run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.backend import backend_of
from tilesmith.compiler.executable import Executable
from tilesmith.compiler.program import DeviceStep, HostStep, KernelStep, Step
from tilesmith.compiler.timed import MET, RAN, STARTED, Notes, TimedSteps, cost_of_notes, numbered
from tilesmith.compiler.workspace import Arrays, Segment, Values, Workspace
from tilesmith.search_space.errors import JobError

_MOST_NOTES = 1 << 22
"""That a thread's list has room for."""

_MOST_CELLS = 1 << 22
"""Numbers kept of steps in runs: of tiny models that is what ends a profile."""

_BLOCK_NS = 10_000_000
"""Nanoseconds that one way of running has its turn."""

_TRACED = 100_000
"""Notes kept for a trace, the first that there are."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepTimes:
    """What a step took, in microseconds of a run (means over the runs that are kept).

    Attributes:
        step: of the recipe; a loop's are those of its counting alone, what it runs has its own.
        us: from the end of what was before it to its own, waiting for other threads included.
        wait_us: of that, what a thread waits for the others at its end (mean of all threads).
        calls: how often it ran.
        inside: name of the loop or branch around it, "" where there is none.
    """

    step: Step
    us: float
    wait_us: float = 0.0
    calls: float = 1.0
    inside: str = ""


@dataclass(frozen=True)
class Event:
    """Something that ran, for a trace: nanoseconds of `time.perf_counter_ns`.

    Attributes:
        step: None for a whole run.
        thread: its number; 0 is the caller's.
        wait: whether the thread waited for the others at the step's end.
    """

    step: Step | None
    thread: int
    start: float
    stop: float
    wait: bool = False


@dataclass(frozen=True)
class Profile:
    """A model's runs, looked at.

    Attributes:
        steps: in the order they run.
        total_us: of a run, the steps' and the rest.
        runs, kept: how many were looked at; those in the middle by their time, which count.
        plain_us, timed_us: medians of runs nobody looks at, and of those looked at, in turns.
        call_us: median of `Executable.run`, which checks and copies inputs and outputs besides.
        threads: how many took part.
        spread: between the ends of the runs that are kept, as a share of their mean.
        events: of the first runs.
    """

    steps: tuple[StepTimes, ...]
    total_us: float
    runs: int
    kept: int
    plain_us: float
    timed_us: float
    call_us: float
    threads: int
    spread: float = 0.0
    events: tuple[Event, ...] = ()

    @property
    def cost(self) -> float:
        """What looking costs, as a share of a run."""
        return self.timed_us / self.plain_us - 1 if self.plain_us else 0.0


@dataclass
class _Part:
    """A segment, looked at.

    Attributes:
        starts, stops: of each run of what is on the host, nanoseconds.
        sums, waits: nanoseconds of each step of native code, (runs, steps), block by block.
        calls: how often each step ran, block by block.
        events: of the first runs, for a trace; no more once there are `traced`.
    """

    segment: Segment
    timed: TimedSteps | None
    steps: tuple[DeviceStep, ...] = ()
    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    sums: list[Floats] = field(default_factory=list)
    waits: list[Floats] = field(default_factory=list)
    calls: list[Floats] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    traced: int = _TRACED

    run: Callable[[Values], None] = field(init=False)

    def __post_init__(self) -> None:
        """Native code may take a microsecond: `workspace.Segment` does as much beside it."""
        self.run = self._host if self.timed is None else self._native

    def _native(self, values: Values) -> None:
        self.timed.run()  # type: ignore[union-attr]

    def _host(self, values: Values) -> None:
        self.starts.append(time.perf_counter_ns())
        self.segment.run(values)
        self.stops.append(time.perf_counter_ns())

    def drain(self, runs: int) -> int:
        """Take the notes of the last `runs` runs; how many threads took part."""
        if self.timed is None:
            return 1
        noted = [notes for notes in self.timed.notes() if notes.steps.size]
        self.timed.forget()
        if any(notes.lost for notes in noted):
            raise JobError("a run had more steps than the runs before it; profile again")
        tables = [_summed(notes, runs, len(self.steps)) for notes in noted]
        self.sums.append(tables[0][0])
        self.calls.append(tables[0][2])
        self.waits.append(np.mean([waits for _, waits, _ in tables], axis=0))
        for thread, notes in enumerate(noted):
            if len(self.events) < self.traced:
                self.events += _events(notes, self.steps, thread)
        return len(noted)


def _summed(notes: Notes, runs: int, steps: int) -> tuple[Floats, Floats, Floats]:
    """Of each step in each run: nanoseconds, those of waiting, and how often it ran."""
    run = np.cumsum(notes.kinds == STARTED) - 1
    took = np.diff(notes.times, prepend=notes.times[:1])
    where = run * steps + notes.steps
    named = (notes.kinds != STARTED) & (notes.steps >= 0)

    def table(chosen: NDArray[np.bool_], weights: Floats | None) -> Floats:
        weighed = None if weights is None else weights[chosen]
        found = np.bincount(where[chosen], weighed, minlength=runs * steps)
        return found[: runs * steps].reshape(runs, steps).astype(np.float64)

    met, ran = named & (notes.kinds == MET), named & (notes.kinds == RAN)
    return table(named, took), table(met, took), table(ran, None)


def _events(notes: Notes, steps: Sequence[DeviceStep], thread: int) -> list[Event]:
    """What a thread did, first to last."""
    found = []
    before = notes.times[0]
    for number, kind, now in zip(notes.steps, notes.kinds, notes.times, strict=True):
        if kind in (RAN, MET) and number >= 0 and now > before:
            found.append(Event(steps[number], thread, before, now, bool(kind == MET)))
        before = now
    return found


def profiled(
    executable: Executable, inputs: Arrays, seconds: float = 2.0, runs: int | None = None
) -> Profile:
    """Run a model again and again, and say what its steps took.

    Args:
        seconds: how long, plain runs included.
        runs: how many are looked at; None: as many as there is time for, at least 5.

    Raises:
        ModelError: inputs do not fit.
        JobError: a run has more steps than can be written down.
    """
    given = executable.check(inputs)
    with executable.workspace() as work:
        values = work.put(given)
        parts = [_part(work, segment) for segment in work.segments]
        each = _prepared(parts, values)
        return _Rounds(executable, work, parts, values, inputs, each).profile(seconds, runs)


def kernel_times(
    executable: Executable, inputs: Arrays, runs: int
) -> list[tuple[KernelStep, tuple[float, ...]]]:
    """Every kernel with its seconds in each of `runs` runs, in order, waiting included.

    Empty for models with anything else in them: a kernel of a loop runs as often as inputs say.
    """
    steps = executable.recipe.steps
    kernels = [step for step in steps if isinstance(step, KernelStep) and not step.checks]
    if len(kernels) < len(steps) or not steps:
        return []
    given = executable.check(inputs)
    with executable.workspace() as work:
        values = work.put(given)
        (part,) = (_part(work, segment) for segment in work.segments)
        _prepared([part], values)
        for _ in range(runs):
            part.run(values)
            part.drain(1)
    seconds = np.concatenate(part.sums) / 1e9
    return [(step, tuple(seconds[:, number].tolist())) for number, step in enumerate(kernels)]


def _part(work: Workspace, segment: Segment) -> _Part:
    steps = tuple(step for step in segment.steps if not isinstance(step, HostStep))
    if not steps:
        return _Part(segment, None)
    timed = backend_of(work.recipe.target).link_timed(work.recipe, steps, work.memory)
    if timed is None:
        raise JobError(f"models for '{work.recipe.target.name}' do not run on this machine")
    return _Part(segment, timed, tuple(numbered(steps)))


def _prepared(parts: Sequence[_Part], values: Values) -> int:
    """Make room for the notes of a block of runs; how many runs that is."""
    counts: list[int] = []
    for part in parts:
        room = 4 * len(part.steps) + 64
        while True:
            if part.timed is not None:
                part.timed.reserve(room)
            part.run(values)
            notes = [] if part.timed is None else part.timed.notes()
            if not any(found.lost for found in notes):
                break
            room *= 4
            if room > _MOST_NOTES:
                raise JobError(
                    f"a run has more than {_MOST_NOTES // 4} steps, loops counted; profile it at "
                    "smaller sizes"
                )
        counts.append(max((found.steps.size for found in notes), default=0))
        part.starts, part.stops = [], []
    each = max(1, min(256, _MOST_NOTES // (2 * max(sum(counts), 1))))
    for part, count in zip(parts, counts, strict=True):
        if part.timed is not None:
            part.timed.reserve(2 * (each + 1) * count + 64)
        part.traced = _TRACED // len(parts)
    return each


class _Rounds:
    """Runs in turns: looked at, plain, and whole calls."""

    def __init__(
        self, executable: Executable, work: Workspace, parts: list[_Part], values: Values,
        inputs: Arrays, each: int,
    ) -> None:  # fmt: skip
        self.work, self.parts, self.values, self.each = work, parts, values, each
        self.spans: list[tuple[int, int]] = []
        self.plain: list[int] = []
        self.calls: list[int] = []
        self.threads = 1
        self._executable, self._inputs = executable, inputs

    def profile(self, seconds: float, runs: int | None) -> Profile:
        end = time.perf_counter() + seconds
        self._plain()
        block = max(1, min(self.each, _BLOCK_NS // max(1, _taken(self._plain))))
        while self._more(end, runs):
            least = block if runs is None else min(block, runs - len(self.spans))
            self._timed()  # what ran before it filled the caches
            self._drop(1)
            self.spans += [_span(self._timed) for _ in range(least)]
            self.threads = max([self.threads, *(part.drain(least) for part in self.parts)])
            self._plain()
            self.plain += [_taken(self._plain) for _ in range(least)]
            self._call()
            self.calls += [_taken(self._call) for _ in range(min(least, 3))]
        return self._result()

    def _more(self, end: float, runs: int | None) -> bool:
        if runs is not None:
            return len(self.spans) < runs
        full = len(self.spans) * sum(len(part.steps) for part in self.parts) > _MOST_CELLS
        return len(self.spans) < 5 or (time.perf_counter() < end and not full)

    def _timed(self) -> None:
        for part in self.parts:
            part.run(self.values)

    def _plain(self) -> None:
        for part in self.work.segments:
            part.run(self.values)

    def _call(self) -> None:
        self._executable.run(self._inputs)

    def _drop(self, runs: int) -> None:
        """Forget the last runs."""
        for part in self.parts:
            if part.timed is not None:
                part.timed.forget()
            del part.starts[-runs:], part.stops[-runs:]

    def _result(self) -> Profile:
        wholes = np.diff(np.array(self.spans, dtype=np.float64)).ravel()
        order = np.argsort(wholes, kind="stable")
        cut = len(order) // 4
        kept = np.sort(order[cut : len(order) - cut])
        steps = tuple(times for part in self.parts for times in _times(part, kept))
        room = [0.0 if isinstance(s.step, HostStep) else s.us - s.wait_us for s in steps]
        looked = (float(np.median(wholes)) - statistics.median(self.plain)) / 1e3
        off = cost_of_notes([one.calls for one in steps], room, looked)
        steps = tuple(replace(one, us=one.us - us) for one, us in zip(steps, off, strict=True))
        return Profile(
            steps,
            float(wholes[kept].mean()) / 1e3 - sum(off),
            len(wholes),
            len(kept),
            statistics.median(self.plain) / 1e3,
            float(np.median(wholes)) / 1e3,
            statistics.median(self.calls) / 1e3,
            self.threads,
            float(np.ptp(wholes[kept]) / max(wholes[kept].mean(), 1.0)),
            tuple(self._events()),
        )

    def _events(self) -> list[Event]:
        found: list[Event] = []
        for part in self.parts:
            host = part.segment.host
            found += part.events
            if host is not None:
                ends = zip(part.starts, part.stops, strict=True)
                found += (Event(host, 0, start, stop) for start, stop in list(ends)[:_TRACED])
        if not self.parts:
            return []
        last = max((event.stop for event in found), default=0.0)
        found += (Event(None, 0, start, stop) for start, stop in self.spans if stop <= last)
        return sorted(found, key=lambda event: (event.start, -event.stop))


def _span(run: Callable[[], object]) -> tuple[int, int]:
    start = time.perf_counter_ns()
    run()
    return start, time.perf_counter_ns()


def _taken(run: Callable[[], object]) -> int:
    start, stop = _span(run)
    return stop - start


def _times(part: _Part, kept: NDArray[np.int64]) -> list[StepTimes]:
    """Means of the runs that are kept."""
    if part.timed is None:
        host = part.segment.host
        took = (np.array(part.stops) - np.array(part.starts))[kept]
        return [StepTimes(host, float(took.mean()) / 1e3)] if host is not None else []
    sums, waits, calls = (
        np.concatenate(found)[kept].mean(axis=0) for found in (part.sums, part.waits, part.calls)
    )
    around = _around(part.steps)
    return [
        StepTimes(step, sums[n] / 1e3, waits[n] / 1e3, float(calls[n]), around.get(id(step), ""))
        for n, step in enumerate(part.steps)
    ]


def _around(steps: Sequence[DeviceStep]) -> dict[int, str]:
    """The innermost loop or branch around each step, by the step's identity."""
    found: dict[int, str] = {}
    for step in steps:  # those outside come first
        inner = getattr(step, "steps", ())
        for one in inner:
            for each in one if isinstance(one, tuple) else (one,):
                found[id(each)] = getattr(step, "name", "")
    return found
