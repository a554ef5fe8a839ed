"""Executables that are exchanged for faster ones between calls.

They are executables like any other. Each call takes the compiled model that is current when it
begins, by reading one reference, and keeps it to its end; so an exchange needs no lock, and what
was replaced is freed when the last call in it is over. A run that was bound before
(`Executable.bind`) stays with what it was bound to.
"""

import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tilesmith.compiler.graph.value_types import own
from tilesmith.compiler.runtime.executable import BoundRun, Executable, HostNode
from tilesmith.compiler.runtime.workspace import Arrays, Workspace
from tilesmith.compiler.varying.executable import VaryingExecutable
from tilesmith.search_space.support.errors import ModelError

_KEPT = 256
"""Choices of sizes whose calls are counted."""
_OFTEN, _SHARE = 64, 0.2
"""Calls of one choice, and its share of all, from which on it may have a program of its own."""
_SIZES = 4
"""Choices of sizes that have programs of their own at most: each holds the weights once more."""


class ExchangedExecutable(Executable):
    """See the module's docstring."""

    def __init__(self, first: Executable) -> None:
        self._current, self.recipe = first, first.recipe

    def exchange(self, other: Executable) -> None:
        """Run `other` from the next call on; `ModelError` if that is another model."""
        _check_alike(self, other)
        self._current = other
        self.recipe = other.recipe

    @property
    def host_nodes(self) -> tuple[HostNode, ...]:
        return self._current.host_nodes

    def run(self, inputs: Arrays, copy: Callable[[Any], Any] = own) -> dict[str, NDArray[Any]]:
        return self._current.run(inputs, copy)

    def bind(self, inputs: Arrays) -> BoundRun:
        return self._current.bind(inputs)

    def workspace(self) -> AbstractContextManager[Workspace]:  # type: ignore[override]
        return self._current.workspace()

    def check(self, inputs: Arrays) -> Arrays:
        return self._current.check(inputs)

    def _check_whole(self) -> None:
        self._current._check_whole()

    def __reduce__(self) -> Any:
        """Pickled, it is what is current: the copy is exchanged no more."""
        return self._current.__reduce__()


@dataclass(eq=False)
class _Served:
    """What runs inputs of some shapes, and how often it was asked to."""

    executable: Executable
    calls: int = 0


Dims = tuple[tuple[int, ...], ...]
"""Shapes of all inputs, in order."""


class ExchangedVarying(VaryingExecutable):
    """The same of a model whose sizes vary. It counts the calls of each choice of sizes; those that
    are called most may be served by a program of their own (`OneSize`)."""

    def __init__(self, first: VaryingExecutable) -> None:
        self._current, self.recipe, self._names = first, first.recipe, first._names
        self._served: dict[Dims, _Served] = {}
        self._own: dict[Dims, Executable] = {}
        self.ordered: dict[Dims, OneSize] = {}
        """Choices of sizes that programs of their own are looked for."""

    def exchange(self, other: VaryingExecutable) -> None:
        """As `ExchangedExecutable.exchange`."""
        _check_alike(self, other)
        self._current = other
        self.recipe = other.recipe
        self._served = {}

    def at(self, sizes: Mapping[str, int]) -> Executable:
        return self._current.at(sizes)

    def _of(self, inputs: Arrays) -> Executable:
        try:
            dims = tuple([inputs[name].shape for name in self._names])
        except (KeyError, AttributeError):  # it says what is missing, or looks at lists
            return self._current._of(inputs)
        served = self._served.get(dims)
        if served is None:
            executable = self._current._of(inputs)  # which refuses what it does not take
            served = _Served(self._own.get(dims, executable))
            if len(self._served) >= _KEPT:
                self._served = {}
            self._served[dims] = served
        served.calls += 1
        return served.executable

    def serve(self, dims: Dims, executable: Executable) -> None:
        """Run inputs of these shapes by a program of their own from the next call on."""
        self._own[dims] = executable
        self._served.pop(dims, None)

    def often(self) -> list["OneSize"]:
        """Choices of sizes that are called often, and were not when this was asked before."""
        calls = {dims: served.calls for dims, served in list(self._served.items())}
        least = max(_OFTEN, _SHARE * sum(calls.values()))
        new = [dims for dims, count in calls.items() if count >= least]
        new = [dims for dims in new if dims not in self.ordered][: _SIZES - len(self.ordered)]
        self.ordered |= {dims: OneSize(weakref.ref(self), dims) for dims in new}
        return [self.ordered[dims] for dims in new]

    def __reduce__(self) -> Any:
        return self._current.__reduce__()


@dataclass(eq=False)
class OneSize:
    """One choice of sizes of a model whose sizes vary."""

    model: "weakref.ref[ExchangedVarying]"
    dims: Dims

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs, by name."""
        model = self.model()
        return {} if model is None else dict(zip(model._names, self.dims, strict=True))

    def exchange(self, other: Executable) -> None:
        """As `ExchangedExecutable.exchange`, for calls of this size."""
        model = self.model()
        if model is None:
            return
        names = [info.name for info in model.outputs]
        alike = tuple(info.shape for info in other.inputs) == self.dims
        if not alike or [info.name for info in other.outputs] != names:
            raise ModelError(f"'{other.title}' takes or gives other tensors than '{model.title}'")
        model.serve(self.dims, other)


Exchanged = ExchangedExecutable | ExchangedVarying


def exchanged(executable: Executable | VaryingExecutable) -> Exchanged:
    """An executable that runs as `executable` does until it is exchanged."""
    if isinstance(executable, VaryingExecutable):
        return ExchangedVarying(executable)
    return ExchangedExecutable(executable)


def _check_alike(one: Executable | VaryingExecutable, other: Any) -> None:
    alike = (
        isinstance(other, VaryingExecutable) == isinstance(one, VaryingExecutable)
        and (other.inputs, other.outputs) == (one.inputs, one.outputs)
        and other.recipe.threads == one.recipe.threads
    )
    if not alike:
        raise ModelError(f"'{other.title}' takes or gives other tensors than '{one.title}'")
