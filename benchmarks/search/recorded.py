"""Small spaces measured on this machine in full, in a tuning database: what replays look up.

    python -m benchmarks.search.recorded --database build/recorded.db --seconds 90

Each space is a workload's space with most values of most knobs left out (`thinned`), so that some
250 configurations are left: every algorithm, and every knob with its least, its greatest and the
default's value where that many fit. Configurations already on record are not measured again: the
command goes on where it stopped. The machine should do nothing else meanwhile; the order is drawn,
so that what disturbs it hits all configurations alike.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace

import click
import numpy as np

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.records.database import Database
from tilesmith.records.questions.queries import Filter
from tilesmith.records.trials.record import TuningRecord
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Knob
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.runner import RunnerOptions, runners

WORKLOADS = (
    # A rank-8 adapter, a transformer's projections and its feed-forward halves, a classifier.
    "matmul m=128 n=768 k=8 const=b",
    "matmul m=128 n=768 k=768 const=b",
    "matmul m=64 n=1024 k=256 const=b",
    "matmul m=1 n=1000 k=512 const=b",
    "matmul m=196 n=192 k=192 const=b",
    "matmul m=77 n=77 k=64 batch=8 tb=1",
    # ResNet's and MobileNet's convolutions, a first layer, a diffusion model's.
    "conv2d c=64 h=28 w=28 oc=64 kh=3 kw=3 pad=1 const=weight",
    "conv2d c=256 h=14 w=14 oc=256 kh=3 kw=3 pad=1 const=weight",
    "conv2d c=128 h=28 w=28 oc=128 kh=1 kw=1 const=weight",
    "conv2d c=3 h=56 w=56 oc=32 kh=3 kw=3 stride=2 pad=1 const=weight",
    "conv2d c=320 h=8 w=8 oc=320 kh=3 kw=3 pad=1 const=weight",
    "conv2d c=96 h=14 w=14 oc=576 kh=1 kw=1 const=weight",
    "depthwise_conv2d c=96 h=28 w=28 kh=3 kw=3 pad=1 const=weight",
    "depthwise_conv2d c=240 h=14 w=14 kh=5 kw=5 pad=2 const=weight",
    "attention m=50 n=50 k=64 heads=4",
    "attention m=128 n=128 k=32 heads=4",
)
SIZE = 250


def thinned(space: SearchSpace, default: Config, size: int = SIZE) -> SearchSpace:
    """At most about `size` configurations of a space, the default among them."""
    share = max(8, size // len(space.subspaces))
    return SearchSpace(tuple(_thinned(part, default, share) for part in space.subspaces))


def _thinned(part: Subspace, default: Config, size: int) -> Subspace:
    while part.size > size:
        widest = max(range(len(part.knobs)), key=lambda place: len(part.knobs[place].values))
        knobs = list(part.knobs)
        kept = _halved(knobs[widest], default if part.holds(default) else {})
        knobs[widest] = replace(knobs[widest], values=kept)
        smaller = replace(part, knobs=tuple(knobs))
        if smaller.empty:
            break
        part = smaller
    return part


def _halved(knob: Knob, default: Mapping[str, object]) -> tuple[int | str, ...]:
    """Every second value, the default's among them."""
    values = knob.values
    first = values.index(default[knob.name]) % 2 if default.get(knob.name) in values else 0  # type: ignore[arg-type]
    if len(values) == 2:
        return (values[first],)
    return values[first::2]


def recorded(
    database: Database, workload: Workload, target: Target
) -> tuple[SearchSpace, dict[Config, MeasureResult]]:
    """A workload's small space, and what is on record of it."""
    space = thinned(space_of(workload, target), default_of(workload, target))
    where = Filter(workload.key, target=target.identity, measured_by="hardware", latest=True)
    known = {
        record.config: record.result
        for record in database.query(where, sort="oldest", limit=None)
        if record.workload_key == workload.key
    }
    return space, {config: known[config] for config in space if config in known}


def missing(database: Database, target: Target) -> list[tuple[Workload, Config]]:
    """What is not on record yet, workloads in turns so that each is complete before the next."""
    found = []
    for key in WORKLOADS:
        workload = Workload.parse(key)
        space, known = recorded(database, workload, target)
        configs = [config for config in space if config not in known]
        order = np.random.default_rng(int(workload.digest, 16)).permutation(len(configs))
        found += [(workload, configs[place]) for place in order.tolist()]
    return found


@click.command()
@click.option("--database", required=True, help="where trials are kept")
@click.option("--seconds", default=90.0, show_default=True, help="after which it stops")
def main(database: str, seconds: float) -> None:
    """Measure what is missing and print how much is left, as one JSON object."""
    begun = time.monotonic()
    target = resolve_target("cpu", calibrate=True)
    with Database.open(database) as opened:
        left = missing(opened, target)
        runner = runners["hardware"](RunnerOptions(target))
        job = opened.start_job(
            "record small spaces", seed=0, strategy="exhaustive", targets=[target]
        )
        done = 0
        try:
            while done < len(left) and time.monotonic() - begun < seconds:
                part = left[done : done + 8]
                results = runner.measure(part)
                pairs = zip(part, results, strict=True)
                opened.add([TuningRecord.of(w, target, c, r) for (w, c), r in pairs], job=job)
                done += len(part)
        finally:
            runner.close()
        opened.finish_job(job)
    report = {"measured": done, "left": len(left) - done, "seconds": time.monotonic() - begun}
    click.echo(json.dumps(report | {"drift": runner.drift}, indent=2))


if __name__ == "__main__":
    main()
