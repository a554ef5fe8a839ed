"""Registries that fill themselves: one new file in a folder is one new entry.

`Registry` imports every module of its packages on first use; each module registers what it defines
with the decorator. So adding an operator template, a cost model, a search strategy or a runner
takes one file and no edit elsewhere, and a conformance test can walk over all of them. A registry
with a room has a package in every family and capability that holds such a folder, too, and modules
of other installed packages register in the same way (`search_space.support.extensions`). What a
registry of files holds (`FileRegistry`) is not imported: a TOML file in a room is an entry.
"""

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from types import ModuleType
from typing import Generic, TypeVar

from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.support.extensions import import_extensions, rooms
from tilesmith.search_space.support.suggestions import unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """Named entries of one kind, discovered in packages.

    An entry called "WHAT on WHERE" is registered below the package of the family WHERE.

    Args:
        kind: what an entry is, for messages ("operator", "cost model").
        package: dotted name of the package whose modules register entries; "" if there is none
            but those of families and capabilities.
        error: the `InputError` raised for an unknown name.
        room: the folder or module of families and capabilities that registers entries, too.
        nested: whether modules of the package's packages register entries, too.
    """

    def __init__(
        self,
        kind: str,
        package: str,
        error: type[InputError] = InputError,
        *,
        room: str = "",
        nested: bool = False,
    ) -> None:
        self._kind = kind
        self._package = package
        self._error = error
        self._room = room
        self._nested = nested
        self._entries: dict[str, T] = {}
        self._discovered = False
        self._imported: set[str] = set()

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
        """Make sure that an entry is registered if it exists: where a module of the package, or
        the room of a family, is called as the entry is, no other has to be imported.
        """
        if name in self._entries or self._discovered:
            return
        home = name.rpartition(" on ")[2]
        if home.isidentifier() and not home.startswith("_"):
            import_extensions()
            for module in self._homes(home):
                if module not in self._imported:
                    for _ in _import_modules(module, self._nested):
                        if name in self._entries:
                            return
                    self._imported.add(module)
                if name in self._entries or name != home:
                    return
        self._discover()

    def _homes(self, name: str) -> Iterator[str]:
        """The modules that register what is called, or is for a family that is called, `name`."""
        if self._package and _is_there(f"{self._package}.{name}"):
            yield f"{self._package}.{name}"
        for room in self._rooms():
            if room.removesuffix(f".{self._room}").endswith(f".{name}"):
                yield room

    def _rooms(self) -> tuple[str, ...]:
        return rooms(self._room) if self._room else ()

    def _discover(self) -> None:
        if self._discovered:
            return
        import_extensions()
        self._discovered = True
        for package in (*filter(None, [self._package]), *self._rooms()):
            self._discover_in(package)

    def _discover_in(self, package: str) -> None:
        list(_import_modules(package, self._nested))


class FileRegistry(Registry[Traversable]):
    """TOML files by the names of what they describe: those in its packages, which are not imported
    one by one, and those that extensions register.
    """

    def _look_for(self, name: str) -> None:
        self._discover()

    def _discover_in(self, package: str) -> None:
        for file in resources.files(package).iterdir():
            if file.name.endswith(".toml"):
                self.register(file.name.removesuffix(".toml"))(file)


def _is_there(module: str) -> bool:
    """Whether a module has a source; a folder that is left of a deleted one has none."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


def _import_modules(name: str, nested: bool) -> Iterator[ModuleType]:
    """Import a module, or a package and what is directly in it, or (`nested`) anywhere in it, as
    far as the caller asks for more."""
    yield (package := importlib.import_module(name))
    for module in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{name}."):
        if nested and module.ispkg:
            yield from _import_modules(module.name, nested)
        else:
            yield importlib.import_module(module.name)


def _origin(entry: object) -> str:
    """Where an entry is defined, for people."""
    named = entry if hasattr(entry, "__qualname__") else type(entry)
    return f"{named.__module__}.{named.__qualname__}"
