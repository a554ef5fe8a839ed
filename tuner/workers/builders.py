"""`Builders`: processes that make code of what is measured next, while a candidate is timed.

Compiling takes longer than running most kernels. Each builder makes one piece of code after the
other, in the order in which they will be measured. The process that measures makes what nobody has
begun, and helps where it would wait; with one core it makes everything.

Invariant: timings are as quiet as if nobody else worked. Where a process on another core disturbs
them (it shares a core's pipelines, a clock or a bus) the reference kernel shows it: it is read
beside builders at work and alone, and where it is slower beside them, nobody makes code from then
on while something is measured. Whoever computes in the process that asks (`beside`) counts as one
of them, and has the core of one where there are no more.
"""

import contextlib
import math
import os
import statistics
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tilesmith.search_space.support.errors import JobError
from tilesmith.tuner.measurement.runner import Candidate
from tilesmith.tuner.measurement.timing import uncertainty
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.workers.worker_process import WorkerProcess

_MOST = 4
_LOOK_S = 0.1
"""How long a wait lasts before it looks at the token."""
_READINGS = 15
"""Of the reference kernel, beside builders and alone, before they are compared."""
_DISTURBED = math.log1p(0.02)
"""From which, as a logarithm, a slower reference counts, unless `_SIGMAS` of noise explain it."""
_SIGMAS = 4.0


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Builders:
    """See the module's docstring.

    Args:
        measuring: the process that measures.
        setup: of workers, see `tuner.workers.worker`.
        timeout_s: longest that one piece of code may take.
        processes: how many make code, the measuring one among them.

    Attributes:
        is_alone: whether nobody makes code while something is measured.
    """

    def __init__(
        self, measuring: WorkerProcess, setup: dict[str, Any], timeout_s: float, processes: int = 0
    ) -> None:
        others = (processes or min(_MOST, cores())) - 1
        self._timeout_s = timeout_s
        self._measuring = measuring
        self._workers = [WorkerProcess(setup) for _ in range(others)]
        self._idle = list(self._workers)
        self._pool = ThreadPoolExecutor(max(1, others))
        self._closing = CancelToken()
        self._changed = threading.Condition()
        """Guards what follows; notified when a builder has made something."""
        self._wanted: deque[Candidate] = deque()
        self._making: set[Candidate] = set()
        self._made: set[Candidate] = set()
        """Of which code lies ready, unless none came of them."""
        self._is_held = False
        self._beside = 0
        """Who computes in this process."""
        self._readings: dict[bool, list[float]] = {True: [], False: []}
        self.is_alone = False

    @property
    def is_at_work(self) -> bool:
        """Whether a builder makes code now, or somebody else computes."""
        return bool(self._making or self._beside)

    @property
    def count(self) -> int:
        """Builders beside the process that measures."""
        return len(self._workers)

    def ahead(self, batch: Sequence[Candidate]) -> None:
        """Begin to make code of what will be measured next, in this order; does not wait."""
        with self._changed:
            self._wanted = deque(c for c in batch if c not in self._making | self._made)
        self._release()

    def ready(self, candidate: Candidate, cancel: CancelToken | None) -> None:
        """Return when a candidate's code is there, or is left to the measuring process.

        Where builders disturb, none is at work then.
        """
        with self._changed:
            if candidate in self._wanted:
                self._wanted.remove(candidate)
            is_left = candidate not in self._making | self._made
        if is_left and self.is_alone:
            self._release()
            self._build(self._measuring, candidate, cancel)
        while candidate in self._making and not _is_cancelled(cancel):
            self._help(candidate, cancel)
        self._made.discard(candidate)
        if self.is_alone:
            self.hold(cancel)

    def hold(self, cancel: CancelToken | None) -> None:
        """Return when no builder is at work; none is before `ahead` is called."""
        with self._changed:
            self._is_held = True
            while self._making and not _is_cancelled(cancel):
                self._changed.wait(_LOOK_S)

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """A block that computes in this process."""
        with self._changed:
            self._beside += 1
        try:
            yield
        finally:
            with self._changed:
                self._beside -= 1
                held = self._is_held
            if not held:
                self._release()

    def read(self, seconds: float | None, beside: bool) -> None:
        """Take one reading of the reference kernel; `beside`: a builder was at work meanwhile."""
        if seconds is None or seconds <= 0 or self.is_alone:
            return
        self._readings[beside].append(math.log(seconds))
        beside_it, by_itself = (self._readings[way][-_READINGS:] for way in (True, False))
        if min(len(beside_it), len(by_itself)) == _READINGS:
            slower = statistics.median(beside_it) - statistics.median(by_itself)
            noise = math.hypot(uncertainty(beside_it), uncertainty(by_itself))
            self.is_alone = slower > max(_DISTURBED, _SIGMAS * noise)

    def close(self) -> None:
        """Stop the builders."""
        self._closing.cancel()
        self._pool.shutdown()
        for worker in self._workers:
            worker.close()

    def _release(self) -> None:
        """Put idle builders to work, as many as there is work for."""
        with self._changed:
            self._is_held = False
            idle, self._idle = self._idle, []
        for worker in idle:
            self._pool.submit(self._work, worker)

    def _work(self, worker: WorkerProcess) -> None:
        """One builder, until nothing is wanted."""
        while (candidate := self._next(worker)) is not None:
            self._build(worker, candidate, self._closing)
            self._end(candidate)

    def _help(self, awaited: Candidate, cancel: CancelToken | None) -> None:
        """Have the measuring process make what comes next, or wait a moment."""
        candidate = self._next()
        if candidate is not None:
            self._build(self._measuring, candidate, cancel)
            self._end(candidate)
            return
        with self._changed:
            if awaited in self._making:
                self._changed.wait(_LOOK_S)

    def _next(self, builder: WorkerProcess | None = None) -> Candidate | None:
        """What is wanted next; its code is being made from now on. A builder without is idle."""
        with self._changed:
            at_work = len(self._workers) - len(self._idle) if builder is not None else 0
            is_crowded = at_work + self._beside > max(len(self._workers), cores() - 1)
            if self._is_held or self._closing.cancelled or is_crowded or not self._wanted:
                if builder is not None:
                    self._idle.append(builder)
                return None
            candidate = self._wanted.popleft()
            self._making.add(candidate)
            return candidate

    def _end(self, candidate: Candidate) -> None:
        with self._changed:
            self._making.discard(candidate)
            self._made.add(candidate)
            self._changed.notify_all()

    def _build(
        self, worker: WorkerProcess, candidate: Candidate, cancel: CancelToken | None
    ) -> None:
        """One piece of code; whatever happens, the trial will tell."""
        workload, config = candidate
        asked = {"build": {"workload": workload.key, "config": dict(config)}}
        with contextlib.suppress(JobError):
            worker.ask(asked, self._timeout_s, cancel)


def _is_cancelled(cancel: CancelToken | None) -> bool:
    return cancel is not None and cancel.cancelled
