"""What a cost model of a machine's own measurements saves a search there.

    python -m benchmarks.search.recorded --database build/recorded.db
    python -m benchmarks.search.models --database build/recorded.db --seeds 5

For each space that was measured in full (`benchmarks.search.recorded`), a model is trained on the
trials of the other spaces, kin left out, as `tilesmith models train` does it. Then a hardware job's
search is replayed on what was recorded, with that model and without: how many trials it takes to
come within 5 % of the fastest on record, medians over seeds. Both know the analytical latency, and
begin with the untuned default. Prints one JSON object.
"""

from __future__ import annotations

import json
from typing import Any

import click
import numpy as np

from benchmarks.search.recorded import WORKLOADS, recorded
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.records.database import Database
from tilesmith.records.learning.samples import lessons
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge
from tilesmith.tuner.cost_models.blend import Blend
from tilesmith.tuner.learning.predictor import Predictor
from tilesmith.tuner.pretrained.model_corpus import Corpus, corpus
from tilesmith.tuner.pretrained.model_fitting import TREES, FittingRecipe, fitted
from tilesmith.tuner.pretrained.pretrained import Pretrained
from tilesmith.tuner.strategies.evolutionary import Evolutionary
from tilesmith.tuner.tasks.feature_source import JudgedFeatures
from tilesmith.tuner.tasks.task import Trial, TuningState, TuningTask

_WITHIN = 1.05
_SCREENED = 16


class Replay:
    """A recorded space, searched as a hardware job would."""

    def __init__(
        self,
        workload: Workload,
        target: Target,
        space: SearchSpace,
        known: dict[Config, MeasureResult],
    ) -> None:
        self.workload, self.target, self.space, self.known = workload, target, space, known
        self.whole = space_of(workload, target)
        self.source = JudgedFeatures(judge, target)
        latencies = [r.latency for r in known.values() if r.latency is not None]
        self.best = min(latencies)
        self.good = sum(latency <= _WITHIN * self.best for latency in latencies)

    def state(self, space: SearchSpace, seed: int) -> TuningState:
        default = default_of(self.workload, self.target)
        rng = np.random.default_rng([seed, int(self.workload.digest, 16)])
        return TuningState(TuningTask(self.workload), space, default, "hardware", rng)

    def trials(self, prior: Pretrained | None, seed: int, screened: bool) -> int:
        """Trials until one is within 5 % of the fastest on record."""
        state = self.state(self.space, seed)
        predictor = Predictor(self.source, Blend, prior=prior)
        predictor.introduce(self.state(self.whole, seed))
        state.predict = lambda configs: predictor.score(state, configs)
        state.estimate = lambda configs: predictor.estimate(state, configs)
        state.joint = lambda configs: predictor.joint(state, configs)
        state.behaviour = lambda configs: configs
        state.shown = state.informed = True
        if screened:
            configs = list(self.space)
            order = np.argsort(self.source.describe(state, configs).analytical, kind="stable")
            state.seeds = tuple(configs[place] for place in order[:_SCREENED])
        strategy = Evolutionary()
        pending = [state.default]
        count = 0
        while pending:
            for config in pending:
                count += 1
                found = self.known[config].latency
                if found is not None and found <= _WITHIN * self.best:
                    return count
            trials = [Trial(state.task.workload, config, self.known[config]) for config in pending]
            state.add(trials)
            predictor.remember(state, trials)
            predictor.train_if_due()
            pending = strategy.propose(state, min(24, strategy.batch_size(state)))
        return count


def without(data: Corpus, workload: Workload) -> Corpus:
    """A corpus less a workload and its kin."""
    (kin,) = {s.kin for s in data.subjects.values() if s.workload == workload}
    theirs = [number for number, subject in data.subjects.items() if subject.kin == kin]
    return data.of(~np.isin(data.groups, theirs))


def compared(replay: Replay, model: Pretrained, seeds: int) -> dict[str, Any]:
    """Median trials by way of searching."""
    ways = {
        "judge": (None, True),
        "judge, unscreened": (None, False),
        "model": (model, False),
        "model, screened": (model, True),
    }
    found: dict[str, Any] = {
        name: float(np.median([replay.trials(prior, seed, screened) for seed in range(seeds)]))
        for name, (prior, screened) in ways.items()
    }
    return {"space": replay.space.size, "within_5_percent": replay.good, **found}


@click.command()
@click.option("--database", required=True, help="what `benchmarks.search.recorded` wrote")
@click.option("--seeds", default=5, show_default=True)
@click.option("--recipe", type=int, default=0, show_default=True, help="number of it in TREES")
def main(database: str, seeds: int, recipe: int) -> None:
    """Print trials to 5 % with and without a model of the machine's other workloads."""
    target = resolve_target("cpu", calibrate=True)
    chosen: FittingRecipe = TREES[recipe]
    rows: dict[str, dict[str, Any]] = {}
    with Database.open(database, create=False) as opened:
        data, _ = corpus(lessons(opened, "hardware", target=target.identity), "hardware")
        assert data is not None
        for key in WORKLOADS:
            workload = Workload.parse(key)
            model = fitted(without(data, workload), chosen)
            replay = Replay(workload, target, *recorded(opened, workload, target))
            rows[key] = compared(replay, model, seeds)
            click.echo(f"{key} {rows[key]}", err=True)
    names = [name for name in next(iter(rows.values())) if "judge" in name or "model" in name]
    columns = {name: np.array([row[name] for row in rows.values()]) for name in names}
    report = {
        "recipe": str(chosen),
        "workloads": rows,
        "median": {name: float(np.median(found)) for name, found in columns.items()},
        "mean": {name: float(np.mean(found)) for name, found in columns.items()},
        "fewer": {n: int((f < columns["judge"]).sum()) for n, f in columns.items()},
        "more": {n: int((f > columns["judge"]).sum()) for n, f in columns.items()},
    }
    click.echo(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
