"""How many threads run a kernel, and what schedules found with another number of them are worth.

A schedule that is the best for one thread may leave the others nothing to do, and the fastest way
to run a small kernel may be on one. So a schedule on record for `n` threads is offered as it was
measured, on `n` threads where the model has more; and for all the model's threads as the target's
family estimates it, in proportion to what was measured:

    seconds on all = seconds measured * estimate(config, all) / estimate(measured config, n)

The same formula prices the record's neighbours (one tile size changed), which compete, and the
default, which has to be beaten: from its own measurement where it has one. Invariants: nothing is
used that the model estimates slower than what was measured on fewer threads; where the family
estimates nothing, records are used as they are, on all threads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilesmith.codegen.programs.structures import default_of
from tilesmith.compiler.backends.backend import backends
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads.workload import Workload

ALL = 0
"""As many threads as the model has."""

_GAIN = 1.1
"""Factor by which what is only estimated has to be faster than what was measured, and all threads
faster than one."""

_AWAKE_S = 2e-5
"""Seconds of a kernel that threads wait through by looking: after some times as many they sleep,
and waking them takes as long."""

_IDLE = 0.75
"""Share of the ideal gain below which a schedule leaves threads idle: neighbours are looked at."""

_NEIGHBOURS = 64
"""As many are looked at."""


@dataclass(frozen=True)
class ScheduleCandidate:
    """A schedule for the model's threads.

    Attributes:
        threads: how many of them run it; `ALL`: all.
        seconds: measured, or estimated from a measurement.
        measured: which.
    """

    config: Config
    threads: int
    seconds: float
    measured: bool


class Parallel:
    """Judges schedules by thread count.

    Args:
        threads: of the model.
    """

    def __init__(self, target: Target, threads: int) -> None:
        self.threads = threads
        self._target = target
        self._backend = backends.find(target.family)

    def users(self, workload: Workload, config: Config) -> int:
        """How many threads should run a schedule: all, or 1 where more gain next to nothing."""
        if self.threads == 1:
            return ALL
        alone = self._estimates(workload, [config], 1)
        together = self._estimates(workload, [config], self.threads)
        if not alone or not together:
            return ALL
        return 1 if together[0] * _margin(alone[0]) >= alone[0] else ALL

    def candidates(
        self, workload: Workload, space: SearchSpace, config: Config, threads: int, seconds: float
    ) -> list[ScheduleCandidate]:
        """What a schedule is worth that was measured on another number of threads than the model
        has: the fastest last, each faster than those before it.

        Args:
            space: of the workload; the schedule is legal in it.
            threads, seconds: how many threads it was measured on, and its latency.
        """
        fewer = threads < self.threads
        candidates = [ScheduleCandidate(config, threads if fewer else ALL, seconds, fewer)]
        then = self._estimates(workload, [config], threads)
        here = self._estimates(workload, [config], self.threads)
        if not then or not here:
            return [ScheduleCandidate(config, ALL, seconds, False)]
        scale = seconds / then[0]
        if not fewer:
            candidates = [ScheduleCandidate(config, ALL, scale * here[0], False)]
        elif scale * here[0] * _margin(seconds) < seconds:
            candidates.append(ScheduleCandidate(config, ALL, scale * here[0], False))
        if here[0] * self.threads * _IDLE > then[0] * threads:
            rivals = list(_neighbours(space, config))
            estimates = self._estimates(workload, rivals, self.threads) or []
            best = min(zip(estimates, range(len(estimates)), strict=True), default=None)
            if best is not None and scale * best[0] * _GAIN < candidates[-1].seconds:
                candidates.append(ScheduleCandidate(rivals[best[1]], ALL, scale * best[0], False))
        return candidates

    def usual(
        self,
        workload: Workload,
        known: ScheduleCandidate,
        best: ScheduleCandidate,
        seconds: float | None,
    ) -> ScheduleCandidate | None:
        """The default, if `best` does not beat it: what was measured has to be faster, what is
        only estimated clearly so.

        Args:
            known: what is on record, with the threads it was measured on.
            seconds: of the default on as many; None where nobody measured it.
        """
        config = default_of(workload, self._target)
        here = self._estimates(workload, [config], self.threads)
        then = self._estimates(workload, [known.config, config], known.threads)
        if not here or not then or config == best.config:
            return None
        if seconds is not None:
            price, margin = seconds * here[0] / then[1], 1.0
        else:
            price = known.seconds * here[0] / then[0]
            margin = _GAIN if best.measured else 1 / _GAIN
        if price * margin >= best.seconds:
            return None
        return ScheduleCandidate(config, ALL, min(price, best.seconds), False)

    def faster(self, workload: Workload, configs: Sequence[Config]) -> Config:
        """The fastest of some schedules by estimates; the first where there are none."""
        estimates = self._estimates(workload, configs, self.threads)
        if not estimates:
            return configs[0]
        return configs[min(range(len(configs)), key=estimates.__getitem__)]

    def _estimates(
        self, workload: Workload, configs: Sequence[Config], threads: int
    ) -> Sequence[float] | None:
        if self._backend is None:
            return None
        try:
            return self._backend.estimate_on_threads(workload, self._target, configs, threads)
        except TilesmithError:
            return None


def _margin(seconds: float) -> float:
    """By what factor all threads have to be faster than one that takes so long.

    Of a kernel that takes long they take their shares wherever that gains anything: beside one
    thread that waits for memory the others would fall asleep.
    """
    return _GAIN if seconds < _AWAKE_S else 1.0


def _neighbours(space: SearchSpace, config: Config) -> Iterator[Config]:
    """Legal schedules of the same structure that differ in one tile size."""
    number = 0
    for knob in space.subspace_of(config).knobs:
        for value in knob.values if not knob.structural else ():
            changed = Config.of({**config, knob.name: value})
            if changed != config and changed in space:
                yield changed
                number += 1
                if number == _NEIGHBOURS:
                    return
