"""`Workspace`: memory for one run at a time, and the steps of a recipe linked to it.

An executable runs in as many workspaces as there are runs at once: each has an arena, programs
linked to it with their own tables and work areas, and its own dealings with callers' memory.
Weights, native code and what runs host nodes are shared. Whoever steps through a model in another
way than `run` (to time steps, or to look at tensors) does so in a workspace:

    with executable.workspace() as work:
        values = work.put(inputs)
        for step in executable.recipe.steps:
            work.runner((step,))(values)

Invariants: a workspace is used by one thread at a time; between runs all of it is its own memory,
none a caller's but arrays that are updated in place.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.graph.indices import index_fault
from tilesmith.compiler.graph.value_types import apart, texts
from tilesmith.compiler.recipe.areas import Bytes, RunMemory
from tilesmith.compiler.recipe.program import (
    DeviceStep,
    HostStep,
    KernelStep,
    Recipe,
    Step,
    TensorRef,
)
from tilesmith.compiler.runtime.callers_memory import CallersMemory, UpdatedInputs
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import JobError
from tilesmith.search_space.workloads.workload import shape_text

if TYPE_CHECKING:
    from tilesmith.compiler.host.step import HostCall

Arrays = Mapping[str, NDArray[Any]]
Values = dict[str, Any]
"""What the host holds of a run, by name: tensors that no kernel touches."""

_Run = Callable[[Values], None]

_PLACES = 16
"""Sets of callers' arrays for which kernels stay linked."""


@dataclass(frozen=True)
class Segment:
    """A part of a run: a host node, a look at indices, or the kernels between two of these.

    Attributes:
        run: runs it.
        steps: what it runs; none where it only looks.
    """

    run: _Run
    steps: tuple[Step, ...] = ()

    @property
    def host(self) -> HostStep | None:
        """The host node that it is, if it is one."""
        first = self.steps[0] if self.steps else None
        return first if isinstance(first, HostStep) else None


class _Native:
    """A run of kernels, linked to its memory: callers' arrays may be others next time."""

    def __init__(self, link: Callable[[RunMemory], Callable[[], None]], memory: RunMemory) -> None:
        self._link = link
        self._known: dict[tuple[int, ...], Callable[[], None]] = {}
        self.move(memory)

    def move(self, memory: RunMemory) -> None:
        """Work there from now on; the places seen before are remembered."""
        where = tuple(int(array.ctypes.data) for array in memory.callers)
        if where not in self._known:
            if len(self._known) == _PLACES:
                self._known.clear()
            self._known[where] = self._link(memory)
        self.call = self._known[where]

    def run(self, values: Values) -> None:
        """Run them."""
        self.call()


class Workspace:
    """See the module's docstring.

    Args:
        hosts: what runs the recipe's host steps, by the step's identity.
        memory: to work in; its arena is this workspace's alone.
    """

    def __init__(self, recipe: Recipe, hosts: "Mapping[int, HostCall]", memory: RunMemory) -> None:
        self.recipe = recipe
        self._hosts = hosts
        self._updated = UpdatedInputs(recipe)
        self.memory = replace(memory, callers=self._updated.start())
        self._natives: list[_Native] = []
        self._views: dict[str, NDArray[Any]] = {}
        self.segments = self._segments_of(recipe.steps, self._natives)
        linked = [] if recipe.updates else [native.call for native in self._natives]
        self._passed = CallersMemory(recipe, linked, self.memory.arena)
        passed = self._passed.names  # looked at once: a call of a small model takes microseconds
        self._lent = [ref for ref in recipe.outputs if ref.info.name in passed]
        self._kept = [ref for ref in recipe.outputs if ref.info.name not in passed]
        self._outputs = dict.fromkeys(ref.info.name for ref in recipe.outputs)
        copied = {
            ref.info.name: self._view(ref)
            for ref in recipe.inputs
            if ref.place.region == "arena" and ref.info.name not in passed
        }
        self._copied = tuple(copied.items())
        self._placed_each = [ref for ref in recipe.inputs if ref.info.name not in copied]

    # -- a whole run ----------------------------------------------------------------------------
    def run(self, inputs: Arrays, copy: Callable[[Any], Any]) -> dict[str, NDArray[Any]]:
        """Run the model on inputs that were checked; see `Executable.run`."""
        try:
            values = self._placed(inputs, self._passed)
            outputs: dict[str, Any] = self._outputs.copy()
            for ref in self._lent:
                outputs[ref.info.name] = self._passed.give(ref)
            for part in self.segments:
                part.run(values)
            updated = self._updated.outputs
            for ref in self._kept:
                value = self.read(ref, values)
                outputs[ref.info.name] = value if ref.info.name in updated else copy(value)
            if updated:
                self._updated.finish(inputs, outputs)
            return outputs
        finally:
            self._passed.home()  # the caller's memory may be gone by the next run

    # -- in steps -------------------------------------------------------------------------------
    def put(self, inputs: Arrays) -> Values:
        """Put inputs that were checked where kernels read them; returns what the host holds of the
        run that they begin."""
        return self._placed(inputs, None)

    def runner(self, steps: Sequence[Step]) -> _Run:
        """What runs some of the recipe's steps, in order, here, looks at indices included.

        It is called with what `put` gave, and made after that: arrays that the recipe updates are
        worked on where they were when it was made.
        """
        parts = self._segments_of(steps, [])
        if len(parts) == 1:
            return parts[0].run

        def run(values: Values) -> None:
            for part in parts:
                part.run(values)

        return run

    def read(self, ref: TensorRef, values: Values) -> Any:
        """The tensor at a place: a view of the workspace's memory, or what the host holds."""
        if ref.place.region == "value":
            return values[ref.info.name]
        array = self._view(ref)
        return array.astype(to_numpy(ref.info.dtype)) if ref.stored else array

    # -- what there is to run -------------------------------------------------------------------
    def _segments_of(self, steps: Iterable[Step], natives: list[_Native]) -> tuple[Segment, ...]:
        """The steps in parts; `natives` takes what is linked to memory of callers'."""
        segments: list[Segment] = []
        for is_host, part in groupby(steps, lambda step: isinstance(step, HostStep)):
            if is_host:
                hosts = (step for step in part if isinstance(step, HostStep))
                segments += [Segment(partial(self._run_host, step), (step,)) for step in hosts]
                continue
            for run in _unbroken(step for step in part if not isinstance(step, HostStep)):
                if isinstance(run[0], KernelStep) and run[0].checks:
                    segments.append(Segment(partial(self._check, run[0])))
                link = partial(backend_of(self.recipe.target).link_all, self.recipe, run)
                natives.append(_Native(link, self.memory))
                segments.append(Segment(natives[-1].run, tuple(run)))
        return tuple(segments)

    def _check(self, step: KernelStep, values: Values) -> None:
        for check in step.checks:
            if fault := index_fault(self.read(check.indices, values), check.extents):
                raise JobError(f"{check.node} {fault}")

    def _run_host(self, step: HostStep, values: Values) -> None:
        call = self._hosts[id(step)]
        results = call.run({ref.info.name: self.read(ref, values) for ref in step.inputs})
        for ref in step.outputs:
            result = results[ref.info.name]
            if ref.info.shape is not None and np.shape(result) != ref.info.shape:
                raise JobError(
                    f"{step.name} gives a tensor of shape {shape_text(np.shape(result))}; the "
                    f"model was compiled for {shape_text(ref.info.shape)}"
                )
            self._put(ref, result, values)

    # -- memory ---------------------------------------------------------------------------------
    def _placed(self, inputs: Arrays, passed: CallersMemory | None) -> Values:
        """Put inputs where kernels read them; `passed` takes those that may be where the caller
        has them."""
        values: Values = {}
        for name, view in self._copied:
            view[...] = inputs[name]
        for ref in self._placed_each:
            array = inputs[ref.info.name]
            if ref.place.region != "caller" and not (passed and passed.take(ref, array)):
                self._put(ref, array, values)
        if self.memory.callers:
            self._move(self._updated.arrays(inputs))
        return values

    def _move(self, callers: tuple[Bytes, ...]) -> None:
        """Work on these arrays of the caller's from now on."""
        if any(a is not b for a, b in zip(callers, self.memory.callers, strict=True)):
            self.memory = replace(self.memory, callers=callers)
            for native in self._natives:
                native.move(self.memory)

    def _view(self, ref: TensorRef) -> NDArray[Any]:
        """The bytes of a tensor in the arena or among the constants, as an array."""
        name = ref.info.name
        if name not in self._views:
            dtype = to_numpy(ref.stored or ref.info.dtype)
            view = self.memory.view(ref.place, dtype, ref.info.dims)
            if ref.place.region == "caller":
                return view  # of this run
            self._views[name] = view
        return self._views[name]

    def _put(self, ref: TensorRef, array: Any, values: Values) -> None:
        if ref.place.region == "arena":
            self._view(ref)[...] = array
        else:
            array = texts(array) if isinstance(array, np.ndarray) else array
            values[ref.info.name] = apart(array, self.memory.arena)


def _unbroken(steps: Iterable[DeviceStep]) -> list[list[DeviceStep]]:
    """The steps in runs, at whose start alone something has to be checked."""
    runs: list[list[DeviceStep]] = []
    for step in steps:
        if (isinstance(step, KernelStep) and step.checks) or not runs:
            runs.append([])
        runs[-1].append(step)
    return runs
