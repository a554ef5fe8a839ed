"""What the results of one CPU save a search on another.

    python -m benchmarks.search.transfer --jobs 2

Made-up machines are described to the simulator: 512-bit vectors and a large second-level cache (as
Skylake's servers), 256-bit vectors and a small one (as Zen's), 128-bit ones and a large first-level
cache (as NEON cores). Each of ten workloads is searched in its whole space (100,000 configurations
and more) on every machine; then again with the best that another machine found as a starting point,
as jobs on a shared database are (`tuner.search.opening`). Told is after how many trials each came
within 5 % of the best that any of these searches found on that machine; one that never did counts
as one trial more than it had. Searches start from no model. Prints one JSON object: for each pair
of machines, for all of them, and for the searches that took more than a few trials by themselves.
Nothing depends on the clock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import click
import numpy as np

from benchmarks.search.recorded import WORKLOADS
from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.transfer import carried_over
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge
from tilesmith.tuner.cost_models.blend import Blend
from tilesmith.tuner.learning.predictor import Predictor
from tilesmith.tuner.search.strata import propose_batch, strata
from tilesmith.tuner.search.task_search import starting_points
from tilesmith.tuner.strategies.evolutionary import Evolutionary
from tilesmith.tuner.tasks.feature_source import JudgedFeatures
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.task import Trial, TuningState, TuningTask

_WITHIN = 1.05
_FEW = 8
"""A search that takes no more trials by itself has little to save."""
KEYS = (*WORKLOADS[:3], *WORKLOADS[4:5], *WORKLOADS[6:10], *WORKLOADS[14:])
MACHINES = {
    "skylake": ("avx512", "x86_64-unknown-linux-gnu", {"l1": 32, "l2": 1024, "l3": 22528}),
    "zen": ("avx2", "x86_64-unknown-linux-gnu", {"l1": 32, "l2": 512, "l3": 16384}),
    "neon": ("neon", "aarch64-unknown-linux-gnu", {"l1": 64, "l2": 1024, "l3": 8192}),
}
"""Instruction set, triple, and KiB of the caches."""


@dataclass(frozen=True)
class Plan:
    """How each search goes."""

    trials: int
    seed: int


Curve = list[tuple[float, Config]]
"""Seconds of each trial (infinite: it failed), and what was tried."""


def machine(name: str) -> Target:
    """A made-up machine."""
    isa, triple, caches = MACHINES[name]
    settings = {f"{level}.kib": kib for level, kib in caches.items()}
    ways = {"l1.ways": 8, "l2.ways": 8, "l3.ways": 16, "threads": 8}
    return cpu_target(name, isa, triple).with_settings({**settings, **ways})


def search(key: str, name: str, seeds: Sequence[Config], plan: Plan) -> Curve:
    """A job's trials, the untuned default first."""
    workload, target = Workload.parse(key), machine(name)
    space = space_of(workload, target)
    rng = np.random.default_rng([plan.seed, int(workload.digest, 16)])
    state = TuningState(TuningTask(workload), space, default_of(workload, target), "simulator", rng)
    source = JudgedFeatures(judge, target, analytical=False)
    predictor = Predictor(source, Blend)
    predictor.introduce(state)
    state.layouts = lambda config: template_of(workload.operator).layouts(workload, config)
    state.predict = lambda configs: predictor.score(state, configs)
    state.estimate = lambda configs: predictor.estimate(state, configs)
    state.joint = lambda configs: predictor.joint(state, configs)
    state.behaviour = lambda configs: source.behaviour(state, configs)
    moved = (carried_over(config, space) for config in seeds)
    state.seeds = tuple(dict.fromkeys(c for c in moved if c is not None))
    state.proven = len(state.seeds)
    state.seeds = starting_points(state, predictor.score)
    strategy, parts = Evolutionary(), strata(space, state.layouts, TuneOptions().layout_trials)
    curve: Curve = []
    pending = [state.default]
    while pending and len(curve) < plan.trials:
        latencies = np.nan_to_num(judge(workload, target, pending).latency, nan=np.inf).tolist()
        curve += zip(latencies, pending, strict=True)
        done = [
            Trial(state.task.workload, c, _result(s))
            for s, c in zip(latencies, pending, strict=True)
        ]
        state.add(done)
        predictor.remember(state, done)
        predictor.train_if_due()
        pending = propose_batch(state, strategy, parts, strategy.batch_size(state))
    return curve[: plan.trials]


def _result(seconds: float) -> MeasureResult:
    if np.isfinite(seconds):
        return MeasureResult("ok", "simulator", (seconds,))
    return MeasureResult("constraint", "simulator", message="it cannot run")


def _fastest(curve: Curve) -> tuple[float, Config]:
    return min(curve, key=lambda trial: trial[0])


def compared(key: str, names: Sequence[str], plan: Plan) -> dict[str, tuple[int, int]]:
    """Trials to 5 % without and with another machine's best, by "source -> target"."""
    alone = {name: search(key, name, [], plan) for name in names}
    found: dict[str, tuple[int, int]] = {}
    for target in names:
        others = [name for name in names if name != target]
        helped = {a: search(key, target, [_fastest(alone[a])[1]], plan) for a in others}
        best = min(_fastest(curve)[0] for curve in (alone[target], *helped.values()))
        for source in others:
            pair = (_reached(alone[target], best), _reached(helped[source], best))
            found[f"{source} -> {target}"] = pair
    click.echo(f"{key} {found}", err=True)
    return found


def _reached(curve: Curve, best: float) -> int:
    """Trials until one is within 5 %; one more than there were where none is."""
    near = (place + 1 for place, (seconds, _) in enumerate(curve) if seconds <= _WITHIN * best)
    return next(near, len(curve) + 1)


def summary(pairs: Sequence[tuple[int, int]]) -> dict[str, float | int]:
    """Of workloads: medians and means, and how many took fewer or more trials."""
    without, helped = np.array(pairs).T
    return {
        "searches": len(pairs),
        "without": float(np.median(without)),
        "with": float(np.median(helped)),
        "saved_median": float(np.median(without - helped)),
        "without_mean": round(float(without.mean()), 1),
        "with_mean": round(float(helped.mean()), 1),
        "fewer": int((helped < without).sum()),
        "more": int((helped > without).sum()),
        "most_lost": int(np.max(helped - without)),
    }


@click.command()
@click.option("--machines", default=",".join(MACHINES), show_default=True)
@click.option("--trials", default=48, show_default=True, help="of each search")
@click.option("--seed", default=0, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="processes that search")
def main(machines: str, trials: int, seed: int, jobs: int) -> None:
    """Print trials to 5 % with and without what is best on another machine."""
    names = machines.split(",")
    plan = Plan(trials, seed)
    pairs: dict[str, list[tuple[int, int]]] = {}
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        asked = [pool.submit(compared, key, names, plan) for key in KEYS]
        for future in asked:
            for name, pair in future.result().items():
                pairs.setdefault(name, []).append(pair)
    everything = [pair for found in pairs.values() for pair in found]
    report: dict[str, Any] = {name: summary(found) for name, found in pairs.items()}
    report["all"] = summary(everything)
    long = [pair for pair in everything if pair[0] > _FEW]
    if long:
        report[f"more than {_FEW} without"] = summary(long)
    click.echo(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
