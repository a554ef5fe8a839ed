"""`Executable`: a compiled model, ready to run, save and load.

    outputs = executable.run({"input": x})

Runs of kernels are one native call each; host nodes run between them. Invariants: inputs are
checked before anything runs; outputs are new arrays; calls from several threads run one after
another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.memory import aligned_bytes, aligned_copy, aligned_empty
from tilesmith.compiler.areas import Memory
from tilesmith.compiler.artifact import read_artifact, write_artifact
from tilesmith.compiler.backend import backend_of
from tilesmith.compiler.callers_memory import CallersMemory
from tilesmith.compiler.graph import TensorInfo
from tilesmith.compiler.indices import index_fault
from tilesmith.compiler.program import (
    DeviceStep,
    HostStep,
    IndexCheck,
    KernelStep,
    Recipe,
    Report,
    TensorRef,
)
from tilesmith.compiler.updated_inputs import UpdatedInputs
from tilesmith.compiler.value_types import apart, fits, is_value_type, own, texts
from tilesmith.search_space.dtypes import to_numpy
from tilesmith.search_space.errors import JobError, ModelError
from tilesmith.search_space.workload import shape_text

Arrays = Mapping[str, NDArray[Any]]
_Run = Callable[[dict[str, Any]], None]

_PLACES = 16
"""Sets of callers' arrays for which kernels stay linked."""


@dataclass(frozen=True)
class HostNode:
    """A node that no kernel computes.

    Attributes:
        name: the operator, and what it writes.
        runtime: what runs it here, "onnxruntime" or "reference" (`compiler.host.runtime`).
    """

    name: str
    runtime: str


@dataclass(frozen=True)
class _Segment:
    """A part of a run: a host node, or what lies between two."""

    run: _Run
    host: HostNode | None = None


def own_aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy for the caller on a cache line: frameworks take such by DLPack as it lies there."""
    made = aligned_empty(array.shape, array.dtype)
    made[...] = array
    return made


def arena_of(recipe: Recipe) -> NDArray[np.uint8]:
    """Memory for a recipe's activations; `JobError` if there is not enough."""
    try:
        return aligned_bytes(max(64, recipe.arena_bytes))
    except MemoryError as error:
        raise JobError(
            f"'{recipe.name}' needs {recipe.arena_bytes / 2**30:.4g} GiB for its tensors, more "
            "than this machine gives; try a smaller batch"
        ) from error


class _Native:
    """A run of kernels, linked to its memory: callers' arrays may be others next time."""

    def __init__(self, link: Callable[[Memory], Callable[[], None]], memory: Memory) -> None:
        self._link = link
        self._known: dict[tuple[int, ...], Callable[[], None]] = {}
        self.move(memory)

    def move(self, memory: Memory) -> None:
        """Work there from now on; the places seen before are remembered."""
        where = tuple(int(array.ctypes.data) for array in memory.callers)
        if where not in self._known:
            if len(self._known) == _PLACES:
                self._known.clear()
            self._known[where] = self._link(memory)
        self.call = self._known[where]

    def run(self, values: dict[str, Any]) -> None:
        """Run them."""
        self.call()


def _unbroken(steps: Iterable[DeviceStep]) -> list[list[DeviceStep]]:
    """The steps in runs, at whose start alone something has to be checked."""
    runs: list[list[DeviceStep]] = []
    for step in steps:
        if _checks(step) or not runs:
            runs.append([])
        runs[-1].append(step)
    return runs


def _checks(step: DeviceStep) -> tuple[IndexCheck, ...]:
    return step.checks if isinstance(step, KernelStep) else ()


class Executable:
    """See the module's docstring.

    Raises (on construction):
        TargetError: this machine cannot run code for the recipe's target.
        JobError: there is not enough memory for its tensors.
    """

    def __init__(self, recipe: Recipe, memory: Memory | None = None) -> None:
        self.recipe = recipe
        backend = backend_of(recipe.target)
        backend.check(recipe.target)
        self._updated = UpdatedInputs(recipe)
        self._areas = memory or Memory(
            arena_of(recipe),
            aligned_copy(recipe.constants),
            lent=recipe.lent,
            callers=self._updated.start(),
        )
        self._lock = self._areas.lock
        self._natives: list[_Native] = []
        self._views: dict[str, NDArray[Any]] = {}
        self._known = {ref.info.name: ref.info for ref in recipe.inputs}
        self._usual = {
            name: (info.shape, to_numpy(info.dtype))
            for name, info in self._known.items()
            if info.shape is not None and not is_value_type(info.dtype)
        }
        self._segments: list[_Segment] = []
        for is_host, steps in groupby(recipe.steps, lambda s: isinstance(s, HostStep)):
            if is_host:
                hosts = (step for step in steps if isinstance(step, HostStep))
                self._segments += [self._host_segment(step) for step in hosts]
                continue
            for run in _unbroken(s for s in steps if not isinstance(s, HostStep)):
                if checks := _checks(run[0]):
                    self._segments.append(self._check_segment(checks))
                self._natives.append(_Native(partial(backend.link_all, recipe, run), self._areas))
                self._segments.append(_Segment(self._natives[-1].run))
        linked = [] if recipe.updates else [native.call for native in self._natives]
        self._passed = CallersMemory(recipe, linked, self._areas.arena)

    # -- questions ------------------------------------------------------------------------------
    @property
    def name(self) -> str:
        """The model's name."""
        return self.recipe.name

    @property
    def memory(self) -> Memory:
        """What it works in."""
        return self._areas

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What `run` takes, in order."""
        return tuple(ref.info for ref in self.recipe.inputs)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What `run` gives, in order."""
        return tuple(ref.info for ref in self.recipe.outputs)

    @property
    def source(self) -> str:
        """Name and content hash of the model's file, "NAME sha256:HEX"; "" if there was none."""
        return self.recipe.source

    @property
    def report(self) -> Report:
        """How many kernels are tuned, fell back, are untuned; what runs on the host; memory."""
        return self.recipe.report

    @property
    def host_nodes(self) -> tuple[HostNode, ...]:
        """What no kernel computes, in the order it runs, and what runs it on this machine."""
        return tuple(part.host for part in self._segments if part.host is not None)

    # -- running --------------------------------------------------------------------------------
    def run(self, inputs: Arrays, copy: Callable[[Any], Any] = own) -> dict[str, NDArray[Any]]:
        """Run the model.

        Args:
            inputs: an array for every input, by name; exact shapes and dtypes.
            copy: makes what the caller gets of an output whose memory the next run writes; most
                are written where the caller gets them.

        Returns:
            a new array for every output, by name; the caller's own for what the run updates.

        Raises:
            ModelError: an input is missing, unknown, or of the wrong shape or dtype, or is to be
                updated and cannot be written.
            JobError: a host node failed on these inputs, or an index is out of range.
        """
        self._check(inputs)
        with self._lock:
            try:
                return self._outputs_of(inputs, copy)
            finally:
                self._passed.home()  # the caller's memory may be gone when a bound run goes on

    def _outputs_of(self, inputs: Arrays, copy: Callable[[Any], Any]) -> dict[str, NDArray[Any]]:
        values = self._placed(inputs, self._passed)
        made = {ref.info.name: self._passed.give(ref) for ref in self.recipe.outputs}
        for part in self._segments:
            part.run(values)
        rest = (ref for ref in self.recipe.outputs if made[ref.info.name] is None)
        found = {ref.info.name: self._get(ref, values) for ref in rest}
        self._updated.finish(inputs, found)
        updated = self._updated.outputs
        for name, value in found.items():
            made[name] = inputs[updated[name]] if name in updated else copy(value)
        return made

    def _placed(self, inputs: Arrays, passed: CallersMemory | None = None) -> dict[str, Any]:
        """Put inputs where kernels read them; returns those that are values of the host's.

        Args:
            passed: takes those that may be where the caller has them.
        """
        values: dict[str, Any] = {}
        for ref in self.recipe.inputs:
            array = inputs[ref.info.name]
            if ref.place.region != "caller" and not (passed and passed.take(ref, array)):
                self._put(ref, array, values)
        arrays = self._updated.arrays(inputs)
        if any(a is not b for a, b in zip(arrays, self._areas.callers, strict=True)):
            self._areas = replace(self._areas, callers=arrays)
            for native in self._natives:
                native.move(self._areas)
        return values

    def bind(self, inputs: Arrays) -> BoundRun:
        """Put inputs in place once, for runs that copy nothing; errors as `run`.

        The binding holds until the next `run` or `bind` of this executable.
        """
        self._check(inputs)
        return BoundRun(self._segments, self.recipe.outputs, self._placed(inputs), self._get)

    def _check(self, inputs: Arrays) -> None:
        if unknown := [name for name in inputs if name not in self._known]:
            names = ", ".join(self._known)
            raise ModelError(f"'{self.name}' has no input '{unknown[0]}'; its inputs are {names}")
        for name, info in self._known.items():
            if name not in inputs:
                names = ", ".join(self._known)
                raise ModelError(f"input '{name}' of '{self.name}' is missing; it takes {names}")
            value = inputs[name]
            if isinstance(value, np.ndarray) and (value.shape, value.dtype) == self._usual.get(
                name
            ):
                continue  # the others are looked at more closely, which takes a microsecond
            if info.shape is not None and np.shape(value) != info.shape:
                raise ModelError(
                    f"input '{name}' of '{self.name}' has the shape {shape_text(np.shape(value))}; "
                    f"{shape_text(info.shape)} is expected"
                )
            if not fits(value, info.dtype):
                held = isinstance(value, list | tuple) or value is None
                kind = type(value).__name__ if held else f"dtype {np.asarray(value).dtype}"
                raise ModelError(
                    f"input '{name}' of '{self.name}' is of {kind}; {info.dtype} is expected"
                )
        self._updated.check(inputs)

    def _memory(self, ref: TensorRef) -> NDArray[Any]:
        """The bytes of a tensor in the arena or among the constants, as an array."""
        name = ref.info.name
        if name not in self._views:
            dtype = to_numpy(ref.stored or ref.info.dtype)
            view = self._areas.view(ref.place, dtype, ref.info.dims)
            if ref.place.region == "caller":
                return view  # of this run
            self._views[name] = view
        return self._views[name]

    def _put(self, ref: TensorRef, array: Any, values: dict[str, Any]) -> None:
        if ref.place.region == "arena":
            self._memory(ref)[...] = array
        else:
            array = texts(array) if isinstance(array, np.ndarray) else array
            values[ref.info.name] = apart(array, self._areas.arena)

    def _get(self, ref: TensorRef, values: Mapping[str, Any]) -> Any:
        if ref.place.region == "value":
            return values[ref.info.name]
        found = self._memory(ref)
        return found.astype(to_numpy(ref.info.dtype)) if ref.stored else found

    def _check_segment(self, checks: Sequence[IndexCheck]) -> _Segment:
        def run(values: dict[str, Any]) -> None:
            for check in checks:
                if fault := index_fault(self._get(check.indices, values), check.extents):
                    raise JobError(f"{check.node} {fault}")

        return _Segment(run)

    def _host_segment(self, step: HostStep) -> _Segment:
        from tilesmith.compiler.host.step import HostCall

        weights = [ref for ref in step.inputs if ref.place.region == "constant"]
        constants = {ref.info.name: self._get(ref, {}) for ref in weights}
        call = HostCall(step, constants, self.recipe.opsets, self.recipe.threads)

        def run(values: dict[str, Any]) -> None:
            results = call.run({ref.info.name: self._get(ref, values) for ref in step.inputs})
            for ref in step.outputs:
                result = results[ref.info.name]
                if ref.info.shape is not None and np.shape(result) != ref.info.shape:
                    raise JobError(
                        f"{step.name} gives a tensor of shape {shape_text(np.shape(result))}; the "
                        f"model was compiled for {shape_text(ref.info.shape)}"
                    )
                self._put(ref, result, values)

        return _Segment(run, HostNode(step.name, call.runtime))

    # -- files ----------------------------------------------------------------------------------
    def save(self, path: str | Path) -> None:
        """Write the executable as one file (`.tsm`); errors as `search_space.files.written`.

        Raises:
            ModelError: it is a model at one of many sizes (`VaryingExecutable.at`).
        """
        if self._areas.held is not None:
            raise ModelError(f"this is '{self.name}' at one of its sizes; save the model itself")
        write_artifact(self.recipe, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Executable:
        """Read what `save` wrote.

        Raises:
            ModelError: missing, damaged, not an artifact, or of a newer format.
            TargetError: it needs an instruction set this machine does not have.
        """
        return cls(read_artifact(Path(path)))


class BoundRun:
    """An executable with its inputs in place; made by `Executable.bind`, for one thread."""

    def __init__(
        self,
        segments: list[_Segment],
        outputs: tuple[TensorRef, ...],
        values: dict[str, Any],
        read: Callable[[TensorRef, Mapping[str, Any]], Any],
    ) -> None:
        self._segments = segments
        self._outputs = outputs
        self._values = values
        self._read = read

    def run(self) -> None:
        """Run the model on the bound inputs."""
        for part in self._segments:
            part.run(self._values)

    def host_share(self) -> float:
        """The part of one run's time that host nodes take, from 0 to 1; runs the model once."""
        taken = {True: 0.0, False: 0.0}
        for part in self._segments:
            start = time.perf_counter()
            part.run(self._values)
            taken[part.host is not None] += time.perf_counter() - start
        return taken[True] / max(sum(taken.values()), 1e-12)

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Copies of what the last run gave, by name."""
        return {ref.info.name: own(self._read(ref, self._values)) for ref in self._outputs}
