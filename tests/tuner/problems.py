"""Search problems whose answer is known: a synthetic space with an analytic cost, and a judge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from tests.search_space.searched import space
from tilesmith.codegen.host.machine import cpu_target
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import Judgement
from tilesmith.tuner.cost_models.xgboost_squared import XgboostSquared
from tilesmith.tuner.learning.learning import Judging
from tilesmith.tuner.learning.predictor import Predictor
from tilesmith.tuner.tasks.feature_source import KnobFeatures
from tilesmith.tuner.tasks.strategy import strategies
from tilesmith.tuner.tasks.task import Trial, TuningState, TuningTask

TARGET = cpu_target("test", "avx512", "x86_64-unknown-linux-gnu")
WORKLOAD = Workload.parse("matmul m=64 n=64 k=64")


def cost(config: Config) -> float:
    """Seconds: smooth valleys that interact, a cliff, an algorithm that is mediocre everywhere."""
    if config["algorithm"] == "other":
        return 3e-3 * (1 + 0.1 * abs(math.log2(config.integer("x") / 4)))
    x, y, z = (math.log2(config.integer(name)) for name in "xyz")
    best_z = 2.0 if config["order"] == "yxz" else 4.0
    value = 1.0 + 0.5 * (x - 2.58) ** 2 + 0.4 * (y - 3) ** 2 + 0.3 * (z - best_z) ** 2
    value += 0.5 * (config["pack"] == "no") + 0.2 * (config["order"] == "xyz")
    value += 0.15 * (math.log2(config.integer("unroll")) - 2) ** 2
    cliff = 2.0 if config.integer("x") * config.integer("y") > 50 else 1.0
    return 1e-3 * value * cliff


def state(seed: int, searched: SearchSpace | None = None) -> TuningState:
    searched = searched or space()
    default = next(iter(searched))
    return TuningState(
        TuningTask(WORKLOAD), searched, default, "simulator", np.random.default_rng(seed)
    )


def ok(seconds: float) -> MeasureResult:
    return MeasureResult("ok", "simulator", (seconds,))


def run(name: str, trials: int, seed: int, batch: int = 16) -> list[Config]:
    """Search the synthetic space with a strategy and a model trained on what it measured."""
    searched = state(seed)
    predictor = Predictor(KnobFeatures(), XgboostSquared)
    searched.predict = lambda configs: predictor.score(searched, configs)
    searched.estimate = lambda configs: predictor.estimate(searched, configs)
    searched.joint = lambda configs: predictor.joint(searched, configs)
    strategy = strategies[name]()
    while len(searched.results) < trials:
        if strategy.guided:
            predictor.train_if_due()
        proposed = strategy.propose(searched, min(batch, trials - len(searched.results)))
        if not proposed:
            break
        found = [Trial(searched.task.workload, config, ok(cost(config))) for config in proposed]
        searched.add(found)
        strategy.observe(searched, found)
        predictor.remember(searched, found)
    return list(searched.results)


def best_of(configs: Sequence[Config]) -> float:
    return min(cost(config) for config in configs)


def refusing(workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
    """As `judge`, but none of them works."""
    return refused(judge(workload, target, configs), range(len(configs)))


def refused(judged: Judgement, rows: Iterable[int]) -> Judgement:
    """The same with failures in some rows."""
    failure = MeasureResult("constraint", "simulator", message="rejects it (sbuf)")
    failures = dict.fromkeys(rows, failure)
    latency = judged.latency.copy()
    latency[list(failures)] = np.nan
    return Judgement(latency, judged.features, judged.bound, failures=failures)


def judge(workload: Workload, target: Target, configs: Sequence[Config]) -> Judgement:
    """A deterministic stand-in for the simulator on the real matmul space."""
    tiles = np.array([[c.integer("m_tile"), c.integer("n_vectors")] for c in configs], float)
    more = np.array([[c.integer("k_unroll"), c.integer("k_block")] for c in configs], float)
    packed = np.array([c["pack_b"] == "panels" for c in configs], float)
    area = tiles[:, 0] * tiles[:, 1]
    spills = np.maximum(0.0, area + tiles[:, 1] - 31)
    flops = 2.0 * math.prod(workload.integer(name) for name in "mnk")
    ineffective = 1 + (1 - area / 30) ** 2 + 0.4 * spills + 0.2 * (1 - packed)
    ineffective += 0.05 * np.abs(np.log2(more[:, 0]) - 2) + 0.1 / more[:, 1]
    features = np.stack([*tiles.T, *more.T, packed, area, spills], axis=1)
    latency = flops / 200e9 * ineffective
    return Judgement(latency, features.astype(np.float32), ["compute"] * len(configs))


JUDGED = Judging(judge)
