"""Runs of one strategy in one recorded space, ours and Kernel Tuner's, timed alike.

A run is what `autotuning-methodology` scores: after each evaluation the seconds spent so far and
the objective. An evaluation costs what was recorded of it (compiling, validating, all its
invocations; what the framework took there is left out, for both), and choosing what it really took
here, in seconds of the processor, so that other work on the machine does not count. A run ends when
its budget of seconds is spent. Configurations of ours are chosen by the job itself
(`tilesmith.tuner.session.session.tune` with the replay runner and default options), Kernel Tuner's
by its strategies with their default options on its own search space and simulation runner.
"""

from __future__ import annotations

import gzip
import random
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilesmith.jobs.tuning.recorded_file import RecordedFile, is_larger_better, read_recorded
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.tuner.ledgers.recorded_space import RecordedSpace
from tilesmith.tuner.measurement.runner import Candidate, RunnerOptions
from tilesmith.tuner.runners.replay import ReplayRunner
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.tasks.cancel import CancelToken
from tilesmith.tuner.tasks.ledger import MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions

_COUNTED = ("compilation", "validation", "runtimes")


@dataclass
class Run:
    """What came of one run.

    Attributes:
        seconds: spent when each evaluation was done, ascending.
        values: objective of each as the file has it, NaN for what failed.
        choosing: seconds of all of it that went into choosing.
    """

    seconds: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    choosing: float = 0.0


@dataclass(frozen=True)
class Recorded:
    """A file, read once a process.

    Attributes:
        seconds, values: by configuration key, what an evaluation costs and gives.
    """

    file: RecordedFile
    space: RecordedSpace
    seconds: dict[str, float]
    values: dict[str, float]


@lru_cache(maxsize=2)
def recorded(path: Path) -> Recorded:
    file = read_recorded(path)
    seconds: dict[str, float] = {}
    values: dict[str, float] = {}
    for trial in file.trials:
        key = _key(dict(trial.values))
        seconds.setdefault(key, sum(trial.parts.get(part, 0.0) for part in _COUNTED))
        found = trial.measured.get(file.objective)
        values.setdefault(key, np.nan if trial.failure or found is None else found[0])
    return Recorded(file, file.space(), seconds, values)


def _key(values: dict[str, Any]) -> str:
    return ",".join(f"{name}={values[name]}" for name in sorted(values))


class _Clocked(ReplayRunner):
    """Replays, and keeps the account of a run; sets the token when its budget is spent."""

    def __init__(self, known: Recorded, target: Target, budget: float, token: CancelToken) -> None:
        super().__init__(RunnerOptions(target, recorded=known.space.recorded))
        self._known, self._budget, self._token = known, budget, token
        self.run = Run()
        self._spent = 0.0
        self._best = best_of(known)
        self._since = time.process_time()

    def measure(
        self, batch: Sequence[Candidate], cancel: CancelToken | None = None
    ) -> list[MeasureResult]:
        chosen_in = time.process_time() - self._since
        self.run.choosing += chosen_in
        results = super().measure(batch, cancel)
        for _, config in batch:
            key = _key(dict(config))
            self._spent += self._known.seconds[key] + chosen_in / len(batch)
            self.run.seconds.append(self._spent)
            self.run.values.append(self._known.values[key])
        if self._spent > self._budget or self._best in self.run.values[-len(batch) :]:
            self._token.cancel("the budget")
        self._since = time.process_time()
        return results


def run_ours(path: Path, strategy: str, budget: float, seed: int) -> Run:
    """One of our strategies, as `tilesmith tune --measure replay --space` searches."""
    known, token = recorded(path), CancelToken()
    target = load_target("trn1")  # any: nothing looks at it
    runner = _Clocked(known, target, budget, token)
    options = TuneOptions(trials=None, seed=seed, strategy=strategy)
    tune([known.space.task], target, MemoryLedger(), [runner], options, cancel=token)
    return _carried_on(runner.run, budget)


def best_of(known: Recorded) -> float:
    """The optimum."""
    valid = [value for value in known.values.values() if not np.isnan(value)]
    return max(valid) if is_larger_better(known.file.objective) else min(valid)


def _carried_on(run: Run, budget: float) -> Run:
    """A run that ended at the optimum, with evaluations at its own pace to the end of the budget:
    what it would have chosen then changes nothing.
    """
    pace = run.seconds[-1] / len(run.seconds)
    while run.seconds[-1] <= budget:
        run.seconds.append(run.seconds[-1] + pace)
        run.values.append(run.values[-1] if not np.isnan(run.values[-1]) else np.nan)
    return run


def run_theirs(path: Path, strategy: str, budget: float, seed: int) -> Run:
    """One of Kernel Tuner's strategies; of pyATF's, "pyatf_" and its name."""
    from kernel_tuner import util
    from kernel_tuner.interface import Options, strategy_map
    from kernel_tuner.runners.simulation import SimulationRunner

    util.time = SimpleNamespace(perf_counter_ns=time.process_time_ns)  # type: ignore[attr-defined]
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    known, (searchspace, cache) = recorded(path), _their_space(path)
    objective = known.file.objective
    asked: dict[str, Any] = {"time_limit": budget}
    name = strategy
    if strategy.startswith("pyatf_"):
        asked["searchtechnique"], name = strategy.removeprefix("pyatf_"), "pyatf_strategies"
    if name == "bayes_opt":  # else it ends after 100 evaluations, whatever it is given
        asked["max_fevals"] = searchspace.size
    # a run must look up results with a runner of its own, which remembers what was visited
    quiet = Options(quiet=True)
    runner = SimulationRunner(None, Options(kernel_name=path.stem), quiet, 1, [])
    larger = bool(is_larger_better(objective))
    options = Options(
        objective=[objective], objective_higher_is_better=[larger],
        cache=cache, cachefile=None, metrics=None, restrictions=[],
        tune_params=searchspace.tune_params,
        strategy_options=Options(asked), verbose=False, simulated_time=0,
        budget=util.TuningBudget(budget, searchspace.size),
    )  # fmt: skip
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of failures it makes the largest numbers there are
        results = strategy_map[name].tune(searchspace, runner, options)
    run = Run(choosing=time.process_time() - begun)
    _account(run, results, known, list(searchspace.tune_params))
    return run


def _account(run: Run, results: list[dict[str, Any]], known: Recorded, names: list[str]) -> None:
    spent, visited = 0.0, set()
    for result in results:
        key = _key({name: result[name] for name in names})
        spent += 1e-3 * (result.get("strategy_time", 0.0) + result.get("framework_time", 0.0))
        if key not in known.seconds:
            continue  # it broke a restriction: nothing was evaluated
        if key not in visited:
            spent += known.seconds[key]
        visited.add(key)
        run.seconds.append(spent)
        run.values.append(known.values[key])


@lru_cache(maxsize=2)
def _their_space(path: Path) -> tuple[Any, dict[str, Any]]:
    """The same space as Kernel Tuner holds it, and the results as its cache."""
    from kernel_tuner import util
    from kernel_tuner.searchspace import Searchspace

    known = recorded(path)
    names = list(known.file.trials[0].values)
    tune_params = {
        name: sorted({trial.values[name] for trial in known.file.trials}) for name in names
    }
    failed = {"compile": util.CompilationFailedConfig, "constraints": util.InvalidConfig}
    cache: dict[str, Any] = {}
    for trial in known.file.trials:
        values = {name: trial.values[name] for name in names}
        took = {part: 1e3 * trial.parts.get(part, 0.0) for part in _COUNTED}
        entry: dict[str, Any] = {
            **values,
            "compile_time": took["compilation"],
            "verification_time": took["validation"],
            "benchmark_time": took["runtimes"],
            "strategy_time": 0.0,
            "framework_time": 0.0,
        }
        found = trial.measured.get(known.file.objective)
        if trial.failure or found is None:
            entry["__error__"] = failed.get(trial.failure, util.RuntimeFailedConfig)()
            entry[known.file.objective] = entry["__error__"]
        else:
            entry[known.file.objective] = found[0]
        cache[",".join(str(value) for value in values.values())] = entry
    space = Searchspace(None, None, None, from_cache={"tune_params": tune_params, "cache": cache})
    return space, cache


def unpacked(path: Path, folder: Path) -> Path:
    """A file for readers of plain JSON, in `folder`."""
    plain = folder / "plain" / f"{path.parent.name}-{path.name.removesuffix('.gz')}"
    if not plain.exists():
        plain.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        plain.write_bytes(gzip.decompress(data) if path.suffix == ".gz" else data)
    return plain
