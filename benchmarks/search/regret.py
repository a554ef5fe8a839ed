"""Regret of search strategies on spaces whose optimum is known.

    python -m benchmarks.search.regret --seeds 20 --trials 200 --jobs 2 --output build/regret

For each space and strategy, over several seeds: how far the best schedule found is from the
exhaustive optimum after 32, 100 and 200 trials (median), and how many trials it takes to come
within 5 % (median over the seeds). Strategies search on until they do, or for `--most` trials;
random search is carried to its end, since drawing from a table costs nothing, and its median over
all possible seeds is stated in closed form. The default looks into every algorithm, as a job does
(`tuner.search.strata`). Cost models see what they see in a job, whatever the strategy: program
features, knobs and, where the truth is another fidelity (the timeline, on accelerators), the
analytical latency; where that is itself the truth, or with `--hide-estimate`, all that tells it is
hidden. Writes `regret.json` and, with the extra `plots`, one PNG and SVG a space; a space's table
is measured once and kept in the folder.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.search.spaces import CASES, Case, Table, measured_table
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judges_as_measured
from tilesmith.tuner.learning.predictor import Predictor
from tilesmith.tuner.search.strata import propose_batch, strata
from tilesmith.tuner.surrogates.cost_model import cost_models
from tilesmith.tuner.tasks.feature_source import JudgedFeatures
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.strategy import strategies
from tilesmith.tuner.tasks.task import Trial, TuningState, TuningTask

Floats = NDArray[np.float64]
Limits = tuple[int, int, bool]
"""Trials at least, and at most, and whether the judge's latency is hidden."""

_MARKS = (32, 100, 200)
_WITHIN = 1.05
_SHARES = 4
"""Parts that the seeds are shared out in."""
_STRATEGIES = "evolutionary,metaschedule,random"
_DEFAULT = "evolutionary"
_LAYOUT_TRIALS = TuneOptions().layout_trials
_MODELS = {"metaschedule": "xgboost"}
"""Cost models where it is not the default: MetaSchedule's is boosted trees."""


def search(
    workload: Workload,
    target: Target,
    table: Table,
    name: str,
    trials: int,
    most: int,
    hidden: bool,
    seed: int,
) -> Floats:
    """Best latency after each trial, as a multiple of the optimum.

    Args:
        name: of the strategy.
        trials: measured at least.
        most: measured at most, while the best is not within 5 % of the optimum.
        hidden: whether the judge's latency is hidden though it is not the label.
    """
    rng = np.random.default_rng([seed, int(workload.digest, 16)])
    first = table.space.sample(rng)[0]
    template = template_of(workload.operator)
    state = TuningState(TuningTask(workload), table.space, first, "simulator", rng)
    state.layouts = lambda config: template.layouts(workload, config)
    model = cost_models[_MODELS.get(name, "blend")]
    shown = not hidden and not judges_as_measured(target)
    source = JudgedFeatures(table, target, analytical=shown)
    predictor = Predictor(source, model)
    state.predict = lambda configs: predictor.score(state, configs)
    state.estimate = lambda configs: predictor.estimate(state, configs)
    state.joint = lambda configs: predictor.joint(state, configs)
    state.behaviour = lambda configs: source.behaviour(state, configs)
    state.shown = source.analytical
    strategy = strategies[name]()
    parts = strata(table.space, state.layouts, _LAYOUT_TRIALS) if name == _DEFAULT else []
    found: list[float] = []
    while len(found) < (trials if found and min(found) <= _WITHIN * table.best else most):
        if strategy.guided:
            predictor.train_if_due()
        configs = propose_batch(state, strategy, parts, strategy.batch_size(state))
        if not configs:
            break
        latencies = table.measured(configs)
        batch = [
            Trial(state.task.workload, c, _result(s))
            for c, s in zip(configs, latencies, strict=True)
        ]
        state.add(batch)
        strategy.observe(state, batch)
        predictor.remember(state, batch)
        found += latencies
    return np.asarray(np.minimum.accumulate(found) / table.best)


def _result(latency: float) -> MeasureResult:
    if np.isinf(latency):
        return MeasureResult("constraint", "simulator", message="it cannot run")
    return MeasureResult("ok", "simulator", (latency,))


def random_search(table: Table, seed: int) -> Floats:
    """As `search`: uniform draws without repetition, to the end of the space."""
    order = np.random.default_rng(seed).permutation(len(table.latency))
    return np.asarray(np.minimum.accumulate(table.latency[order]) / table.best)


def random_median(size: int, good: int) -> int:
    """Trials after which half of all random searches have met one of the `good` configurations.

    None is met by t draws without repetition with probability C(size - good, t) / C(size, t).
    """
    drawn = np.arange(size - good + 1)
    missed = np.cumsum(np.log1p(-good / np.maximum(size - drawn, good + 1e-9)))
    return int(np.argmax(missed <= np.log(0.5))) + 1


def summary(curves: list[Floats]) -> dict[str, Any]:
    """Median regret at the marks, and trials to come within 5 % (None: in fewer than half the
    runs); each curve is one seed's multiples of the optimum.
    """
    reached = [
        float(np.argmax(curve <= _WITHIN)) + 1 if curve[-1] <= _WITHIN else np.inf
        for curve in curves
    ]
    median = float(np.median(reached))
    regret = {
        f"regret_{mark}": round(float(np.median([c[min(mark, len(c)) - 1] for c in curves])) - 1, 4)
        for mark in _MARKS
    }
    return {
        **regret,
        "trials_to_5_percent": median if np.isfinite(median) else None,
        "slowest_seed": max(reached) if np.isfinite(max(reached)) else None,
        "gave_up": sum(not np.isfinite(r) for r in reached),
    }


def padded(curves: list[Floats], trials: int) -> Floats:
    """Curves of the same length, shape (seeds, trials), each ending at its best."""
    return np.array([np.pad(c[:trials], (0, max(0, trials - len(c))), mode="edge") for c in curves])


def runs(case: Case, folder: Path, name: str, seeds: Sequence[int], limits: Limits) -> list[Floats]:
    """One curve a seed; the table is taken from `folder`, once a process."""
    workload, target, table = _table(case, folder)
    if name == "random":
        return [random_search(table, seed) for seed in seeds]
    return [search(workload, target, table, name, *limits, seed) for seed in seeds]


@lru_cache(maxsize=1)
def _table(case: Case, folder: Path) -> tuple[Workload, Target, Table]:
    return measured_table(case, folder)


def compared(case: Case, names: Sequence[str], seeds: int, limits: Limits, folder: Path,
             pool: Executor, jobs: int) -> tuple[dict[str, Any], dict[str, Floats]]:  # fmt: skip
    """A space's report, and the curves of each strategy, shape (seeds, trials)."""
    _, _, table = measured_table(case, folder, jobs)
    good = int((table.latency <= _WITHIN * table.best).sum())
    rows: dict[str, Any] = {}
    curves: dict[str, Floats] = {}
    for name in names:
        start = time.perf_counter()
        parts = [list(range(first, seeds, _SHARES)) for first in range(min(_SHARES, seeds))]
        asked = [pool.submit(runs, case, folder, name, part, limits) for part in parts]
        found = [curve for share in asked for curve in share.result()]
        seconds = (time.perf_counter() - start) / seeds
        rows[name] = {**summary(found), "seconds": round(seconds, 2)}
        curves[name] = padded(found, limits[0])
        click.echo(f"{case.name} {name} {rows[name]}", err=True)
    size = len(table.latency)
    known = {"size": size, "within_5_percent": good, "random_median": random_median(size, good)}
    return {**known, "strategies": rows}, curves


@click.command()
@click.option("--seeds", default=20, show_default=True)
@click.option("--trials", default=200, show_default=True)
@click.option("--most", default=640, show_default=True)
@click.option("--strategy", "names", default=_STRATEGIES, show_default=True)
@click.option("--target", "only", default="", help="only spaces of this target")
@click.option("--space", "numbers", default="", help="numbers of the spaces, as 0,2")
@click.option("--hide-estimate", is_flag=True, help="show no latency on accelerators either")
@click.option("--jobs", default=1, show_default=True, help="processes that search")
@click.option(
    "--output", default="build/regret", show_default=True, type=click.Path(path_type=Path)
)
def main(
    seeds: int, names: str, only: str, numbers: str, jobs: int, output: Path, **limited: Any
) -> None:
    """Compare strategies and print one JSON object."""
    trials, most = limited["trials"], limited["most"]
    report: dict[str, Any] = {"seeds": seeds, "trials": trials, "most": most, "spaces": {}}
    limits = (trials, most, limited["hide_estimate"])
    for number, case in enumerate(CASES):
        if (only and case.target != only) or (numbers and str(number) not in numbers.split(",")):
            continue
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            found, curves = compared(case, names.split(","), seeds, limits, output, pool, jobs)
        report["spaces"][case.name] = found
        _draw(case.name, curves, output / f"{case.target}-{Workload.parse(case.workload).digest}")
        (output / "regret.json").write_text(json.dumps(report, indent=2))
    click.echo(json.dumps(report, indent=2))


def _draw(title: str, curves: dict[str, Floats], path: Path) -> None:
    """Pictures, where matplotlib is installed."""
    try:
        from benchmarks.search.picture import draw
    except ImportError:
        click.echo("no pictures: pip install 'tilesmith[plots]' brings matplotlib", err=True)
        return
    draw(title, curves, path)


if __name__ == "__main__":
    main()
