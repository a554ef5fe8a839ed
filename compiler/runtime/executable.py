"""`Executable`: a compiled model, ready to run, save and load.

    outputs = executable.run({"input": x})

A run takes a workspace from a pool (`compiler.runtime.pool`, `compiler.runtime.workspace`), so
that runs from many threads go on at once, as many as there are cores for; weights and native code
are shared by all. Runs of kernels are one native call each; host nodes run between them.
Invariants: inputs are checked before anything runs; outputs are new arrays; a run sees nothing of
another, unless callers give both the same array to update.
"""

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import NDArray

from tilesmith.codegen.host.memory import aligned_copy, machine_bytes
from tilesmith.compiler.artifact.artifact import read_artifact
from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.graph.graph import TensorInfo
from tilesmith.compiler.graph.value_types import own
from tilesmith.compiler.recipe.areas import NOTHING, Bytes, RunMemory
from tilesmith.compiler.recipe.program import HostStep, Recipe
from tilesmith.compiler.runtime.callers_memory import empty_on_a_line
from tilesmith.compiler.runtime.compiled_model import CompiledModel
from tilesmith.compiler.runtime.input_check import InputCheck
from tilesmith.compiler.runtime.pool import Area, Pool, no_room
from tilesmith.compiler.runtime.workspace import Arrays, Workspace
from tilesmith.search_space.support.errors import ModelError

if TYPE_CHECKING:
    from tilesmith.compiler.host.step import HostCall


@dataclass(frozen=True)
class HostNode:
    """A node that no kernel computes.

    Attributes:
        name: the operator, and what it writes.
        runtime: what runs it here, "onnxruntime" or "reference" (`compiler.host.runtime`).
    """

    name: str
    runtime: str


def own_aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy for the caller on a cache line: frameworks take such by DLPack as it lies there."""
    aligned, _ = empty_on_a_line(array.shape, array.dtype, array.nbytes)
    aligned[...] = array
    return aligned


class Executable(CompiledModel):
    """See the module's docstring.

    Args:
        held: what follows from the sizes of a model whose sizes vary.
        pool: memory that it shares with the model at other sizes; its own if None.

    Raises (on construction):
        TargetError: this machine cannot run code for the recipe's target.
        JobError: there is not enough memory for its tensors.
    """

    recipe: Recipe

    def __init__(self, recipe: Recipe, held: Bytes | None = None, pool: Pool | None = None) -> None:
        backend_of(recipe.target).check(recipe.target)
        self.recipe = recipe
        self._check = InputCheck(recipe)
        constants = aligned_copy(recipe.constants)
        self._memory = RunMemory(NOTHING, constants, held, recipe.lent)
        hosts = [step for step in recipe.steps if isinstance(step, HostStep)]
        self._hosts = {id(step): self._host_call(step) for step in hosts}
        self._key = object()
        """What areas know it by: they do not keep it alive."""
        self._needed = recipe.arena_bytes + sum(
            ref.info.nbytes for ref in recipe.outputs if ref.info.known
        )
        if self._needed > machine_bytes():  # results are the caller's, beside the arena
            raise no_room(recipe.title, self._needed)
        self._pool = pool or Pool(recipe.threads)
        if pool is None:
            with self.workspace():  # what cannot be linked is told now
                pass

    # -- questions ------------------------------------------------------------------------------
    @cached_property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What `run` takes, in order."""
        return tuple(ref.info for ref in self.recipe.inputs)

    @cached_property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What `run` gives, in order."""
        return tuple(ref.info for ref in self.recipe.outputs)

    @property
    def host_nodes(self) -> tuple[HostNode, ...]:
        """What no kernel computes, in the order it runs, and what runs it on this machine."""
        steps = (step for step in self.recipe.steps if isinstance(step, HostStep))
        return tuple(HostNode(step.name, self._hosts[id(step)].runtime) for step in steps)

    # -- running --------------------------------------------------------------------------------
    def run(self, inputs: Arrays, copy: Callable[[Any], Any] = own) -> dict[str, NDArray[Any]]:
        """Run the model.

        Args:
            inputs: an array for every input, by name; exact shapes and dtypes. Any that speaks
                DLPack will do (numpy's, PyTorch's, JAX's); one that begins on a cache line and has
                its elements one after the other is not copied.
            copy: makes what the caller gets of an output whose memory the next run writes; most
                are written where the caller gets them.

        Returns:
            a new array for every output, by name; the caller's own for what the run updates.

        Raises:
            ModelError: an input is missing, unknown, or of the wrong shape or dtype, or is to be
                updated and cannot be written.
            JobError: a host node failed on these inputs, or an index is out of range.
        """
        given = self._check(inputs)
        pool = self._pool
        area = pool.take()
        try:
            outputs = self._in(area).run(given, copy)
        except MemoryError as error:
            raise no_room(self.name, self._needed) from error
        finally:
            pool.give(area)
        for update in self.recipe.updates:
            outputs[update.output] = inputs[update.input]
        return outputs

    def bind(self, inputs: Arrays) -> "BoundRun":
        """Put inputs in place once, for runs that copy nothing; errors as `run`.

        The binding has a workspace of its own for as long as it lives.
        """
        given = self._check(inputs)
        area = self._pool.hold()
        try:
            bound = BoundRun(self._in(area), given)
        except BaseException:
            self._pool.release(area)
            raise
        weakref.finalize(bound, self._pool.release, area)
        return bound

    @contextmanager
    def workspace(self) -> Iterator[Workspace]:
        """A workspace for a while, to run the model's steps in one's own way.

        Its `put` takes what `check` gives.
        """
        with self._pool.lent() as area:
            yield self._in(area)

    def check(self, inputs: Arrays) -> Arrays:
        """The inputs as arrays of numpy's; refuses what `run` refuses (`ModelError`)."""
        return self._check(inputs)

    def _in(self, area: Area) -> Workspace:
        """The workspace that an area is for this model."""
        workspace: Workspace | None = area.models.get(self._key)
        if workspace is None:
            area.reserve(self.recipe.title, self.recipe.arena_bytes)
            workspace = Workspace(self.recipe, self._hosts, replace(self._memory, arena=area.arena))
            area.add(self._key, workspace)
        return workspace

    def _host_call(self, step: HostStep) -> "HostCall":
        from tilesmith.compiler.host.step import HostCall

        weights = [ref for ref in step.inputs if ref.place.region == "constant"]
        constants = {ref.info.name: self._memory.tensor(ref) for ref in weights}
        return HostCall(step, constants, self.recipe.opsets, self.recipe.threads)

    # -- files ----------------------------------------------------------------------------------
    def _check_whole(self) -> None:
        if self._memory.held is not None:
            raise ModelError(f"this is '{self.name}' at one of its sizes; save the model itself")

    @classmethod
    def loads(cls, data: bytes) -> Self:
        return cls(read_artifact(data))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote.

        Raises:
            ModelError: missing, damaged, not an artifact, or of a newer format.
            TargetError: it needs an instruction set this machine does not have.
        """
        return cls(read_artifact(Path(path)))


class BoundRun:
    """An executable with its inputs in place; made by `Executable.bind`, for one thread at a
    time."""

    def __init__(self, workspace: Workspace, inputs: Arrays) -> None:
        self._workspace = workspace
        self._values = workspace.put(inputs)

    def run(self) -> None:
        """Run the model on the bound inputs."""
        for part in self._workspace.segments:
            part.run(self._values)

    def host_share(self) -> float:
        """The part of one run's time that host nodes take, from 0 to 1; runs the model once."""
        taken = {True: 0.0, False: 0.0}
        for part in self._workspace.segments:
            start = time.perf_counter()
            part.run(self._values)
            taken[part.host is not None] += time.perf_counter() - start
        return taken[True] / max(sum(taken.values()), 1e-12)

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Copies of what the last run gave, by name."""
        refs = self._workspace.recipe.outputs
        return {ref.info.name: own(self._workspace.read(ref, self._values)) for ref in refs}
