"""Make the cost models that come with the package.

    python -m benchmarks.search.pretrain --family cpu --out tuner/pretrained/models/cpu.json
    python -m benchmarks.search.pretrain --family trainium --workloads 160 --samples 40 \\
        --out tuner/pretrained/models/trainium.json

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
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.search.workloads import drawn
from tilesmith.codegen.host.machine import cpu_target
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.population import Breeder, Population
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import Judgement, judge, judges_as_measured, measure
from tilesmith.tuner.pretrained.model_corpus import Corpus
from tilesmith.tuner.pretrained.model_fitting import NETWORKS, fitted
from tilesmith.tuner.pretrained.pretrained import Pretrained, reference, usual
from tilesmith.tuner.surrogates.cost_model import rank_agreement

_GENERATIONS, _PARENTS = 6, 24


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
        {},
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
    tested = quality(fitted(data.of(~held_out), NETWORKS), data.of(held_out))
    model = fitted(data, NETWORKS)
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
