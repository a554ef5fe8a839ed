"""Task schedulers: the formulas on cases worked out by hand, and the contract for all."""

from __future__ import annotations

import math

import pytest

from tilesmith.search_space.support.errors import InputError
from tilesmith.tuner.tasks.scheduler import TaskProgress, schedulers


def progress(
    weight: float = 1.0,
    recent: tuple[float, ...] = (1e-3,),
    *,
    batches: int | None = None,
    trials: int = 32,
    cost: float = 10.0,
    flops: int = 0,
    done: bool = False,
) -> TaskProgress:
    batches = len(recent) if batches is None else batches
    return TaskProgress(weight, "matmul", flops, trials, cost, batches, recent, done)


@pytest.mark.parametrize("name", list(schedulers))
def test_done_tasks_get_nothing_and_all_done_gives_none(name: str) -> None:
    scheduler = schedulers[name]()
    assert scheduler.choose([progress(done=True), progress(), progress(done=True)]) == 1
    assert scheduler.choose([progress(done=True)]) is None
    assert scheduler.choose([]) is None


@pytest.mark.parametrize("name", list(schedulers))
def test_every_task_gets_a_first_batch(name: str) -> None:
    scheduler = schedulers[name]()
    tasks = [progress(weight=9.0), progress(trials=1), progress(trials=0, recent=())]
    chosen = scheduler.choose(tasks)
    assert chosen in (1, 2)


@pytest.mark.parametrize("name", ["gradient", "expected_gain"])
def test_weight_and_recent_gain_draw_trials(name: str) -> None:
    scheduler = schedulers[name]()
    assert scheduler.choose([progress(1.0), progress(5.0)]) == 1
    falling, flat = (4e-3, 3e-3, 2e-3, 1e-3), (1e-3, 1e-3, 1e-3, 1e-3)
    assert scheduler.choose([progress(recent=flat), progress(recent=falling)]) == 1


def test_round_robin_takes_the_task_with_fewest_trials() -> None:
    tasks = [progress(trials=8), progress(trials=4), progress(trials=4)]
    assert schedulers["round_robin"]().choose(tasks) == 1


def test_gradient_follows_the_published_formula() -> None:
    # slow: w (a (g - g_3)/3 + (1 - a) min(-g/t, b C/V - g)), C/V its time at the best speed
    slow = progress(2.0, (5e-3, 5e-3, 4e-3, 2e-3), batches=8, flops=10**9)
    fast = progress(3.0, (1e-3, 1e-3, 1e-3, 1e-3), batches=4, flops=10**9)
    best_speed = 10**9 / 1e-3
    slow_gradient = 2.0 * (
        0.2 * (2e-3 - 5e-3) / 3 + 0.8 * min(-2e-3 / 8, 2 * 1e9 / best_speed - 2e-3)
    )
    fast_gradient = 3.0 * (0.8 * min(-1e-3 / 4, 2 * 1e9 / best_speed - 1e-3))
    expected = 0 if abs(slow_gradient) > abs(fast_gradient) else 1
    assert schedulers["gradient"]().choose([slow, fast]) == expected


def test_expected_gain_weighs_cost_against_gain() -> None:
    scheduler = schedulers["expected_gain"]()
    cheap, dear = progress(cost=1.0, batches=4), progress(cost=8.0, batches=4)
    assert scheduler.choose([dear, cheap]) == 1
    # gain = w g r / c: twice the weight outweighs a cost higher by half
    assert scheduler.choose([progress(1.0, cost=10.0), progress(2.0, cost=15.0)]) == 1
    assert scheduler.choose([progress(1.0, cost=10.0), progress(2.0, cost=25.0)]) == 0


def test_expected_gain_sees_headroom_against_tasks_of_the_same_operator() -> None:
    slow = progress(recent=(math.e * 1e-3,), flops=10**9)
    fast = progress(recent=(1e-3,), flops=10**9)
    assert schedulers["expected_gain"]().choose([fast, slow]) == 1
    equal_time = [progress(recent=(1e-3,), flops=10**8), progress(recent=(1e-3,), flops=10**9)]
    assert schedulers["expected_gain"]().choose(equal_time) == 0


def test_a_task_nothing_works_on_is_not_tried_for_ever() -> None:
    scheduler = schedulers["expected_gain"]()
    failing = progress(recent=(), trials=20)
    assert scheduler.choose([progress(), failing]) == 1
    assert scheduler.choose([progress(), progress(recent=(), trials=100)]) == 0


def test_an_unknown_scheduler_is_refused() -> None:
    with pytest.raises(InputError, match="unknown scheduler 'chance'"):
        schedulers["chance"]


@pytest.mark.parametrize("name", ["gradient", "expected_gain"])
def test_first_batches_go_where_the_model_spends_most_time(name: str) -> None:
    scheduler = schedulers[name]()
    many_operations = progress(trials=1, recent=(1e-3,), flops=10**9)
    slow_default = progress(trials=1, recent=(19e-3,), flops=10**8)
    failing = progress(trials=1, recent=(), flops=10**6)
    assert scheduler.choose([many_operations, slow_default]) == 1
    assert scheduler.choose([many_operations, slow_default, failing]) == 2


def test_expected_gain_lets_negligible_workloads_wait() -> None:
    scheduler = schedulers["expected_gain"]()
    softmax = progress(trials=1, cost=0.1, recent=(2e-6,))
    conv = progress(trials=33, cost=10.0, recent=(1.01e-3, 1.0e-3), batches=5)
    assert scheduler.choose([softmax, conv]) == 1
    settled = progress(trials=3000, cost=900.0, recent=(1e-3,) * 4, batches=400)
    assert scheduler.choose([softmax, settled]) == 0
