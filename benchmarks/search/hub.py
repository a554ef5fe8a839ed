"""Our search strategies beside Kernel Tuner's, on the public collection of fully measured spaces.

    python -m benchmarks.search.hub --hub FOLDER --strategies ours,theirs --repeats 100 --jobs 2

FOLDER holds T4 files anywhere below it, as Kernel Tuner's benchmark hub does
(https://github.com/AutoTuningAssociation/benchmark_hub; cachefiles/APPLICATION/DEVICE_T4.json.gz).
Each strategy searches each space `--repeats` times with its default settings; what it is worth is
told by `benchmarks.search.hub_scores`. Runs are kept in `--output` as they finish, one line each,
so that the command goes on where it was stopped. Needs the extra `autotuners` for theirs and
for the scores.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import click
import numpy as np

from benchmarks.search.hub_runs import Run, run_ours, run_theirs
from benchmarks.search.hub_scores import allowed, budget, scores

OURS = ("evolutionary", "bayesian", "annealing", "metaschedule", "random")
THEIRS = (
    "genetic_algorithm", "pso", "diff_evo", "simulated_annealing", "basinhopping",
    "dual_annealing", "firefly_algorithm", "greedy_ils", "greedy_mls", "mls",
    "ordered_greedy_mls", "minimize", "bayes_opt", "hybrid_vndx",
    "adaptive_tabu_greywolf", "random_sample",
)  # fmt: skip
_SHARE = 5
"""Runs that one process does before it hands them over."""


def spaces(hub: Path, chosen: str) -> dict[str, Path]:
    """T4 files by application and device, those whose name has one of the words in `chosen`."""
    found = {}
    for path in sorted(hub.rglob("*_T4.json*")):
        name = f"{path.parent.name}/{path.name.partition('_T4')[0]}"
        if not chosen or any(word in name for word in chosen.split(",")):
            found[name] = path
    return found


def kept(file: Path) -> dict[int, Run]:
    """Runs by seed that a file of runs holds; a line cut short is passed over."""
    runs = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            continue
        values = [np.nan if value is None else value for value in found["values"]]
        runs[found["seed"]] = Run(found["seconds"], values, found["choosing"])
    return runs


def done(path: Path, strategy: str, limit: float, seeds: Sequence[int], file: Path) -> int:
    """Do runs and keep them; how many."""
    ours = strategy in OURS
    for seed in seeds:
        run = (run_ours if ours else run_theirs)(path, strategy, limit, seed)
        line = {
            "seed": seed,
            "choosing": round(run.choosing, 4),
            "seconds": [round(moment, 4) for moment in run.seconds],
            "values": [None if np.isnan(value) else value for value in run.values],
        }
        with file.open("ab", buffering=0) as opened:  # one write: others append to it, too
            opened.write(json.dumps(line).encode() + b"\n")
    return len(seeds)


def missing(
    names: Sequence[str], found: dict[str, Path], repeats: int, output: Path
) -> Iterator[tuple[Path, str, float, list[int], Path]]:
    limits = {space: allowed(path, output) for space, path in found.items()}
    for name in names:
        for space, path in found.items():
            file = output / "runs" / space.replace("/", "-") / f"{name}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            have = kept(file)
            seeds = [seed for seed in range(repeats) if seed not in have]
            for first in range(0, len(seeds), _SHARE):
                yield path, name, limits[space], seeds[first : first + _SHARE], file


def table(names: Sequence[str], found: dict[str, Path], repeats: int, output: Path) -> str:
    """Scores by space and strategy, with their median and mean over the spaces."""
    rows: dict[str, dict[str, float]] = {}
    for space, path in found.items():
        runs = {}
        for name in names:
            have = kept(output / "runs" / space.replace("/", "-") / f"{name}.jsonl")
            runs[name] = [run for seed, run in have.items() if seed < repeats]
        rows[space] = scores(path, output, {name: r for name, r in runs.items() if len(r) > 2})
        click.echo(f"{space} {budget(path, output)} {rows[space]}", err=True)
    (output / "scores.json").write_text(json.dumps(rows, indent=1))
    lines = ["| strategy | median | mean | " + " | ".join(rows) + " |"]
    lines.append("|" + "---|" * (3 + len(rows)))
    told = []
    for name in names:
        mine = [row.get(name, np.nan) for row in rows.values()]
        shown = " | ".join(f"{score:.2f}" for score in mine)
        middle, mean = np.nanmedian(mine), np.nanmean(mine)
        told.append((middle, f"| {name} | {middle:.3f} | {mean:.3f} | {shown} |"))
    return "\n".join([*lines, *(line for _, line in sorted(told, reverse=True))])


@click.command()
@click.option("--hub", required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--strategies", "named", default="ours,theirs", show_default=True)
@click.option("--spaces", "chosen", default="", help="only spaces whose name has one of the words")
@click.option("--repeats", default=100, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="processes that search")
@click.option("--output", default="build/hub", show_default=True, type=click.Path(path_type=Path))
@click.option("--scores-only", is_flag=True, help="score the runs that are there")
def main(
    hub: Path, named: str, chosen: str, repeats: int, jobs: int, output: Path, scores_only: bool
) -> None:
    """Compare strategies; print a table of scores."""
    groups = {"ours": OURS, "theirs": THEIRS}
    names = [name for word in named.split(",") for name in groups.get(word, (word,))]
    found = spaces(hub, chosen)
    if not found:
        raise click.UsageError(f"no file of the hub (*_T4.json or *_T4.json.gz) below '{hub}'")
    os.environ["OMP_NUM_THREADS"] = "1"
    if not scores_only:
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            asked = {
                pool.submit(done, *share): share for share in missing(names, found, repeats, output)
            }
            for number, future in enumerate(as_completed(asked)):
                path, name, _, seeds, _ = asked[future]
                if (error := future.exception()) is not None:
                    click.echo(f"{path.name} {name}: {type(error).__name__} {error}", err=True)
                elif number % 50 == 0:
                    click.echo(f"{number} of {len(asked)}: {path.name} {name} {seeds}", err=True)
    click.echo(table(names, found, repeats, output))


if __name__ == "__main__":
    main()
