"""A job on made-up machines, some of which lie: they are named, and what they said is replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

import numpy as np
import pytest
from problems import JUDGED, TARGET, judge

from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import JobError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.machine_trust.watch import ResultNotes, Watch
from tilesmith.tuner.measurement.runner import Candidate, RunnerOptions
from tilesmith.tuner.runners.simulator import SimulatorRunner
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.ledger import MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.task import TuningTask

WORKLOAD = Workload.parse("matmul m=128 n=128 k=128 const=b")
RNG = np.random.default_rng(0)

Pace = Callable[[int], float]
"""How long things take on a machine in its n-th trial, relative to an honest one."""


def honest(trial: int) -> float:
    return 1.0


PACES: dict[str, Pace] = {
    "slow": lambda trial: 1.3,
    "drifting": lambda trial: 1.0 + 0.005 * trial,
    "random": lambda trial: float(RNG.uniform(0.5, 2.0)),
    "throttled": lambda trial: 1.0 if trial < 60 else 1.5,
}


class MadeUpFleet(SimulatorRunner):
    """The judge on several machines in turn, each with its pace and 1 % of noise."""

    measured_by: MeasuredBy = "hardware"
    deterministic = False
    batch = 8

    def __init__(self, paces: dict[str, Pace]) -> None:
        super().__init__(RunnerOptions(TARGET, judge=judge))
        self.paces = dict(paces)
        self.watch = Watch()
        self.trials = dict.fromkeys(paces, 0)
        self._turns = cycle(paces)

    def measure(
        self, batch: Sequence[Candidate], cancel: CancelToken | None = None
    ) -> list[MeasureResult]:
        return [self._at(candidate) for candidate in batch]

    compare = measure

    def _at(self, candidate: Candidate) -> MeasureResult:
        if len(self.watch.aside) == len(self.paces):
            reasons = "; ".join(f"{n} {d.reason}" for n, d in self.watch.aside.items())
            raise JobError(f"no worker can be used: {reasons}")
        name = next(name for name in self._turns if name not in self.watch.aside)
        pace = self.paces[name](self.trials[name]) * float(np.exp(RNG.normal(0.0, 0.01)))
        self.trials[name] += 1
        (result,) = self._judged(candidate[0], [candidate[1]])
        samples = tuple(pace * sample for sample in result.samples)
        self.watch.heard(name, candidate, ResultNotes(1e-4 * pace))
        return MeasureResult(result.status, "hardware", samples, result.message, machine=name)

    def doubtful(self) -> list[Candidate]:
        return self.watch.doubtful()


@pytest.mark.parametrize("liar", PACES)
def test_a_liar_is_set_aside_and_nothing_it_said_is_left(liar: str) -> None:
    fleet = MadeUpFleet({"a": honest, "b": honest, "liar": PACES[liar], "c": honest})
    ledger = MemoryLedger()
    options = TuneOptions(trials=700, strategy="random")
    tune([TuningTask(WORKLOAD)], TARGET, ledger, [fleet], options, JUDGED)
    assert set(fleet.watch.aside) == {"liar"}, fleet.watch.aside
    assert fleet.trials["liar"] < 170 and fleet.trials["a"] > 150
    last: dict[Config, MeasureResult] = {e.config: e.result for e in ledger.trials}
    truth = judge(WORKLOAD, TARGET, list(last)).latency
    found = np.array([result.latency or np.nan for result in last.values()])
    assert np.nanmax(np.abs(np.log(found / truth))) < (0.10 if liar == "drifting" else 0.06)


def test_a_job_whose_machines_all_lie_ends_with_a_sentence() -> None:
    def throttled(trial: int) -> float:
        return 1.0 if trial < 60 else 1.5

    fleet = MadeUpFleet({"a": throttled, "b": throttled})
    with pytest.raises(JobError, match=r"no worker can be used: . has slowed down: the control"):
        options = TuneOptions(trials=600, strategy="random")
        tune([TuningTask(WORKLOAD)], TARGET, MemoryLedger(), [fleet], options, JUDGED)


def candidates(count: int) -> list[Candidate]:
    return [(WORKLOAD, Config.of(m_tile=number)) for number in range(count)]


def test_what_is_doubtful_began_with_the_lie() -> None:
    watch, good, bad = Watch(), candidates(100), candidates(160)[100:]
    for number, candidate in enumerate([*good, *bad]):
        pace = 1.0 if number < len(good) else 1.4
        watch.heard("honest", (WORKLOAD, Config.of(m_tile=-number - 1)), ResultNotes(1e-4))
        watch.heard(
            "liar", candidate, ResultNotes(1e-4 * pace * float(np.exp(RNG.normal(0, 0.01))))
        )
    found = watch.doubtful()
    assert set(bad) <= set(found) and len(found) <= len(bad) + 5
    assert watch.doubtful() == [], "told once"


def test_a_clock_that_keeps_running_wrong_is_named_one_that_jumped_once_is_not() -> None:
    watch = Watch()
    (candidate,) = candidates(1)
    for now in range(60):
        moved = 0.0 if now < 30 else -5.0
        told = ResultNotes(None, ("boot", now + moved), now, now + 0.01)
        assert watch.heard("frozen once", candidate, told) is None
        watch.heard("fast", candidate, ResultNotes(None, ("boot", now * 1.05), now, now + 0.01))
        boot = ("first" if now < 30 else "second", float(now % 30))
        assert (
            watch.heard("started anew", candidate, ResultNotes(None, boot, now, now + 0.01)) is None
        )
    assert set(watch.aside) == {"fast"}
    assert "has a clock that lies" in watch.aside["fast"].reason
