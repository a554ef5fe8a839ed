"""Re-ranking inside the whole model: a candidate that is slower alone may win in place."""

from __future__ import annotations

from collections.abc import Mapping

from problems import TARGET, judge
from test_session import NoisyHardware

from search_space.config import Config
from search_space.measure import MeasureResult
from search_space.workload import Workload
from tuner.evaluator import reranked
from tuner.ledger import MemoryLedger
from tuner.options import TuneOptions
from tuner.publish import contenders
from tuner.session import tune
from tuner.task import TuningTask

ONE = Workload.parse("matmul m=64 n=64 k=64")
TWO = Workload.parse("matmul m=32 n=64 k=48")
A, B = Config.of(layout="a"), Config.of(layout="b")


class Conversions:
    """Two kernels in a row; unequal layouts cost a conversion."""

    def __init__(self) -> None:
        self.asked: list[dict[Workload, Config]] = []

    def latency(self, choices: Mapping[Workload, Config]) -> float:
        self.asked.append(dict(choices))
        alone = {A: 1.0, B: 1.1}
        seconds = alone[choices[ONE]] + alone[choices[TWO]]
        return seconds + (0.5 if choices[ONE] != choices[TWO] else 0.0)


def test_a_slower_kernel_wins_where_it_saves_a_conversion() -> None:
    assert reranked(Conversions(), {ONE: [A, B], TWO: [B]}) == {ONE: B, TWO: B}
    assert reranked(Conversions(), {ONE: [A, B], TWO: [A, B]}) == {ONE: A, TWO: A}


def test_contenders_are_the_best_of_each_close_layout_pair() -> None:
    from problems import state

    searched = state(0)
    searched.layouts = lambda config: (str(config["layout"]), "")
    latencies = {Config.of(layout=n, x=i): t for i, (n, t) in enumerate(
        [("a", 1.0), ("a", 1.1), ("b", 1.2), ("b", 1.15), ("c", 2.0)]
    )}  # fmt: skip
    searched.results = {c: MeasureResult("ok", "simulator", (t,)) for c, t in latencies.items()}
    favourite, rival = Config.of(layout="a", x=0), Config.of(layout="b", x=3)
    assert contenders(searched, favourite) == [favourite, rival]


def test_tuning_reports_what_the_evaluator_chose() -> None:
    class Indifferent:
        def __init__(self) -> None:
            self.calls = 0

        def latency(self, choices: Mapping[Workload, Config]) -> float:
            assert set(choices) == {ONE, TWO}
            self.calls += 1
            return 1.0

    evaluator = Indifferent()
    summary = tune(
        [TuningTask(ONE), TuningTask(TWO)],
        TARGET,
        MemoryLedger(),
        [NoisyHardware()],
        TuneOptions(trials=20),
        judge=judge,
        evaluator=evaluator,
    )
    assert evaluator.calls == 1 and all(report.config is not None for report in summary.tasks)
