"""Registries that fill themselves: one new file in a folder is one new entry.

`Registry` imports every module of a package on first use; each module registers what it defines
with the decorator. So adding an operator template, a cost model, a search strategy or a runner
takes one file and no edit elsewhere, and a conformance test can walk over all of them. Modules of
other installed packages register in the same way (`search_space.extensions`).
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from tilesmith.search_space.errors import InputError
from tilesmith.search_space.extensions import import_extensions
from tilesmith.search_space.suggestions import unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """Named entries of one kind, discovered in one package.

    Args:
        kind: what an entry is, for messages ("operator", "cost model").
        package: dotted name of the package whose modules register entries.
        error: the `InputError` raised for an unknown name.
        nested: whether modules of the package's packages register entries, too.
    """

    def __init__(
        self, kind: str, package: str, error: type[InputError] = InputError, nested: bool = False
    ) -> None:
        self._kind = kind
        self._package = package
        self._error = error
        self._nested = nested
        self._entries: dict[str, T] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: register the decorated class, function or instance under `name`."""

        def add(entry: T) -> T:
            known = self._entries.setdefault(name, entry)
            if known is not entry:
                raise self._error(
                    f"the {self._kind} name '{name}' is taken by {_origin(known)}; "
                    f"choose another for {_origin(entry)}"
                )
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        self._look_for(name)
        if name not in self._entries:
            raise unknown(self._kind, name, sorted(self._entries), self._error)
        return self._entries[name]

    def find(self, name: str) -> T | None:
        """The entry of a name, if there is one."""
        self._look_for(name)
        return self._entries.get(name)

    def __contains__(self, name: str) -> bool:
        self._look_for(name)
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._discover()
        return iter(sorted(self._entries))

    def _look_for(self, name: str) -> None:
        """Make sure that an entry is registered if it exists: where a module of the package is
        called as the entry is, no other has to be imported.
        """
        if name in self._entries or self._discovered:
            return
        if name.isidentifier() and not name.startswith("_"):
            import_extensions()
            module = f"{self._package}.{name}"
            if importlib.util.find_spec(module) is not None:
                importlib.import_module(module)
        if name not in self._entries:
            self._discover()

    def _discover(self) -> None:
        if self._discovered:
            return
        import_extensions()
        self._discovered = True
        _import_modules(self._package, self._nested)


def registered_names(package: str) -> list[str]:
    """The names that a package's modules register, read from their sources: help texts list them
    without importing what learns and searches. What extensions register is not among them.

    Args:
        package: dotted name, as `Registry`'s.
    """
    spec = importlib.util.find_spec(package)
    found: set[str] = set()
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for module in Path(folder).glob("*.py"):
            found.update(_REGISTERED.findall(module.read_text(encoding="utf-8")))
    return sorted(found)


_REGISTERED = re.compile(r"^@\w+\.register\(\"([^\"]+)\"\)", re.MULTILINE)


def _import_modules(name: str, nested: bool) -> None:
    """Import a package and what is directly in it, or (`nested`) anywhere in it."""
    package = importlib.import_module(name)
    for module in pkgutil.iter_modules(package.__path__, f"{name}."):
        if nested and module.ispkg:
            _import_modules(module.name, nested)
        else:
            importlib.import_module(module.name)


def _origin(entry: object) -> str:
    """Where an entry is defined, for people."""
    named = entry if hasattr(entry, "__qualname__") else type(entry)
    return f"{named.__module__}.{named.__qualname__}"
