"""The default search beside random draws on this machine: equal trials, the best timed in turns.

    python -m benchmarks.search.against_random --folder build/against_random [--seconds 140]

Twelve workloads, of kinds whose untuned schedules are known to be poor, were listed before any of
them was tuned. Each is searched as a job does, with an empty database, by the default strategy and
by `random`, from several seeds. Afterwards the schedules that were a search's best at some time are
measured together, each once in every turn, so that what disturbed a search does not decide. What is
done is kept in the folder and not done again: the command goes on where it stopped.

Printed, times as multiples of the best known (the fastest of all these schedules): the untuned
schedule; the first that the simulator proposes; the median over seeds of what each strategy's
search ended with, by its own measurements, and of the trials it took to come within 5 %. Every
workload and seed is a pair for the two-sided sign test; pairs closer than 0.5 % tell nothing.
"""

import json
import math
import statistics
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import click

import tilesmith
from tilesmith.codegen.programs.structures import default_of
from tilesmith.display.output import note, table
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.records.database import Database
from tilesmith.records.questions.queries import Filter
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge
from tilesmith.tuner.measurement.runner import RunnerOptions, runners

WORKLOADS = {
    "matmul 33x24x77": "matmul m=33 n=24 k=77 const=b",
    "matmul 59x67x11": "matmul m=59 n=67 k=11 const=b",
    "matmul 1x1000x2048": "matmul m=1 n=1000 k=2048 const=b",
    "matmul 8 x 77x77x64": "matmul m=77 n=77 k=64 batch=8 tb=1",
    "conv 3x3/2 3->24 224": "conv2d c=3 h=224 w=224 oc=24 kh=3 kw=3 stride=2 pad=1 const=weight",
    "conv 3x3 3->32 96": "conv2d c=3 h=96 w=96 oc=32 kh=3 kw=3 pad=1 const=weight",
    "conv 7x7/2 3->64 224": "conv2d c=3 h=224 w=224 oc=64 kh=7 kw=7 stride=2 pad=3 const=weight",
    "conv 3x3 20->36 30": "conv2d c=20 h=30 w=30 oc=36 kh=3 kw=3 pad=1 const=weight",
    "conv 1x1 136->136/4 28": "conv2d c=136 h=28 w=28 oc=136 kh=1 kw=1 groups=4 const=weight",
    "depthwise 5x5/2 120 28": "depthwise_conv2d c=120 h=28 w=28 kh=5 kw=5 stride=2 pad=2 "
    "const=weight",
    "attention 4 x 50x50x64": "attention m=50 n=50 k=64 heads=4",
    "attention 3 x 197x197x64": "attention m=197 n=197 k=64 heads=3",
}
STRATEGIES = ("evolutionary", "random")
WITHIN = 1.05
_TIED = 0.005
"""Relative difference of two times in turns that tells nothing."""


@dataclass(frozen=True)
class Tried:
    """One search: configurations in the order of their trials, and what it ended with.

    Attributes:
        incumbents: each that was the best by then, and the number of its trial, from 1.
        best: what measured fastest at the end, when rivals had been measured again.
        second: the trial after the untuned schedule's.
    """

    incumbents: dict[Config, int]
    best: Config
    second: Config


def tried(path: Path) -> Tried:
    """A search that is on record."""
    with Database.open(str(path), create=False) as opened:
        records = opened.query(Filter(measured_by="hardware"), sort="oldest", limit=None)
    seconds: dict[Config, float] = {}
    incumbents: dict[Config, int] = {}
    fastest = math.inf
    for record in records:
        latency = math.inf if record.result.latency is None else record.result.latency
        if record.config not in seconds and latency < fastest:
            fastest, incumbents[record.config] = latency, len(seconds) + 1
        seconds[record.config] = latency
    return Tried(incumbents, min(seconds, key=seconds.__getitem__), list(seconds)[1])


@dataclass(frozen=True)
class Bench:
    """Where searches and times are kept, and how much is searched."""

    folder: Path
    target: Target
    trials: int
    seeds: int

    def path(self, name: str, strategy: str, seed: int) -> Path:
        digest = Workload.parse(WORKLOADS[name]).digest
        return self.folder / f"{digest}-{strategy}-{seed}.db"

    def search(self, name: str, strategy: str, seed: int) -> None:
        """Search a workload if that was not done; what was cut short is begun anew."""
        path = self.path(name, strategy, seed)
        if path.exists():
            return
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        options: Any = {
            "packs": ["none"],
            "trials": self.trials,
            "strategy": strategy,
            "seed": seed,
        }
        tilesmith.tune(Workload.parse(WORKLOADS[name]), self.target, partial, **options)
        partial.rename(path)

    def rivals(self, name: str) -> list[Config]:
        """Every schedule that is to be measured in turns."""
        searches = [
            tried(self.path(name, strategy, seed))
            for strategy, seed in product(STRATEGIES, range(self.seeds))
        ]
        firsts = [default_of(Workload.parse(WORKLOADS[name]), self.target)]
        firsts += [search.second for search in searches]
        lasts = [config for search in searches for config in (*search.incumbents, search.best)]
        return list(dict.fromkeys([*firsts, *lasts]))

    def times(self, name: str, measure: bool) -> dict[Config, float] | None:
        """Median seconds of the rivals in turns; None if they were not measured yet."""
        path = self.folder / f"{Workload.parse(WORKLOADS[name]).digest}.json"
        if not path.exists():
            if not measure:
                return None
            workload, rivals = Workload.parse(WORKLOADS[name]), self.rivals(name)
            with closing(runners["hardware"](RunnerOptions(self.target))) as runner:
                results = runner.compare([(workload, config) for config in rivals])
            medians = [r.latency or math.inf for r in results]
            kept = [[dict(c), seconds] for c, seconds in zip(rivals, medians, strict=True)]
            path.write_text(json.dumps(kept))
        return {Config.of(values): seconds for values, seconds in json.loads(path.read_text())}

    def figures(self, name: str, times: Mapping[Config, float]) -> dict[str, Any]:
        """Times as multiples of the best known, and trials to come within 5 % of it."""
        workload, known = Workload.parse(WORKLOADS[name]), min(times.values())
        default = default_of(workload, self.target)
        row: dict[str, Any] = {"default": times[default] / known}
        for strategy in STRATEGIES:
            searches = [tried(self.path(name, strategy, seed)) for seed in range(self.seeds)]
            row[strategy] = [times[search.best] / known for search in searches]
            row[f"{strategy} trials"] = [
                min(
                    (n for c, n in search.incumbents.items() if times[c] <= WITHIN * known),
                    default=math.inf,
                )
                for search in searches
            ]
        second = tried(self.path(name, STRATEGIES[0], 0)).second
        foretold = judge(workload, self.target, [default, second]).latency
        row["foretold"] = times[default if foretold[0] <= foretold[1] else second] / known
        return row


def sign_test(pairs: Iterable[tuple[float, float]]) -> tuple[int, int, float]:
    """(pairs whose first is less, pairs whose second is, two-sided probability by chance)."""
    differences = [first / second - 1 for first, second in pairs]
    less = sum(difference < -_TIED for difference in differences)
    more = sum(difference > _TIED for difference in differences)
    tail = sum(math.comb(less + more, k) for k in range(min(less, more) + 1))
    return less, more, min(1.0, 2 * tail / 2 ** (less + more))


def report(rows: Mapping[str, dict[str, Any]]) -> None:
    """Print the figures for people."""
    headings = ("workload", "default", "foretold", "ours", "random", "trials", "random's")
    median = statistics.median
    lines = [
        (
            name,
            *(f"{value:.3f}" for value in (row["default"], row["foretold"])),
            *(f"{median(row[strategy]):.3f}" for strategy in STRATEGIES),
            *(f"{median(row[f'{strategy} trials']):g}" for strategy in STRATEGIES),
        )
        for name, row in rows.items()
    ]
    print(table(headings, lines))
    pairs = [
        pair
        for row in rows.values()
        for pair in zip(*(row[strategy] for strategy in STRATEGIES), strict=True)
    ]
    ours, theirs, chance = sign_test(pairs)
    mean = [statistics.geometric_mean(side) for side in zip(*pairs, strict=True)]
    trials = [n for row in rows.values() for n in row[f"{STRATEGIES[0]} trials"]]
    foretold = statistics.geometric_mean(1 / row["foretold"] for row in rows.values())
    print(f"ours {mean[0]:.3f}, random {mean[1]:.3f} of the best known (geometric means)")
    print(f"ours faster in {ours} of {len(pairs)} pairs, slower in {theirs}: p = {chance:.2g}")
    print(f"median trials to 5 %: {median(trials):g}; best over foretold: {foretold:.3f}")


@click.command(help=__doc__)
@click.option("--folder", required=True, type=click.Path(path_type=Path), help="What is kept.")
@click.option("--trials", default=64, show_default=True, help="Of each search.")
@click.option("--seeds", default=3, show_default=True, help="Searches of each strategy.")
@click.option("--seconds", default=math.inf, help="After which nothing more is begun.")
@click.option("--only", multiple=True, type=click.Choice(list(WORKLOADS)), help="Just these.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(folder: Path, trials: int, seeds: int, seconds: float, only: tuple[str, ...],
         as_json: bool) -> None:  # fmt: skip
    end = time.monotonic() + seconds
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder, resolve_target("cpu", calibrate=True), trials, seeds)
    names = only or tuple(WORKLOADS)
    searches = list(product(range(seeds), names, STRATEGIES))
    for number, (seed, name, strategy) in enumerate(searches):
        if time.monotonic() >= end:
            raise click.ClickException(f"{len(searches) - number} searches are left")
        bench.search(name, strategy, seed)
    rows = {}
    for name in names:
        times = bench.times(name, measure=time.monotonic() < end)
        if times is not None:
            rows[name] = bench.figures(name, times)
    if len(rows) < len(names):
        note(f"{len(names) - len(rows)} workloads are not measured in turns yet")
    if as_json:
        print(json.dumps(rows, indent=2))
    elif rows:
        report(rows)


if __name__ == "__main__":
    main()
