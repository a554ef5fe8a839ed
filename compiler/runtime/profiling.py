"""How long every step of a model takes inside its runs.

Native code writes down when each step ran (`compiler.backends.timed`), the host's nodes are timed
between; ordinary runs take turns with these in short blocks, so that what the looking costs is
known too. An executable is looked at in a workspace of its own.

Invariant: of what is kept of a run, steps, waits and the rest add up to the whole run.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.backends.timed import MET, PASSED, RAN, Notes, TimedSteps, numbered
from tilesmith.compiler.recipe.program import DeviceStep, HostStep, KernelStep, LoopStep, Step
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.runtime.step_times import StepTimes, Sums, mean_of, step_times, sums_of
from tilesmith.compiler.runtime.workspace import Arrays, Segment, Values, Workspace
from tilesmith.search_space.support.errors import JobError

_MOST_NOTES = 1 << 22
"""That a thread's list has room for."""

_MOST_CELLS = 1 << 22
"""Numbers kept of steps in runs: of tiny models that is what ends a profile."""

_BLOCK_NS = 10_000_000
"""Nanoseconds that one way of running has its turn."""

_COST = 0.02
"""Share of a run from which on looking at every iteration of its loops costs too much."""

_NTH = (3, 5, 7, 11, 13, 17, 23, 31, 61)
"""Of so many iterations one is looked at: primes, so that each has its turn."""

_TURNS = 8

_TRACED = 100_000
"""Notes kept for a trace, the first that there are."""


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
        every: of loops each so many-th iteration was looked at, the others as one.
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
    every: int = 1

    @property
    def cost(self) -> float:
        """What looking costs, as a share of a run."""
        return self.timed_us / self.plain_us - 1 if self.plain_us else 0.0


@dataclass
class _Part:
    """A segment, looked at.

    Attributes:
        starts, stops: of each run of what is on the host, nanoseconds.
        blocks: of each step of native code in each run, block by block.
        events: of the first runs, for a trace; no more once there are `traced`.
    """

    segment: Segment
    timed: TimedSteps | None
    steps: tuple[DeviceStep, ...] = ()
    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    blocks: list[Sums] = field(default_factory=list)
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
        tables = [sums_of(notes, runs, len(self.steps)) for notes in noted]
        waits = np.mean([table.waits for table in tables], axis=0)
        self.blocks.append(tables[0].with_waits(waits))
        for thread, notes in enumerate(noted):
            if len(self.events) < self.traced:
                self.events += _events(notes, self.steps, thread)
        return len(noted)


def _events(notes: Notes, steps: Sequence[DeviceStep], thread: int) -> list[Event]:
    """What a thread did, first to last."""
    events = []
    before = notes.times[0]
    for number, kind, now in zip(notes.steps, notes.kinds, notes.times, strict=True):
        if kind in (RAN, MET, PASSED) and number >= 0 and now > before:
            events.append(Event(steps[number], thread, before, now, bool(kind == MET)))
        before = now
    return events


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
    seconds = np.concatenate([block.took for block in part.blocks]) / 1e9
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
            if not any(thread_notes.lost for thread_notes in notes):
                break
            room *= 4
            if room > _MOST_NOTES:
                raise JobError(
                    f"a run has more than {_MOST_NOTES // 4} steps, loops counted; profile it at "
                    "smaller sizes"
                )
        counts.append(max((thread_notes.steps.size for thread_notes in notes), default=0))
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
        self.threads = self.every = 1
        self._executable, self._inputs = executable, inputs

    def profile(self, seconds: float, runs: int | None) -> Profile:
        end = time.perf_counter() + seconds
        self._plain()
        block = max(1, min(self.each, _BLOCK_NS // max(1, _taken(self._plain))))
        self._spare(block)
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

    def _spare(self, block: int) -> None:
        """Look at fewer iterations of loops whose kernels take little more than a look."""
        looping = [part.timed for part in self.parts if any(map(_loops, part.steps)) and part.timed]
        if not looping:
            return
        plain: list[int] = []
        looked: list[int] = []
        for _ in range(_TURNS):  # the least, in turns: what disturbs a run makes it longer
            plain += [_taken(self._plain) for _ in range(max(1, block // _TURNS))]
            looked += [_taken(self._timed) for _ in range(max(1, block // _TURNS))]
            self._drop(len(looked))
        cost = min(looked) / min(plain) - 1
        if cost > _COST:
            self.every = next((n for n in _NTH if cost / n <= _COST / 2), _NTH[-1])
        for timed in looping:
            timed.every(self.every)

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
        looked = (float(np.median(wholes)) - statistics.median(self.plain)) / 1e3
        steps, off = self._steps(kept, looked)
        return Profile(
            steps,
            float(wholes[kept].mean()) / 1e3 - off,
            len(wholes),
            len(kept),
            statistics.median(self.plain) / 1e3,
            float(np.median(wholes)) / 1e3,
            statistics.median(self.calls) / 1e3,
            self.threads,
            float(np.ptp(wholes[kept]) / max(wholes[kept].mean(), 1.0)),
            tuple(self._events()),
            self.every,
        )

    def _steps(self, kept: NDArray[np.int64], cost: float) -> tuple[tuple[StepTimes, ...], float]:
        """Times of all steps, and what looking cost them, which is taken off: to each part of the
        program by its notes."""
        means = [mean_of(part.blocks, kept) if part.blocks else None for part in self.parts]
        notes = [0.0 if mean is None else float(mean.calls.sum()) for mean in means]
        all_times: list[StepTimes] = []
        off = 0.0
        for part, mean, count in zip(self.parts, means, notes, strict=True):
            if mean is None:
                all_times += _on_host(part, kept)
                continue
            times, less = step_times(part.steps, mean, cost * count / max(sum(notes), 1.0))
            all_times += times
            off += less
        return tuple(all_times), off

    def _events(self) -> list[Event]:
        events: list[Event] = []
        for part in self.parts:
            host = part.segment.host
            events += part.events
            if host is not None:
                ends = zip(part.starts, part.stops, strict=True)
                events += (Event(host, 0, start, stop) for start, stop in list(ends)[:_TRACED])
        if not self.parts:
            return []
        last = max((event.stop for event in events), default=0.0)
        events += (Event(None, 0, start, stop) for start, stop in self.spans if stop <= last)
        return sorted(events, key=lambda event: (event.start, -event.stop))


def _loops(step: DeviceStep) -> bool:
    return isinstance(step, LoopStep)


def _span(run: Callable[[], object]) -> tuple[int, int]:
    start = time.perf_counter_ns()
    run()
    return start, time.perf_counter_ns()


def _taken(run: Callable[[], object]) -> int:
    start, stop = _span(run)
    return stop - start


def _on_host(part: _Part, kept: NDArray[np.int64]) -> list[StepTimes]:
    if part.segment.host is None:
        return []
    took = (np.array(part.stops) - np.array(part.starts))[kept]
    return [StepTimes(part.segment.host, float(took.mean()) / 1e3)]
