"""Make the cost models that come with the package.

    python -m benchmarks.search.pretrain --family cpu --out tuner/cost_models/pretrained/cpu.ubj
    python -m benchmarks.search.pretrain --family trainium \\
        --out tuner/cost_models/pretrained/trainium.ubj

Draws workloads of all sizes, judges schedules of each by the family's simulator (evenly from all
algorithms, and mutants of the best, so that the good ones are told apart too), and trains boosted
trees to rank the schedules of a workload. A share of the workloads is held out; how well the model
ranks those is printed. Takes some minutes on one core. Deterministic in `--seed`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.search.workloads import drawn
from codegen.host import cpu_target
from search_space.errors import TilesmithError
from search_space.space import SearchSpace
from search_space.target import Target, load_target
from search_space.workload import Workload
from simulator import judge
from tuner.cost_model import centred_logs, rank_agreement
from tuner.population import Breeder, Population
from tuner.pretrained import Pretrained, reference, relative

_LEVELS = 31
"""Relevance levels of a workload's schedules, by rank (xgboost allows up to 31)."""
_PARAMETERS = {
    "objective": "rank:pairwise",
    "lambdarank_pair_method": "mean",
    "lambdarank_num_pair_per_sample": 4,
    "max_depth": 7,
    "eta": 0.12,
    "subsample": 0.8,
    "colsample_bytree": 0.5,
    "min_child_weight": 5,
    "tree_method": "hist",
    "nthread": 1,
    "seed": 0,
}
_ROUNDS = 100


@dataclass(frozen=True)
class Corpus:
    """Judged schedules of many workloads.

    Attributes:
        features: shape (n, 2 f), as `tuner.pretrained.relative` gives them.
        latencies: seconds, shape (n,).
        groups: number of the workload, ascending, shape (n,).
    """

    features: NDArray[np.float32]
    latencies: NDArray[np.float64]
    groups: NDArray[np.int64]

    def of(self, chosen: NDArray[np.bool_]) -> Corpus:
        return Corpus(self.features[chosen], self.latencies[chosen], self.groups[chosen])

    def usual(self, columns: int) -> NDArray[np.float32]:
        """What the features of the (one) workload are relative to, shape (columns,)."""
        return np.asarray(self.features[0, :columns] - self.features[0, columns:])


def targets_of(family: str) -> list[Target]:
    """Targets whose schedules a family's model learns from."""
    if family == "cpu":
        return [cpu_target(i, i, "x86_64-unknown-linux-gnu") for i in ("avx512", "avx2")]
    return [load_target("trn1"), load_target("trn2")]


def corpus(family: str, workloads: int, samples: int, rng: np.random.Generator) -> Corpus:
    """Schedules of `workloads` workloads, about `samples` of each."""
    features, latencies, groups = [], [], []
    targets = targets_of(family)
    for number in range(workloads):
        target = targets[number % len(targets)]
        workload, space = drawn(target, 1, rng)[0]
        try:
            rows, seconds = schedules(workload, space, target, samples, rng)
        except TilesmithError:
            continue
        features.append(rows)
        latencies.append(seconds)
        groups.append(np.full(len(rows), number, np.int64))
    return Corpus(np.concatenate(features), np.concatenate(latencies), np.concatenate(groups))


def schedules(
    workload: Workload, space: SearchSpace, target: Target, samples: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Relative features and latencies of a workload's schedules, a third near the best."""
    breeder = Breeder(space)
    first = _distinct(breeder, breeder.sample(rng, 2 * samples // 3, balanced=True))
    rows, seconds = _judged(workload, target, breeder, first)
    best = first.take(np.argsort(seconds, kind="stable")[:16])
    family = best.take(rng.integers(0, len(best), samples // 3))
    more = _distinct(breeder, breeder.mutate(family, rng))
    near, faster = _judged(workload, target, breeder, more)
    usual, _ = _judged(workload, target, breeder, reference(space, workload))
    found, times = np.concatenate([rows, near]), np.concatenate([seconds, faster])
    good = np.isfinite(times)
    return relative(found[good], usual.mean(axis=0)), times[good]


def _distinct(breeder: Breeder, population: Population) -> Population:
    return breeder.encode(list(dict.fromkeys(breeder.decode(population))))


def _judged(
    workload: Workload, target: Target, breeder: Breeder, population: Population
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    judged = judge(workload, target, breeder.decode(population))
    return np.delete(judged.features, list(judged.verdict), axis=1), judged.latency


def trained(data: Corpus) -> Pretrained:
    """A model of a corpus."""
    import xgboost

    relevance = np.empty(len(data.groups))
    for group in np.unique(data.groups):
        mine = data.groups == group
        ranks = np.argsort(np.argsort(-data.latencies[mine], kind="stable"), kind="stable")
        relevance[mine] = np.floor(_LEVELS * ranks / len(ranks))
    matrix = xgboost.DMatrix(data.features, relevance, qid=data.groups, nthread=1)
    booster = xgboost.train(_PARAMETERS, matrix, _ROUNDS)
    scores = -np.asarray(booster.inplace_predict(data.features), np.float64)
    logs = centred_logs(data.latencies, data.groups)
    spread = centred_logs(np.exp(scores), data.groups)
    scale = float((logs * spread).sum() / (spread**2).sum())
    return Pretrained(booster, scale, data.features.shape[1] // 2)


def quality(model: Pretrained, data: Corpus) -> dict[str, float]:
    """`ranking_quality` of a model on every workload of a corpus."""
    found = []
    for group in np.unique(data.groups):
        part = data.of(data.groups == group)
        scores = model.predict(part.features[:, : model.columns], part.usual(model.columns))
        found.append((scores, part.latencies))
    return ranking_quality(found)


def ranking_quality(
    workloads: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]],
) -> dict[str, float]:
    """Pairwise accuracy, peak@1 and peak@5, means over (scores, latencies) of workloads."""
    found = []
    for scores, latencies in workloads:
        order = latencies[np.argsort(scores, kind="stable")]
        accuracy = rank_agreement(scores, latencies, np.zeros(len(scores), np.int64))
        found.append((accuracy, order.min() / order[0], order.min() / order[:5].min()))
    names = ("pairwise_accuracy", "peak_1", "peak_5")
    means = np.mean(found, axis=0)
    return {name: round(float(value), 3) for name, value in zip(names, means, strict=True)}


@click.command()
@click.option("--family", type=click.Choice(["cpu", "trainium"]), required=True)
@click.option("--out", required=True, type=click.Path(path_type=Path))
@click.option("--workloads", default=240, show_default=True)
@click.option("--samples", default=360, show_default=True, help="schedules of each")
@click.option("--seed", default=0, show_default=True)
def main(family: str, out: Path, workloads: int, samples: int, seed: int) -> None:
    """Make one family's model and print how it ranks held-out workloads, as one JSON object."""
    start = time.perf_counter()
    data = corpus(family, workloads, samples, np.random.default_rng(seed))
    judged_s = time.perf_counter() - start
    held_out = data.groups % 6 == 5
    tested = quality(trained(data.of(~held_out)), data.of(held_out))
    model = trained(data)
    model.save(out, {"family": family, "workloads": str(workloads), "seed": str(seed)})
    report: dict[str, Any] = {
        "family": family,
        "schedules": len(data.groups),
        "judging_s": round(judged_s, 1),
        "seconds": round(time.perf_counter() - start, 1),
        "bytes": out.stat().st_size,
        "unseen_workloads": tested,
    }
    click.echo(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
