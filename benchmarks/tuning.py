"""How fast and how well the tuner works on this CPU.

    python benchmarks/tuning.py                       matmul 512^3 from a cold start
    python benchmarks/tuning.py --op "conv2d ..."     another workload
    python benchmarks/tuning.py --model resnet50 --seconds 90

Prints one JSON object: what a hardware trial costs (median milliseconds, and how it is spent), the
share of the time that went into choosing what to measure, the speed reached as a share of the FMA
peak measured before and after, and when the search first passed 92 % of that peak. `--measure
hardware` leaves the simulator out. Of a whole model (a light one of onnx's, by name), tuned by both
for so many seconds, it prints what its search cost and found.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np

import tilesmith
from tilesmith import simulator
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_empty
from tilesmith.codegen.native.kernel import concrete_shape
from tilesmith.jobs.subjects.light_models import save_light_model
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu.microbenchmarks.peak import peak_kernel
from tilesmith.tuner.learning.learning import Judging
from tilesmith.tuner.measurement.runner import RunnerOptions, runners
from tilesmith.tuner.session.progress import TuningSummary
from tilesmith.tuner.session.session import tune
from tilesmith.tuner.tasks.feature_source import Judge
from tilesmith.tuner.tasks.ledger import MemoryLedger
from tilesmith.tuner.tasks.options import TuneOptions
from tilesmith.tuner.tasks.strategy import Json
from tilesmith.tuner.tasks.task import Trial, TuningTask


class TimedLedger(MemoryLedger):
    """Remembers when each trial was finished, in seconds since the start."""

    def __init__(self) -> None:
        super().__init__()
        self._start = time.perf_counter()
        self.finished_s: list[float] = []

    def commit(self, trials: Sequence[Trial], state: Json) -> None:
        super().commit(trials, state)
        self.finished_s += [time.perf_counter() - self._start] * len(trials)


def measured_peak(target: Target) -> float:
    """FMA peak of one core now, in operations per second: the best of many short runs."""
    kernel, flops = peak_kernel(target)
    arrays = {b.name: aligned_empty(concrete_shape(b), np.dtype(np.float32)) for b in kernel.inputs}
    output = kernel.allocate_output()
    call: Callable[[], None] = kernel.bind({**arrays, kernel.output.name: output})
    fastest = min(_seconds(call) for _ in range(3000))
    return flops / fastest


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def figures(ledger: TimedLedger, summary: TuningSummary, flops: int, peak: float) -> Json:
    """What is printed."""
    rows = [
        (seconds, trial.result)
        for seconds, trial in zip(ledger.finished_s, ledger.trials, strict=True)
        if trial.result.measured_by == "hardware"
    ]
    speeds = [(s, flops / r.latency / peak) for s, r in rows if r.latency is not None]
    warm = [flops / statistics.median(r.warm_samples) / peak for _, r in rows if r.warm_samples]
    report = summary.tasks[0]
    return {
        "workload": report.workload.key,
        "trials": summary.trials,
        "simulated": summary.simulated,
        "wall_s": round(summary.wall_s, 2),
        "search_share": round(summary.search_s / summary.wall_s, 3),
        "trial_median_ms": round(statistics.median(r.elapsed for _, r in rows) * 1e3, 1),
        "peak_gflops": round(peak / 1e9, 1),
        "default_of_peak": round(flops / (report.default_s or np.inf) / peak, 3),
        "best_of_peak": round(flops / (report.best_s or np.inf) / peak, 3),
        "best_warm_of_peak": round(max(warm, default=0.0), 3),
        "seconds_to_92_percent": next((round(s, 1) for s, v in speeds if v >= 0.92), None),
        "config": str(report.config),
        "failures": summary.failures,
    }


def model_figures(name: str, seconds: float, seed: int) -> Json:
    """What is printed of a whole model's job."""
    with tempfile.TemporaryDirectory() as folder:
        path = save_light_model(name, Path(folder) / f"{name}.onnx")
        database = Path(folder) / "tuning.db"
        report = tilesmith.tune(path, database=database, time_limit=seconds, seed=seed)
    found = report.to_json()
    kept = (
        "trials",
        "simulated",
        "default_us",
        "best_us",
        "steady",
        "drift",
        "in_model",
        "trial_ms",
        "failures",
    )
    return {
        "model": name,
        "wall_s": round(report.wall_s, 2),
        "search_share": round(report.search_s / report.wall_s, 3),
        **{key: found[key] for key in kept},
    }


@click.command()
@click.option("--op", default="matmul m=512 n=512 k=512 const=b", show_default=True)
@click.option("--trials", default=150, show_default=True)
@click.option("--measure", type=click.Choice(["both", "hardware"]), default="both")
@click.option("--strategy", default="evolutionary", show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--model", help="A light model in place of a workload, such as resnet50.")
@click.option("--seconds", default=90.0, show_default=True, help="For a model.")
def main(
    op: str, trials: int, measure: str, strategy: str, seed: int, model: str | None, seconds: float
) -> None:
    """Tune one workload (or model) from a cold start and print what it cost."""
    if model is not None:
        print(json.dumps(model_figures(model, seconds, seed), indent=2))
        return
    target, workload = host_target(), Workload.parse(op)
    judge: Judge | None = simulator.judge if measure == "both" else None
    names = ["simulator", "hardware"] if measure == "both" else ["hardware"]
    opened = [runners[name](RunnerOptions(target, judge=judge)) for name in names]
    before, ledger = measured_peak(target), TimedLedger()
    options = TuneOptions(trials=trials, seed=seed, strategy=strategy)
    summary = tune([TuningTask(workload)], target, ledger, opened, options, Judging(judge))
    for runner in opened:
        runner.close()
    peak = max(before, measured_peak(target))
    flops = template_of(workload.operator).flops(workload)
    print(json.dumps(figures(ledger, summary, flops, peak), indent=2))


if __name__ == "__main__":
    main()
