"""One program of several chips, placed so that everything is received as it comes."""

from __future__ import annotations

from dataclasses import replace

from tilesmith.codegen.lpu.chip import Chip
from tilesmith.codegen.lpu.dataflow import Dataflow
from tilesmith.codegen.lpu.exchange import check_links
from tilesmith.codegen.lpu.scheduling.scheduler import schedule
from tilesmith.codegen.lpu.verification.together import Together, pairs
from tilesmith.search_space.errors import CodegenError

ROUNDS = 24
"""Times that a program is scheduled anew until everything is received as it comes."""


def together(flow: Dataflow, chip: Chip, chips: int, flight: int) -> Together:
    """Place a program of all chips so that everything is received in the cycle in which it comes.

    Who receives is placed after its like that sends (`dataflow.Receive.sender`). Where it cannot
    take what comes in that very cycle, who sends begins later, and all is scheduled anew.

    Raises:
        CodegenError: it cannot be placed, or they do not meet within `ROUNDS`.
    """
    check_links(chips, chip)
    floors = {chain.name: chain.not_before for chain in flow.chains}
    for _ in range(ROUNDS):
        chains = tuple(replace(c, not_before=floors[c.name]) for c in flow.chains)
        placed = schedule(Dataflow(flow.name, flow.tensors, chains), chip)
        missed = False
        table, names = placed.table, placed.chains
        for receive, send in pairs(placed, chips):
            late = int(table["cycle"][receive]) - int(table["cycle"][send]) - flight
            if late > 0:
                missed, chain = True, int(table["chain"][send])
                start = int(table["cycle"][table["chain"] == chain].min())
                floors[names[chain]] = max(floors[names[chain]], start + late)
        if not missed:
            return Together(placed, chips, flight)
    raise CodegenError(
        f"program '{flow.name}': sends and receives of {chips} chips do not meet after {ROUNDS} "
        "schedules"
    )
