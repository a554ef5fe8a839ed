"""What a trial costs, and on what: so that a tuner that spends its time beside the kernels is seen.

A worker tells with each result how many seconds went into making inputs, computing the reference,
compiling (scheduling, generating code, packing weights), flushing caches and running the kernel.
What is left of the time that the trial took as its caller saw it is `other`: comparing the output,
messages, a renewed worker.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

PARTS = ("compile", "reference", "inputs", "flush", "run")
"""What a worker tells apart."""


class Stopwatch:
    """Seconds by part, of one trial."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What runs inside counts as `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def move(self, seconds: float, source: str, to: str) -> None:
        """Count some of what was counted as one part as another."""
        self.seconds[source] -= seconds
        self.seconds[to] += seconds


@dataclass
class TrialCosts:
    """What the trials of a job cost so far, in seconds.

    Attributes:
        totals: of each trial, as its caller saw it.
        parts: of all trials together, by part; they add up to the sum of `totals`.
    """

    totals: list[float] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*PARTS, "other"), 0.0))

    def add(self, total: float, spent: Mapping[str, float]) -> None:
        """One more trial."""
        self.totals.append(total)
        for name in PARTS:
            self.parts[name] += spent.get(name, 0.0)
        self.parts["other"] += max(0.0, total - sum(spent.get(name, 0.0) for name in PARTS))

    def milliseconds(self) -> dict[str, float]:
        """The median trial, the mean one, and the mean of each part; empty before any trial."""
        if not self.totals:
            return {}
        count = len(self.totals)
        means = {name: seconds / count * 1e3 for name, seconds in self.parts.items()}
        median, mean = statistics.median(self.totals), statistics.fmean(self.totals)
        return {"median": median * 1e3, "mean": mean * 1e3, **means}
