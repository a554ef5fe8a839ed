"""Regret of every search strategy on spaces whose optimum is known.

    python benchmarks/search/regret.py --seeds 20 --trials 200 --output build/regret

For each space and strategy, over several seeds: how far the best schedule found is from the
exhaustive optimum after 32, 100 and 200 trials (median), and how many trials it takes to come
within 5 % (median; none if fewer than half the seeds do). Writes `regret.json` and one picture
(SVG) a space.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.search.picture import svg
from benchmarks.search.spaces import CASES, Table, judged_table
from search_space.measure import MeasureResult
from search_space.target import Target
from search_space.workload import Workload
from tuner.cost_model import cost_models
from tuner.predictor import JudgedFeatures, Predictor
from tuner.strategy import strategies
from tuner.task import Trial, TuningState, TuningTask

_MARKS = (32, 100, 200)
_WITHIN = 1.05
_STRATEGIES = "evolutionary,metaschedule,annealing,bayesian,random"


def search(
    workload: Workload, target: Target, table: Table, strategy_name: str, trials: int, seed: int
) -> NDArray[np.float64]:
    """Best latency after each trial, as a multiple of the optimum, shape (trials,)."""
    rng = np.random.default_rng([seed, int(workload.digest, 16)])
    first = table.space.sample(rng)[0]
    state = TuningState(TuningTask(workload), table.space, first, "simulator", rng)
    predictor = Predictor(JudgedFeatures(table, target, analytical=False), cost_models["xgboost"])
    state.predict = lambda configs: predictor.score(state, configs)
    strategy = strategies[strategy_name]()
    best: list[float] = []
    while len(best) < trials:
        if strategy.guided:
            predictor.train_if_due()
        count = min(max(8, len(best) // 4), trials - len(best))
        configs = strategy.propose(state, count)
        if not configs:
            break
        judged = table(workload, target, configs)
        found = [
            Trial(config, MeasureResult("ok", "simulator", (latency,)))
            for config, latency in zip(configs, judged.latency.tolist(), strict=True)
        ]
        state.add(found)
        predictor.remember(state, found)
        best += judged.latency.tolist()
    curve = np.minimum.accumulate(best) / table.best
    return np.pad(curve, (0, trials - len(curve)), mode="edge")


def summary(curves: NDArray[np.float64]) -> dict[str, Any]:
    """Median regret at the marks and trials to come within 5 %; `curves` has shape (seeds,
    trials).
    """
    reached = [int(np.argmax(curve <= _WITHIN)) + 1 for curve in curves if curve[-1] <= _WITHIN]
    missed = [curves.shape[1] * 10] * (len(curves) - len(reached))
    median = float(np.median(reached + missed))
    regret = {
        f"regret_{mark}": round(float(np.median(curves[:, mark - 1])) - 1, 4)
        for mark in _MARKS
        if mark <= curves.shape[1]
    }
    return {**regret, "trials_to_5_percent": median if median <= curves.shape[1] else None}


@click.command()
@click.option("--seeds", default=20, show_default=True)
@click.option("--trials", default=200, show_default=True)
@click.option("--strategy", "names", default=_STRATEGIES, show_default=True)
@click.option("--target", "only", default="", help="only spaces of this target")
@click.option(
    "--output", default="build/regret", show_default=True, type=click.Path(path_type=Path)
)
def main(seeds: int, trials: int, names: str, only: str, output: Path) -> None:
    """Compare strategies and print one JSON object."""
    report: dict[str, Any] = {"seeds": seeds, "trials": trials, "spaces": {}}
    for case in CASES:
        if only and case.target != only:
            continue
        workload, target, table = judged_table(case, output)
        rows: dict[str, Any] = {}
        curves = {}
        for name in names.split(","):
            start = time.perf_counter()
            runs = [search(workload, target, table, name, trials, seed) for seed in range(seeds)]
            curves[name] = np.array(runs)
            seconds = (time.perf_counter() - start) / seeds
            rows[name] = {**summary(curves[name]), "seconds": round(seconds, 2)}
            click.echo(f"{case.name} {name} {rows[name]}", err=True)
        report["spaces"][case.name] = {"size": table.space.size, "strategies": rows}
        picture = output / f"{case.target}-{workload.digest}.svg"
        picture.write_text(svg(case.name, {n: np.median(c, axis=0) for n, c in curves.items()}))
    (output / "regret.json").write_text(json.dumps(report, indent=2))
    click.echo(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
