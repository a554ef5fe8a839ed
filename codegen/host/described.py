"""A description that stands in for what this machine says of itself: `TILESMITH_CPU=file.toml`.

Hypervisors and containers often tell caches and processors that are not there, and a test has to
see other machines than the one that it runs on. Such a file says what the machine is taken for:

    processor = "znver4"                     # LLVM's name of it; default: what LLVM says
    without = ["amx-*", "avx512fp16"]        # features of LLVM that it is taken to lack
    threads = 8                              # any fact of a CPU but isa.* and vector.*
    [l2]
    kib = 1024

Invariant: features are only taken away, so that code made here runs here.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from tilesmith.search_space.hardware.target import Fact, parse_facts
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.support.suggestions import did_you_mean

ENVIRONMENT = "TILESMITH_CPU"


@dataclass(frozen=True)
class HostDescription:
    """What a file says; without one nothing."""

    file: str = ""
    processor: str = ""
    without: tuple[str, ...] = ()
    stated: tuple[tuple[str, Fact], ...] = ()

    def features(self, known: Mapping[str, bool]) -> dict[str, bool]:
        """What LLVM says of the host, without what the file takes away."""
        return {name: had and not self._lacks(name) for name, had in known.items()}

    def _lacks(self, feature: str) -> bool:
        return any(fnmatchcase(feature, pattern) for pattern in self.without)

    def facts(self, known: Mapping[str, Fact]) -> dict[str, Fact]:
        """The facts of a CPU, those that the file states in place of what was read.

        Raises:
            TargetError: it states a fact that CPUs do not have, or that follows from the features.
        """
        allowed = [name for name in known if not name.startswith(("isa.", "vector."))]
        changed = dict(known)
        for name, fact in self.stated:
            if name not in allowed:
                raise TargetError(
                    f"{ENVIRONMENT}: '{self.file}' states '{name}'; 'processor', 'without' and "
                    f"{', '.join(allowed)} are allowed{did_you_mean(name, allowed)}"
                )
            if type(fact.value) is not type(known[name].value):
                raise TargetError(
                    f"{ENVIRONMENT}: '{self.file}': {name} = {fact.value!r} is not of type "
                    f"{type(known[name].value).__name__}"
                )
            changed[name] = replace(known[name], value=fact.value, source=self.file)
        return changed


def description() -> HostDescription:
    """What the environment's file says; `TargetError` if it cannot be read."""
    return _read(os.environ.get(ENVIRONMENT, ""))


@cache
def _read(file: str) -> HostDescription:
    if not file:
        return HostDescription()
    try:
        table = tomllib.loads(Path(file).read_text())
    except OSError as error:
        raise TargetError(f"{ENVIRONMENT}: '{file}' cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TargetError(f"{ENVIRONMENT}: '{file}' is not valid TOML: {error}") from error
    processor, without = table.pop("processor", ""), table.pop("without", [])
    if not isinstance(processor, str):
        raise TargetError(f"{ENVIRONMENT}: '{file}': processor = {processor!r} is no text")
    if not isinstance(without, list) or not all(isinstance(one, str) for one in without):
        raise TargetError(f"{ENVIRONMENT}: '{file}': without = {without!r} is no list of texts")
    return HostDescription(file, processor, tuple(without), tuple(parse_facts(file, table).items()))
