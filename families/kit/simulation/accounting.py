"""Times that add up: what a machine was doing when, and from its roofline to a program's latency.

`exclusive` cuts a program's time into parts that do not overlap: at every moment the first class of
work that is under way counts, so that what stands behind another class is only what it does not
hide, and what nobody does is "idle". A *chain* goes from a bound to a latency step by step.
Invariant: the parts add up to the whole, but for rounding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.search_space.support.json_object import JsonObject

Floats = NDArray[np.float64]
Intervals = tuple[Floats, Floats]
"""When each of some pieces of work begins and ends."""

IDLE = "idle"


@dataclass(frozen=True)
class Share(JsonObject):
    """A part of a whole, or a step of a chain: `us` may be negative there."""

    name: str
    us: float
    what: str = ""


def exclusive(classes: Mapping[str, Intervals], whole: float) -> dict[str, float]:
    """How long each class was under way and none before it, from 0 to `whole`; then `IDLE`.

    Args:
        classes: those that count first come first; in the unit of `whole`.
    """
    lengths, covered, before = dict[str, float](), np.zeros((0, 2)), 0.0
    for name, (start, end) in classes.items():
        mine = np.column_stack([np.clip(start, 0.0, whole), np.clip(end, 0.0, whole)])
        covered = _union(np.concatenate([covered, mine]))
        length = float((covered[:, 1] - covered[:, 0]).sum())
        lengths[name] = length - before
        before = length
    return {**lengths, IDLE: whole - before}


def _union(intervals: Floats) -> Floats:
    """Intervals apart from each other that cover the same, in order."""
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    if not len(intervals):
        return intervals
    reached = np.maximum.accumulate(intervals[:, 1])
    first = np.concatenate([[True], intervals[1:, 0] > reached[:-1]])
    starts = np.flatnonzero(first)
    ends = np.concatenate([starts[1:], [len(intervals)]]) - 1
    return np.column_stack([intervals[starts, 0], reached[ends]])


def lines(title: str, parts: Sequence[Share], whole: Share, subtotals: bool = False) -> list[str]:
    """Parts and their sum, a line each; parts of nothing are left out.

    Args:
        subtotals: whether a line says what it comes to with those above.
    """
    shown, reached = [f"{title}:"], 0.0
    for number, part in enumerate(parts):
        reached += part.us
        if not part.us:
            continue
        sign = "" if number == 0 else "+" if part.us >= 0 else "-"
        so_far = f" ={reached:9.2f}" if subtotals else ""
        remark = f": {part.what}" if part.what else ""
        shown.append(f"  {sign:1}{abs(part.us):9.2f} us{so_far}  {part.name}{remark}")
    so_far = " " * 11 if subtotals else ""
    remark = f": {whole.what}" if whole.what else ""
    return [*shown, f"  ={whole.us:9.2f} us{so_far}  {whole.name}{remark}"]


def origins_line(facts: Mapping[str, Any]) -> str:
    """How a model's schedules were chosen and what is left to the host, by its details, in a line
    above `lines`."""
    return (
        f"{facts['precision']}; {facts['tuned']} tuned, {facts['stale']} tuned by another version, "
        f"{facts['nearest']} by nearest shape, {facts['default']} by default, {facts['host']} on "
        f"the host ({facts['host_us']:.1f} us, transfers included)"
    )
