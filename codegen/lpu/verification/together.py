"""Several chips that run one program: what one receives, another sends in time.

The laws of one schedule are the checker's; here is the one between chips. A vector is received in
the very cycle in which it comes over its link: nothing waits there, either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilesmith.codegen.lpu.exchange import link_of
from tilesmith.codegen.lpu.isa.bursts import Op, Schedule
from tilesmith.search_space.errors import VerificationError


@dataclass(frozen=True, eq=False)
class Together:
    """One program that all chips of a node run at the same time.

    Attributes:
        flight: cycles from a send to its receive.
    """

    schedule: Schedule
    chips: int
    flight: int


def sends_of(made: Together) -> dict[int, int]:
    """By the row of every receive, that of the send it is of."""
    return dict(pairs(made.schedule, made.chips))


def pairs(placed: Schedule, chips: int) -> Iterator[tuple[int, int]]:
    """Rows of receives and their sends: link by link, one after the other."""
    for way in range(1, chips):
        sends = _on_link(placed, Op.SEND, link_of(chips - way))
        yield from zip(_on_link(placed, Op.RECEIVE, link_of(way)), sends, strict=True)


def _on_link(placed: Schedule, op: Op, link: int) -> list[int]:
    table, units = placed.table, placed.units
    every = np.flatnonzero(table["op"] == op).tolist()
    rows = [row for row in every if units[int(table["unit"][row])].link == link]
    return sorted(rows, key=lambda row: int(table["cycle"][row]))


def check_together(made: Together) -> None:
    """Prove that every vector is received in the cycle in which it comes over its link.

    The schedule itself is proved by `verification.checker`.

    Raises:
        VerificationError: naming link, vector and cycles.
    """
    placed, table = made.schedule, made.schedule.table
    for way in range(1, made.chips):
        cycles, link = [], link_of(way)
        for op, number in ((Op.SEND, link_of(made.chips - way)), (Op.RECEIVE, link)):
            each = [
                int(row["cycle"]) + np.arange(int(row["count"])) * int(row["interval"])
                for row in table[table["op"] == op]
                if placed.units[int(row["unit"])].link == number
            ]
            cycles.append(np.sort(np.concatenate([np.zeros(0, np.int64), *each])))
        sent, received = cycles
        if len(sent) != len(received):
            raise VerificationError(
                f"schedule '{placed.name}': {len(sent)} vectors are sent to link {link} and "
                f"{len(received)} received"
            )
        wrong = np.flatnonzero(sent + made.flight != received)
        if len(wrong):
            first = int(wrong[0])
            raise VerificationError(
                f"schedule '{placed.name}': vector {first} on link {link} is received in cycle "
                f"{received[first]}; it comes in cycle {sent[first] + made.flight}"
            )
