"""Models run in turns: what drifts, and what others do to the machine, meets all of them alike."""

import time
from collections.abc import Callable, Sequence

_RUNS_S, _MOST_RUNS = 1.0, 101
"""Seconds that a comparison takes, where it has neither too few runs nor too many."""

Run = Callable[[], object]
Clock = Callable[[], float]


def rounds_of(runs: Sequence[Run], least: int, clock: Clock = time.perf_counter) -> int:
    """How many turns: quick models take more, until they take some time together.

    Args:
        least: turns at least.
    """
    start = clock()
    for run in runs:
        run()
        run()
    return max(least, min(_MOST_RUNS, int(_RUNS_S / max(clock() - start, 1e-9))))


def in_turns(
    runs: Sequence[Run], rounds: int, clock: Clock = time.perf_counter
) -> list[tuple[float, ...]]:
    """Seconds of each, one sample a turn; every timed run follows one that is not timed."""
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, taken in zip(runs, samples, strict=True):
            run()  # the other has filled the caches
            start = clock()
            run()
            taken.append(clock() - start)
    return [tuple(taken) for taken in samples]
