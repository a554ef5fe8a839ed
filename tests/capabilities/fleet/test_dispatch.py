"""Who does which trial, by hand: no cluster, no clock."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tilesmith.capabilities.fleet.dispatch import (
    LONE_TRIAL,
    Dispatch,
    DispatchRules,
    Kind,
    TrialBatch,
    Verdict,
)

ONE = DispatchRules(depth=1, piece_s=0.0, blamed=2, late=4.0, late_s=1.0)


def crowd(rules: DispatchRules, *workers: str) -> Dispatch:
    dispatch = Dispatch(rules)
    for worker in workers:
        dispatch.join(worker)
    return dispatch


def held(pieces: list[TrialBatch]) -> dict[str, tuple[int, ...]]:
    return {piece.worker: piece.trials for piece in pieces}


def test_trials_are_begun_in_the_order_they_came() -> None:
    dispatch = crowd(ONE, "a", "b")
    dispatch.add(range(5))
    first = dispatch.assign(0.0)
    assert held(first) == {"a": (0,), "b": (1,)}
    assert dispatch.finished(first[1], 1.0) == [1]
    assert held(dispatch.assign(1.0)) == {"b": (2,)}
    assert (dispatch.waiting, dispatch.at_work) == (2, 2)


def test_nobody_holds_more_than_is_allowed_and_pieces_follow_the_pace() -> None:
    dispatch = crowd(DispatchRules(depth=2, piece_s=1.0, most=64), "a", "b")
    dispatch.add(range(1000))
    first = dispatch.assign(0.0)
    assert [len(piece.trials) for piece in first] == [4, 4, 4, 4]
    assert dispatch.assign(0.0) == []
    dispatch.finished(first[0], 0.4)  # 0.1 s a trial: ten a second
    assert [len(piece.trials) for piece in dispatch.assign(0.4)] == [10]


def test_a_few_trials_are_shared_evenly() -> None:
    dispatch = crowd(DispatchRules(depth=2, piece_s=1e9), "a", "b", "c")
    dispatch.add(range(9))
    assert [len(piece.trials) for piece in dispatch.assign(0.0)] == [2, 2, 1, 1, 1, 1]


def test_what_a_lost_machine_held_is_done_again_elsewhere_once() -> None:
    dispatch = crowd(ONE, "a", "b")
    dispatch.add(range(2))
    pieces = dispatch.assign(0.0)
    assert dispatch.lost("a", "its machine went away") == []
    assert dispatch.settled("a", machine=True) == []
    assert dispatch.assign(0.0) == []  # b holds as much as it may
    assert dispatch.finished(pieces[1], 1.0) == [1]
    again = dispatch.assign(1.0)
    assert held(again) == {"b": (0,)}
    assert dispatch.finished(again[0], 2.0) == [0]
    assert dispatch.finished(pieces[0], 2.0) == [], "a late answer counts no second time"
    assert (dispatch.repeated, dispatch.waiting, dispatch.at_work) == (1, 0, 0)


def test_what_may_have_killed_twice_waits_until_that_is_known() -> None:
    dispatch = crowd(ONE, "a", "b", "c")
    dispatch.add([7])
    dispatch.assign(0.0)
    dispatch.lost("a", "its process died")
    assert held(dispatch.assign(0.0)) == {"b": (7,)}, "at once, elsewhere"
    dispatch.lost("b", "its process died")
    assert dispatch.assign(0.0) == []
    assert dispatch.settled("a", machine=True) == []
    assert held(dispatch.assign(0.0)) == {"c": (7,)}
    assert dispatch.settled("b", machine=False) == []
    assert dispatch.assign(0.0) == [], "it is at work"


def test_a_trial_that_kills_two_processes_has_failed_and_one_of_lost_machines_has_not() -> None:
    for machine in (False, True):
        dispatch, found = crowd(ONE, "a", "b"), []
        dispatch.add([7])
        for _ in range(2):
            (piece,) = dispatch.assign(0.0)
            found += dispatch.lost(piece.worker, "gone")
            found += dispatch.settled(piece.worker, machine=machine)
            dispatch.join(piece.worker)
        verdict = Verdict(7, True, ("a: gone", "b: gone"))
        assert found == ([] if machine else [verdict])
        assert dispatch.is_open(7) is machine


def test_a_trial_is_lost_so_often_and_no_more() -> None:
    dispatch, found = crowd(DispatchRules(depth=1, piece_s=0.0, lost=3), "a"), []
    dispatch.add([7])
    for _ in range(3):
        dispatch.assign(0.0)
        found += dispatch.lost("a", "its machine went away")
        found += dispatch.settled("a", machine=True)
        dispatch.join("a")
    assert found == [Verdict(7, False, ("a: its machine went away",) * 3)]


def test_of_a_lost_piece_each_trial_is_tried_alone_and_the_innocent_are_not_suspected() -> None:
    dispatch = crowd(DispatchRules(depth=2, piece_s=1e9, most=2), "a")
    dispatch.add(range(8))
    assert [piece.trials for piece in dispatch.assign(0.0)] == [(0, 1), (2, 3)]
    dispatch.lost("a", "its process died")
    dispatch.settled("a", machine=False)
    dispatch.join("a")
    assert [piece.trials for piece in dispatch.assign(0.0)] == [(0,), (1,)]
    dispatch.forget([0, 1])
    assert dispatch.waiting == 6


def test_idle_workers_get_copies_of_what_is_late_and_the_first_result_counts() -> None:
    dispatch = crowd(ONE, "a", "b")
    dispatch.add(range(2))
    slow, quick = dispatch.assign(0.0)
    dispatch.finished(quick, 0.5)
    assert dispatch.assign(1.9) == [] and dispatch.next_look(1.9) == 2.0 - 1.9
    (copy,) = dispatch.assign(2.0)
    assert copy == TrialBatch("b", (0,), 2.0)
    assert dispatch.next_look(9.0) == float("inf"), "copied once"
    assert dispatch.finished(copy, 2.5) == [0]
    assert dispatch.finished(slow, 9.0) == []
    assert dispatch.copied == 1


def test_what_has_a_copy_left_is_not_done_again() -> None:
    dispatch = crowd(ONE, "a", "b")
    dispatch.add([0])
    dispatch.assign(0.0)
    (copy,) = dispatch.assign(5.0)
    dispatch.lost("a", "its machine went away")
    dispatch.settled("a", machine=True)
    assert dispatch.waiting == 0
    assert dispatch.finished(copy, 6.0) == [0]


def test_work_of_each_kind_has_a_pace_of_its_own() -> None:
    dispatch = crowd(DispatchRules(depth=1, piece_s=1.0, late_s=0.0), "a")
    dispatch.add([0, 1], Kind("comparison", single=True))
    dispatch.add(range(2, 10))
    for number in (0, 1):
        (comparison,) = dispatch.assign(0.0)
        assert comparison == TrialBatch("a", (number,), 0.0, "comparison")
        dispatch.finished(comparison, 50.0)
    assert [len(one.trials) for one in dispatch.assign(50.0)] == [4], "not by the comparisons' pace"
    assert dispatch.known["a"].trials == 0


def test_what_is_lost_twice_before_the_first_verdict_is_begun_again_once() -> None:
    dispatch = crowd(DispatchRules(depth=2), "a", "b")
    dispatch.add([7, 8], LONE_TRIAL)
    assert held(dispatch.assign(0.0)) == {"a": (7,), "b": (8,)}
    dispatch.lost("a", "its process died")
    assert held(dispatch.assign(0.0)) == {"b": (7,)}
    dispatch.lost("b", "its process died")
    for worker in ("a", "b"):
        dispatch.settled(worker, machine=False)
        dispatch.join(worker)
    assert sorted(piece.trials for piece in dispatch.assign(0.0)) == [(7,), (8,)]
    assert dispatch.waiting == 0


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 3))
@example(seed=42953318, workers=4, depth=1).via("a trial that every worker had lost once")
def test_whatever_happens_every_trial_ends_once(seed: int, workers: int, depth: int) -> None:
    """Random deaths, joins, verdicts and answers; then everybody works until all is done."""
    rng, now = np.random.default_rng(seed), 0.0
    names = [f"w{number}" for number in range(workers)]
    dispatch = crowd(DispatchRules(depth=depth, piece_s=1.0, most=3, late_s=2.0, lost=1000), *names)
    dispatch.add(range(12))
    under_way: list[TrialBatch] = []
    away: set[str] = set()
    ended: list[int] = []
    for step in range(400):
        now += 0.3
        under_way += dispatch.assign(now)
        assert all(len(hand.pieces) <= depth for hand in dispatch.workers.values())
        fate = rng.random() if step < 100 else 1.0
        present = sorted(dispatch.workers)
        if fate < 0.25 and present:
            victim = present[int(rng.integers(len(present)))]
            ended += [verdict.trial for verdict in dispatch.lost(victim, "gone")]
            under_way = [piece for piece in under_way if piece.worker != victim]
            away.add(victim)
        elif away and fate > 0.6:
            back = sorted(away)[int(rng.integers(len(away)))]
            away.remove(back)
            machine = bool(rng.random() < 0.5)
            ended += [verdict.trial for verdict in dispatch.settled(back, machine=machine)]
            dispatch.join(back)
        elif under_way:
            ended += dispatch.finished(under_way.pop(int(rng.integers(len(under_way)))), now)
    assert sorted(ended) == list(range(12))
    assert (dispatch.waiting, dispatch.at_work) == (0, 0)
