"""What the results of one CPU save a search on another.

    python -m benchmarks.search.transfer --seeds 5
    python -m benchmarks.search.transfer --seeds 5 --database build/recorded.db

Three made-up machines are described to the simulator: 512-bit vectors and a large second-level
cache (as Skylake's servers), 256-bit vectors and a small one (as Zen's), 128-bit ones and a large
first-level cache (as NEON cores). Some 2,000 configurations of each of twelve workloads are
simulated on each; then, for every ordered pair of machines, a job is searched on one with the best
of the other as a starting point, as jobs on a shared database are (`tuner.opening`), and without:
how many trials it takes to come within 5 % of the best of all. "fresh" starts from no model,
"default" from the one that comes with the package.

With `--database`, what `benchmarks.search.recorded` measured on this machine joins in: hardware's
trials are replayed with the simulated machines' bests of the same small space, and the simulated
machines are searched with what is best here. Prints one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from typing import Any

import click
import numpy as np

from benchmarks.search.recorded import SIZE, WORKLOADS, recorded, thinned
from tilesmith.codegen.host import cpu_target
from tilesmith.codegen.structures import default_of, space_of
from tilesmith.jobs.targets import resolve_target
from tilesmith.records.database import Database
from tilesmith.search_space.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.spaces.transfer import carried_over
from tilesmith.search_space.target import Target
from tilesmith.search_space.template import template_of
from tilesmith.search_space.workload import Workload
from tilesmith.simulator import judge
from tilesmith.tuner.cost_model import cost_models
from tilesmith.tuner.feature_source import JudgedFeatures
from tilesmith.tuner.options import TuneOptions
from tilesmith.tuner.predictor import Predictor
from tilesmith.tuner.pretrained import pretrained
from tilesmith.tuner.strata import propose_batch, strata
from tilesmith.tuner.strategies.evolutionary import Evolutionary
from tilesmith.tuner.task import Trial, TuningState, TuningTask

_WITHIN, _MOST = 1.05, 100
_LARGE = 2000
MACHINES = {
    "skylake": ("avx512", "x86_64-unknown-linux-gnu", {"l1": 32, "l2": 1024, "l3": 22528}),
    "zen": ("avx2", "x86_64-unknown-linux-gnu", {"l1": 32, "l2": 512, "l3": 16384}),
    "neon": ("neon", "aarch64-unknown-linux-gnu", {"l1": 64, "l2": 1024, "l3": 8192}),
}
"""Instruction set, triple, and KiB of the caches."""


def machine(name: str) -> Target:
    """A made-up machine."""
    isa, triple, caches = MACHINES[name]
    settings = {f"{level}.kib": kib for level, kib in caches.items()}
    ways = {"l1.ways": 8, "l2.ways": 8, "l3.ways": 16, "threads": 8}
    return cpu_target(name, isa, triple).with_settings({**settings, **ways})


@dataclass(frozen=True)
class Truth:
    """A space of one machine, and what each configuration takes there, seconds (NaN: fails)."""

    workload: Workload
    target: Target
    space: SearchSpace
    seconds: dict[Config, float]
    measured_by: MeasuredBy

    @property
    def best(self) -> float:
        return float(np.nanmin(list(self.seconds.values())))

    @property
    def fastest(self) -> Config:
        """The best configuration, as another machine's database has it."""
        return min(self.seconds, key=lambda c: (self.seconds[c] != self.best, self.seconds[c]))


@cache
def simulated(key: str, name: str, size: int) -> Truth:
    """A thinned space on a made-up machine, all of it simulated."""
    workload, target = Workload.parse(key), machine(name)
    space = thinned(space_of(workload, target), default_of(workload, target), size)
    configs = list(space)
    seconds = judge(workload, target, configs).latency.tolist()
    return Truth(workload, target, space, dict(zip(configs, seconds, strict=True)), "simulator")


def measured(key: str, database: str) -> Truth:
    """What was recorded of this machine."""
    workload, target = Workload.parse(key), resolve_target("cpu", calibrate=True)
    with Database.open(database, create=False) as opened:
        space, known = recorded(opened, workload, target)
    seconds = {c: float("nan") if r.latency is None else r.latency for c, r in known.items()}
    return Truth(workload, target, space, seconds, "hardware")


def trials(truth: Truth, seeds: Sequence[Config], fresh: bool, seed: int) -> int:
    """Trials until one is within 5 % of the best, the untuned default first."""
    workload, target, hardware = truth.workload, truth.target, truth.measured_by == "hardware"
    rng = np.random.default_rng([seed, int(workload.digest, 16)])
    default = default_of(workload, target)
    state = TuningState(TuningTask(workload), truth.space, default, truth.measured_by, rng)
    source = JudgedFeatures(judge, target, analytical=hardware)
    prior = None if fresh or hardware else pretrained(target.family)
    predictor = Predictor(source, cost_models["residual" if hardware else "blend"], prior=prior)
    whole = TuningState(
        TuningTask(workload), space_of(workload, target), default, truth.measured_by, rng
    )
    predictor.introduce(whole)
    state.layouts = lambda config: template_of(workload.operator).layouts(workload, config)
    state.predict = lambda configs: predictor.score(state, configs)
    state.estimate = lambda configs: predictor.estimate(state, configs)
    state.joint = lambda configs: predictor.joint(state, configs)
    state.behaviour = lambda configs: source.behaviour(state, configs)
    state.shown = state.informed = hardware
    moved = (carried_over(config, truth.space) for config in seeds)
    state.seeds = tuple(dict.fromkeys(c for c in moved if c is not None))
    strategy, count, pending = Evolutionary(), 0, [state.default]
    parts = strata(truth.space, state.layouts, TuneOptions().layout_trials)
    while pending and count < _MOST:
        for config in pending:
            count += 1
            if truth.seconds[config] <= _WITHIN * truth.best:
                return count
        done = [Trial(config, _result(truth, config)) for config in pending]
        state.add(done)
        predictor.remember(state, done)
        predictor.train_if_due()
        pending = propose_batch(state, strategy, parts, min(24, strategy.batch_size(state)))
    return _MOST


def _result(truth: Truth, config: Config) -> MeasureResult:
    seconds = truth.seconds[config]
    if np.isfinite(seconds):
        return MeasureResult("ok", truth.measured_by, (seconds,))
    return MeasureResult("constraint", truth.measured_by, message="it cannot run")


@dataclass(frozen=True)
class Case:
    """A workload, and where it is searched; `database` where this machine ("here") takes part."""

    key: str
    target: str
    fresh: bool
    database: str = ""

    def truth(self, name: str) -> Truth:
        if name == "here":
            return measured(self.key, self.database)
        return simulated(self.key, name, SIZE if self.database else _LARGE)


def compared(case: Case, sources: Sequence[str], seeds: int) -> dict[str, float]:
    """Median trials without (""), and with the best of each other machine."""
    here = case.truth(case.target)
    ways = {name: [case.truth(name).fastest] for name in sources}
    ways[""] = []
    return {
        name: float(np.median([trials(here, way, case.fresh, seed) for seed in range(seeds)]))
        for name, way in ways.items()
    }


def summary(pairs: Sequence[tuple[float, float]]) -> dict[str, float | int]:
    """Of workloads: medians and means, and how many were faster or slower to reach."""
    without, within = np.array(pairs).T
    return {
        "workloads": len(pairs),
        "without": float(np.median(without)),
        "with": float(np.median(within)),
        "saved": float(np.median(without - within)),
        "without_mean": round(float(without.mean()), 1),
        "with_mean": round(float(within.mean()), 1),
        "fewer": int((within < without).sum()),
        "more": int((within > without).sum()),
        "most_lost": float(np.max(within - without)),
    }


@click.command()
@click.option("--seeds", default=5, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="processes that search")
@click.option("--database", default="", help="what `benchmarks.search.recorded` wrote")
def main(seeds: int, jobs: int, database: str) -> None:
    """Print trials to 5 % with and without what is best on another machine."""
    names = [*MACHINES, *(["here"] if database else [])]
    others = {b: [a for a in names if a != b and (not database or "here" in (a, b))] for b in names}
    keys = WORKLOADS if database else WORKLOADS[:4] + WORKLOADS[6:10] + WORKLOADS[12:]
    modes = [True] if database else [True, False]
    cases = [Case(k, b, fresh, database) for k in keys for fresh in modes for b in names]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        sources = [others[case.target] for case in cases]
        found = list(pool.map(compared, cases, sources, [seeds] * len(cases)))
    report: dict[str, Any] = {}
    for fresh in modes:
        pairs: dict[str, list[tuple[float, float]]] = {}
        for case, trials_by in zip(cases, found, strict=True):
            for source in others[case.target] if case.fresh == fresh else ():
                ours = trials_by[""], trials_by[source]
                pairs.setdefault(f"{source} -> {case.target}", []).append(ours)
        everything = [pair for some in pairs.values() for pair in some]
        mode = "fresh" if fresh else "default"
        report[mode] = {name: summary(some) for name, some in {**pairs, "all": everything}.items()}
    click.echo(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
