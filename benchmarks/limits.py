"""How far is the limit? The physical bound of whole models, and our share of it.

    python benchmarks/limits.py [--only NAME ...] [--models FOLDER] [--keep FOLDER] [--threads 1,2]
    [--precision fp32] [--kernels]

The models are those of `benchmarks/whole_models.py`; where FOLDER of --keep holds the databases it
left, models are compiled from them, else with default schedules. A kernel takes no less than

    max(operations / peak, sum over tensors of bytes / bandwidth of where they lie)

and a model no less than the sum over its kernels. Operations are those of the best algorithm: 3x3
convolutions of stride 1 by Winograd's F(2x2) or F(4x4) where that is less, with the transforms of
tiles (Lavin and Gray 2016: 32 and 24 operations a tile of F(2x2), 156 and 90 of F(4x4), for input
and output); an addition there takes the time of a multiply-add. Every tensor is read or written
once, of a table the rows that are taken. Tensors that the run made a moment ago lie where they fit
(in L1 they cost nothing); weights where everything a run touches fits.

Peak and bandwidths are measured at the start: multiply-adds in registers, and reading in order from
L2, L3 and memory, on all threads at once. Where a dtype has dot products, its peak is as many times
that of fp32 as they multiply more. Prints our latency, the bound, our share of it, and which part
of the bound is arithmetic.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from models import MODELS
from whole_models import model_file

import tilesmith
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.native.kernel import concrete_shape
from tilesmith.compiler.driver.build import scheduled
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.display.output import note, table
from tilesmith.jobs.compilation.compiling import random_inputs
from tilesmith.jobs.measures.timing import interleave, pinned
from tilesmith.jobs.requests.graphs import graph_of
from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.instruction_set import dot_product
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu.microbenchmarks.peak import peak_kernel
from tilesmith.simulator.cpu.microbenchmarks.shared_machine import reading, together

WINOGRAD = {2: (32, 24), 4: (156, 90)}
"""Operations to transform a tile of the input, and of the output, by the tile's side."""

LEVELS = ("l1", "l2", "l3", "memory")


@dataclass(frozen=True)
class Machine:
    """What was measured of all threads together.

    Attributes:
        flops: fp32 operations a second.
        bandwidth: bytes a second of each of `LEVELS`.
        sizes: bytes of each level but the last, of one core.
    """

    target: Target
    flops: float
    bandwidth: Mapping[str, float]
    sizes: Mapping[str, int]

    def level(self, nbytes: int) -> str:
        """Where so many bytes lie that were used a moment ago."""
        return next((level for level in LEVELS[:-1] if nbytes <= self.sizes[level]), "memory")


@dataclass(frozen=True)
class Bound:
    """Seconds that a kernel takes at least: computing, and moving."""

    computing: float
    moving: float

    @property
    def seconds(self) -> float:
        return max(self.computing, self.moving)


def measured(target: Target, threads: int) -> Machine:
    """Peak and bandwidths of so many threads."""
    runs, flops = [], 0
    for _ in range(threads):
        kernel, flops = peak_kernel(target)
        ones = {b.name: np.ones(concrete_shape(b), np.float32) for b in kernel.inputs}
        runs.append(kernel.bind({**ones, kernel.output.name: kernel.allocate_output()}))
    peak = threads * flops / together(runs)
    sizes = {f"l{n}": target.integer(f"l{n}.kib") * 1024 for n in (1, 2, 3)}
    bandwidth = {"l1": float("inf")}
    wanted = {
        "l2": (sizes["l1"] + sizes["l2"]) // 2,
        "l3": min(4 * sizes["l2"], (sizes["l2"] + sizes["l3"]) // 2),
        "memory": 4 * sizes["l3"] // threads,
    }
    for level, size in wanted.items():
        loops = [reading(target, size) for _ in range(threads)]
        nbytes = sum(read for _, read in loops)
        bandwidth[level] = nbytes / together([run for run, _ in loops])
    return Machine(target, peak, bandwidth, sizes)


def operations(workload: Workload) -> float:
    """Of the best algorithm, a multiply-add counting two."""
    found = float(template_of(workload.operator).flops(workload))
    if workload.operator != "conv2d" or workload.dtype not in ("float32", "bfloat16", "float16"):
        return found
    g = Geometry.of(workload)
    if not g.winograd:
        return found
    rest = found - g.flops()
    for side, (before, after) in WINOGRAD.items():
        tiles = g.batch * -(-g.out_height // side) * -(-g.out_width // side)
        products = 2 * tiles * (side + 2) ** 2 * g.channels * g.out_channels
        transforms = 2 * tiles * (before * g.channels + after * g.out_channels)
        found = min(found, rest + products + transforms)
    return found


def bound(node: Node, graph: Graph, machine: Machine, everything: int) -> Bound:
    """Of one kernel; `everything`: bytes that a run of the model touches."""
    workload = node.workload
    assert workload is not None
    template = template_of(workload.operator)
    operands, output = template.operands(workload), template.output(workload)
    written = int(np.prod(output.shape, dtype=np.int64)) * size_of(output.dtype)
    moving = _seconds(machine, written, machine.level(written))
    for operand, name in zip(operands, node.inputs, strict=True):
        nbytes = int(np.prod(operand.shape, dtype=np.int64)) * size_of(operand.dtype)
        if "gather" in workload.operator:
            nbytes = min(nbytes, written)
        weight = name in graph.constants
        moving += _seconds(machine, nbytes, machine.level(everything if weight else nbytes))
    left = workload.dtype
    right = str(dict(workload.parameters).get("weights") or left)
    dot = dot_product(machine.target, left, right)
    peak = machine.flops * (dot.products if dot is not None else 1)
    return Bound(operations(workload) / peak, moving)


def _seconds(machine: Machine, nbytes: int, level: str) -> float:
    return nbytes / machine.bandwidth[level]


def bounds(graph: Graph, machine: Machine) -> list[tuple[str, Bound]]:
    """Of every kernel of a lowered model, those in loops as often as they run."""
    inside = [(graph, 1), *graph.inside()]
    weights = sum(array.nbytes for inner, _ in inside for array in inner.constants.values())
    largest = max(
        (info.nbytes for inner, _ in inside for info in inner.tensors.values() if info.known),
        default=0,
    )
    found = []
    for inner, often in inside:
        for node in inner.nodes:
            if node.workload is not None:
                one = bound(node, inner, machine, weights + largest)
                found += [(node.workload.key, one)] * often
    return found


def latency(path: Path, database: Path | None, threads: int, precision: str) -> float:
    """Median seconds of the compiled model."""
    executable = tilesmith.compile(path, database=database, threads=threads, precision=precision)
    with pinned(threads):
        run = executable.bind(random_inputs(executable)).run
        return interleave({"": run}, budget_s=1.5)[""].median_ms / 1e3


def row(name: str, path: Path, machine: Machine, threads: int, options: Any) -> tuple[Any, ...]:
    """One line of the table; with --kernels, those that take most of the bound are printed."""
    lowered = scheduled(graph_of(path, {}), machine.target, options.precision)
    found = bounds(lowered, machine)
    least = sum(one.seconds for _, one in found)
    arithmetic = sum(one.seconds for _, one in found if one.computing >= one.moving)
    database = options.keep / f"{name}.db" if options.keep else None
    known = database if database is not None and database.exists() else None
    seconds = latency(path, known, threads, options.precision)
    if options.kernels:
        for key, one in sorted(found, key=lambda pair: -pair[1].seconds)[:8]:
            by = "arithmetic" if one.computing >= one.moving else "memory"
            note(f"  {1e6 * one.seconds:9.1f} us by {by}: {key}")
    tuned = "tuned" if known else "default"
    share = arithmetic / max(least, 1e-12)
    return (name, threads, tuned, 1e3 * seconds, 1e3 * least, least / seconds, share)


def main() -> None:
    os.environ.setdefault("TILESMITH_PACKS", "none")  # a pack may know these models
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of models; all by default")
    parser.add_argument("--models", type=Path, default=Path("models"), help="exported models")
    parser.add_argument("--keep", type=Path, help="folder of whole_models.py's --keep")
    parser.add_argument("--threads", default="1", help="thread counts, such as 1,2")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--kernels", action="store_true", help="print the heaviest kernels, too")
    options = parser.parse_args()
    exported = sorted(path.stem for path in options.models.glob("*.onnx"))
    names = options.only or list(dict.fromkeys([*MODELS, *exported]))
    folder = options.keep or Path("build/models")
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for threads in map(int, options.threads.split(",")):
        machine = measured(host_target(), threads)
        speeds = ", ".join(f"{n} {machine.bandwidth[n] / 1e9:.0f} GB/s" for n in LEVELS[1:])
        note(f"{threads} threads: {machine.flops / 1e9:.0f} GFLOP/s, {speeds}")
        for name in names:
            path = model_file(name, folder, options.models)
            rows.append(row(name, path, machine, threads, options))
            note(f"{name}: {rows[-1][5]:.2f} of the bound")
    header = ("", "threads", "", "ms", "bound ms", "share", "arithmetic")
    print(table(header, rows))


if __name__ == "__main__":
    main()
