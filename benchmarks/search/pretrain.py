"""Make the cost models that come with the package.

    python -m benchmarks.search.pretrain --family cpu --out tuner/cost_models/pretrained/cpu.json
    python -m benchmarks.search.pretrain --family trainium --workloads 400 --samples 60 \\
        --out tuner/cost_models/pretrained/trainium.json

Draws workloads of all sizes, measures schedules of each as a tuning job does (evenly from all
algorithms, and mutants of the best, so that the good ones are told apart too), and trains a few
small networks (scikit-learn's) to predict how fast each is among the schedules of its workload. For
training alone, half as many more are bred from the best over several generations where judging
costs as little as it does for CPUs: what the very best have in common is seldom drawn. Where the
simulator measures by another fidelity than it judges by (accelerators), the networks see the
judge's latency. A share of the workloads is held out; how well the model ranks those is printed.
Takes some twenty minutes on two cores. Deterministic in `--seed`.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor

from benchmarks.search.workloads import drawn
from tilesmith.codegen.host import cpu_target
from tilesmith.search_space.errors import TilesmithError
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.population import Breeder, Population
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.target import Target, load_target
from tilesmith.search_space.workload import Workload
from tilesmith.simulator import Judgement, judge, judges_as_measured, measure
from tilesmith.tuner.cost_model import centred, centred_logs, rank_agreement
from tilesmith.tuner.knob_features import KnobColumns
from tilesmith.tuner.network import Ensemble, Network, standardised
from tilesmith.tuner.pretrained import Pretrained, reference, relative, usual

_NETWORKS, _HIDDEN = 4, (128, 64)
_ROWS, _PASSES, _RATE = 8_700_000, (28, 60), 2e-3
"""Schedules learned from, each time counted; least and most passes over all of them; and the rate
of learning in the first pass, which falls by a cosine."""
_SLOWEST = 3.0
"""Centred log latency above which the slow are alike."""
_FASTEST = 0.03
"""Share of a workload's schedules within which ranks count no more."""
_GENERATIONS, _PARENTS = 6, 24
_BRED_WEIGHT = 0.3
"""Of a bred schedule in ranks: they are many among the fastest."""
_LEAST_DEVIATION = 1e-3
"""Added to that of inputs: some never vary."""


@dataclass(frozen=True)
class Corpus:
    """Judged schedules of many workloads.

    Attributes:
        features: shape (n, f).
        configs: the schedules, n.
        latencies: as measured, seconds, shape (n,).
        analytical: as judged, where a model may see that, else NaN, shape (n,).
        groups: number of the workload, ascending, shape (n,).
        bred: whether bred over generations, and so no fair sample to test on, shape (n,).
        usually: what features are compared with, shape (2, f), by group.
    """

    features: NDArray[np.float32]
    configs: Sequence[Config]
    latencies: NDArray[np.float64]
    analytical: NDArray[np.float64]
    groups: NDArray[np.int64]
    bred: NDArray[np.bool_]
    usually: Mapping[int, NDArray[np.float32]]

    def of(self, chosen: NDArray[np.bool_]) -> Corpus:
        configs = [config for config, taken in zip(self.configs, chosen, strict=True) if taken]
        return Corpus(
            self.features[chosen], configs, self.latencies[chosen], self.analytical[chosen],
            self.groups[chosen], self.bred[chosen], self.usually,
        )  # fmt: skip

    def drawn(self) -> Corpus:
        """Those that were not bred over generations."""
        return self.of(~self.bred)

    def by_workload(self) -> Iterator[Corpus]:
        for group in np.unique(self.groups):
            yield self.of(self.groups == group)

    def predicted(self, model: Pretrained) -> NDArray[np.float64]:
        """What a model says of (one workload's) schedules, shape (n,)."""
        return model.predict(self.features, self.usually[int(self.groups[0])], self.configs)


def targets_of(family: str) -> list[Target]:
    """Targets whose schedules a family's model learns from."""
    if family == "cpu":
        return [cpu_target(i, i, "x86_64-unknown-linux-gnu") for i in ("avx512", "avx2")]
    return [load_target("trn1"), load_target("trn2")]


def corpus(family: str, workloads: int, samples: int, seed: int, jobs: int = 1) -> Corpus:
    """Schedules of `workloads` workloads, about `samples` of each; whatever the number of `jobs`
    (processes), the same.
    """
    asked = [(family, number, samples, seed) for number in range(workloads)]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        found = list(pool.map(_of_one_workload, asked))
    numbers = [number for number, part in enumerate(found) if part is not None]
    parts = [part for part in found if part is not None]
    return Corpus(
        np.concatenate([part.features for part in parts]),
        [config for part in parts for config in part.configs],
        np.concatenate([part.latencies for part in parts]),
        np.concatenate([part.analytical for part in parts]),
        np.repeat(np.array(numbers, np.int64), [len(part.configs) for part in parts]),
        np.concatenate([part.bred for part in parts]),
        {number: part.usually for number, part in zip(numbers, parts, strict=True)},
    )


def _of_one_workload(asked: tuple[str, int, int, int]) -> Schedules | None:
    """The schedules of workload `number` of a family; None if it cannot be simulated."""
    family, number, samples, seed = asked
    rng = np.random.default_rng([seed, number])
    targets = targets_of(family)
    target = targets[number % len(targets)]
    workload, space = drawn(target, 1, rng)[0]
    try:
        return schedules(workload, space, target, samples, rng)
    except TilesmithError:
        return None


@dataclass(frozen=True)
class Schedules:
    """One workload's part of a corpus."""

    features: NDArray[np.float32]
    configs: Sequence[Config]
    latencies: NDArray[np.float64]
    analytical: NDArray[np.float64]
    bred: NDArray[np.bool_]
    usually: NDArray[np.float32]


def schedules(
    workload: Workload, space: SearchSpace, target: Target, samples: int, rng: np.random.Generator
) -> Schedules:
    """Schedules of a workload, a third of `samples` near the best, and those bred from them."""
    breeder = space.breeder
    first = _distinct(breeder, breeder.sample(rng, 2 * samples // 3, balanced=True))
    parts = [_measured(workload, target, breeder, first)]
    best = first.take(np.argsort(parts[0][2], kind="stable")[:16])
    family = best.take(rng.integers(0, len(best), samples // 3))
    more = _distinct(breeder, breeder.mutate(family, rng))
    parts.append(_measured(workload, target, breeder, more))
    drawn = first.joined(more)
    bred = breeder.empty()
    if judges_as_measured(target):
        seconds = np.concatenate([part[2] for part in parts])
        bred = _descended(workload, target, breeder, drawn, seconds, rng)
        parts.append(_measured(workload, target, breeder, bred))
    features, analytical, times = (np.concatenate(column) for column in zip(*parts, strict=True))
    others = judge(workload, target, breeder.decode(reference(space, workload)))
    configs = breeder.decode(drawn.joined(bred))
    good = np.flatnonzero(np.isfinite(times))
    return Schedules(
        features[good],
        [configs[i] for i in good],
        times[good],
        analytical[good],
        good >= len(drawn),
        usual(_features(others, target)),
    )


def _descended(
    workload: Workload,
    target: Target,
    breeder: Breeder,
    drawn: Population,
    seconds: NDArray[np.float64],
    rng: np.random.Generator,
) -> Population:
    """Descendants of the fastest of `drawn` over some generations, half as many as those: the
    fastest, and as many others.
    """
    size = len(drawn) // 2
    known = dict(zip(breeder.decode(drawn), seconds.tolist(), strict=True))
    first = set(known)
    for _ in range(_GENERATIONS):
        best = breeder.encode(sorted(known, key=known.__getitem__)[:_PARENTS])
        parents, partners = (best.take(rng.integers(0, len(best), size)) for _ in range(2))
        children = breeder.mutate(breeder.cross(parents, partners, rng), rng)
        new = [c for c in dict.fromkeys(breeder.decode(children)) if c not in known]
        if not new:
            break
        known.update(zip(new, judge(workload, target, new).latency.tolist(), strict=True))
    bred = [c for c in sorted(known, key=known.__getitem__) if c not in first]
    others = rng.permutation(len(bred[size // 2 :]))[: size // 2] + size // 2
    return breeder.encode([*bred[: size // 2], *(bred[place] for place in others.tolist())])


def _distinct(breeder: Breeder, population: Population) -> Population:
    return breeder.encode(list(dict.fromkeys(breeder.decode(population))))


def _measured(
    workload: Workload, target: Target, breeder: Breeder, population: Population
) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]:
    """Features and analytical latencies as a job's model sees them, and measured latencies."""
    configs = breeder.decode(population)
    judged = judge(workload, target, configs)
    if judges_as_measured(target):
        return _features(judged, target), np.full(len(configs), np.nan), judged.latency
    return judged.features, judged.latency, measure(workload, target, configs).latency


def _features(judged: Judgement, target: Target) -> NDArray[np.float32]:
    """Columns that a job's model sees."""
    hidden = list(judged.verdict) if judges_as_measured(target) else []
    return np.delete(judged.features, hidden, axis=1)


def trained(data: Corpus) -> Pretrained:
    """A model of a corpus: the mean of networks that differ in what they began from."""
    knobs = KnobColumns.met(data.configs)
    parts = list(data.by_workload())
    rows = np.concatenate([relative(p.features, p.usually[int(p.groups[0])]) for p in parts])
    inputs = np.hstack([rows, knobs.rows(data.configs)]).astype(np.float64)
    labels = np.concatenate([_labels(part) for part in parts])
    labels /= labels.std()
    mean, deviation = inputs.mean(axis=0), inputs.std(axis=0) + _LEAST_DEVIATION
    seen = standardised(inputs, mean, deviation).astype(np.float32)
    layers = [_fitted(seen, labels.astype(np.float32), seed) for seed in range(_NETWORKS)]

    def model(scale: float) -> Pretrained:
        """The networks, their outputs times `scale`."""
        networks = [
            Network.of([*w[:-1], scale * w[-1]], [*b[:-1], scale * b[-1]]) for w, b in layers
        ]
        ensemble = Ensemble.of(mean, deviation, networks)
        return Pretrained(ensemble, data.features.shape[1], knobs)

    said = np.concatenate([part.predicted(model(1.0)) for part in parts])
    scores, logs = centred(said, data.groups), centred_logs(data.latencies, data.groups)
    return model(float((logs * scores).sum() / (scores**2).sum()))


def _fitted(
    inputs: NDArray[np.float32], labels: NDArray[np.float32], seed: int
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """Weights and biases of a network's layers."""
    network = MLPRegressor(
        hidden_layer_sizes=_HIDDEN, batch_size=512, max_iter=1, warm_start=True, random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # one pass at a time
        passes = int(np.clip(_ROWS / len(inputs), *_PASSES))
        for done in range(passes):
            rate = _RATE * 0.5 * (1 + np.cos(np.pi * done / passes))
            network.set_params(learning_rate_init=rate).fit(inputs, labels)
    return network.coefs_, network.intercepts_


def _labels(part: Corpus) -> NDArray[np.float64]:
    """What is learned of one workload's schedules, shape (n,): how much slower than usual each is,
    and the logarithm of its rank, which tells the fast apart.
    """
    logs = np.log(part.latencies)
    logs = np.minimum(logs - logs[~part.bred].mean(), _SLOWEST)
    ranks = _ranks(part.latencies, np.where(part.bred, _BRED_WEIGHT, 1.0))
    return np.asarray(logs + np.log(_FASTEST + ranks))


def _ranks(latencies: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weight of what is as fast or faster, as a share of all, shape (n,); ties share a mean."""
    order = np.argsort(latencies, kind="stable")
    upto = np.empty(len(latencies))
    upto[order] = np.cumsum(weights[order])
    _, ties = np.unique(latencies, return_inverse=True)
    means = np.bincount(ties, upto) / np.bincount(ties)
    return np.asarray(means[ties] / weights.sum())


def quality(model: Pretrained, data: Corpus) -> dict[str, float]:
    """`ranking_quality` of a model on every workload of a corpus, bred schedules left out."""
    parts = data.drawn().by_workload()
    return ranking_quality([(p.predicted(model), p.latencies) for p in parts])


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
@click.option("--workloads", default=1440, show_default=True)
@click.option("--samples", default=150, show_default=True, help="schedules of each")
@click.option("--seed", default=0, show_default=True)
@click.option("--jobs", default=2, show_default=True, help="processes that judge")
def main(family: str, out: Path, workloads: int, samples: int, seed: int, jobs: int) -> None:
    """Make one family's model and print how it ranks held-out workloads, as one JSON object."""
    start = time.perf_counter()
    data = corpus(family, workloads, samples, seed, jobs)
    judged_s = time.perf_counter() - start
    held_out = data.groups % 6 == 5
    tested = quality(trained(data.of(~held_out)), data.of(held_out))
    model = trained(data)
    made_from = {"workloads": workloads, "samples": samples, "seed": seed}
    model.save(out, {"family": family, **{name: str(n) for name, n in made_from.items()}})
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
