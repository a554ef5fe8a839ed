"""Rounds in flight: trials depend on their distance alone, never on who answers when, and a job
that is killed or stopped ends as the one that never was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import numpy as np
import pytest
from problems import JUDGED, TARGET, judge
from scattered import Killed, Scattered
from test_session import BIG, SMALL, TASKS, NoisyHardware, configs, simulator

from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.runner import Begun, Candidate, RunnerOptions
from tilesmith.tuner.runners.simulator import SimulatorRunner
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.strategies.random_search import RandomSearch
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.ledger import MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.strategy import strategies
from tilesmith.tuner.tasks.task import Trial, TuningState, TuningTask

RANDOM = TuneOptions(trials=200, seed=3, strategy="random", in_flight=5)


def tuned(
    runner: SimulatorRunner, options: TuneOptions = RANDOM, ledger: MemoryLedger | None = None
) -> MemoryLedger:
    ledger = ledger or MemoryLedger()
    tune(TASKS, TARGET, ledger, [runner], options, JUDGED)
    return ledger


def resumed(ledger: MemoryLedger) -> MemoryLedger:
    """What another process finds of a job."""
    return MemoryLedger(job=ledger.trials, state=json.loads(json.dumps(ledger.saved_state())))


@pytest.mark.parametrize("strategy", list(strategies))
def test_trials_do_not_depend_on_who_measures_and_when(strategy: str) -> None:
    options = TuneOptions(trials=48, seed=1, strategy=strategy, in_flight=3)
    here = tuned(simulator(), options)
    assert len(set(configs(here))) == len(here.trials) == 48, "nothing twice"
    for workers in (1, 4, 16) if strategy in ("random", "evolutionary") else (16,):
        fleet = Scattered(workers, seed=workers)
        assert configs(tuned(fleet, options)) == configs(here)
        assert fleet.begun == 48 and fleet.most_at_work == workers


def test_the_distance_is_what_decides() -> None:
    found = [configs(tuned(Scattered(16), TuneOptions(32, in_flight=d))) for d in (0, 1, 3)]
    assert len({tuple(trials) for trials in found}) == 3
    assert found[0] == configs(tuned(simulator(), TuneOptions(32)))


@pytest.mark.parametrize("distance", [0, 1, 4])
def test_a_proposal_knows_what_was_joined_and_what_is_under_way(
    distance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[list[Config]] = []
    propose = RandomSearch.propose

    def watched(self: RandomSearch, state: TuningState, count: int) -> list[Config]:
        before = [c for one in rounds[: max(0, len(rounds) - distance)] for c in one]
        under_way = {c for one in rounds[max(0, len(rounds) - distance) :] for c in one}
        assert [c for c in state.results if c != state.default] == before
        assert state.pending - {state.default} == under_way
        rounds.append(propose(self, state, count))
        return rounds[-1]

    monkeypatch.setattr(RandomSearch, "propose", watched)
    options = TuneOptions(trials=100, strategy="random", in_flight=distance, layout_trials=0)
    monkeypatch.setattr("tilesmith.tuner.search.task_search.strata", lambda *_: [])
    ledger = MemoryLedger()
    tune(TASKS[:1], TARGET, ledger, [Scattered(4)], options, JUDGED)
    assert len(rounds) > 8
    assert [e.config for e in ledger.trials][1:] == [c for one in rounds for c in one]


@pytest.mark.parametrize("seed", range(10))
def test_a_job_killed_at_random_moments_ends_as_the_one_that_never_was(seed: int) -> None:
    whole = configs(tuned(simulator()))
    rng, ledger, kills = np.random.default_rng(seed), MemoryLedger(), 0
    while True:
        workers, after = int(rng.choice([1, 4, 16])), int(rng.integers(1, 120))
        ledger = resumed(ledger)
        try:
            tuned(Scattered(workers, seed, killed_after=after), RANDOM, ledger)
        except Killed:
            kills += 1
            assert configs(ledger) == whole[: len(ledger.trials)]
            continue
        break
    assert kills and configs(ledger) == whole


@pytest.mark.parametrize("seed", range(2))
def test_a_guided_job_is_resumed_exactly_too(seed: int) -> None:
    options = TuneOptions(trials=60, seed=2, in_flight=2, early_stopping=30)
    whole, rng = configs(tuned(simulator(), options)), np.random.default_rng(seed)
    ledger = MemoryLedger()
    with pytest.raises(Killed):
        tuned(Scattered(4, seed, killed_after=int(rng.integers(20, 56))), options, ledger)
    assert configs(tuned(Scattered(16), options, resumed(ledger))) == whole


@pytest.mark.parametrize("after", [1, 17, 60, 111, 150])
def test_a_job_stopped_by_its_user_keeps_prefixes_and_goes_on(after: int) -> None:
    whole, ledger, token = configs(tuned(simulator())), MemoryLedger(), CancelToken()
    fleet = Scattered(4, after, cancelled_after=after)
    summary = tune(TASKS, TARGET, ledger, [fleet], RANDOM, JUDGED, cancel=token)
    assert summary.ending == "cancelled" and ledger.end == "interrupted"
    assert configs(ledger) == whole[: len(ledger.trials)]
    assert fleet.answered == after, "nobody is waited for"
    assert not fleet._waiting and not fleet._at_work, "nothing is left under way"
    assert configs(tuned(Scattered(16), RANDOM, resumed(ledger))) == whole


def test_stopping_within_a_round_changes_no_early_stopping() -> None:
    options = TuneOptions(trials=400, seed=3, strategy="random", in_flight=3, early_stopping=25)
    whole = configs(tuned(simulator(), options))
    assert len(whole) < 400
    for after in range(5, len(whole), 11):
        ledger, fleet = MemoryLedger(), Scattered(16, after, cancelled_after=after)
        tune(TASKS, TARGET, ledger, [fleet], options, JUDGED, cancel=CancelToken())
        assert configs(tuned(simulator(), options, resumed(ledger))) == whole


@pytest.mark.parametrize("distance", [0, 1, 7])
def test_a_small_space_is_measured_once_and_no_budget_is_exceeded(distance: int) -> None:
    tiny = Workload.parse("matmul m=1 n=1 k=1")
    size = space_of(tiny, TARGET).size
    options = TuneOptions(trials=10 * size, in_flight=distance)
    ledger, fleet = MemoryLedger(), Scattered(4)
    summary = tune([TuningTask(tiny)], TARGET, ledger, [fleet], options, JUDGED)
    assert summary.trials == fleet.begun == len(set(configs(ledger))) == size
    assert "exhausted" in summary.reason
    few, fleet = TuneOptions(trials=13, in_flight=distance), Scattered(16)
    assert len(tuned(fleet, few).trials) == fleet.begun == 13


def test_a_smaller_budget_begins_no_more_than_it_allows() -> None:
    ledger = MemoryLedger()
    with pytest.raises(Killed):
        tuned(Scattered(4, killed_after=90), RANDOM, ledger)
    enough = len(ledger.trials) + 3
    fleet, less = Scattered(4), TuneOptions(enough, seed=3, strategy="random", in_flight=5)
    again = tuned(fleet, less, resumed(ledger))
    assert len(again.trials) == enough and fleet.begun == 3
    assert len(set(configs(again))) == enough


def test_many_tasks_share_the_rounds_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    workloads = [Workload.parse(f"matmul m={8 * i} n=64 k=64") for i in range(1, 7)]
    tasks = [TuningTask(workload) for workload in workloads]
    ledger, fleet = MemoryLedger(), Scattered(16)
    options = TuneOptions(trials=60, strategy="random", in_flight=5)
    tune(tasks, TARGET, ledger, [fleet], options, JUDGED)
    first = list(dict.fromkeys(e.workload for e in ledger.trials[6:54]))
    assert sorted(w.key for w in first) == sorted(w.key for w in workloads), "each has its turn"


class NoisyFleet(NoisyHardware):
    """Hardware elsewhere, whose batches are measured when they are begun."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: dict[Begun, list[MeasureResult]] = {}

    def begin(self, batch: Sequence[Candidate], cancel: CancelToken | None = None) -> Begun:
        begun = Begun(tuple(batch))
        self.under_way[begun] = self.measure(batch, cancel)
        return begun

    def finish(
        self, begun: Begun, cancel: CancelToken | None = None, deadline: float | None = None
    ) -> list[MeasureResult]:
        return self.under_way.pop(begun)

    def abandon(self, begun: Begun) -> None:
        del self.under_way[begun]


def test_screening_hardware_and_confirmation_with_rounds_in_flight() -> None:
    ledger, hardware = MemoryLedger(), NoisyFleet()
    options = TuneOptions(trials=60, screening_trials=24, in_flight=3)
    summary = tune(TASKS, TARGET, ledger, [Scattered(4), hardware], options, JUDGED)
    labels = [entry.result.measured_by for entry in ledger.trials]
    assert labels[:48] == ["simulator"] * 48 and set(labels[48:]) == {"hardware"}
    assert summary.simulated == 48 and summary.trials == 60
    assert len(hardware.measured) == len(set(hardware.measured)) == 60
    assert {c for rivals in hardware.compared for c in rivals} >= {r.config for r in summary.tasks}
    assert not hardware.under_way


class Drifting(NoisyFleet):
    """Its machines change their pace after 30 trials."""

    looks, pace, moved = 0, 1.0, 0.0

    def finish(
        self, begun: Begun, cancel: CancelToken | None = None, deadline: float | None = None
    ) -> list[MeasureResult]:
        self.looks += 1
        self.moved = 0.3 if self.looks == 5 else 0.0
        self.pace = 1.3 if self.looks >= 5 else 1.0
        return super().finish(begun, cancel)


def test_a_change_of_pace_has_rivals_measured_again_beside_what_is_under_way() -> None:
    ledger, hardware = MemoryLedger(), Drifting()
    options = TuneOptions(trials=60, in_flight=3)
    tune(TASKS[:1], TARGET, ledger, [hardware], options, JUDGED)
    assert len(hardware.compared) >= 2, "as soon as it was seen, and before publishing"
    assert len(hardware.measured) == 60


class Late(Scattered):
    """Answers nothing once the time is over, as its clock says."""

    measured_by: MeasuredBy = "hardware"
    deterministic = False

    def finish(
        self, begun: Begun, cancel: CancelToken | None = None, deadline: float | None = None
    ) -> list[MeasureResult]:
        if deadline is None or time.monotonic() < deadline:
            found = super().finish(begun, cancel)
        else:
            found = super().finish(begun, cancel)[:1]
        return [MeasureResult(r.status, "hardware", r.samples, r.message) for r in found]


def test_at_the_end_of_the_time_what_is_there_is_kept_and_the_rest_abandoned() -> None:
    ledger, fleet = MemoryLedger(), Late(4)
    options = TuneOptions(trials=None, time_limit_s=0.5, strategy="random", in_flight=4)
    summary = tune(TASKS, TARGET, ledger, [fleet], options, JUDGED)
    assert summary.reason == "the time limit is reached"
    entries = configs(ledger)[: summary.trials]
    assert entries == [(w.key, c.key) for w, c in fleet.asked][: summary.trials]
    assert not fleet._waiting and not fleet._at_work


def test_a_job_is_resumed_with_its_own_distance() -> None:
    ledger = MemoryLedger()
    with pytest.raises(Killed):
        tuned(Scattered(4, killed_after=60), RANDOM, ledger)
    other = TuneOptions(trials=200, seed=3, strategy="random", in_flight=6)
    with pytest.raises(InputError, match=r"in_flight= 5, not 6; resume"):
        tuned(Scattered(4), other, resumed(ledger))
    with pytest.raises(InputError, match="in_flight = -1 is out of range"):
        TuneOptions(in_flight=-1)


def test_states_of_the_first_version_are_understood() -> None:
    options = TuneOptions(trials=60, seed=1, strategy="random")
    whole = configs(tuned(simulator(), options))

    class Mortal(MemoryLedger):
        def commit(self, trials: Sequence[Trial], state: object) -> None:
            if len(self.trials) >= 1:
                raise Killed
            super().commit(trials, state)

    ledger = Mortal()
    with pytest.raises(Killed):
        tuned(simulator(), options, ledger)
    state = ledger.saved_state()
    (search,) = state["searches"]
    pending = {one["workload"]: one["configs"] for one in search.pop("rounds")}
    assert list(pending) == [SMALL.key], "the default of the first was measured"
    for key, task in search["tasks"].items():
        task["pending"] = pending.get(key, [])
    del state["in_flight"]
    old = MemoryLedger(job=ledger.trials, state={**state, "version": 1})
    assert configs(tuned(simulator(), options, old)) == whole
    with pytest.raises(InputError, match="of another version"):
        tuned(simulator(), options, MemoryLedger(state={**state, "version": 99}))
    assert BIG.key != SMALL.key


def test_measuring_here_in_two_steps_watches_the_clock_where_results_vary() -> None:
    hardware = NoisyHardware()
    candidates = [(BIG, config) for config in space_of(BIG, TARGET).sample(hardware._rng, 4)]
    begun = hardware.begin(candidates)
    assert hardware.finish(begun, deadline=time.monotonic() - 1) == [] == hardware.measured
    assert len(hardware.finish(begun, deadline=time.monotonic() + 3600)) == 4
    judged = SimulatorRunner(RunnerOptions(TARGET, judge=judge))
    assert len(judged.finish(judged.begin(candidates), deadline=0.0)) == 4
