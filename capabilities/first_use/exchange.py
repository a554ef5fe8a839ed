"""Executables that are exchanged for faster ones between calls.

They are executables like any other. Each call takes the compiled model that is current when it
begins, by reading one reference, and keeps it to its end; so an exchange needs no lock, and what
was replaced is freed when the last call in it is over. A run that was bound before
(`Executable.bind`) stays with what it was bound to.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from numpy.typing import NDArray

from tilesmith.compiler.graph.value_types import own
from tilesmith.compiler.runtime.executable import BoundRun, Executable, HostNode
from tilesmith.compiler.runtime.workspace import Arrays, Workspace
from tilesmith.compiler.varying.executable import VaryingExecutable
from tilesmith.search_space.support.errors import ModelError


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


class ExchangedVarying(VaryingExecutable):
    """The same of a model whose sizes vary."""

    def __init__(self, first: VaryingExecutable) -> None:
        self._current, self.recipe = first, first.recipe

    def exchange(self, other: VaryingExecutable) -> None:
        """As `ExchangedExecutable.exchange`."""
        _check_alike(self, other)
        self._current = other
        self.recipe = other.recipe

    def at(self, sizes: Mapping[str, int]) -> Executable:
        return self._current.at(sizes)

    def _of(self, inputs: Arrays) -> Executable:
        return self._current._of(inputs)

    def __reduce__(self) -> Any:
        return self._current.__reduce__()


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
