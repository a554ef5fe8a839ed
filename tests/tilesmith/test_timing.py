"""Interleaved timing: everyone gets the same turns, on the same cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from tilesmith.jobs.measures import timing
from tilesmith.jobs.measures.timing import Timing, at_once, interleave, pinned


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that goes on by what is spent, and by nothing else."""
    now = [0.0]

    def spend(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return spend


def test_contenders_take_turns(spend: Callable[[float], None]) -> None:
    order: list[str] = []

    def contender(name: str) -> None:
        order.append(name)
        spend(0.011)  # longer than a block: one timed call a turn

    timings = interleave(
        {"a": lambda: contender("a"), "b": lambda: contender("b")}, budget_s=0.0, least_rounds=3
    )
    assert [len(timing.samples) for timing in timings.values()] == [3, 3]
    turns = order[6:]  # after three calls each that size the blocks
    assert turns == ["a", "a", "b", "b"] * 3


@pytest.mark.parametrize("disturbed", [None, 0, 1, 2])
def test_quick_contenders_get_longer_blocks(
    spend: Callable[[float], None], disturbed: int | None
) -> None:
    """Whatever one of the calls that size the blocks has taken."""
    calls: list[float] = []

    def quick() -> None:
        calls.append(0.5 if len(calls) == disturbed else 1e-5)
        spend(calls[-1])

    timings = interleave({"quick": quick}, budget_s=0.0, least_rounds=2)
    assert len(timings["quick"].samples) == 400
    assert len(calls) == 3 + 2 * 201


def test_figures_of_samples() -> None:
    timing = Timing((0.003, 0.001, 0.002))
    assert timing.median_ms == pytest.approx(2.0)
    assert timing.min_ms == pytest.approx(1.0)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_pinning_holds_for_every_thread_and_is_undone() -> None:
    before = os.sched_getaffinity(0)
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    assert other.native_id is not None
    with pinned(1):
        assert os.sched_getaffinity(0) == {max(before)}
        assert os.sched_getaffinity(other.native_id) == {max(before)}
    assert os.sched_getaffinity(0) == os.sched_getaffinity(other.native_id) == before
    stop.set()
    other.join()


def test_percentiles_are_runs_that_happened() -> None:
    timing = Timing(tuple(k / 1000 for k in range(100, 0, -1)))
    told = timing.to_json()
    assert (told["p50_ms"], told["p90_ms"], told["p99_ms"]) == (50.0, 90.0, 99.0)
    assert told["runs"] == 100 and abs(told["runs_per_s"] - 100 / 5.05) < 1e-9
    assert Timing((0.002,)).percentile_ms(99) == 2.0


def test_calls_at_once_share_the_runs_and_overlap() -> None:
    together = threading.Barrier(3, timeout=20)
    counts = [0, 0, 0]

    def call(number: int) -> Callable[[], None]:
        def one() -> None:
            counts[number] += 1
            if counts[number] == 2:  # the first is the warm-up, one after the other
                together.wait()

        return one

    timing = at_once([call(n) for n in range(3)], runs=9)
    assert len(timing.samples) == 9 and sum(counts) == 12 and not together.broken
    assert timing.wall_s and timing.runs_per_s == pytest.approx(9 / timing.wall_s)


def test_so_many_runs_of_each_and_warm_ups_before() -> None:
    counts = {"a": 0, "b": 0}

    def count(name: str) -> Callable[[], None]:
        def one() -> None:
            counts[name] += 1

        return one

    timings = interleave({name: count(name) for name in counts}, 0.0, runs=250, warm_up=4)
    assert [len(t.samples) for t in timings.values()] == [250, 250]
    assert min(counts.values()) >= 254
