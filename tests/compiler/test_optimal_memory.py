"""The smallest arena: never larger than by first fit, as small as an exhaustive search finds."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from tilesmith.compiler.recipe.memory import (
    ALIGNMENT,
    ORDERS,
    Interval,
    aligned,
    first_fit,
    peak_alive,
    plan_arena,
)

pytest.importorskip("ortools")

from tilesmith.compiler.recipe.optimal_memory import ArenaFound, OptimalMemory


def drawn(rng: np.random.Generator, count: int, steps: int) -> list[Interval]:
    found = []
    for number in range(count):
        first = int(rng.integers(steps))
        nbytes = ALIGNMENT * int(rng.choice([1, 3, 7, 20, 33, 50, 90])) - int(rng.integers(64))
        found.append(Interval(str(number), nbytes, first, first + int(rng.integers(1, 12))))
    return found


Placed = tuple[tuple[int, Interval], ...]


def lowest(interval: Interval, placed: Placed) -> int:
    """The lowest offset free all of an interval's life, among those placed in order of offsets."""
    offset = 0
    for begin, other in placed:
        if interval.meets(other):
            if offset + interval.nbytes <= begin:
                break
            offset = max(offset, begin + aligned(other.nbytes))
    return offset


def fits(intervals: list[Interval], nbytes: int, placed: Placed = ()) -> bool:
    """Whether first fit in any order at all needs no more: in the order of its offsets it rebuilds
    any arrangement, or a smaller one."""
    for interval in intervals:
        offset = lowest(interval, placed)
        above = not placed or offset >= placed[-1][0]
        if above and offset + aligned(interval.nbytes) <= nbytes:
            rest = [other for other in intervals if other is not interval]
            if fits(rest, nbytes, (*placed, (offset, interval))):
                return True
    return not intervals


def exhaustive(intervals: list[Interval]) -> int:
    """The smallest arena, in bytes."""
    return next(
        nbytes
        for nbytes in itertools.count(peak_alive(intervals), ALIGNMENT)
        if fits(intervals, nbytes)
    )


@pytest.mark.parametrize("seed", range(8))
def test_as_small_as_any_order_of_first_fit(seed: int) -> None:
    intervals = drawn(np.random.default_rng(seed), 7, 9)
    memory = OptimalMemory()
    assert memory(intervals).nbytes == exhaustive(intervals)
    assert memory.arenas[0].proven


def test_a_bound_above_what_is_alive_is_proven() -> None:
    """Nine lines are alive at most, and ten are needed."""
    lives = [(3, 7, 7), (1, 2, 7), (5, 0, 0), (2, 1, 3), (2, 2, 6)]
    lives += [(4, 3, 7), (1, 1, 2), (2, 1, 2), (4, 0, 1)]
    intervals = [
        Interval(str(number), lines * ALIGNMENT, first, last)
        for number, (lines, first, last) in enumerate(lives)
    ]
    assert peak_alive(intervals) == 9 * ALIGNMENT
    assert not fits(intervals, 9 * ALIGNMENT)
    memory = OptimalMemory()
    assert memory(intervals).nbytes == 10 * ALIGNMENT
    assert memory.largest == ArenaFound(10 * ALIGNMENT, 11 * ALIGNMENT, 10 * ALIGNMENT)
    assert memory.largest.proven


def test_a_large_arena_shrinks_to_what_is_alive_and_nothing_overlaps() -> None:
    rng = np.random.default_rng(0)
    shrunk = 0
    for _ in range(6):
        intervals = drawn(rng, 60, 40)
        memory = OptimalMemory()
        arena = memory(intervals)
        shrunk += arena.nbytes < plan_arena(intervals).nbytes
        assert memory.largest.least <= arena.nbytes <= memory.largest.heuristic
        for a, b in itertools.combinations(intervals, 2):
            low, high = arena.offsets[a.name], arena.offsets[b.name]
            assert not a.meets(b) or low + a.nbytes <= high or high + b.nbytes <= low
        assert arena == OptimalMemory()(intervals)
    assert shrunk


def test_without_work_the_heuristic_stays_and_the_gap_is_told() -> None:
    rng = np.random.default_rng(3)
    while True:
        intervals = drawn(rng, 60, 40)
        if plan_arena(intervals).nbytes > peak_alive(intervals):
            break
    memory = OptimalMemory(work=0.0)
    assert memory(intervals) == plan_arena(intervals)
    assert not memory.largest.proven
    assert memory.largest.gap == pytest.approx(
        plan_arena(intervals).nbytes / peak_alive(intervals) - 1
    )


def test_compile_reports_it_beside_the_heuristic(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from tilesmith.command_line import command_line
    from tilesmith.jobs.subjects.light_models import save_light_model

    model = save_light_model("squeezenet", tmp_path / "squeezenet.onnx")
    words = ["compile", str(model), "-o", str(tmp_path / "s.tsm"), "--optimal-memory"]
    said = CliRunner().invoke(command_line, [*words, "--json"])
    assert said.exit_code == 0, said.output
    memory = json.loads(said.stdout)["memory"]
    assert memory["nbytes"] == memory["least"] == json.loads(said.stdout)["peak_bytes"]


def test_each_order_is_needed_by_some_intervals() -> None:
    rng = np.random.default_rng(0)
    winners = set()
    for _ in range(200):
        intervals = drawn(rng, 12, 12)
        sizes = [first_fit(sorted(intervals, key=order)).nbytes for order in ORDERS]
        winners.add(sizes.index(min(sizes)))
    assert winners == set(range(len(ORDERS)))
