"""Scores of runs by `autotuning-methodology`: its budget, baseline, curves and performance score.

"A methodology for comparing auto-tuning optimization algorithms" (Willemsen et al., 2024): the
baseline is the calculated trajectory of random search; the budget is what it needs to come within
5 % of the way from the median to the optimum; a strategy's score in a space is the mean, over
equidistant moments of the budget, of (curve - baseline) / (optimum - baseline): 0 is random search,
1 the optimum at once. All of this is computed by the package, with its default settings.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.hub_runs import Run, unpacked
from tilesmith.jobs.tuning.recorded_file import is_larger_better, read_recorded

_START, _CUTOFF, _RESOLUTION, _CONFIDENCE = 0.01, 0.95, 1000, 0.95
_MARGIN = 1.1
"""Of the budget that strategies get, over the cutoff: the package's."""
_PARTS = ["compilation", "framework", "search_algorithm", "validation", "runtimes"]


@lru_cache(maxsize=1)
def statistics(path: Path, folder: Path) -> Any:
    """The package's statistics of a T4 file."""
    from autotuning_methodology.searchspace_statistics import SearchspaceStatistics

    objective = read_recorded(path).objective
    plain = unpacked(path, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SearchspaceStatistics(
            path.parent.name, path.stem, not is_larger_better(objective), _PARTS, [objective],
            plain, full_validate=False,
        )  # fmt: skip


def budget(path: Path, folder: Path) -> tuple[int, float]:
    """Evaluations and seconds that random search needs to the cutoff."""
    found = statistics(path, folder).cutoff_point_fevals_time_start_end(_START, _CUTOFF)
    return int(found[1]), float(found[3])


def allowed(path: Path, folder: Path) -> float:
    """Seconds a run gets."""
    return budget(path, folder)[1] * _MARGIN


def scores(path: Path, folder: Path, runs: dict[str, Sequence[Run]]) -> dict[str, float]:
    """The performance score of each strategy in one space."""
    from autotuning_methodology.baseline import RandomSearchCalculatedBaseline
    from autotuning_methodology.curves import StochasticOptimizationAlgorithm
    from autotuning_methodology.report_experiments import get_strategies_aggregated_performance

    known = statistics(path, folder)
    _, last, start, end = known.cutoff_point_fevals_time_start_end(_START, _CUTOFF)
    moments = np.linspace(start, end, _RESOLUTION)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.random.seed(0)  # the package's bootstrap draws from it
        curves = [
            StochasticOptimizationAlgorithm(_described(name, found, known))
            for name, found in runs.items()
        ]
        data = (RandomSearchCalculatedBaseline(known), curves, known, moments, np.arange(1, last))
        found, *_ = get_strategies_aggregated_performance([data], _CONFIDENCE)
    return {name: float(np.mean(curve)) for name, curve in zip(runs, found, strict=True)}


def _described(name: str, runs: Sequence[Run], known: Any) -> Any:
    """Runs as the package's results: arrays (evaluations, runs), NaN behind a run's end."""
    most = max(len(run.seconds) for run in runs)
    better = np.fmin.accumulate if known.minimization else np.fmax.accumulate
    times, values = np.full((2, most, len(runs)), np.nan)
    for column, run in enumerate(runs):
        times[: len(run.seconds), column] = run.seconds
        values[: len(run.values), column] = run.values
    bests = np.where(np.isnan(times), np.nan, better(values, axis=0))
    numbers: NDArray[np.float64] = np.where(
        np.isnan(times), np.nan, np.arange(1.0, most + 1)[:, None]
    )
    results = SimpleNamespace(
        fevals_results=numbers, objective_time_results=times,
        objective_performance_results=values, objective_performance_best_results=bests,
        objective_time_results_per_key=times[None],
        objective_performance_results_per_key=values[None],
    )  # fmt: skip
    return SimpleNamespace(
        group_name=name, group_display_name=name, device_name=known.device_name,
        application_name=known.application_name, stochastic=True,
        minimization=known.minimization, get_results=lambda: results,
    )  # fmt: skip
