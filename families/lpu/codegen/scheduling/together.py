"""One program of several chips, placed so that everything is received as it comes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import Dataflow, Ints
from tilesmith.families.lpu.codegen.fabric import Fabric, check_links
from tilesmith.families.lpu.codegen.scheduling.scheduler import Options, schedule
from tilesmith.families.lpu.codegen.verification.together import Together, sends_of
from tilesmith.search_space.support.errors import CodegenError

USUAL = Options()

ROUNDS = 24
"""Times that a program is scheduled anew until everything is received as it comes."""


def together(
    flow: Dataflow, chip: Chip, fabric: Fabric, flight: int, options: Options = USUAL
) -> Together:
    """Place a program of all chips so that everything is received in the cycle in which it comes.

    Who receives is placed after its like that sends (`dataflow.Receive.sender`). Where it cannot
    take what comes in that very cycle, or its link's queue sends then, who sends begins later, and
    all is scheduled anew.

    Args:
        flight: cycles from a send to its receive, as `exchange.aligned` has them.

    Raises:
        CodegenError: it cannot be placed, or they do not meet within `ROUNDS`.
    """
    check_links(fabric.chips, chip)
    turned = {chain.name: chain.turned for chain in flow.chains if chain.turned}
    floors = {chain.name: chain.not_before for chain in flow.chains}
    for _ in range(ROUNDS):
        chains = tuple(replace(c, not_before=floors[c.name]) for c in flow.chains)
        placed = schedule(Dataflow(flow.name, flow.tensors, chains), chip, options)
        made = Together(placed, fabric, flight, turned)
        later = {**_clashing(made), **_missed(made)}
        if not later:
            return made
        for name, start in later.items():
            floors[name] = max(floors[name], start)
    raise CodegenError(
        f"program '{flow.name}': sends and receives of {fabric.chips} chips do not meet after "
        f"{ROUNDS} schedules"
    )


def _missed(made: Together) -> dict[str, int]:
    """Chains that send too early for who receives, and when they may begin."""
    table = made.schedule.table
    found: dict[str, int] = {}
    for receive, send in sends_of(made).items():
        late = int(table["cycle"][receive]) - int(table["cycle"][send]) - made.flight
        if late > 0:
            name, start = _chain(made, send)
            found[name] = max(found.get(name, 0), start + late)
    return found


def _clashing(made: Together) -> dict[str, int]:
    """Chains that send in cycles in which their queue receives, and when they may begin."""
    table, sends = made.schedule.table, sends_of(made)
    found: dict[str, int] = {}
    for receive, sender in sends.items():
        for send in sends.values():
            if table["queue"][send] == table["queue"][receive] and len(
                np.intersect1d(_cycles(made, send), _cycles(made, receive))
            ):
                one, other = _chain(made, send), _chain(made, sender)
                name, start = max(one, other, key=lambda chain: chain[1])
                found[name] = start + 1
    return found


def _cycles(made: Together, row: int) -> Ints:
    burst = made.schedule.table[row]
    steps = np.arange(int(burst["count"]), dtype=np.int64)
    return np.asarray(int(burst["cycle"]) + steps * int(burst["interval"]))


def _chain(made: Together, row: int) -> tuple[str, int]:
    """Whose burst it is, and when that chain begins."""
    table, number = made.schedule.table, int(made.schedule.table["chain"][row])
    return made.schedule.chains[number], int(table["cycle"][table["chain"] == number].min())
