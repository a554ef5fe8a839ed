"""Microbenchmarks of the CPU we sit on: its clock, how many operations a core begins in a cycle
(`chains`), and what it reads from each memory level.

Taken twice and kept as JSON in the user's cache folder, by the target's identity; `calibrated` adds
them to a target as calibratable facts, so that its identity (and every key made from it) stays the
same. A target without them is simulated with `machine.DEFAULTS`: never measured behind one's back.

What else runs on a machine makes it look slower. So the better one of two repeats counts, and how
far they lie apart and how busy the machine was is kept beside them (`MARKS`). A calibration that
was disturbed is used, said to be (`disturbed`), and taken again when a job asks later.
"""

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tilesmith.codegen.native.kernel import concrete_shape
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Fact, Target
from tilesmith.search_space.schedules.cpu.vectorisation.dot_products import group_of
from tilesmith.search_space.support.files import cache_folder
from tilesmith.simulator.cpu.microbenchmarks.chains import rates, scattered
from tilesmith.simulator.cpu.microbenchmarks.peak import dot_peak_kernel, peak_kernel
from tilesmith.simulator.cpu.microbenchmarks.shared_machine import (
    between_threads,
    beyond_caches,
    knows_threads,
    reading,
)

ENVIRONMENT = "TILESMITH_CALIBRATION"
"""Where calibrations are kept, instead of the user's cache folder; "off": nowhere."""
ROUNDS = 40
PATIENCE_S = 0.2
"""No more rounds after so long, but `LEAST_ROUNDS`."""
LEAST_ROUNDS = 5
MARKS = ("calibration.apart", "calibration.load")
"""Largest ratio of two repeats of one number, and processes that ran beside ours for each core."""
STEADY, BUSY = 1.1, 0.25
"""Marks beyond which a calibration counts as disturbed."""
APART = 1.25
"""Factor by which a level may seem faster than the one before it."""
AGAIN_AFTER_S = 600.0
"""Age from which on a disturbed calibration is taken again."""
LESS_IS_MORE = ("fma.cycles", "barrier.cycles")
"""Facts of which the smaller of two repeats counts."""
UNITS = {
    "clock.ghz": "GHz", "ports": "operations/cycle", "rate": "operations/cycle", "cores": "cores",
    "cycles": "cycles", "apart": "ratio", "load": "processes/core",
}  # fmt: skip


def calibrated(target: Target, measure: bool = False) -> Target:
    """The target with its kept calibration as facts, or as it is if there is none.

    Args:
        measure: take the microbenchmarks now (two or three seconds; only for the CPU we sit on) if
            they have not been kept yet, by a version that knew fewer, or on a busy machine. What a
            steady one kept stays.
    """
    if os.environ.get(ENVIRONMENT) == "off":
        return target
    kept = _read(target)
    if measure and (kept is None or not _complete(kept) or (disturbed(kept) and _is_old(target))):
        kept = _taken(target, kept if kept and _complete(kept) else {})
        _write(target, kept)
    return with_calibration(target, kept) if kept else target


def _complete(kept: Mapping[str, float]) -> bool:
    """Whether a kept calibration has all facts; one without marks came from an older version."""
    return knows_threads(kept) and all(mark in kept for mark in MARKS)


def _taken(target: Target, before: Mapping[str, float]) -> dict[str, float]:
    """The better of two repeats of every number, and of what was kept before, with `MARKS`.

    Being disturbed makes numbers worse, never better. The marks are of these repeats.
    """
    load = _others()
    first, second = microbenchmarks(target), microbenchmarks(target)
    ratios = [second[name] / value for name, value in first.items()]
    best = _better(_better(first, second), {n: v for n, v in before.items() if n not in MARKS})
    apart = max(max(ratio, 1.0 / ratio) for ratio in ratios)
    return best | {"calibration.apart": round(apart, 3), "calibration.load": round(load, 2)}


def _better(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    def best(name: str) -> float:
        values = [known[name] for known in (one, other) if name in known]
        return min(values) if name in LESS_IS_MORE else max(values)

    return {name: best(name) for name in sorted({*one, *other})}


def _others() -> float:
    """Processes that wanted to run beside this one in the last minute, for each core; at least
    0.01, as it is kept as a number above 0."""
    try:
        return max(0.01, (os.getloadavg()[0] - 1.0) / (os.cpu_count() or 1))
    except (AttributeError, OSError):
        return 0.01


def _is_old(target: Target) -> bool:
    try:
        return time.time() - _path(target).stat().st_mtime > AGAIN_AFTER_S
    except OSError:
        return True


def disturbed(calibration: Mapping[str, float]) -> bool:
    """Whether a kept calibration says of itself that it was taken on a busy machine."""
    apart, load = (calibration.get(mark, 0.0) for mark in MARKS)
    return apart > STEADY or load > BUSY


def doubts(target: Target) -> list[str]:
    """Sentences about measurements of a target that were disturbed or contradict each other."""
    facts = {name: target.number(name) for name, fact in target.facts if fact.calibratable}
    said = []
    if disturbed(facts):
        apart, load = (facts.get(mark, 0.0) for mark in MARKS)
        said.append(
            f"the calibration was taken on a busy machine (its repeats are {apart:g} times apart "
            f"at most, {load:g} other processes a core ran), so the simulator may take this CPU "
            "for slower than it is; a later job takes it again"
        )
    levels = [f"{level}.bytes_per_cycle" for level in ("l2", "l3", "memory")]
    levels = [name for name in (*levels, "memory.scattered_bytes_per_cycle") if name in facts]
    said += [
        f"{far} = {facts[far]:g} was measured, and less nearer to the core: {near} = "
        f"{facts[near]:g}; the caches that the system tells are not there"
        for near, far in itertools.pairwise(levels)
        if facts[far] > APART * facts[near]
    ]
    return said


def with_calibration(target: Target, values: dict[str, float]) -> Target:
    """The target with the given calibratable facts added or replaced."""
    facts = dict(target.facts)
    for name, value in values.items():
        unit = UNITS.get(name, UNITS.get(name.rpartition(".")[2], "bytes/cycle"))
        facts[name] = Fact(value, "microbenchmark", "F", unit, calibratable=True, minimum=0.01)
    return Target.of(target.name, target.family, facts, target.doc)


def microbenchmarks(target: Target) -> dict[str, float]:
    """Measure this machine: facts by name, those of `chains`, `*.bytes_per_cycle`, `dot.*.ports`,
    `*.cores`, `barrier.cycles`."""
    facts = rates(target, _fastest)
    hertz = facts["clock.ghz"] * 1e9
    kernel, flops = peak_kernel(target)
    lanes = vector_width(target)
    ones = {b.name: np.ones(concrete_shape(b), np.float32) for b in kernel.inputs}
    run = kernel.bind({**ones, kernel.output.name: kernel.allocate_output()})
    facts["fma.rate"] = round(flops / (2 * lanes) / _fastest(run) / hertz, 2)
    sizes = [target.integer(f"l{level}.kib") * 1024 for level in (1, 2, 3)]
    for name, size in (
        ("l2", (sizes[0] + sizes[1]) // 2),
        ("l3", min(4 * sizes[1], (sizes[1] + sizes[2]) // 2)),
        ("memory", beyond_caches(sizes[2])),
    ):
        seconds, read = _read_once(target, size)
        facts[f"{name}.bytes_per_cycle"] = round(read / seconds / hertz, 2)
    seconds, read = scattered(target, beyond_caches(sizes[2]), _fastest)
    facts["memory.scattered_bytes_per_cycle"] = round(read / seconds / hertz, 2)
    return facts | _dot_products(target, hertz) | between_threads(target, hertz)


def _dot_products(target: Target, hertz: float) -> dict[str, float]:
    """Instructions that multiply and add neighbours, a cycle: facts `dot.uint8.ports`, ..."""
    ports: dict[str, float] = {}
    for left, right in (("uint8", "int8"), ("int8", "int8"), ("bfloat16", "bfloat16")):
        peak = dot_peak_kernel(target, left, right)
        if peak is None:
            continue
        kernel, operations = peak
        arrays = {b.name: np.ones(concrete_shape(b), to_numpy(b.dtype)) for b in kernel.inputs}
        run = kernel.bind({**arrays, kernel.output.name: kernel.allocate_output()})
        each = 2 * vector_width(target) * group_of(target, left, right)
        ports[f"dot.{left}.ports"] = round(operations / each / _fastest(run) / hertz, 2)
    return ports


def _read_once(target: Target, size: int) -> tuple[float, int]:
    """(seconds, bytes) of reading `size` bytes in order, everything warm that fits."""
    run, nbytes = reading(target, size)
    return _fastest(run), nbytes


def _fastest(run: Callable[[], None]) -> float:
    """Least seconds of one call, over `ROUNDS` calls, fewer of long ones."""
    best, begun = float("inf"), time.perf_counter()
    for number in range(ROUNDS):
        if number >= LEAST_ROUNDS and time.perf_counter() - begun > PATIENCE_S:
            break
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def _path(target: Target) -> Path:
    return cache_folder(ENVIRONMENT, "calibration") / f"{target.identity}.json"


def _read(target: Target) -> dict[str, float] | None:
    """A kept calibration; one that cannot be read counts as none."""
    try:
        kept = json.loads(_path(target).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict) or not all(
        isinstance(value, int | float) and value > 0 for value in kept.values()
    ):
        return None
    return {str(name): float(value) for name, value in kept.items()}


def _write(target: Target, values: dict[str, float]) -> None:
    """Keep a calibration; a disk that cannot be written costs the next run a second."""
    path = _path(target)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(values, indent=1, sort_keys=True))
        temporary.replace(path)
