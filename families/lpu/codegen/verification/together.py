"""Several chips that run one program: what one receives, another sends in time.

The laws of one schedule are the checker's, and hold for the program of every chip; here is the one
between chips. A vector is received in the very cycle in which it comes over its link: nothing waits
there, either, so that no two chips can wait for each other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tilesmith.families.lpu.codegen.fabric import ChipFabric, link_of
from tilesmith.families.lpu.codegen.isa.bursts import MEMORY_OPS, BurstOp, BurstSchedule
from tilesmith.families.lpu.codegen.verification.checker import check
from tilesmith.families.lpu.codegen.verification.tokens import Matching
from tilesmith.search_space.support.errors import VerificationError


@dataclass(frozen=True, eq=False)
class Together:
    """One program that all chips of a node run at the same time.

    Attributes:
        schedule: of the first chip; those of others differ in addresses alone (`on_chip`).
        flight: cycles from a send to its receive.
        turned: by name the chains that count rows of tensors in parts from the chip itself, with
            the axes along which they do.
    """

    schedule: BurstSchedule
    fabric: ChipFabric
    flight: int
    turned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def chips(self) -> int:
        return self.fabric.chips


def on_chip(program: Together, chip: int) -> BurstSchedule:
    """The schedule of one chip: bursts of turned chains begin with another of the rows that lie
    side by side in a tensor in parts, which are as many words on in the same banks."""
    if not program.turned or not chip:
        return program.schedule
    schedule, table = program.schedule, program.schedule.table.copy()
    parts = np.array([place.parts for place in schedule.places], np.int64)
    mine = np.isin(table["op"], MEMORY_OPS) & (parts[table["tensor"]] > 1)
    for number, chain in enumerate(schedule.chains):
        axes = program.turned.get(chain)
        for row in np.flatnonzero(mine & (table["chain"] == number)) if axes else ():
            turn = int(table["row"][row]) % int(parts[table["tensor"][row]])
            further = program.fabric.member(chip, axes or (), turn) - turn
            table["row"][row] += further
            table["address"][row] += further
    return replace(schedule, table=table)


def sends_of(program: Together) -> dict[int, int]:
    """By the row of every receive, that of the send it is of."""
    return dict(pairs(program.schedule, program.fabric))


def pairs(placed: BurstSchedule, fabric: ChipFabric) -> Iterator[tuple[int, int]]:
    """Rows of receives and their sends: link by link, one after the other."""
    for way in range(1, fabric.chips):
        sends = _on_link(placed, BurstOp.SEND, link_of(fabric.back(way)))
        yield from zip(_on_link(placed, BurstOp.RECEIVE, link_of(way)), sends, strict=True)


def _on_link(placed: BurstSchedule, op: BurstOp, link: int) -> list[int]:
    table, units = placed.table, placed.units
    every = np.flatnonzero(table["op"] == op).tolist()
    rows = [row for row in every if units[int(table["unit"][row])].link == link]
    return sorted(rows, key=lambda row: int(table["cycle"][row]))


def check_together(program: Together) -> list[Matching]:
    """Prove every chip's schedule, and that every vector is received in the cycle in which it comes
    over its link; gives who takes whose tokens on each.

    Raises:
        VerificationError: naming link, vector and cycles, or as `check`.
    """
    _on_time(program)
    matchings = [check(program.schedule)]
    for chip in range(1, program.chips):
        matchings.append(check(on_chip(program, chip)) if program.turned else matchings[0])
    return matchings


def _on_time(program: Together) -> None:
    placed, table = program.schedule, program.schedule.table
    for way in range(1, program.chips):
        cycles, link = [], link_of(way)
        for op, number in (
            (BurstOp.SEND, link_of(program.fabric.back(way))),
            (BurstOp.RECEIVE, link),
        ):
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
        wrong = np.flatnonzero(sent + program.flight != received)
        if len(wrong):
            first = int(wrong[0])
            raise VerificationError(
                f"schedule '{placed.name}': vector {first} on link {link} is received in cycle "
                f"{received[first]}; it comes in cycle {sent[first] + program.flight}"
            )
