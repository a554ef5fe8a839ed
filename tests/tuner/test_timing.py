"""Sampling on a busy machine: what was interrupted does not count, and it always ends."""

from __future__ import annotations

import pytest

from tilesmith.tuner.measurement import timing


class Kernel:
    """Counts its runs; the test says how long each seems to take and whether it is interrupted."""

    weights = ()

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds
        self.calls = 0

    def call(self) -> None:
        self.calls += 1

    def output(self) -> object:
        raise AssertionError("timing does not look at results")


def simulate(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, interrupted: list[bool]) -> None:
    """A clock that only kernels move, and a count of interruptions that follows `interrupted`."""
    state = {"now": 0.0, "samples": 0, "interruptions": 0}

    def watched_once(loaded: Kernel) -> float:
        number = state["samples"] % len(kernel.seconds)
        state["samples"] += 1
        state["now"] += kernel.seconds[number]
        state["interruptions"] += interrupted[number]
        loaded.calls += 1
        return kernel.seconds[number]

    monkeypatch.setattr(timing, "once", watched_once)
    monkeypatch.setattr(timing, "cold_once", watched_once)
    monkeypatch.setattr(timing, "interruptions", lambda: state["interruptions"])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: state["now"])


def test_interrupted_samples_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel([1e-3, 8e-3, 1.1e-3])
    simulate(monkeypatch, kernel, [False, True, False])
    cold, warm = timing.samples(kernel)  # type: ignore[arg-type]
    assert len(cold) >= 5 and len(warm) >= 2
    assert max(cold) == 1.1e-3 and max(warm) == 1.1e-3


def test_a_kernel_that_is_always_interrupted_gives_its_fastest_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel([50e-3, 40e-3, 60e-3])
    simulate(monkeypatch, kernel, [True, True, True])
    cold, warm = timing.samples(kernel)  # type: ignore[arg-type]
    assert 1 <= len(cold) <= 5 and 1 <= len(warm) <= 5
    assert min(cold) == 40e-3


def test_hopeless_candidates_are_sampled_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = Kernel([2e-3]), Kernel([1e-3])
    simulate(monkeypatch, slow, [False])
    timing.samples(slow, incumbent=1e-3)  # type: ignore[arg-type]
    simulate(monkeypatch, fast, [False])
    timing.samples(fast, incumbent=1e-3)  # type: ignore[arg-type]
    assert slow.calls < fast.calls / 2


def test_a_candidate_ends_when_it_has_lost_or_is_known_well_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against 1 ms: beyond 1.5 times as long twice; samples that agree; samples that do not."""
    for seconds, expected in [([1.6e-3], 2), ([1.1e-3], 8), ([1.0e-3, 1.1e-3, 1.2e-3], 15)]:
        kernel = Kernel(seconds)
        simulate(monkeypatch, kernel, [False] * len(seconds))
        cold, _ = timing.samples(kernel, incumbent=1e-3)  # type: ignore[arg-type]
        assert len(cold) == expected, seconds
    kernel = Kernel([1.6e-3, 1.4e-3])
    simulate(monkeypatch, kernel, [False, False])
    assert len(timing.samples(kernel, incumbent=1e-3)[0]) >= 5  # type: ignore[arg-type]


def test_rivals_get_as_many_samples_each(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel([1e-3, 9e-3])
    simulate(monkeypatch, kernel, [False, True])
    taken = timing.in_turns([kernel, kernel, kernel], rounds=4)  # type: ignore[list-item]
    assert [len(samples) for samples in taken] == [4, 4, 4]
    assert {seconds for samples in taken for seconds in samples} == {1e-3}


def test_a_glance_sees_past_interruptions(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel([20e-3, 30e-3, 1e-3, 20e-3])
    simulate(monkeypatch, kernel, [True, True, False, True])
    assert timing.glance(kernel, timing.once) == 1e-3  # type: ignore[arg-type]


def test_microseconds_that_a_hiccup_trebled_are_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disturbed = Kernel([9e-6] * 20 + [1e-6])
    simulate(monkeypatch, disturbed, [False] * 21)
    assert timing.within(disturbed, 3e-6) == 1e-6  # type: ignore[arg-type]


def test_what_is_slow_each_time_costs_few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, slower = Kernel([9e-6]), Kernel([20e-3])
    simulate(monkeypatch, slow, [False])
    assert timing.within(slow, 3e-6) == 9e-6  # type: ignore[arg-type]
    assert slow.calls * 9e-6 < 3e-3
    simulate(monkeypatch, slower, [False])
    assert timing.within(slower, 3e-6) == 20e-3  # type: ignore[arg-type]
    assert slower.calls <= 4


def test_one_sample_is_never_all_that_is_known_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of 109 ms, always interrupted: three runs, or two seconds of them."""
    for seconds, fewest in [([0.2, 0.109, 0.3], 3), ([5.0], 1)]:
        kernel = Kernel(seconds)
        simulate(monkeypatch, kernel, [True] * len(seconds))
        cold, _ = timing.samples(kernel)  # type: ignore[arg-type]
        assert len(cold) >= fewest and min(cold) == min(seconds)
    assert timing.spread([0.2, 0.1, 0.3]) == pytest.approx(1.0)
    assert timing.spread([0.1]) == 0.0
