"""What is installed: Tilesmith, what it stands on, its extras, and tools of the system."""

import shutil
import sys
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement

from tilesmith.jobs.doctor.finding import Finding

_SECTION = "installed"
_FOR = {  # the extras that users may want, and what for
    "host": "operators without a kernel run faster",
    "jax": "functions of JAX",
    "torch": "modules of PyTorch",
    "peers": "bench --against",
    "models": "exporting models for benchmarks",
    "plots": "pictures",
    "postgresql": "databases on a PostgreSQL server",
    "ray": "tuning on many machines",
    "dashboard": "the live page",
    "ortools": "sharding and placement by optimisation",
    "autotuners": "comparisons of search strategies",
    "library": "C libraries where there is no compiler",
}


def findings() -> Iterator[Finding]:
    """Of this installation."""
    yield Finding(_SECTION, "python", "fine", sys.version.split()[0])
    yield Finding(_SECTION, "tilesmith", "fine", _version("tilesmith") or "from a folder")
    wanted, extras = _requirements()
    versions = {name: _version(name) for name in wanted}
    missing = [name for name, version in versions.items() if version is None]
    text = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    yield Finding(_SECTION, "needs", "fine", text)
    if missing:
        advice = "install it again: pip install --force-reinstall tilesmith"
        yield Finding(_SECTION, "missing", "problem", ", ".join(missing), advice)
    yield from _extras(extras)
    yield _compiler()


def _extras(extras: dict[str, list[str]]) -> Iterator[Finding]:
    """Those that are whole, and in one line those that lack something."""
    lacking: dict[str, str] = {}
    for extra, names in sorted(extras.items()):
        versions = {name: _version(name) for name in names}
        if None in versions.values():
            purpose = _FOR.get(extra, "")
            lacking[extra] = f"{extra} ({purpose})" if purpose else extra
        else:
            text = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield Finding(_SECTION, f"extra {extra}", "fine", text)
    if lacking:
        text = f"not installed: {', '.join(lacking.values())}"
        advice = f"pip install 'tilesmith[{','.join(lacking)}]', or those of them that you need"
        yield Finding(_SECTION, "extras", "note", text, advice)


def _compiler() -> Finding:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is not None:
        return Finding(_SECTION, "C compiler", "fine", compiler)
    text = "none; nothing here needs one but linking C libraries"
    return Finding(_SECTION, "C compiler", "note", text)


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Names of what Tilesmith needs on this machine, and of what each of its extras adds."""
    try:
        lines = metadata.requires("tilesmith") or []
        extras = metadata.metadata("tilesmith").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:  # run from a folder
        return [], {}
    wanted = [Requirement(line) for line in lines]
    return _names(wanted, ""), {name: _names(wanted, name) for name in extras if name in _FOR}


def _names(wanted: list[Requirement], extra: str) -> list[str]:
    """What applies here with an extra ("": with none), of what does not apply without it."""
    requirements = [one for one in wanted if one.name != "tilesmith" and _applies(one, extra)]
    return [one.name for one in requirements if not extra or not _applies(one, "")]


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
