"""What two databases hold differently, as plain data, as a table, and summed up."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilesmith.commands.db import tables
from tilesmith.search_space.support.json_object import object_of

if TYPE_CHECKING:
    from tilesmith.records.upkeep.merging import Difference

_KINDS = {
    "only_first": "only in '{first}'",
    "only_second": "only in '{second}'",
    "first_faster": "faster in '{first}'",
    "second_faster": "faster in '{second}'",
    "other_schedule": "as fast by another schedule",
    "same": "the same",
}
"""What may be found of a subject, and how it is called."""


def values(difference: "Difference") -> dict[str, Any]:
    """A difference as plain data."""
    return {
        **object_of(difference, "workload target threads"),
        "first": difference.ours and tables.best_values(difference.ours),
        "second": difference.theirs and tables.best_values(difference.theirs),
        **object_of(difference, "ratio comparable"),
        "kind": kind(difference),
    }


def kind(difference: "Difference") -> str:
    """What is found of a subject, one of `_KINDS`."""
    ours, theirs = difference.ours, difference.theirs
    if ours is None or theirs is None:
        return "only_second" if ours is None else "only_first"
    if ours.latency != theirs.latency:
        return "first_faster" if ours.latency < theirs.latency else "second_faster"
    return "same" if ours.record.config == theirs.record.config else "other_schedule"


def differs(difference: "Difference") -> bool:
    """Whether two databases say different things of a subject."""
    return kind(difference) != "same"


def counts(differences: "Sequence[Difference]") -> dict[str, int]:
    """How many subjects there are of each kind."""
    kinds = [kind(one) for one in differences]
    return {name: kinds.count(name) for name in _KINDS}


def sentence(summary: Mapping[str, int], names: tuple[str, str]) -> str:
    """The same in words.

    Args:
        names: of the two databases.
    """
    total = sum(summary.values())
    if not total:
        return "neither database holds a working schedule"
    called = dict(zip(("first", "second"), names, strict=True))
    parts = [f"{summary[kind]} {_KINDS[kind].format(**called)}" for kind in _KINDS if summary[kind]]
    return f"{total} workloads and targets: {', '.join(parts)}"


def table(differences: "Sequence[Difference]", names: tuple[str, str]) -> None:
    """Print where two databases hold different bests."""
    rows = [
        (
            difference.workload,
            difference.target,
            difference.threads,
            tables.microseconds(difference.ours.latency if difference.ours else None),
            tables.microseconds(difference.theirs.latency if difference.theirs else None),
            tables.number(difference.ratio),
            _remark(difference),
        )
        for difference in differences
    ]
    header = "workload|target|threads|first us|second us|second / first|remark"
    tables.table(header.split("|"), rows, f"no difference between '{names[0]}' and '{names[1]}'")


def _remark(difference: "Difference") -> str:
    if difference.ours is None or difference.theirs is None:
        return f"only in the {'second' if difference.ours is None else 'first'}"
    return "" if difference.comparable else "measured differently"
