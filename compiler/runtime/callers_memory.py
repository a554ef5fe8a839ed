"""Inputs and outputs in the memory of whoever calls, where that can be: nothing is copied then.

Kernels are called with addresses, and those of a tensor whose bytes are no other's may be another
memory's from one call to the next. It has to begin on a cache line and hold the tensor in plain
order, as an arena does. Left in the arena are tensors that host nodes, checks or loops touch, and
those that are stored in another element type than the caller's. Arrays that a run updates are
written where they are if they lie so; any other is copied to memory of ours before the run and back
after it.

Invariants: between calls everything but updated arrays is in the arena; after a run, an updated
input's array holds the output, and is what the caller gets as that output.
"""

import ctypes
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.host.memory import ALIGNMENT, aligned_bytes
from tilesmith.compiler.recipe.areas import Bytes
from tilesmith.compiler.recipe.program import HostStep, KernelStep, Recipe, TensorRef
from tilesmith.search_space.expressions.dtypes import to_numpy

_LEAST = 1 << 17
"""Bytes: less is copied faster than addresses are changed."""

Move = Callable[[int], None]


@runtime_checkable
class Movable(Protocol):
    """Linked kernels that can be told of other memory; see `NativeProgram.movable`."""

    def movable(self, start: int, stop: int) -> Move:
        """What tells them where the memory between two addresses is by now."""


class CallersMemory:
    """The tensors of one executable that may lie with its caller.

    Args:
        linked: all that runs the recipe's kernels.
        arena: the memory they were linked with.
    """

    def __init__(self, recipe: Recipe, linked: Sequence[Any], arena: NDArray[np.uint8]) -> None:
        base = arena.ctypes.data
        self._homes: dict[str, int] = {}
        self._moves: dict[str, list[Move]] = {}
        self._at: dict[str, int] = {}
        programs = [program for program in linked if isinstance(program, Movable)]
        if not programs or len(programs) < len(linked) or not _plain(recipe):
            return
        touched = [ref.place.offset for ref in _looked_at(recipe)]
        for ref in (*recipe.inputs, *recipe.outputs):
            name, start = ref.info.name, ref.place.offset
            if name not in recipe.private or ref.place.region != "arena" or ref.stored:
                continue
            size = ref.info.nbytes
            if size >= _LEAST and not any(start <= offset < start + size for offset in touched):
                home = base + start
                self._homes[name] = self._at[name] = home
                self._moves[name] = [p.movable(home, home + size) for p in programs]

    @property
    def names(self) -> Collection[str]:
        """The tensors that may."""
        return self._homes.keys()

    def take(self, ref: TensorRef, array: Any) -> bool:
        """Let an input be where the array is; False where its values have to be copied instead."""
        if ref.info.name not in self._homes or not (address := _address(array, ref)):
            return False
        self._move(ref.info.name, address)
        return True

    def give(self, ref: TensorRef) -> Any:
        """Memory for the caller that an output will lie in; the output is one of `names`."""
        array, address = empty_on_a_line(ref.info.dims, to_numpy(ref.info.dtype), ref.info.nbytes)
        self._move(ref.info.name, address)
        return array

    def home(self) -> None:
        """Let everything be in the arena again."""
        for name, address in self._homes.items():
            self._move(name, address)

    def _move(self, name: str, address: int) -> None:
        if self._at[name] != address:
            self._at[name] = address
            for move in self._moves[name]:
                move(address)


def empty_on_a_line(
    shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int
) -> tuple[NDArray[Any], int]:
    """A new array of `nbytes` that begins on a cache line, and its address; no values in it."""
    raw = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
    address = ctypes.addressof(ctypes.c_char.from_buffer(raw.data))  # in half of what numpy takes
    start = -address % ALIGNMENT
    return np.ndarray(shape, dtype, raw, start), address + start


def _plain(recipe: Recipe) -> bool:
    return all(isinstance(step, KernelStep | HostStep) for step in recipe.steps)


def _looked_at(recipe: Recipe) -> Iterable[TensorRef]:
    """What others than kernels touch of the arena."""
    for step in recipe.steps:
        refs: Iterable[TensorRef] = ()
        if isinstance(step, HostStep):
            refs = (*step.inputs, *step.outputs)
        elif isinstance(step, KernelStep):
            refs = [check.indices for check in step.checks]
        yield from (ref for ref in refs if ref.place.region == "arena")


def _address(array: Any, ref: TensorRef) -> int:
    """Where the array's memory is, if kernels can take it as it is; else 0."""
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        return 0
    held: Mapping[str, Any] = array.__array_interface__
    address = int(held["data"][0])
    return address if address % ALIGNMENT == 0 and array.nbytes == ref.info.nbytes else 0


class UpdatedInputs:
    """The updated inputs of one workspace."""

    def __init__(self, recipe: Recipe) -> None:
        refs = {ref.info.name: ref for ref in recipe.inputs}
        self.outputs = {update.output: update.input for update in recipe.updates}
        self._direct = [
            refs[update.input]
            for update in recipe.updates
            if refs[update.input].place.region == "caller"
        ]
        self._staged: dict[str, Bytes] = {}
        self._seen: dict[str, tuple[int, Bytes]] = {}

    def start(self) -> tuple[Bytes, ...]:
        """Memory of ours for every array that is to be written where it is."""
        return tuple(self._own(ref) for ref in self._direct)

    def arrays(self, inputs: Mapping[str, Any]) -> tuple[Bytes, ...]:
        """The memory to run in, one for each array written where it is."""
        arrays = []
        for ref in self._direct:
            array = inputs[ref.info.name]
            if _fits(array, ref):
                arrays.append(self._bytes_of(array, ref.info.name))
                continue
            own = self._own(ref)
            own.view(to_numpy(ref.info.dtype)).reshape(array.shape)[...] = array
            arrays.append(own)
        return tuple(arrays)

    def _bytes_of(self, array: NDArray[Any], name: str) -> Bytes:
        """The array's bytes: the very object of the last run where they are the same memory (which
        that object keeps from being another's), so that nothing has to be linked again."""
        address = int(array.__array_interface__["data"][0])
        if name not in self._seen or self._seen[name][0] != address:
            self._seen[name] = address, array.reshape(-1).view(np.uint8)
        return self._seen[name][1]

    def finish(self, inputs: Mapping[str, Any], results: Mapping[str, NDArray[Any]]) -> None:
        """Copy results to arrays that were not written where they are."""
        for output, name in self.outputs.items():
            if not np.shares_memory(inputs[name], results[output]):
                inputs[name][...] = results[output]

    def _own(self, ref: TensorRef) -> Bytes:
        name = ref.info.name
        if name not in self._staged:
            self._staged[name] = aligned_bytes(max(1, ref.info.nbytes))[: ref.info.nbytes]
        return self._staged[name]


def _fits(array: NDArray[Any], ref: TensorRef) -> bool:
    """Whether kernels can work on the array itself."""
    usual = array.dtype == to_numpy(ref.info.dtype) and array.flags.c_contiguous
    return bool(usual and array.ctypes.data % ALIGNMENT == 0)
