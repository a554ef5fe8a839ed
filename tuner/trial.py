"""One hardware trial, inside the worker: compile, check, time; every outcome is a `MeasureResult`.

Also the comparison of rivals in turns. Whatever a candidate raises becomes a failure of its kind;
what kills the process (crash, hang) is the parent's to notice.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from tilesmith.search_space.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workload import Workload
from tilesmith.tuner.arena import Arena
from tilesmith.tuner.checking import Expected, expected, random_inputs
from tilesmith.tuner.timing import Loaded, glance, in_turns, once, samples

ABORT_FACTOR = 3.0
"""A candidate slower than this many times the best known is not timed further."""


class Backend(Protocol):
    """Compiles and binds candidates; made by a backend module's `open_backend(target, threads)`."""

    def load(
        self,
        workload: Workload,
        config: Config,
        inputs: Mapping[str, NDArray[Any]],
        arena: Arena,
    ) -> Loaded:
        """Compile a configuration and bind it to inputs (logical layouts), buffers from `arena`."""
        ...


class Bench:
    """Runs trials of one worker process.

    Args:
        backend: compiles and binds.
        folder: where references are kept between workers.
    """

    def __init__(self, backend: Backend, folder: Path) -> None:
        self._backend = backend
        self._folder = folder
        self._arena = Arena()
        self._prepared: tuple[Workload, dict[str, NDArray[Any]], Expected] | None = None

    def measure(self, workload: Workload, config: Config, incumbent: float | None) -> MeasureResult:
        """One trial; aborted as "slow" beyond `ABORT_FACTOR` times the incumbent (seconds)."""
        start = time.perf_counter()
        self._arena.reset()
        loaded = self._checked(workload, config)
        if isinstance(loaded, MeasureResult):
            return _timed(loaded, start)
        first = once(loaded)
        if incumbent is not None and first > ABORT_FACTOR * incumbent:
            first = min(first, glance(loaded))
        if incumbent is not None and first > ABORT_FACTOR * incumbent:
            message = f"took {first * 1e6:.1f} us, over {ABORT_FACTOR:g} x the best known"
            return _timed(MeasureResult("slow", "hardware", (first,), message), start)
        with _without_gc():
            cold, warm = samples(loaded, incumbent)
        result = MeasureResult("ok", "hardware", tuple(cold), warm_samples=tuple(warm))
        return _timed(result, start)

    def compare(self, workload: Workload, configs: Sequence[Config]) -> list[MeasureResult]:
        """Rivals measured in turns; those that fail give their failure."""
        start = time.perf_counter()
        self._arena.reset()
        loaded = [self._checked(workload, config) for config in configs]
        good = [kernel for kernel in loaded if not isinstance(kernel, MeasureResult)]
        with _without_gc():
            turns = iter(in_turns(good))
        elapsed = (time.perf_counter() - start) / max(1, len(configs))
        return [
            kernel
            if isinstance(kernel, MeasureResult)
            else MeasureResult("ok", "hardware", tuple(next(turns)), elapsed=elapsed)
            for kernel in loaded
        ]

    def _checked(self, workload: Workload, config: Config) -> Loaded | MeasureResult:
        """A kernel whose output is right, or the failure."""
        try:
            inputs, right = self._reference(workload)
            loaded = self._backend.load(workload, config, inputs, self._arena)
            loaded.call()
            wrong = right.mismatch(loaded.output())
        except MemoryError:
            return MeasureResult("crash", "hardware", message="out of memory")
        except Exception as error:
            return MeasureResult.failed(error, "hardware")
        if wrong:
            return MeasureResult("wrong", "hardware", message=wrong)
        return loaded

    def _reference(self, workload: Workload) -> tuple[dict[str, NDArray[Any]], Expected]:
        if self._prepared is None or self._prepared[0] != workload:
            inputs = random_inputs(workload)
            self._prepared = (workload, inputs, expected(workload, inputs, self._folder))
        return self._prepared[1:]


class _without_gc:  # noqa: N801  (used like a function)
    """No garbage collection while timing."""

    def __enter__(self) -> None:
        gc.disable()

    def __exit__(self, *error: object) -> None:
        gc.enable()


def _timed(result: MeasureResult, start: float) -> MeasureResult:
    values = {**vars(result), "elapsed": time.perf_counter() - start}
    return MeasureResult(**values)
