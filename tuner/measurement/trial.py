"""One hardware trial, inside the worker: compile, check, time; every outcome is a `MeasureResult`.

Also the comparison of rivals in turns. Whatever a candidate raises becomes a failure of its kind;
what kills the process (crash, hang) is the parent's to notice.
"""

import contextlib
import gc
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.arena import BumpAllocator
from tilesmith.tuner.measurement.checking import Expected, expected, random_inputs
from tilesmith.tuner.measurement.runner import Stopwatch
from tilesmith.tuner.measurement.timing import (
    LOST,
    Loaded,
    flushing,
    in_turns,
    once,
    samples,
    within,
)

ABORT_FACTOR = 3.0
"""A candidate slower than this many times the best known is not timed further."""
_LOOKS = 3
_REFERENCE_BYTES = 2 << 20
_KEPT_BYTES = 512 << 20
"""Of inputs and references: tasks take turns, and come back for theirs."""


class _Backend(Protocol):
    """Compiles and binds candidates; made by a backend module's `open_backend(target, threads)`."""

    def load(
        self,
        workload: Workload,
        config: Config,
        inputs: Mapping[str, NDArray[Any]],
        arena: BumpAllocator,
    ) -> Loaded:
        """Compile a configuration and bind it to inputs (logical layouts), buffers from `arena`."""
        ...


@dataclass(frozen=True)
class _Prepared:
    """What all candidates of a workload share."""

    inputs: dict[str, NDArray[Any]]
    right: Expected

    @property
    def nbytes(self) -> int:
        arrays = (*self.inputs.values(), self.right.reference, self.right.tolerance)
        return sum(array.nbytes for array in arrays)


@runtime_checkable
class _Builder(Protocol):
    """What a backend may be besides: its code can be made in another process."""

    def build(self, workload: Workload, config: Config) -> bytes:
        """Code of a configuration."""
        ...

    def take(self, workload: Workload, config: Config, code: bytes) -> None:
        """Code that `_Backend.load` need not make."""
        ...


class Bench:
    """Runs trials of one worker process.

    Args:
        backend: compiles and binds.
        folder: where references are kept between workers.

    Attributes:
        watch: what the latest trial was spent on.
    """

    def __init__(self, backend: _Backend, folder: Path) -> None:
        self._backend = backend
        self._folder = folder
        self._arena = BumpAllocator()
        self._prepared: dict[Workload, _Prepared] = {}
        self._reference: tuple[Workload, Config, Loaded] | None = None
        self.watch = Stopwatch()

    def build(self, workload: Workload, config: Config) -> None:
        """Make a configuration's code and leave it in the folder, for whoever measures it.

        Failures are left to the trial, which tells of them.
        """
        if isinstance(self._backend, _Builder):
            with contextlib.suppress(Exception):
                path = self._code_path(workload, config)
                partial = path.with_suffix(f".{os.getpid()}.code")
                partial.write_bytes(self._backend.build(workload, config))
                partial.replace(path)

    def _take_built(self, workload: Workload, config: Config) -> None:
        """Take code that was made ahead, or for an earlier trial; make it if there is none."""
        path = self._code_path(workload, config)
        if isinstance(self._backend, _Builder):
            if not path.exists():
                self.build(workload, config)
            if path.exists():
                self._backend.take(workload, config, path.read_bytes())

    def _is_rival(self, result: MeasureResult, incumbent: float | None) -> bool:
        """Whether it may be compared with the best known (seconds) later, so that code stays."""
        if result.latency is None:
            return False
        return incumbent is None or result.latency <= LOST * incumbent

    def _code_path(self, workload: Workload, config: Config) -> Path:
        name = hashlib.sha256(f"{workload.key}\0{config.key}".encode()).hexdigest()[:24]
        return self._folder / f"{name}.code"

    def measure(self, workload: Workload, config: Config, incumbent: float | None) -> MeasureResult:
        """One trial; aborted as "slow" beyond `ABORT_FACTOR` times the incumbent (seconds)."""
        start, self.watch = time.perf_counter(), Stopwatch()
        self._arena.reset()
        loaded = self._checked(workload, config)
        if isinstance(loaded, MeasureResult):
            return _timed(loaded, start)
        flushed = flushing()
        with self.watch.part("run"):
            result = _sampled(loaded, incumbent)
        self.watch.move(flushing() - flushed, "run", "flush")
        if not self._is_rival(result, incumbent):
            self._code_path(workload, config).unlink(missing_ok=True)
        return _timed(result, start)

    def look(self, workload: Workload, config: Config) -> float:
        """Seconds of a kernel that tells the machine's pace, the fastest of a few runs.

        It stays loaded, in memory of its own; it has had a trial, so that it is not checked again.
        """
        if self._reference is None or self._reference[:2] != (workload, config):
            inputs = self._shared(workload).inputs
            loaded = self._backend.load(workload, config, inputs, BumpAllocator(_REFERENCE_BYTES))
            self._reference = workload, config, loaded
        kernel = self._reference[2]
        kernel.call()  # whatever was measured before has filled the caches
        return min(once(kernel) for _ in range(_LOOKS))

    def compare(self, workload: Workload, configs: Sequence[Config]) -> list[MeasureResult]:
        """Measure rivals in turns; the result of one that fails is its failure."""
        start, self.watch = time.perf_counter(), Stopwatch()
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
            shared = self._shared(workload)
            with self.watch.part("compile"):
                self._take_built(workload, config)
                loaded = self._backend.load(workload, config, shared.inputs, self._arena)
            with self.watch.part("run"):
                loaded.call()
            wrong = shared.right.mismatch(loaded.output())
        except MemoryError:
            return MeasureResult("crash", "hardware", message="out of memory")
        except Exception as error:
            return MeasureResult.failed(error, "hardware")
        if wrong:
            return MeasureResult("wrong", "hardware", message=wrong)
        return loaded

    def _shared(self, workload: Workload) -> _Prepared:
        """Inputs and reference, of the workloads used last as many as `_KEPT_BYTES` hold."""
        prepared = self._prepared.pop(workload, None)
        if prepared is None:
            with self.watch.part("inputs"):
                inputs = random_inputs(workload)
            with self.watch.part("reference"):
                prepared = _Prepared(inputs, expected(workload, inputs, self._folder))
        self._prepared[workload] = prepared  # the last used is the last to go
        while len(self._prepared) > 1 and self._bytes() > _KEPT_BYTES:
            del self._prepared[next(iter(self._prepared))]
        return prepared

    def _bytes(self) -> int:
        return sum(kept.nbytes for kept in self._prepared.values())


def _sampled(loaded: Loaded, incumbent: float | None) -> MeasureResult:
    """Times a kernel that computes the right numbers."""
    if incumbent is not None:
        first = within(loaded, ABORT_FACTOR * incumbent)
        if first > ABORT_FACTOR * incumbent:
            message = f"took {first * 1e6:.1f} us, over {ABORT_FACTOR:g} x the best known"
            return MeasureResult("slow", "hardware", (first,), message)
    with _without_gc():
        cold, warm = samples(loaded, incumbent)
    return MeasureResult("ok", "hardware", tuple(cold), warm_samples=tuple(warm))


class _without_gc:  # noqa: N801  (used like a function)
    """No garbage collection while timing."""

    def __enter__(self) -> None:
        gc.disable()

    def __exit__(self, *error: object) -> None:
        gc.enable()


def _timed(result: MeasureResult, start: float) -> MeasureResult:
    values = {**vars(result), "elapsed": time.perf_counter() - start}
    return MeasureResult(**values)
