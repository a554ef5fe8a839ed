"""Extensions: operators, schedules, families and whatever else registers, from another package.

An installed package names modules of its own under the entry point group `tilesmith.extensions`:

    [project.entry-points."tilesmith.extensions"]
    abacus = "abacus.tilesmith"

They are imported before anything is looked up in any registry, and register what they define as our
own files do. Invariants: imported once for each process, in the order of their names; a broken one
is told in one sentence that names its package, whenever anything is looked up.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tilesmith.search_space.errors import DependencyError

GROUP = "tilesmith.extensions"


def import_extensions() -> None:
    """Import the extensions that are installed, unless they are imported already.

    Raises:
        DependencyError: one cannot be imported.
    """
    failure = _failure()
    if failure is not None:
        raise DependencyError(failure[0]) from failure[1]


def are_installed() -> bool:
    """Whether there are any; imports none."""
    from importlib import metadata

    return bool(metadata.entry_points(group=GROUP))


def sources() -> list[Path]:
    """The source files of all extensions, for keys of what they decide."""
    from importlib import metadata

    found = []
    for entry in metadata.entry_points(group=GROUP):
        spec = find_spec(entry.module.partition(".")[0])
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            found += sorted(Path(folder).rglob("*.py"))
        if spec is not None and spec.origin is not None:
            found.append(Path(spec.origin))
    return found


@cache
def _failure() -> tuple[str, Exception] | None:
    """Import all; why one could not be, if so. An extension may look things up while imported:
    the call inside ends when all others are imported.
    """
    from importlib import metadata  # not for commands that look nothing up

    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
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
