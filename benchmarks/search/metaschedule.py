"""TVM's MetaSchedule beside our search: twelve operators, equal wall time, kernels on one thread.

    pip install apache-tvm cloudpickle psutil xgboost
    python -m benchmarks.search.metaschedule [--only NAME ...] [--seconds 60] [--json]

Each operator is searched from nothing by both, one after the other, for the same time by the clock
and with all cores for the search. The best kernel of each is then timed in turns on one pinned
core. Both kernels keep the layouts of their own choice: TVM computes in NHWC and may lay constant
weights out anew (`layout_free_placeholders`), which is not timed, as our packing of weights is not.
A convolution that Winograd's algorithm fits is searched twice by TVM, for the full time each: by
the direct form and by Winograd's with weights transformed beforehand; its faster kernel counts.
TVM ends with the round in which the time is up. The figure is our median time over TVM's.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np

import tilesmith
from benchmarks.search import tvm_search
from benchmarks.subjects.bound_kernels import bound
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.native.kernel import compile_config
from tilesmith.display.output import note, table
from tilesmith.jobs.measures.timing import interleave, pinned
from tilesmith.records.database import Database
from tilesmith.records.questions.queries import Filter
from tilesmith.search_space.workloads.workload import Workload

CASES = {
    "matmul 512x512x512": "matmul m=512 n=512 k=512 const=b",
    "matmul 128x768x3072": "matmul m=128 n=768 k=3072 const=b",
    "matmul 128x3072x768": "matmul m=128 n=3072 k=768 const=b",
    "batched matmul 12x128x128x64": "matmul batch=12 m=128 n=128 k=64",
    "conv2d 1x1 256->64 56x56": "conv2d c=256 h=56 w=56 oc=64 kh=1 kw=1 const=weight",
    "conv2d 3x3 64->64 56x56": "conv2d c=64 h=56 w=56 oc=64 kh=3 kw=3 pad=1 const=weight",
    "conv2d 3x3 256->256 14x14": "conv2d c=256 h=14 w=14 oc=256 kh=3 kw=3 pad=1 const=weight",
    "conv2d 3x3/2 128->128 56x56": "conv2d c=128 h=56 w=56 oc=128 kh=3 kw=3 stride=2 pad=1 "
    "const=weight",
    "conv2d 7x7/2 3->64 224x224": "conv2d c=3 h=224 w=224 oc=64 kh=7 kw=7 stride=2 pad=3 "
    "const=weight",
    "depthwise 3x3 96 112x112": "depthwise_conv2d c=96 h=112 w=112 kh=3 kw=3 pad=1 const=weight",
    "softmax 1536x128": "softmax shape=1536x128",
    "layer_norm 384x768": "layer_norm shape=384x768",
}
"""Our workloads; `tvm_search.FORMS` has the same operators for TVM."""


@dataclass(frozen=True)
class Figure:
    """Median times of the best kernels in microseconds, and how many kernels each measured."""

    ours_us: float
    theirs_us: float
    our_trials: int
    their_trials: int

    @property
    def ratio(self) -> float:
        return self.ours_us / self.theirs_us


def their_kernel(
    name: str, number: int, folder: Path, seconds: float
) -> tuple[Callable[[], object], int]:
    """TVM's best kernel of one form, as a call on random arrays, and the kernels it measured."""
    import tvm
    from tvm.s_tir import meta_schedule

    folder.mkdir()
    arguments = [name, str(number), str(folder), str(seconds)]
    command = [sys.executable, "-m", "benchmarks.search.tvm_search", *arguments]
    subprocess.run(command, check=True, capture_output=True)
    database = meta_schedule.database.JSONDatabase(work_dir=str(folder))
    machine = tvm_search.target()
    module = tvm_search.module_of(tvm_search.FORMS[name][number])
    best = meta_schedule.tir_integration.compile_tir(database, module, machine)
    function = tvm_search.built(best.mod, machine)["main"]
    rng = np.random.default_rng(0)
    main = tvm_search.packed(best.mod)["main"]
    shapes = [parameter.shape for parameter in main.params]
    arrays = [
        tvm.runtime.tensor(rng.standard_normal([int(n) for n in shape], np.float32))
        for shape in shapes
    ]
    return (lambda: function(*arrays)), len(database.get_all_tuning_records())


def our_kernel(key: str, database: Path, seconds: float) -> tuple[Callable[[], object], int]:
    """Our best kernel, as a call on random arrays, and the kernels that were measured."""
    workload, target = Workload.parse(key), host_target()
    tilesmith.tune(workload, target, database, time_limit=seconds)
    with Database.open(str(database)) as opened:
        trials = opened.query(Filter(measured_by="hardware"), limit=1_000_000)
        best = opened.query(Filter(status="ok", measured_by="hardware"), sort="fastest", limit=1)
    return bound(compile_config(workload, target, best[0].config)), len(trials)


def measure(name: str, folder: Path, seconds: float) -> Figure:
    """Search one operator by both, and time the best kernels in turns."""
    ours, our_trials = our_kernel(CASES[name], folder / "ours.db", seconds)
    theirs = {
        f"theirs {number}": their_kernel(name, number, folder / f"tvm{number}", seconds)
        for number in range(len(tvm_search.FORMS[name]))
    }
    calls = {label: kernel for label, (kernel, _) in theirs.items()}
    with pinned(1):
        timings = interleave({"ours": ours, **calls})
    return Figure(
        timings["ours"].median_ms * 1e3,
        min(timings[label].median_ms for label in calls) * 1e3,
        our_trials,
        sum(trials for _, trials in theirs.values()),
    )


def report(figures: dict[str, Figure]) -> Any:
    """The figures for people."""
    headings = ("operator", "ours us", "TVM us", "ratio", "our trials", "TVM's trials")
    rows = [
        (n, f"{f.ours_us:.0f}", f"{f.theirs_us:.0f}", f"{f.ratio:.2f}", f"{f.our_trials}",
         f"{f.their_trials}")
        for n, f in figures.items()
    ]  # fmt: skip
    return table(headings, rows)


@click.command(help=__doc__)
@click.option("--only", multiple=True, type=click.Choice(list(CASES)), help="Just these operators.")
@click.option("--seconds", default=60.0, show_default=True, help="Of each search, by the clock.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(only: tuple[str, ...], seconds: float, as_json: bool) -> None:
    if find_spec("tvm") is None:
        raise click.UsageError("no module 'tvm' here; see --help for what to install")
    figures: dict[str, Figure] = {}
    for name in only or CASES:
        with tempfile.TemporaryDirectory() as folder:
            figures[name] = measure(name, Path(folder), seconds)
        note(f"{name}: {figures[name].ratio:.2f} of TVM's time")
    if as_json:
        print(json.dumps({name: vars(figure) for name, figure in figures.items()}, indent=2))
        return
    print(report(figures))
    mean = statistics.geometric_mean(figure.ratio for figure in figures.values())
    print(f"geometric mean {mean:.2f}")


if __name__ == "__main__":
    main()
