"""Proposals made elsewhere: the same whoever makes them, how many do, and whoever is lost."""

from __future__ import annotations

import numpy as np
import pytest
from problems import JUDGED, TARGET
from scattered import Killed, Scattered
from test_rounds import resumed, tuned
from test_session import TASKS, NoisyHardware, configs, simulator

from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.ledger import MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.strategy import strategies
from tilesmith.tuner.tasks.task import TuningTask

GUIDED = TuneOptions(trials=64, seed=1, in_flight=4, choosing=3)
RANDOM = TuneOptions(trials=200, seed=3, strategy="random", in_flight=6, choosing=4)


@pytest.mark.parametrize("strategy", ["evolutionary", "bayesian", "random", "exhaustive"])
def test_trials_do_not_depend_on_who_chooses(strategy: str) -> None:
    options = TuneOptions(trials=48, seed=1, strategy=strategy, in_flight=4, choosing=3)
    here = tuned(simulator(), options)
    assert len(set(configs(here))) == len(here.trials) == 48, "nothing twice"
    many = 4 if strategy in ("random", "evolutionary") else 2
    fleet = Scattered(16, seed=5, choosers=many)
    assert configs(tuned(fleet, options)) == configs(here)
    chosen = fleet.choosers()
    assert chosen is not None
    elsewhere = strategies[strategy]().save() is None
    assert bool(chosen.answered) == elsewhere, "what a strategy keeps to itself stays here"


@pytest.mark.parametrize("seed", range(8))
def test_a_job_killed_at_random_moments_asks_again_for_the_same(seed: int) -> None:
    whole = configs(tuned(simulator(), RANDOM))
    rng, ledger, kills = np.random.default_rng(seed), MemoryLedger(), 0
    while True:
        workers, after = int(rng.choice([1, 4, 16])), int(rng.integers(1, 120))
        ledger = resumed(ledger)
        choosers = int(rng.choice([0, 1, 3]))
        try:
            tuned(Scattered(workers, seed, after, choosers=choosers), RANDOM, ledger)
        except Killed:
            kills += 1
            assert configs(ledger) == whole[: len(ledger.trials)]
            continue
        break
    assert kills and configs(ledger) == whole


def test_a_guided_job_is_resumed_exactly_too() -> None:
    whole, ledger = configs(tuned(simulator(), GUIDED)), MemoryLedger()
    with pytest.raises(Killed):
        tuned(Scattered(4, 7, 41, choosers=2), GUIDED, ledger)
    token, again = CancelToken(), resumed(ledger)
    stopping = Scattered(4, 8, cancelled_after=9, choosers=2)
    tune(TASKS, TARGET, again, [stopping], GUIDED, JUDGED, cancel=token)
    assert len(ledger.trials) <= len(again.trials) < 64
    assert configs(tuned(Scattered(16, 9, choosers=1), GUIDED, resumed(again))) == whole


@pytest.mark.parametrize("choosing", [1, 5])
def test_a_small_space_is_measured_once_and_no_budget_is_exceeded(choosing: int) -> None:
    tiny = Workload.parse("matmul m=1 n=1 k=1")
    size = space_of(tiny, TARGET).size
    options = TuneOptions(trials=10 * size, strategy="random", in_flight=5, choosing=choosing)
    ledger, fleet = MemoryLedger(), Scattered(4, choosers=2)
    summary = tune([TuningTask(tiny)], TARGET, ledger, [fleet], options, JUDGED)
    assert summary.trials == fleet.begun == len(set(configs(ledger))) == size
    assert "exhausted" in summary.reason
    few, fleet = TuneOptions(trials=13, in_flight=5, choosing=choosing), Scattered(16)
    assert len(tuned(fleet, few).trials) == fleet.begun == 13


def test_both_ways_of_measuring_are_chosen_for_elsewhere() -> None:
    found = []
    for count in (0, 2):
        ledger, hardware = MemoryLedger(), NoisyHardware()
        options = TuneOptions(trials=30, screening_trials=24, in_flight=3, choosing=2)
        screen = Scattered(4, choosers=count)
        summary = tune(TASKS, TARGET, ledger, [screen, hardware], options, JUDGED)
        assert summary.simulated == 48 and summary.trials == 30 and hardware.compared
        found.append(configs(ledger)[:78])
    assert found[0] == found[1]


def test_earlier_trials_are_known_elsewhere_too() -> None:
    first = tuned(simulator(), TuneOptions(trials=40, seed=2, strategy="random"))
    found = []
    for count in (0, 3):
        ledger = MemoryLedger(known=first.trials)
        tune(TASKS, TARGET, ledger, [Scattered(4, choosers=count)], GUIDED, JUDGED)
        assert not set(configs(ledger)) & set(configs(first))
        found.append(configs(ledger))
    assert found[0] == found[1]


def test_a_job_is_resumed_with_its_own_choosing() -> None:
    ledger = MemoryLedger()
    with pytest.raises(Killed):
        tuned(Scattered(4, killed_after=60), RANDOM, ledger)
    other = TuneOptions(trials=200, seed=3, strategy="random", in_flight=6, choosing=2)
    with pytest.raises(InputError, match=r"choosing= 4, not 2; resume"):
        tuned(Scattered(4), other, resumed(ledger))
    with pytest.raises(InputError, match="choosing = 3 is out of range"):
        TuneOptions(in_flight=2, choosing=3)
