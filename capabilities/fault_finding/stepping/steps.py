"""`Stepper`: a compiled model run step by step, its tensors seen before their memory is another's.

Comparison reads every tensor with it, bisection computes every step again from what it reads, and
both look into a kernel or a loop by running up to it. It works in a workspace of the executable's,
by the recipe alone. Accelerators run each kernel as a program of its own, from and to the device's
memory, by the same instructions.

Invariant: the same code on the same places as a run, one step after another.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.backends.backend import backend_of
from tilesmith.compiler.backends.wrong_instruction import WrongInstruction
from tilesmith.compiler.recipe.layouts import PLAIN, pack, physical_shape, unpack
from tilesmith.compiler.recipe.program import HeldTensor, KernelStep, Recipe, TensorRef
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.runtime.workspace import Workspace
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.support.errors import TilesmithError

Arrays = Mapping[str, NDArray[Any]]


@dataclass
class Stepper:
    """A run of a compiled model that stands before one of its steps.

    Attributes:
        number: of the step that is next.
        workspace, values: what lies where.
    """

    recipe: Recipe
    workspace: Workspace
    values: dict[str, Any]
    number: int = 0

    def advance(self, steps: int = 1, together: bool = False) -> None:
        """Run the next steps, one by one or as one program.

        Raises:
            JobError: a host node failed on these inputs, or an index is out of range.
        """
        size = steps if together else 1
        for _ in range(steps // size if size else 0):
            self.workspace.runner(self.recipe.steps[self.number : self.number + size])(self.values)
            self.number += size

    @cached_property
    def _by_step(self) -> dict[int, list[HeldTensor]]:
        by_step: dict[int, list[HeldTensor]] = {}
        for tensor in self.recipe.tensors:
            by_step.setdefault(tensor.step, []).append(tensor)
        return by_step

    @property
    def written(self) -> Sequence[HeldTensor]:
        """What the step before wrote; before the first, what is there when a run begins."""
        return self._by_step.get(self.number - 1, ())

    def read(self, tensor: HeldTensor) -> Any:
        """A copy of what lies at a tensor's place."""
        if tensor.place.region == "value":
            value = self.values[tensor.name]
            return np.array(value) if isinstance(value, np.ndarray) else value
        assert tensor.shape is not None
        return np.array(unpack(tensor.layout, self._bytes(tensor), tensor.shape))

    def write(self, tensor: HeldTensor, array: NDArray[Any]) -> None:
        """Put a logical array at a tensor's place."""
        if tensor.place.region == "value":
            held = self.values[tensor.name]
            self.values[tensor.name] = np.asarray(array, held.dtype).reshape(held.shape)
            return
        assert tensor.shape is not None
        typed = np.asarray(array).reshape(tensor.shape).astype(to_numpy(tensor.dtype))
        self._bytes(tensor)[...] = pack(tensor.layout, typed)

    def get(self, ref: TensorRef) -> Any:
        """A copy of what the caller or the host sees."""
        value = self.workspace.read(ref, self.values)
        return np.array(value) if isinstance(value, np.ndarray) else value

    def _bytes(self, tensor: HeldTensor) -> NDArray[Any]:
        assert tensor.shape is not None
        shape = physical_shape(tensor.layout, tensor.shape)
        return self.workspace.memory.view(tensor.place, to_numpy(tensor.dtype), shape)


@contextmanager
def stepping(executable: Executable, inputs: Arrays) -> Iterator[Stepper]:
    """A run before its first step.

    Raises:
        ModelError: the inputs do not fit.
    """
    executable.check(inputs)
    given = copies(inputs)
    with executable.workspace() as work:
        work.memory.arena.fill(0xFF)  # no number: what a step leaves out is seen
        yield Stepper(executable.recipe, work, work.put(given))


@dataclass(frozen=True)
class Seen:
    """What a run step by step gave.

    Attributes:
        tensors: logical arrays of the element types that they have in memory, by name.
        outputs: what the caller gets.
    """

    tensors: dict[str, NDArray[Any]]
    outputs: dict[str, Any]


def run_steps(
    executable: Executable,
    inputs: Arrays,
    names: Collection[str] | None = None,
    replaced: Arrays | None = None,
) -> Seen:
    """Run a model step by step; errors as `stepping` and `Stepper.advance`.

    Args:
        names: tensors to keep; None: all.
        replaced: values (logical arrays) that are put in place of what the steps wrote.
    """
    replaced, tensors = replaced or {}, dict[str, NDArray[Any]]()
    with stepping(executable, inputs) as run:
        for number in range(len(run.recipe.steps) + 1):
            if number:
                run.advance()
            for tensor in run.written:
                if tensor.name in replaced:
                    run.write(tensor, replaced[tensor.name])
            for tensor in run.written:
                if names is None or tensor.name in names:
                    tensors[tensor.name] = run.read(tensor)
        outputs = {ref.info.name: run.get(ref) for ref in run.recipe.outputs}
    for tensor in ends(executable.recipe):
        if names is None or tensor.name in names:
            tensors[tensor.name] = outputs[tensor.name]
    return Seen(tensors, outputs)


def wrong_instruction(
    executable: Executable, inputs: Mapping[str, Any], number: int
) -> WrongInstruction | None:
    """The first instruction of a step whose output differs, on the operands that it has in the
    model; None where none does or that cannot be told."""
    recipe = executable.recipe
    step = recipe.steps[number] if number >= 0 else None
    if not isinstance(step, KernelStep):
        return None
    with suppress(TilesmithError), stepping(executable, inputs) as run:
        run.advance(number)
        # It may be too large, or no program comes of it any more.
        return backend_of(recipe.target).wrong_instruction(recipe, step, run.workspace.memory)
    return None


def copies(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs of a run, which may change them; sequences and what is optional as they are."""
    return {n: np.array(v) if isinstance(v, np.ndarray) else v for n, v in inputs.items()}


def ends(recipe: Recipe) -> list[HeldTensor]:
    """The outputs that are in no list of tensors: constants, and those of older artifacts. They
    are seen when the run is over, and nothing can be put in their place."""
    held = {tensor.name for tensor in recipe.tensors}
    last = len(recipe.steps) - 1
    return [
        HeldTensor(ref.info.name, ref.info.dtype, ref.info.shape, ref.place, PLAIN, last)
        for ref in recipe.outputs
        if ref.info.name not in held
    ]
