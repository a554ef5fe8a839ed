"""`Watch`: what the workers of a job tell of their machines beside each trial, and what follows.

    doubt = watch.heard("box/1", candidate, Told(reading, clock, sent, received))

A worker that cannot be believed is named once, with the reason (`Standing`, `ClockRate`); what it
measured since it could last be believed is collected, for whoever measures again (`doubtful`).
Invariants: a candidate is asked for again once for each doubtful result of it; workers that are set
aside stay so for this job.
"""

from collections import deque
from dataclasses import dataclass

from tilesmith.tuner.machine_trust.standing import Doubt, Standing
from tilesmith.tuner.machines.clocks import ClockRate
from tilesmith.tuner.measurement.runner import Candidate

_RECENT = 2000
"""Trials of a worker that are remembered, to be measured again."""
_STRIKES = 3
"""Times that a clock may disagree with ours: a machine frozen for a moment does once."""


@dataclass(frozen=True)
class ResultNotes:
    """What came with a result.

    Attributes:
        reading: seconds of the control kernel beside it; None where it did not run.
        clock: the worker's clock and what it may be compared within (a boot of a machine); None:
            not told.
        sent, received: by this process's clock, before the request left and after the reply came.
    """

    reading: float | None
    clock: tuple[str, float] | None = None
    sent: float = 0.0
    received: float = 0.0


class Watch:
    """See the module's docstring; one for all workers of one target."""

    def __init__(self) -> None:
        self.standing = Standing()
        self._recent: dict[str, deque[Candidate]] = {}
        self._rates: dict[str, tuple[str, ClockRate]] = {}
        self._strikes: dict[str, int] = {}
        self._doubtful: list[Candidate] = []

    @property
    def aside(self) -> dict[str, Doubt]:
        """Workers that are believed no more, and why."""
        return self.standing.aside

    def heard(self, worker: str, candidate: Candidate, report: ResultNotes) -> Doubt | None:
        """A result came, of a worker; its doubt if this is what convicts it."""
        if worker in self.aside:
            self._doubtful.append(candidate)
            return None
        recent = self._recent.setdefault(worker, deque(maxlen=_RECENT))
        recent.append(candidate)
        doubt = self._by_clock(worker, report)
        if doubt is None and report.reading is not None:
            doubt = self.standing.read(worker, report.reading)
        if doubt is not None:
            self._doubtful += list(recent)[-doubt.since :]
            recent.clear()
        return doubt

    def doubtful(self) -> list[Candidate]:
        """Return candidates that doubted machines measured; each is returned once."""
        doubtful, self._doubtful = list(dict.fromkeys(self._doubtful)), []
        return doubtful

    def pace(self, worker: str) -> float | None:
        """How long everything takes there relative to its peers; None if unknown."""
        return self.standing.pace(worker)

    def _by_clock(self, worker: str, report: ResultNotes) -> Doubt | None:
        if report.clock is None:
            return None
        boot, reading = report.clock
        known, rate = self._rates.get(worker, ("", ClockRate()))
        if known != boot:
            rate = ClockRate()
        self._rates[worker] = boot, rate
        reason = rate.heard(report.sent, reading, report.received)
        if reason is None:
            return None
        rate.restart()
        self._strikes[worker] = self._strikes.get(worker, 0) + 1
        if self._strikes[worker] < _STRIKES:
            return None
        return self.standing.set_aside(worker, reason)
