"""Re-ranking inside the whole model: a candidate that is slower alone may win in place."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest
from problems import TARGET, judge
from test_session import NoisyHardware

from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.results.model_evaluator import Placed
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.confirmation.in_place import NOTHING, InPlace
from tilesmith.tuner.confirmation.publish import contenders
from tilesmith.tuner.confirmation.whole_model import WholeModel, reranked
from tilesmith.tuner.learning.learning import Judging
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.ledger import MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.task import TuningTask

ONE = Workload.parse("matmul m=64 n=64 k=64")
TWO = Workload.parse("matmul m=32 n=64 k=48")
A, B = Config.of(layout="a"), Config.of(layout="b")


def seconds(*times: float) -> list[MeasureResult]:
    return [MeasureResult("ok", "simulator", (time,)) for time in times]


class Conversions:
    """Two kernels in a row; unequal layouts cost a conversion. Records speak for A."""

    near_tie = 0.01
    share = 0.1
    rivals = 2
    luck = 1.1
    trials_each = 0
    varies = False

    def __init__(self) -> None:
        self.asked: list[dict[Workload, Config]] = []

    def shown(self) -> Mapping[Workload, float]:
        return {}

    def untuned(self) -> Mapping[Workload, Config]:
        return {}

    def measure_untuned(self) -> Mapping[Workload, Placed]:
        return {}

    def kernels(
        self, choices: Mapping[Workload, Config]
    ) -> Sequence[tuple[Workload, Config, float]]:
        return ()

    def starts(self) -> Sequence[Mapping[Workload, Config]]:
        return ()

    def measure(self, alternatives: Sequence[Mapping[Workload, Config]]) -> list[MeasureResult]:
        self.asked += [dict(choices) for choices in alternatives]
        return seconds(*(self._latency(choices) for choices in alternatives))

    def _latency(self, choices: Mapping[Workload, Config]) -> float:
        alone = {A: 1.0, B: 1.1}
        one, two = choices.get(ONE, A), choices.get(TWO, A)
        return alone[one] + alone[two] + (0.5 if one != two else 0.0)


def test_a_slower_kernel_wins_where_it_saves_a_conversion() -> None:
    class OnlyBForTwo(Conversions):
        def _latency(self, choices: Mapping[Workload, Config]) -> float:
            return super()._latency({**choices, TWO: B})

    found = reranked(OnlyBForTwo(), {ONE: [A, B]})
    assert found == InPlace({ONE: B}, pytest.approx(2.6), pytest.approx(2.2), 2)


def test_what_does_not_help_the_model_is_not_pinned() -> None:
    found = reranked(Conversions(), {ONE: [A, B], TWO: [A, B]})
    assert (found.choices, found.compared) == ({}, 4)
    assert found.before_s == found.after_s == 2.0


def test_re_ranking_ends_when_the_time_is_up() -> None:
    evaluator, turns = Conversions(), iter([False, True])
    assert reranked(evaluator, {ONE: [A, B]}, lambda _: next(turns)).compared == 1
    assert reranked(evaluator, {ONE: [A, B]}, lambda done: done >= 0) == InPlace()


def test_a_lucky_comparison_is_repeated_before_it_counts() -> None:
    class LuckyOnce(Conversions):
        def measure(self, alternatives: Sequence[Mapping[Workload, Config]]) -> list[MeasureResult]:
            super().measure(alternatives)
            return seconds(1.0, 0.9 if len(self.asked) == 2 else 1.0)

    assert reranked(LuckyOnce(), {ONE: [B]}).choices == {}


def test_what_cannot_be_built_is_never_chosen() -> None:
    """Neither in place of what works, nor as an improvement on it."""

    class NoB(Conversions):
        def measure(self, alternatives: Sequence[Mapping[Workload, Config]]) -> list[MeasureResult]:
            refused = MeasureResult("compile", "simulator", message="no such instruction")
            found = super().measure(alternatives)
            return [
                refused if B in choices.values() else result
                for choices, result in zip(alternatives, found, strict=True)
            ]

    assert reranked(NoB(), {ONE: [B], TWO: [B]}) == InPlace({}, 2.0, 2.0, 2)


def test_pins_that_do_not_help_together_are_dropped() -> None:
    class EachHelpsAlone(Conversions):
        def measure(self, alternatives: Sequence[Mapping[Workload, Config]]) -> list[MeasureResult]:
            super().measure(alternatives)
            fewest = min(len(choices) for choices in alternatives)
            together = max(len(choices) for choices in alternatives) - fewest > 1
            return seconds(
                *(1.0 if together else 1.0 - 0.1 * (len(c) - fewest) for c in alternatives)
            )

    found = reranked(EachHelpsAlone(), {ONE: [B], TWO: [B]})
    assert found == InPlace({}, 1.0, 1.0, 2)


def test_neighbours_are_tried_until_none_makes_the_model_faster() -> None:
    """Each kernel's knob x is best at 3; records speak for 0 and neighbours are one step away."""

    class Bowl(Conversions):
        def _latency(self, choices: Mapping[Workload, Config]) -> float:
            found = [choices.get(w, Config.of(x=0)).integer("x") for w in (ONE, TWO)]
            return 1.0 + sum((x - 3) ** 2 for x in found)

    def neighbours(workload: Workload, choices: Mapping[Workload, Config]) -> list[Config]:
        at = choices.get(workload, Config.of(x=0)).integer("x")
        return [Config.of(x=at - 1), Config.of(x=at + 1)]

    best = {ONE: Config.of(x=3), TWO: Config.of(x=3)}
    found = reranked(Bowl(), {ONE: [], TWO: []}, variants=neighbours)
    assert found.choices == best and (found.before_s, found.after_s) == (19.0, 1.0)
    few = reranked(Bowl(), {ONE: [], TWO: []}, lambda done: done >= 4, neighbours)
    assert few.compared == 4 and 1.0 < (few.after_s or 0.0) < 19.0


def test_whole_assignments_come_first() -> None:
    class Together(Conversions):
        def starts(self) -> Sequence[Mapping[Workload, Config]]:
            return ({ONE: B, TWO: B},)

        def _latency(self, choices: Mapping[Workload, Config]) -> float:
            return 1.0 if len(choices) == 2 else 2.0

    assert reranked(Together(), {}) == InPlace({ONE: B, TWO: B}, 2.0, 1.0, 1, 1.0)


def test_contenders_are_the_best_of_each_close_layout_pair() -> None:
    from problems import state

    searched = state(0)
    searched.layouts = lambda config: (str(config["layout"]), "")
    latencies = {Config.of(layout=n, x=i): t for i, (n, t) in enumerate(
        [("a", 1.0), ("a", 1.05), ("a", 1.06), ("b", 1.2), ("b", 1.35), ("c", 2.0)]
    )}  # fmt: skip
    searched.results = {c: MeasureResult("ok", "simulator", (t,)) for c, t in latencies.items()}
    assert [config["x"] for config in contenders(searched)] == [0, 1, 3]


def test_tuning_reports_what_the_evaluator_chose() -> None:
    class LikesTheSlowest(Conversions):
        def measure(self, alternatives: Sequence[Mapping[Workload, Config]]) -> list[MeasureResult]:
            return seconds(*(1.0 - 0.1 * len(choices) for choices in alternatives))

    summary = tune(
        [TuningTask(ONE), TuningTask(TWO)],
        TARGET,
        MemoryLedger(),
        [NoisyHardware()],
        TuneOptions(trials=20, time_limit_s=60),
        Judging(judge, evaluator=LikesTheSlowest()),
    )
    found = summary.in_place
    assert set(found.choices) == {ONE, TWO}
    assert (found.before_s, found.after_s) == (1.0, 0.8)
    for task in summary.tasks:
        assert task.best_s is not None and task.default_s is not None
        assert task.best_s <= 1.02 * task.default_s, "the best alone, whatever the model has"


def test_no_comparison_begins_that_would_end_after_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Comparisons of four seconds in ten: two fit."""
    clock = [0.0]
    watch = SimpleNamespace(monotonic=lambda: clock[0], perf_counter=lambda: clock[0])
    for module in ("session.session", "search.search", "confirmation.whole_model"):
        monkeypatch.setattr(f"tilesmith.tuner.{module}.time", watch)

    class FourSeconds(Conversions):
        rivals = 4
        luck = 10.0

        def measure(self, alternatives: Sequence[Mapping[Workload, Config]]) -> list[MeasureResult]:
            clock[0] += 4.0
            return seconds(*(1.0 for _ in alternatives))

    summary = tune(
        [TuningTask(ONE), TuningTask(TWO)], TARGET, MemoryLedger(), [NoisyHardware()],
        TuneOptions(trials=40, time_limit_s=10), Judging(judge, evaluator=FourSeconds()),
    )  # fmt: skip
    assert summary.in_place.compared == 2


def test_a_confirmation_that_would_end_long_after_the_time_limit_is_left_out() -> None:
    class Endless(Conversions):
        def measure(self, alternatives: Sequence[Mapping[Workload, Config]]) -> list[MeasureResult]:
            raise AssertionError("it was known to take too long")

    options = TuneOptions(trials=20, time_limit_s=60)
    begun = time.monotonic()
    whole = WholeModel(Endless(), options, begun, CancelToken())
    whole._looked_s = 90.0
    assert whole.settled(None) is NOTHING  # type: ignore[arg-type]
    late = WholeModel(Endless(), options, begun - 30.0, CancelToken())
    assert late.measure_untuned() == {}, "getting ready took half of the time"


def test_without_a_time_limit_trials_pay_for_comparisons_that_repeat() -> None:
    """A job whose results repeat exactly must not compare as often as its clock lets it."""

    class Exact(Conversions):
        trials_each = 4

        def _latency(self, choices: Mapping[Workload, Config]) -> float:
            return 1.0

    counts = [
        tune(
            [TuningTask(ONE), TuningTask(TWO)], TARGET, MemoryLedger(), [NoisyHardware()],
            TuneOptions(trials=trials), Judging(judge, evaluator=Exact()),
        ).in_place.compared
        for trials in (8, 12)
    ]  # fmt: skip
    assert counts == [2, 3]
