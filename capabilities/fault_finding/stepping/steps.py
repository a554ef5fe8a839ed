"""Runs a compiled model step by step, so that tensors are seen before their memory is another's.

It works in a workspace of the executable's, by the recipe alone. Accelerators run each kernel as a
program of its own, from and to the device's memory, by the same instructions.

Invariant: the same code on the same places as a run, one step after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.recipe.layouts import PLAIN, pack, physical_shape, unpack
from tilesmith.compiler.recipe.program import HeldTensor, Recipe, Step, TensorRef
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.runtime.workspace import Workspace
from tilesmith.search_space.expressions.dtypes import to_numpy

Arrays = Mapping[str, NDArray[Any]]
Watch = Callable[[int, Step, "Look"], None]
"""Told before or after each step: its number, the step, and what lies where."""


@dataclass
class Hooks:
    """What is done while a run goes on.

    Attributes:
        wanted: whether a tensor is to be kept; None: all are.
        replaced: values (logical arrays) that are put in place of what the steps wrote.
        before, after: told of each step.
    """

    wanted: Callable[[HeldTensor], bool] | None = None
    replaced: Arrays = field(default_factory=dict)
    before: Watch | None = None
    after: Watch | None = None


@dataclass(frozen=True)
class Look:
    """What lies where at a point of a run."""

    workspace: Workspace
    values: dict[str, Any]

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


@dataclass(frozen=True)
class Seen:
    """What a run step by step gave.

    Attributes:
        tensors: logical arrays of the element types that they have in memory, by name.
        outputs: what the caller gets.
    """

    tensors: dict[str, NDArray[Any]]
    outputs: dict[str, Any]


def run_steps(executable: Executable, inputs: Arrays, hooks: Hooks | None = None) -> Seen:
    """Run a model step by step.

    Raises:
        ModelError: the inputs do not fit.
        JobError: a host node failed on these inputs, or an index is out of range.
    """
    hooks = hooks or Hooks()
    recipe = executable.recipe
    executable.check(inputs)
    given = copies(inputs)
    by_step: dict[int, list[HeldTensor]] = {}
    for tensor in recipe.tensors:
        by_step.setdefault(tensor.step, []).append(tensor)
    tensors: dict[str, NDArray[Any]] = {}
    with executable.workspace() as work:
        work.memory.arena.fill(0xFF)  # no number: what a step leaves out is seen
        look = Look(work, work.put(given))
        _see(look, by_step.get(-1, ()), hooks, tensors)
        for number, step in enumerate(recipe.steps):
            if hooks.before is not None:
                hooks.before(number, step, look)
            work.runner((step,))(look.values)
            _see(look, by_step.get(number, ()), hooks, tensors)
            if hooks.after is not None:
                hooks.after(number, step, look)
        outputs = {ref.info.name: look.get(ref) for ref in recipe.outputs}
        for tensor in ends(recipe):
            if hooks.wanted is None or hooks.wanted(tensor):
                tensors[tensor.name] = outputs[tensor.name]
        return Seen(tensors, outputs)


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


def _see(
    look: Look,
    tensors: tuple[HeldTensor, ...] | list[HeldTensor],
    hooks: Hooks,
    kept: dict[str, Any],
) -> None:
    """Put replacements in, and keep what is there after a step."""
    for tensor in tensors:
        if tensor.name in hooks.replaced:
            look.write(tensor, hooks.replaced[tensor.name])
    for tensor in tensors:
        if hooks.wanted is None or hooks.wanted(tensor):
            kept[tensor.name] = look.read(tensor)
