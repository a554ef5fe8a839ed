"""The tuning loop: default first, budgets, exact resume, screening, confirmation, near-ties."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from problems import JUDGED, TARGET, judge, refusing

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.records.database import Database
from tilesmith.records.questions.queries import Filter
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError, JobError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import Judgement
from tilesmith.tuner.confirmation.publish import canonical_best
from tilesmith.tuner.cost_models.blend import Blend
from tilesmith.tuner.learning.learning import Judging
from tilesmith.tuner.ledgers.database_ledger import DatabaseLedger
from tilesmith.tuner.measurement.runner import Candidate, RunnerOptions, runners
from tilesmith.tuner.runners.simulator import SimulatorRunner
from tilesmith.tuner.session.progress import Progress
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.surrogates.cost_model import Samples
from tilesmith.tuner.tasks.cancel import CancelToken, cancel_on_signals
from tilesmith.tuner.tasks.ledger import MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.strategy import strategies
from tilesmith.tuner.tasks.task import Trial, TuningTask

BIG = Workload.parse("matmul m=128 n=128 k=128 const=b")
SMALL = Workload.parse("matmul m=32 n=64 k=48")
TASKS = [TuningTask(BIG, 3.0), TuningTask(SMALL)]
OPTIONS = TuneOptions(trials=60, seed=1)


def simulator() -> SimulatorRunner:
    return SimulatorRunner(RunnerOptions(TARGET, judge=judge))


class NoisyHardware(SimulatorRunner):
    """The judge with seeded noise in the place of a CPU; some candidates fail."""

    measured_by: MeasuredBy = "hardware"
    deterministic = False
    batch = 8
    drift = 0.5

    def __init__(self) -> None:
        super().__init__(RunnerOptions(TARGET, judge=judge))
        self.compared: list[list[Config]] = []
        self.measured: list[Config] = []
        self._rng = np.random.default_rng(0)

    def measure(
        self, batch: Sequence[Candidate], cancel: CancelToken | None = None
    ) -> list[MeasureResult]:
        self.measured += [config for _, config in batch]
        return [self._noisy(c, r) for (_, c), r in zip(batch, super().measure(batch), strict=True)]

    def compare(
        self, batch: Sequence[Candidate], cancel: CancelToken | None = None
    ) -> list[MeasureResult]:
        self.compared.append([config for _, config in batch])
        return [self._noisy(c, r) for (_, c), r in zip(batch, super().measure(batch), strict=True)]

    def _noisy(self, config: Config, result: MeasureResult) -> MeasureResult:
        if config["m_tile"] == 7:
            return MeasureResult("crash", "hardware", message="the worker died")
        assert result.latency is not None
        samples = result.latency * (1 + 0.05 * self._rng.random(5))
        return MeasureResult("ok", "hardware", tuple(samples.tolist()), elapsed=0.1)


def configs(ledger: MemoryLedger) -> list[tuple[str, str]]:
    return [(e.workload.key, e.config.key) for e in ledger.trials]


class SlowerThanJudgement(SimulatorRunner):
    """Measures by a machine that is slower where the judge sees no reason."""

    def __init__(self) -> None:
        super().__init__(RunnerOptions(TARGET, judge=slower))


def slower(workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
    judged = judge(workload, target, configs)
    tall = np.array([config.integer("m_tile") > 6 for config in configs])
    return Judgement(judged.latency * np.where(tall, 1.7, 1.0), judged.features, judged.bound)


@pytest.mark.parametrize("is_label", [True, False])
def test_the_judges_latency_is_shown_where_the_simulator_measures_otherwise(
    is_label: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    fit = Blend.fit

    def watching(self: Blend, samples: Samples, latencies: NDArray[np.float64]) -> None:
        seen.append(bool(np.isfinite(samples.analytical).all()))
        assert np.isfinite(samples.analytical).any() == seen[-1], "all of them or none"
        fit(self, samples, latencies)

    monkeypatch.setattr(Blend, "fit", watching)
    runner = simulator() if is_label else SlowerThanJudgement()
    options = TuneOptions(trials=40, seed=1)
    tune([TASKS[0]], TARGET, MemoryLedger(), [runner], options, Judging(judge, is_label))
    assert seen and set(seen) == {not is_label}


def test_the_default_comes_first_and_the_best_is_never_worse() -> None:
    ledger = MemoryLedger()
    summary = tune(TASKS, TARGET, ledger, [simulator()], OPTIONS, JUDGED)
    assert summary.trials == len(ledger.trials) == 60 and summary.ending == "finished"
    assert [e.config for e in ledger.trials[:2]] == [
        default_of(task.workload, TARGET) for task in TASKS
    ]
    assert len(set(configs(ledger))) == 60
    for report in summary.tasks:
        assert report.best_s is not None and report.default_s is not None
        assert report.best_s <= report.default_s
        assert report.config is not None
        judged = judge(report.workload, TARGET, [report.config])
        assert report.best_s == judged.latency[0]
    assert summary.tasks[0].best_s < summary.tasks[0].default_s  # type: ignore[operator]
    assert ledger.end == "finished"


@pytest.mark.parametrize("strategy", list(strategies))
def test_a_killed_job_resumes_to_the_same_trials(strategy: str) -> None:
    options = TuneOptions(trials=80, seed=1, strategy=strategy)
    whole = MemoryLedger()
    tune(TASKS, TARGET, whole, [simulator()], options, JUDGED)

    class Killed(BaseException):
        pass

    class Mortal(MemoryLedger):
        def commit(self, trials: Sequence[Trial], state: object) -> None:
            if len(self.trials) >= 25:
                raise Killed
            super().commit(trials, state)

    mortal = Mortal()
    with pytest.raises(Killed):
        tune(TASKS, TARGET, mortal, [simulator()], options, JUDGED)
    assert 25 <= len(mortal.trials) < 80
    resumed = MemoryLedger(job=mortal.trials, state=json.loads(json.dumps(mortal.saved_state())))
    summary = tune(TASKS, TARGET, resumed, [simulator()], options, JUDGED)
    assert configs(resumed) == configs(whole)
    assert summary.trials == 80


def test_two_runners_screen_then_measure_and_labels_stay_apart() -> None:
    ledger, hardware = MemoryLedger(), NoisyHardware()
    options = TuneOptions(trials=40, screening_trials=24)
    summary = tune(TASKS, TARGET, ledger, [simulator(), hardware], options, JUDGED)
    labels = [e.result.measured_by for e in ledger.trials]
    assert labels[:48] == ["simulator"] * 48 and set(labels[48:]) == {"hardware"}
    assert summary.simulated == 48 and summary.trials == 40
    assert summary.drift == 0.5 and not summary.steady
    assert all(report.measured_by == "hardware" for report in summary.tasks)
    screened = min(
        (e for e in ledger.trials[:48] if e.workload == BIG),
        key=lambda trial: trial.result.samples,
    )
    assert screened.config in hardware.measured[:10], "the simulator's best is measured early"


def test_rivals_are_confirmed_and_crashes_neither_repeat_nor_win() -> None:
    ledger, hardware = MemoryLedger(), NoisyHardware()
    tasks = [TuningTask(BIG, 3.0), TuningTask(SMALL, 60.0)]
    summary = tune(tasks, TARGET, ledger, [hardware], OPTIONS, JUDGED)
    assert len(set(hardware.measured)) >= 55
    assert {c for rivals in hardware.compared for c in rivals} >= {r.config for r in summary.tasks}
    again = NoisyHardware()
    known = MemoryLedger(known=ledger.trials)
    tune(TASKS, TARGET, known, [again], TuneOptions(trials=20), JUDGED)
    assert not {(e.workload.key, e.config.key) for e in known.trials[:20]} & set(configs(ledger)), (
        "nothing that earlier jobs measured is measured again"
    )


def test_near_ties_go_to_the_lowest_key_within_the_tolerance_only() -> None:
    def result(seconds: float) -> MeasureResult:
        return MeasureResult("ok", "hardware", (seconds,))

    a, b, c = (Config.of(x=name) for name in "abc")
    results = {c: result(1.0), b: result(1.009), a: result(1.011)}
    assert canonical_best(results, 0.01) == (b, 1.009)
    assert canonical_best(results, 0.0) == (c, 1.0)
    assert canonical_best({a: MeasureResult("crash", "hardware", message="x")}, 0.01) is None


def test_small_spaces_end_cleanly_and_early_stopping_ends_tasks() -> None:
    tiny = Workload.parse("matmul m=1 n=1 k=1")
    size = space_of(tiny, TARGET).size
    ledger = MemoryLedger()
    summary = tune([TuningTask(tiny)], TARGET, ledger, [simulator()], OPTIONS, JUDGED)
    assert summary.trials == len(ledger.trials) == min(60, size)
    patient = TuneOptions(trials=2000, early_stopping=20)
    stopped = tune(TASKS, TARGET, MemoryLedger(), [simulator()], patient, JUDGED)
    assert stopped.trials < 2000 and "stopped early" in stopped.reason


def test_every_failure_is_recorded_and_a_job_of_failures_still_ends() -> None:
    runner = SimulatorRunner(RunnerOptions(TARGET, judge=refusing))
    ledger = MemoryLedger()
    summary = tune(TASKS, TARGET, ledger, [runner], TuneOptions(trials=20), Judging(refusing))
    assert summary.failures == {"constraint": 20}
    assert all(report.best_s is None and report.config is None for report in summary.tasks)
    assert "rejects it (sbuf)" in ledger.trials[0].result.message


def test_cancelling_and_signals_keep_what_is_finished() -> None:
    token, ledger = CancelToken(), MemoryLedger()

    def stop(progress: Progress) -> None:
        assert progress.best_s <= progress.default_s
        if progress.trials >= 10:
            signal.raise_signal(signal.SIGTERM)

    with cancel_on_signals(token):
        summary = tune(
            TASKS, TARGET, ledger, [NoisyHardware()], OPTIONS, JUDGED,
            on_progress=stop, cancel=token,
        )  # fmt: skip
    assert summary.ending == "cancelled" and summary.reason == "cancelled by SIGTERM"
    assert len(ledger.trials) == summary.trials == 10 and ledger.end == "interrupted"


def test_cancelling_while_choosing_does_not_wait_for_the_choice() -> None:
    token, ledger = CancelToken(), MemoryLedger()
    after: list[int] = []

    def cancelling(workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
        if token.cancelled:
            after.append(len(configs))
        if len(configs) > 20:
            token.cancel("a test")
        return judge(workload, target, configs)

    summary = tune(
        TASKS, TARGET, ledger, [NoisyHardware()], OPTIONS, Judging(cancelling), cancel=token
    )
    assert summary.ending == "cancelled" and summary.reason == "cancelled by a test"
    assert len(ledger.trials) == summary.trials == 2, "the defaults"
    assert not after, "the predictor is not asked any more"


def test_wrong_input_is_named() -> None:
    with pytest.raises(InputError, match="nothing to tune"):
        tune([], TARGET, MemoryLedger(), [simulator()])
    with pytest.raises(InputError, match="unknown strategy 'magic'"):
        tune(TASKS, TARGET, MemoryLedger(), [simulator()], TuneOptions(strategy="magic"))
    with pytest.raises(InputError, match="time_limit = -1 is out of range"):
        TuneOptions(time_limit_s=-1)
    ledger = MemoryLedger()
    tune(TASKS, TARGET, ledger, [simulator()], TuneOptions(trials=4), JUDGED)
    other = MemoryLedger(job=ledger.trials, state=ledger.saved_state())
    with pytest.raises(InputError, match="other tasks"):
        tune(TASKS[:1], TARGET, other, [simulator()], OPTIONS, JUDGED)


def test_a_failing_ledger_ends_the_job_as_failed() -> None:
    class Full(MemoryLedger):
        def commit(self, trials: Sequence[Trial], state: object) -> None:
            raise JobError("the disk is full")

    ledger = Full()
    with pytest.raises(JobError, match="disk is full"):
        tune(TASKS, TARGET, ledger, [simulator()], OPTIONS, JUDGED)
    assert ledger.end == "failed"


def test_equal_workloads_are_one_task() -> None:
    ledger = MemoryLedger()
    tasks = [TuningTask(SMALL, 1.0), TuningTask(BIG, 2.0), TuningTask(SMALL, 4.0)]
    summary = tune(tasks, TARGET, ledger, [simulator()], TuneOptions(trials=10), JUDGED)
    assert [(r.workload, r.weight) for r in summary.tasks] == [(SMALL, 5.0), (BIG, 2.0)]


def test_replay_of_a_recorded_job_finds_its_best_again() -> None:
    ledger = MemoryLedger()
    first = tune(TASKS, TARGET, ledger, [simulator()], OPTIONS, JUDGED)
    recorded: dict[str, dict[Config, MeasureResult]] = {}
    for entry in ledger.trials:
        recorded.setdefault(entry.workload.key, {})[entry.config] = entry.result
    replay = runners["replay"](RunnerOptions(TARGET, recorded=recorded))
    again = tune(TASKS, TARGET, MemoryLedger(), [replay], OPTIONS, JUDGED)
    assert [r.best_s for r in again.tasks] == [r.best_s for r in first.tasks]
    with pytest.raises(InputError, match="nothing to replay"):
        runners["replay"](RunnerOptions(TARGET))


def test_the_database_holds_every_trial_and_resumes_exactly(tmp_path: Path) -> None:
    whole = MemoryLedger()
    tune(TASKS, TARGET, whole, [simulator()], OPTIONS, JUDGED)
    with Database.open(str(tmp_path / "tuning.db")) as database:
        started = DatabaseLedger.start(
            database, TARGET, 1, command="tune", seed=1, strategy="evolutionary"
        )
        token = CancelToken()

        def stop(progress: Progress) -> None:
            if progress.trials > 20:
                token.cancel()

        tune(
            TASKS,
            TARGET,
            started,
            [simulator()],
            OPTIONS,
            JUDGED,
            on_progress=stop,
            cancel=token,
        )
        assert 20 < len(database.query(Filter(), limit=None)) < 60
        resumed = DatabaseLedger.resume(database, TARGET, 1, command="tune")
        assert resumed is not None
        summary = tune(TASKS, TARGET, resumed, [simulator()], OPTIONS, JUDGED)
        records = database.query(Filter(), sort="oldest", limit=None)
        assert [(r.workload_key, r.config.key) for r in records] == configs(whole)
        best = database.best(BIG, TARGET)
        assert best is not None and best.latency == summary.tasks[0].best_s
        assert DatabaseLedger.resume(database, TARGET, 1, command="tune") is None, "it is finished"
        later = DatabaseLedger.start(
            database, TARGET, 1, command="again", seed=2, strategy="random"
        )
        assert {t.config for t in later.before(BIG, "simulator")} == {
            r.config for r in records if r.workload_key == BIG.key
        }
        assert later.before(BIG, "hardware") == []
        assert later.similar(BIG, "simulator") == [database.best(SMALL, TARGET).record.config]  # type: ignore[union-attr]


def test_configurations_carry_over_between_shapes() -> None:
    known = MemoryLedger()
    tune([TuningTask(BIG)], TARGET, known, [simulator()], OPTIONS, JUDGED)
    best = min(known.trials, key=lambda trial: trial.result.samples).config
    other = Workload.parse("matmul m=128 n=128 k=256 const=b")
    ledger = MemoryLedger(known=known.trials)
    tune([TuningTask(other)], TARGET, ledger, [simulator()], TuneOptions(trials=9), JUDGED)
    assert Trial(other, best, ledger.trials[1].result) in ledger.trials[:6]


def test_a_default_aborted_as_slow_still_has_a_latency_to_compare_with() -> None:
    default = default_of(BIG, TARGET)
    slow = MeasureResult("slow", "simulator", (0.5,), "took 3 x as long")
    known = MemoryLedger(known=[Trial(BIG, default, slow)])
    summary = tune(TASKS[:1], TARGET, known, [simulator()], TuneOptions(trials=8), JUDGED)
    assert summary.tasks[0].default_s == 0.5
    best = summary.tasks[0].best_s
    assert best is not None and best < 0.5
    assert default not in [entry.config for entry in known.trials]


def test_a_quarantined_default_is_not_tried_again() -> None:
    default = default_of(BIG, TARGET)
    crash = MeasureResult("crash", "hardware", message="the worker died")
    known = MemoryLedger(known=[Trial(BIG, default, crash)])
    tune(TASKS[:1], TARGET, known, [simulator()], TuneOptions(trials=8), JUDGED)
    assert default not in [entry.config for entry in known.trials]
