"""How well cost models rank schedules they were not trained on.

    python -m benchmarks.search.accuracy --family cpu

From simulated schedules of workloads of all sizes (as `benchmarks.search.pretrain` draws them):

- `within_workloads`: trained on three quarters of the schedules of every workload, tested on the
  others of the same workloads;
- `unseen_workloads`: trained on five sixths of the workloads, tested on the others;
- `in_a_job`: the default cost model of a tuning job on an unseen workload, pretrained as above,
  after it has measured `--trials` of its schedules; tested on the others.

Each with the pairwise accuracy (share of pairs ordered rightly) and peak@k (the best latency over
the best among the k that the model ranks first), means over workloads. What tells the simulated
latency is hidden from all of them. Prints one JSON object.
"""

from __future__ import annotations

import json
from typing import Any

import click
import numpy as np

from benchmarks.search.pretrain import corpus, quality, ranking_quality
from tilesmith.tuner.cost_models.blend import Blend
from tilesmith.tuner.pretrained.model_corpus import Corpus
from tilesmith.tuner.pretrained.model_fitting import NETWORKS, fitted
from tilesmith.tuner.pretrained.pretrained import Pretrained
from tilesmith.tuner.surrogates.cost_model import Samples
from tilesmith.tuner.surrogates.knob_features import KnobColumns


def in_a_job(
    model: Pretrained, data: Corpus, trials: int, rng: np.random.Generator
) -> dict[str, float]:
    """Quality of the default model after some trials, on each workload's other schedules."""
    found = []
    for part in data.drawn().by_workload():
        if len(part.groups) < 2 * trials:
            continue
        prior = part.predicted(model)
        knobs = KnobColumns.met(part.configs).rows(part.configs)
        groups = np.zeros(len(prior), np.int64)
        samples = Samples(part.features, part.analytical, groups, prior, knobs)
        order = rng.permutation(len(prior))
        measured, left = order[:trials], order[trials:]
        learner = Blend()
        learner.fit(samples.take(measured), part.latencies[measured])
        scores = learner.predict(samples.take(left))
        found.append((scores, part.latencies[left]))
    if not found:
        raise click.UsageError(f"no held-out workload has {2 * trials} schedules: lower --trials")
    return ranking_quality(found)


@click.command()
@click.option("--family", type=click.Choice(["cpu", "trainium"]), default="cpu", show_default=True)
@click.option("--workloads", default=240, show_default=True)
@click.option("--samples", default=240, show_default=True, help="schedules of each")
@click.option("--trials", default=100, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--jobs", default=2, show_default=True, help="processes that judge")
def main(family: str, workloads: int, samples: int, trials: int, seed: int, jobs: int) -> None:
    """Print how well cost models rank held-out schedules."""
    rng = np.random.default_rng(seed)
    data = corpus(family, workloads, samples, seed, jobs)
    tested = rng.random(len(data.groups)) < 0.25
    unseen = data.groups % 6 == 5
    model = fitted(data.of(~unseen), NETWORKS)
    report: dict[str, Any] = {
        "family": family,
        "workloads": len(np.unique(data.groups)),
        "schedules": len(data.groups),
        "within_workloads": quality(fitted(data.of(~tested), NETWORKS), data.of(tested)),
        "unseen_workloads": quality(model, data.of(unseen)),
        f"in_a_job_after_{trials}": in_a_job(model, data.of(unseen), trials, rng),
    }
    click.echo(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
