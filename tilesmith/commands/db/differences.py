"""What two databases hold differently, as plain data, as a table, and summed up."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilesmith.commands.db import tables
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.support.json_object import object_of
from tilesmith.search_space.workloads.workload import Workload

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


Facts = Callable[[str], Target | None]
"""What is known of the target of an identity."""


def bits(difference: "Difference", facts: Facts) -> str | None:
    """Whether outputs computed by either schedule are "equal" to the bit or may be "other"; None
    where a database has none, or nobody can tell: targets that promise no bits, schedules of an
    older version."""
    from tilesmith.compiler.backends.backend import backends
    from tilesmith.search_space.summation.spaces import add_alike

    if difference.ours is None or difference.theirs is None:
        return None
    ours, theirs = difference.ours.record.config, difference.theirs.record.config
    if ours == theirs:
        return "equal"
    try:
        target = facts(difference.target)
        if target is None or not backends[target.family].keeps_bits:
            return None
        alike = add_alike(Workload.parse(difference.workload), target, ours, theirs)
    except (TilesmithError, KeyError):  # a knob or an operator that there is no more
        return None
    return "equal" if alike else "other"


def values(difference: "Difference", facts: Facts) -> dict[str, Any]:
    """A difference as plain data."""
    return {
        **object_of(difference, "workload target threads"),
        "first": difference.ours and tables.best_values(difference.ours),
        "second": difference.theirs and tables.best_values(difference.theirs),
        **object_of(difference, "ratio comparable"),
        "kind": kind(difference),
        "bits": bits(difference, facts),
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


def bits_sentence(differences: "Sequence[Difference]", facts: Facts) -> str:
    """How many of those listed change the last bits of outputs, in words; "" where none does."""
    changed = sum(bits(one, facts) == "other" for one in differences)
    unknown = sum(bits(one, facts) is None for one in differences)
    if not changed + unknown:
        return ""
    more = f"; of {unknown} nobody can tell" if unknown else ""
    return f"{changed} of the {len(differences)} listed change the last bits of outputs{more}"


def table(differences: "Sequence[Difference]", names: tuple[str, str], facts: Facts) -> None:
    """Print where two databases hold different bests."""
    rows = [
        (
            difference.workload,
            difference.target,
            difference.threads,
            tables.microseconds(difference.ours.latency if difference.ours else None),
            tables.microseconds(difference.theirs.latency if difference.theirs else None),
            tables.number(difference.ratio),
            _remark(difference, facts),
        )
        for difference in differences
    ]
    header = "workload|target|threads|first us|second us|second / first|remark"
    tables.table(header.split("|"), rows, f"no difference between '{names[0]}' and '{names[1]}'")


def _remark(difference: "Difference", facts: Facts) -> str:
    if difference.ours is None or difference.theirs is None:
        return f"only in the {'second' if difference.ours is None else 'first'}"
    remarks = [] if difference.comparable else ["measured differently"]
    if (of_bits := bits(difference, facts)) is not None:
        remarks.append(f"{of_bits} bits")
    return ", ".join(remarks)
