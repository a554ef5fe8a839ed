"""`Origin`: how the schedule of a workload was found, in one word that means the same everywhere.

A schedule is *searched* if at least `SEARCH` configurations beside the default were tried for its
workload, target and threads by its way of measuring (or all that there are), and it is the best of
them. That the default won makes no difference: a search has confirmed it. Failed configurations
count, for they were tried; one that was measured again counts once; other versions' count, for
what they ruled out is ruled out. Fewer make no search: the best of them, mostly the default, is
*measured*. The other words are of schedules that have no record of their own.

Invariant: every place that says how a schedule was found says it by `Origin`, and only `origin_of`
decides between searched, measured and stale.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum

SEARCH = 8
"""Configurations beside the default that make a search: one that is drawn blindly is faster than
the best of nine one time in ten."""


class Origin(StrEnum):
    """How a schedule was found. See the module's docstring."""

    SEARCHED = "searched"
    MEASURED = "measured"
    STALE = "stale"
    NEIGHBOUR = "neighbour"
    ELSEWHERE = "elsewhere"
    UNMEASURED = "unmeasured"

    @property
    def is_tuned(self) -> bool:
        """Whether a search found it, or another version has it on record."""
        return self in (Origin.SEARCHED, Origin.STALE)

    @property
    def on_record(self) -> bool:
        """Whether trials of its own workload, target and threads tell of it."""
        return self in (Origin.SEARCHED, Origin.MEASURED, Origin.STALE)

    @property
    def meaning(self) -> str:
        """The word in words."""
        return _MEANINGS[self]


_MEANINGS = {
    Origin.SEARCHED: "found or confirmed by a search of its own",
    Origin.MEASURED: f"the best of too few trials for a search (fewer than {SEARCH} beside the "
    "default), mostly the default itself",
    Origin.STALE: "found or measured by another version",
    Origin.NEIGHBOUR: "taken from the nearest shape, thread count or layouts",
    Origin.ELSEWHERE: "taken from another machine",
    Origin.UNMEASURED: "the default, never measured",
}

_BEFORE = {"tuned": "searched", "fallback": "neighbour", "default": "unmeasured"}


def origin_named(text: str) -> str:
    """An origin as artifacts of any version call it, in the words of this one."""
    return _BEFORE.get(text, text)


def origin_of(tried: int, is_all: Callable[[int], bool], stale: bool = False) -> Origin:
    """Return how a best was found, by the number of configurations tried.

    Args:
        tried: different ones, the default and failures among them; any number above `SEARCH`
            means the same.
        is_all: whether so many are all there are; asked only where they are few.
        stale: whether another toolchain or calibration makes the best doubtful.
    """
    if stale:
        return Origin.STALE
    if tried > SEARCH or (tried and is_all(tried)):
        return Origin.SEARCHED
    return Origin.MEASURED if tried else Origin.UNMEASURED


def counted(origins: Mapping[str, int]) -> str:
    """How many schedules are of each origin: "2 searched, 1 measured"; "none" for none."""
    parts = [f"{origins[origin]} {origin}" for origin in Origin if origins.get(origin)]
    return ", ".join(parts) or "none"
