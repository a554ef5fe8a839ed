"""Extensions: operators, schedules, families and whatever else registers, from a folder of its own.

An extension is a package. Our own are the folders of `tilesmith.families` and
`tilesmith.capabilities`; another installed package names its own under the entry point group
`tilesmith.extensions`:

    [project.entry-points."tilesmith.extensions"]
    abacus = "abacus.tilesmith"

It adds to a registry in either of two ways: its modules register when the package is imported, as
entry points are before anything is looked up; or it has a room, a module or folder named as the
registry's room (`schedules`, `simulator`, `backend`, `targets`, `commands`, ...), which is imported
when the registry looks for names. Invariants: imported once for each process, in the order of their
names; a broken entry point is told in one sentence that names its package, whenever anything is
looked up; a folder that is deleted is no longer an extension, and nothing else misses it.
"""

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilesmith.search_space.support.errors import DependencyError

GROUP = "tilesmith.extensions"

_OWN = ("tilesmith.families", "tilesmith.capabilities")


def import_extensions() -> None:
    """Import the entry points that are installed, unless they are imported already.

    Raises:
        DependencyError: one cannot be imported.
    """
    failure = _failure()
    if failure is not None:
        raise DependencyError(failure[0]) from failure[1]


@cache
def rooms(name: str) -> tuple[str, ...]:
    """The modules or packages of that name in all extensions, as dotted names; imports none."""
    return tuple(
        f"{package}.{name}"
        for package, folder in _packages().items()
        if (folder / name).is_dir() or (folder / f"{name}.py").is_file()
    )


def sources() -> list[Path]:
    """The source files of all entry points, for keys of what they decide."""
    files: list[Path] = []
    for entry in installed():
        spec = find_spec(entry.module.partition(".")[0])
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            files += sorted(Path(folder).rglob("*.py"))
        if spec is not None and spec.origin is not None:
            files.append(Path(spec.origin))
    return files


def absent(capability: str, what: str) -> DependencyError:
    """The error of whoever needs a capability of ours whose folder was left out of this
    installation; `what` is a clause that says what was asked for.
    """
    return DependencyError(
        f"{what} needs the capability '{capability}', which is not installed; install the whole of "
        f"Tilesmith, or copy capabilities/{capability} back"
    )


def left_out(error: ModuleNotFoundError, what: str) -> DependencyError | None:
    """The error to raise in place of one that says that a module is missing; None unless it is one
    of a capability that was left out.
    """
    prefix = f"{_OWN[1]}."
    missing = error.name or ""
    if not f"{missing}.".startswith(prefix):
        return None
    return absent(missing.removeprefix(prefix).partition(".")[0], what)


@cache
def installed() -> tuple[Any, ...]:
    """The entry points of other packages, by name, none of them imported. What reads them takes
    longer to import than to see that no installed package names the group."""
    folders = [Path(folder) for folder in sys.path]
    said = (file for folder in folders for file in folder.glob("*-info/entry_points.txt"))
    archives = (folder for folder in folders if folder.is_file())
    if not (any(GROUP in file.read_text(errors="replace") for file in said) or any(archives)):
        return ()
    from importlib import metadata

    return tuple(sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name))


@cache
def _packages() -> dict[str, Path]:
    """The folder of every extension that is a package, by its dotted name: ours first."""
    packages = {}
    for parent in _OWN:
        if find_spec(parent) is None:  # all of them were deleted
            continue
        for folder in sorted(Path(import_module(parent).__path__[0]).iterdir()):
            if (folder / "__init__.py").is_file():
                packages[f"{parent}.{folder.name}"] = folder
    for entry in installed():
        spec = find_spec(entry.module)
        for location in (spec.submodule_search_locations or ()) if spec is not None else ():
            packages[entry.module] = Path(location)
    return packages


@cache
def _failure() -> tuple[str, Exception] | None:
    """Import all; why one could not be, if so. An extension may look things up while imported:
    the call inside ends when all others are imported.
    """
    for entry in installed():
        try:
            entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist is not None else entry.value
            why = " ".join(str(error).split())
            return (
                f"extension '{entry.name}' of the installed package '{package}' cannot be used "
                f"({type(error).__name__}: {why}); update or uninstall '{package}'",
                error,
            )
    return None
