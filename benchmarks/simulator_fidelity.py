"""The CPU simulator against the machine: rank agreement and the quality of its first picks.

    python -m benchmarks.simulator_fidelity measure --data FILE [--operator PATTERN] [--count 200]
    python -m benchmarks.simulator_fidelity report  --data FILE [FILE ...] [--described]
    python -m benchmarks.simulator_fidelity speed

`measure` times random legal configurations of each operator on one pinned core, everything warm
(but for the weights of those that are called cold), in turns with a register-resident FMA loop:
what is stored is cycles of that loop (time over the loop's time, times the cycles it takes at full
speed), so that a drifting clock cancels out. Run it on a quiet machine: repeated passes add up, the
best time of a configuration counts. `report`
compares stored times with `simulator.cpu`, which knows what was measured of this machine, or
(`--described`) of its kind; "ceiling" is the rank correlation that a perfect simulator would be
expected to reach, given how the two passes agree; "tied" is the rank correlation with all that lies
within the noise counted as equal, measured and simulated alike; noise is what two passes of the
same configuration differ by at most, 19 times of 20. `speed` counts the configurations judged in a
second of processor time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.native.kernel import NativeKernel, compile_config, concrete_shape
from tilesmith.codegen.programs.structures import space_of
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.space import SearchSpace
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu import CpuSimulator
from tilesmith.simulator.cpu.microbenchmarks.peak import peak_kernel
from tilesmith.simulator.dispatch import simulators
from tilesmith.tuner.measurement.arena import BumpAllocator
from tilesmith.tuner.measurement.timing import flush


@dataclass(frozen=True)
class Case:
    """An operator with the figures it has to reach.

    Attributes:
        workload: in its command-line form.
        rank: least Spearman correlation of simulated and measured time.
        algorithms: prefix of the algorithms sampled; "" means all.
        picks: whether the simulator's best picks are judged, too.
        cold: whether weights are in memory at the start, as inside a model.
    """

    workload: str
    rank: float
    algorithms: str = ""
    picks: bool = False
    cold: bool = False


INT8, BF16 = "dtype=uint8 weights=int8", "dtype=bfloat16"

CASES = {
    "matmul 512x512x512": Case("matmul m=512 n=512 k=512 const=b", 0.92, picks=True),
    "matmul 128x768x768": Case("matmul m=128 n=768 k=768 const=b", 0.92, picks=True),
    "matmul 128x3072x768": Case("matmul m=128 n=3072 k=768 const=b", 0.92, picks=True),
    "matmul 2048x64x1024": Case("matmul m=2048 n=64 k=1024 const=b", 0.92, picks=True),
    "conv 3x3 64->64 56x56": Case(
        "conv2d c=64 h=56 w=56 oc=64 kh=3 kw=3 pad=1 const=weight", 0.92, picks=True
    ),
    "conv 1x1 256->64 56x56": Case(
        "conv2d c=256 h=56 w=56 oc=64 kh=1 kw=1 const=weight", 0.92, picks=True
    ),
    "unseen matmul 300x300x300": Case("matmul m=300 n=300 k=300 const=b", 0.90),
    "unseen matmul 64x1000x2048": Case("matmul m=64 n=1000 k=2048 const=b", 0.90),
    "unseen conv 3x3 128->128 28x28": Case(
        "conv2d c=128 h=28 w=28 oc=128 kh=3 kw=3 pad=1 const=weight", 0.90
    ),
    "unseen conv 1x1 512->128 28x28": Case(
        "conv2d c=512 h=28 w=28 oc=128 kh=1 kw=1 const=weight", 0.90
    ),
    "new matmul 1024x256x768": Case("matmul m=1024 n=256 k=768 const=b", 0.90),
    "new matmul 197x384x384": Case("matmul m=197 n=384 k=384 const=b", 0.90),
    "new conv 3x3 256->256 14x14": Case(
        "conv2d c=256 h=14 w=14 oc=256 kh=3 kw=3 pad=1 const=weight", 0.90
    ),
    "new conv 1x1 128->512 28x28": Case(
        "conv2d c=128 h=28 w=28 oc=512 kh=1 kw=1 const=weight", 0.90
    ),
    "int8 matmul 512x512x512": Case(f"matmul m=512 n=512 k=512 const=b {INT8}", 0.90),
    "int8 matmul 128x768x768": Case(f"matmul m=128 n=768 k=768 const=b {INT8}", 0.90),
    "int8 matmul 128x768x3072": Case(f"matmul m=128 n=768 k=3072 const=b {INT8}", 0.90),
    "bf16 matmul 512x512x512": Case(f"matmul m=512 n=512 k=512 const=b {BF16}", 0.90),
    "bf16 matmul 128x768x768": Case(f"matmul m=128 n=768 k=768 const=b {BF16}", 0.90),
    "bf16 matmul 128x768x3072": Case(f"matmul m=128 n=768 k=3072 const=b {BF16}", 0.90),
    "int8 conv 3x3 64->64 56x56": Case(
        f"conv2d c=64 h=56 w=56 oc=64 kh=3 kw=3 pad=1 const=weight {INT8}", 0.90
    ),
    "int8 conv 1x1 256->64 56x56": Case(
        f"conv2d c=256 h=56 w=56 oc=64 kh=1 kw=1 const=weight {INT8}", 0.90
    ),
    "winograd 64->64 56x56": Case(
        "conv2d c=64 h=56 w=56 oc=64 kh=3 kw=3 pad=1 const=weight", 0.85, "winograd"
    ),
    "depthwise 3x3 96 112x112": Case(
        "depthwise_conv2d c=96 h=112 w=112 kh=3 kw=3 pad=1 const=weight", 0.85
    ),
    "cold gemv 1024x4096": Case("matmul m=1 n=1024 k=4096 const=b", 0.85, cold=True),
    "cold gemv 4096x1024": Case("matmul m=1 n=4096 k=1024 const=b", 0.85, cold=True),
    "cold gemv 3072x768": Case("matmul m=1 n=3072 k=768 const=b", 0.85, cold=True),
    "cold conv 3x3 256->256 14x14": Case(
        "conv2d c=256 h=14 w=14 oc=256 kh=3 kw=3 pad=1 const=weight", 0.85, cold=True
    ),
    "cold conv 1x1 512->2048 7x7": Case(
        "conv2d c=512 h=7 w=7 oc=2048 kh=1 kw=1 const=weight", 0.85, cold=True
    ),
    "softmax 1536x128": Case("softmax shape=1536x128", 0.85),
    "max pool 3x3/2 64 112x112": Case(
        "pool2d kind=max c=64 h=112 w=112 kh=3 kw=3 stride=2 pad=1", 0.85
    ),
}

MANY = 20
"""Configurations timed twice from which a repeatability is quoted."""
QUIET = 1.1
"""A run of the FMA loop counts as undisturbed within this factor of the fastest one."""


class Bench:
    """Times kernels on one pinned core, each in turns with the FMA loop."""

    def __init__(self, budget: float) -> None:
        self._target = host_target()
        lanes = vector_width(self._target)
        self._arena = BumpAllocator(96 << 20)
        self._budget = budget
        self._fastest = float("inf")
        self._peak, flops = peak_kernel(self._target)
        ones = {b.name: np.ones(concrete_shape(b), np.float32) for b in self._peak.inputs}
        calibrated = simulators["cpu"].calibrated(self._target, measure=True)
        self._cycles = flops / (2 * lanes * calibrated.number("fma.rate"))
        output = self._peak.allocate_output()
        self._reference = self._peak.bind({**ones, self._peak.output.name: output})
        self._fastest = min(_seconds(self._reference) for _ in range(3000))

    def measure(
        self, workload: Workload, config: Config, cold: bool = False
    ) -> tuple[float, float]:
        """(cycles of a full-speed FMA loop, seconds) of a configuration; `cold`: weights are.

        Only samples between two undisturbed runs of the FMA loop count, if there are any.
        """
        kernel = compile_config(workload, self._target, config)
        arrays, weights = self._arrays(workload, kernel, seed=0)
        call = kernel.bind(arrays)
        call()
        samples: list[tuple[float, float, float]] = []
        with undisturbed():
            start = time.perf_counter()
            while len(samples) < 400:
                samples.append(self._sample(call, weights if cold else []))
                spent = time.perf_counter() - start
                quiet = sum(worst <= QUIET * self._fastest for worst, _, _ in samples)
                if (quiet >= 3 and spent >= self._budget) or spent > 3 * self._budget:
                    break
        good = [s for s in samples if s[0] <= QUIET * self._fastest] or samples
        fastest = min(seconds for _, _, seconds in good)
        return fastest / min(reference for _, reference, _ in good) * self._cycles, fastest

    def _sample(self, call: Any, cold: list[Any]) -> tuple[float, float, float]:
        """(the slower FMA loop beside it, the faster one, seconds of one call).

        By the wall clock: processor time leaves out what a hypervisor says it took away, and it may
        say more than it took.
        """
        flush(cold)
        before = min(_seconds(self._reference) for _ in range(2))
        seconds = _seconds(call)
        after = min(_seconds(self._reference) for _ in range(2))
        self._fastest = min(self._fastest, before, after)
        return max(before, after), min(before, after), seconds

    def _arrays(
        self, workload: Workload, kernel: NativeKernel, seed: int
    ) -> tuple[dict[str, Any], list[Any]]:
        """(random inputs, packed constants and the output at fixed addresses; the constants)."""
        self._arena.reset()
        rng = np.random.default_rng(seed)
        arrays = {}
        for buffer in kernel.inputs:
            shape = concrete_shape(buffer)
            values, kind = rng.standard_normal(shape, np.float32), to_numpy(buffer.dtype)
            values = rng.integers(0, 100, shape) if kind.kind in "iu" else values
            arrays[buffer.name] = self._arena.copy(values.astype(kind))
        constants = {n: arrays[n] for n in workload.constants if n in arrays}
        packed = {n: self._arena.copy(array) for n, array in kernel.prepare(constants).items()}
        arrays.update(packed)
        output = kernel.output
        arrays[output.name] = self._arena.empty(concrete_shape(output), to_numpy(output.dtype))
        arrays[output.name][...] = 0
        return arrays, [*constants.values(), *packed.values()]


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ask the scheduler not to take the core away while sampling, where we may ask for that."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(data: Path, pattern: str, count: int, rounds: int, budget: float, core: int) -> None:
    """Time `count` configurations of each operator in `rounds` passes; keep all in `data`."""
    os.sched_setaffinity(0, {core})
    bench = Bench(budget)
    stored = json.loads(data.read_text()) if data.exists() else {}
    for name, case in CASES.items():
        if pattern not in name:
            continue
        workload = Workload.parse(case.workload)
        configs = sampled(case, count)
        entry = stored.setdefault(name, {"workload": case.workload, "trials": {}})
        for number in range(rounds):
            start = time.perf_counter()
            for config in configs:
                trial = entry["trials"].setdefault(config.key, {"cycles": [], "seconds": []})
                if len(trial["cycles"]) > number:
                    continue
                try:
                    found = bench.measure(workload, config, case.cold)
                except TilesmithError as error:
                    trial["error"] = str(error)
                    continue
                trial["cycles"].append(found[0])
                trial["seconds"].append(found[1])
            data.write_text(json.dumps(stored))
            print(f"{name}: pass {number + 1} in {time.perf_counter() - start:.0f} s", flush=True)


def sampled(case: Case, count: int) -> list[Config]:
    """Random legal configurations, each once, uniform over the algorithms asked for."""
    space = space_of(Workload.parse(case.workload), host_target())
    chosen = tuple(
        s for s in space.subspaces if str(dict(s.fixed)["algorithm"]).startswith(case.algorithms)
    )
    drawn = SearchSpace(chosen).sample(np.random.default_rng(20), count)
    return list(dict.fromkeys(drawn))


def two_passes(trials: dict[str, Any]) -> Any:
    """Cycles of the first two passes, (2, configurations); None unless many were timed twice."""
    twice = [trial["cycles"][:2] for trial in trials.values() if len(trial["cycles"]) > 1]
    return np.array(twice).T if len(twice) >= MANY else None


def rank_correlation(first: Any, second: Any, tolerance: float = 0.0) -> float:
    """Spearman's rank correlation; values closer than a factor of e^tolerance are equal."""
    ranks = [_ranks(values, tolerance) for values in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: Any, tolerance: float) -> Any:
    """How many are smaller, and half of those that are equal."""
    apart = np.subtract.outer(np.log(values), np.log(values))
    return (apart > tolerance).sum(axis=1) + 0.5 * (np.abs(apart) <= tolerance).sum(axis=1)


def noise(twice: Any) -> float:
    """Largest logarithm of a ratio that two measurements of the same differ by, 19 times of 20.

    From the median difference, which disturbed measurements hardly move; 0.674 and 1.96 are the
    quantiles of a normal distribution.
    """
    return float(1.96 / 0.674 * np.median(np.abs(np.log(twice[0] / twice[1]))))


def ceiling(again: float) -> float:
    """Rank correlation that what is truly right would have with the best of two passes.

    What two passes agree by is the share of them that is no noise (their reliability); of both
    together it is 2 r / (1 + r) (Spearman and Brown), and its root is what noise leaves of a
    perfect correlation (Spearman's attenuation).
    """
    return float(np.sqrt(max(0.0, 2 * again / (1 + again))))


def report(paths: list[Path], described: bool) -> None:
    """Print, for each operator, rank correlation and how good the simulator's picks are."""
    target = host_target()
    target = target if described else simulators["cpu"].calibrated(target, measure=True)
    print(
        f"{'operator':32s} configs  rank ceiling  tied noise  asked  first  best of 5  two passes"
    )
    for path in paths:
        for name, entry in json.loads(path.read_text()).items():
            judge = CpuSimulator(weights="cold" if CASES[name].cold else "warm").judge
            space = space_of(Workload.parse(entry["workload"]), host_target())
            trials = {
                key: trial
                for key, trial in entry["trials"].items()
                if trial["cycles"] and Config.from_json(key) in space
            }
            configs = [Config.from_json(key) for key in trials]
            measured = np.array([min(trial["cycles"]) for trial in trials.values()])
            judged = judge(Workload.parse(entry["workload"]), target, configs)
            order = np.argsort(judged.latency, kind="stable")
            picks = measured[order] / measured.min()
            twice = two_passes(trials)
            again = tied = within = most = "-"
            if twice is not None:
                agreed = rank_correlation(*twice)
                again, most = f"{agreed:.3f}", f"{ceiling(agreed):.3f}"
                tied = f"{rank_correlation(judged.latency, measured, noise(twice)):.3f}"
                within = f"{np.expm1(noise(twice)):.0%}"
            best = picks[:5].min()
            print(
                f"{name:32s} {len(configs):7d} {rank_correlation(judged.latency, measured):5.3f}"
                f" {most:>7s} {tied:>5s} {within:>5s}  {CASES[name].rank:5.2f} {picks[0]:6.3f}"
                f" {best:10.3f}  {again:>10s}"
            )


def speed(count: int) -> None:
    """Print the configurations judged in a second of processor time, features included."""
    for name in ("matmul 512x512x512", "conv 3x3 64->64 56x56"):
        workload = Workload.parse(CASES[name].workload)
        space = space_of(workload, host_target())
        configs = space.sample(np.random.default_rng(0), count)
        judge = CpuSimulator().judge
        judge(workload, host_target(), configs)
        start = time.process_time()
        judge(workload, host_target(), configs)
        spent = time.process_time() - start
        print(f"{name}: {count} configurations in {spent:.2f} s, {count / spent:.0f} a second")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    timing = commands.add_parser("measure")
    timing.add_argument("--data", type=Path, required=True)
    timing.add_argument("--operator", default="", help="only operators whose name contains this")
    timing.add_argument("--count", type=int, default=200)
    timing.add_argument("--rounds", type=int, default=2)
    timing.add_argument("--budget", type=float, default=0.02, help="seconds a configuration")
    timing.add_argument("--core", type=int, default=1)
    comparing = commands.add_parser("report")
    comparing.add_argument("--data", type=Path, required=True, nargs="+")
    comparing.add_argument("--described", action="store_true", help="know the kind alone")
    judging = commands.add_parser("speed")
    judging.add_argument("--count", type=int, default=10_000)
    given = parser.parse_args()
    if given.command == "measure":
        measure(given.data, given.operator, given.count, given.rounds, given.budget, given.core)
    elif given.command == "report":
        report(given.data, given.described)
    else:
        speed(given.count)


if __name__ == "__main__":
    main()
