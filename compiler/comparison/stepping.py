"""Runs a compiled model step by step, so that tensors are seen before their memory is another's.

It works in memory of its own, by the recipe alone: the executable that a caller runs knows nothing
of it. Accelerators run each kernel as a program of its own, from and to the device's memory, by the
same instructions.

Invariant: the same code on the same places as a run, one step after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.memory import aligned_copy
from tilesmith.compiler.areas import Memory
from tilesmith.compiler.backend import backend_of
from tilesmith.compiler.executable import arena_of
from tilesmith.compiler.host.step import HostCall
from tilesmith.compiler.indices import index_fault
from tilesmith.compiler.memory import ALIGNMENT
from tilesmith.compiler.program import (
    DeviceStep,
    HeldTensor,
    HostStep,
    KernelStep,
    Recipe,
    Step,
    TensorRef,
)
from tilesmith.compiler.settling.layouts import pack, physical_shape, unpack
from tilesmith.compiler.updated_inputs import UpdatedInputs
from tilesmith.search_space.dtypes import to_numpy
from tilesmith.search_space.errors import JobError

Arrays = Mapping[str, NDArray[Any]]
Watch = Callable[[int, Step, "Stepped"], None]
"""Told before and after each step: its number, the step, the run."""


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


class Stepped:
    """One recipe, ready to be run step by step, as often as wanted."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._updated = UpdatedInputs(recipe)
        callers = self._updated.start()
        constants = recipe.constants
        if constants.size and constants.ctypes.data % ALIGNMENT:
            constants = aligned_copy(constants)
        self.memory = Memory(arena_of(recipe), constants, lent=recipe.lent, callers=callers)
        self.values: dict[str, Any] = {}
        self._calls: dict[int, Callable[[], None]] = {}
        self._by_step: dict[int, list[HeldTensor]] = {}
        for tensor in recipe.tensors:
            self._by_step.setdefault(tensor.step, []).append(tensor)

    def run(self, inputs: Arrays, hooks: Hooks | None = None) -> dict[str, NDArray[Any]]:
        """Tensors by name, logical arrays of the element types that they have in memory.

        Raises:
            JobError: a host node failed on these inputs, or an index is out of range.
        """
        hooks = hooks or Hooks()
        found: dict[str, NDArray[Any]] = {}
        self.memory.arena.fill(0)
        self.values = {}
        for ref in self.recipe.inputs:
            self._put(ref, inputs[ref.info.name])
        self._seen(-1, hooks, found)
        for number, step in enumerate(self.recipe.steps):
            if hooks.before is not None:
                hooks.before(number, step, self)
            self._run(number, step)
            self._seen(number, hooks, found)
            if hooks.after is not None:
                hooks.after(number, step, self)
        return found

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Copies of what the last run gave the caller."""
        return {ref.info.name: np.array(self._get(ref)) for ref in self.recipe.outputs}

    def read(self, tensor: HeldTensor) -> Any:
        """A copy of what lies at a tensor's place at present."""
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

    def _bytes(self, tensor: HeldTensor) -> NDArray[Any]:
        assert tensor.shape is not None
        shape = physical_shape(tensor.layout, tensor.shape)
        return self.memory.view(tensor.place, to_numpy(tensor.dtype), shape)

    def _seen(self, number: int, hooks: Hooks, found: dict[str, NDArray[Any]]) -> None:
        """Put replacements in, and keep what is there after a step."""
        tensors = self._by_step.get(number, ())
        for tensor in tensors:
            if tensor.name in hooks.replaced:
                self.write(tensor, hooks.replaced[tensor.name])
        for tensor in tensors:
            if hooks.wanted is None or hooks.wanted(tensor):
                found[tensor.name] = self.read(tensor)

    # -- one step -----------------------------------------------------------------------------
    def _run(self, number: int, step: Step) -> None:
        if isinstance(step, KernelStep):
            for check in step.checks:
                if fault := index_fault(self._get(check.indices), check.extents):
                    raise JobError(f"{check.node} {fault}")
        if number not in self._calls:
            self._calls[number] = (
                self._host(step) if isinstance(step, HostStep) else self._device(step)
            )
        self._calls[number]()

    def _device(self, step: DeviceStep) -> Callable[[], None]:
        return backend_of(self.recipe.target).link_all(self.recipe, [step], self.memory)

    def _host(self, step: HostStep) -> Callable[[], None]:
        weights = [ref for ref in step.inputs if ref.place.region == "constant"]
        constants = {ref.info.name: self._get(ref) for ref in weights}
        call = HostCall(step, constants, self.recipe.opsets, self.recipe.threads)

        def run() -> None:
            results = call.run({ref.info.name: self._get(ref) for ref in step.inputs})
            for ref in step.outputs:
                self._put(ref, results[ref.info.name])

        return run

    def _put(self, ref: TensorRef, array: Any) -> None:
        if ref.place.region == "value":
            self.values[ref.info.name] = array
        else:
            self._view(ref)[...] = array

    def _get(self, ref: TensorRef) -> Any:
        if ref.place.region == "value":
            return self.values[ref.info.name]
        found = self._view(ref)
        return found.astype(to_numpy(ref.info.dtype)) if ref.stored else found

    def _view(self, ref: TensorRef) -> NDArray[Any]:
        return self.memory.view(ref.place, to_numpy(ref.stored or ref.info.dtype), ref.info.dims)
