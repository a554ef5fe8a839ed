"""One program of several chips, placed so that everything is received as it comes."""

from dataclasses import replace

import numpy as np

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import Dataflow, Ints
from tilesmith.families.lpu.codegen.fabric import ChipFabric, check_links
from tilesmith.families.lpu.codegen.scheduling.scheduler import SchedulerOptions, schedule
from tilesmith.families.lpu.codegen.verification.together import Together, sends_of
from tilesmith.search_space.support.errors import CodegenError

USUAL = SchedulerOptions()

ROUNDS = 24
"""Times that a program is scheduled anew until everything is received as it comes."""


def together(
    flow: Dataflow, chip: Chip, fabric: ChipFabric, flight: int, options: SchedulerOptions = USUAL
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
        program = Together(placed, fabric, flight, turned)
        later = {**_clashing(program), **_missed(program)}
        if not later:
            return program
        for name, start in later.items():
            floors[name] = max(floors[name], start)
    raise CodegenError(
        f"program '{flow.name}': sends and receives of {fabric.chips} chips do not meet after "
        f"{ROUNDS} schedules"
    )


def _missed(program: Together) -> dict[str, int]:
    """Chains that send too early for who receives, and when they may begin."""
    table = program.schedule.table
    starts: dict[str, int] = {}
    for receive, send in sends_of(program).items():
        late = int(table["cycle"][receive]) - int(table["cycle"][send]) - program.flight
        if late > 0:
            name, start = _chain(program, send)
            starts[name] = max(starts.get(name, 0), start + late)
    return starts


def _clashing(program: Together) -> dict[str, int]:
    """Chains that send in cycles in which their queue receives, and when they may begin."""
    table, sends = program.schedule.table, sends_of(program)
    starts: dict[str, int] = {}
    for receive, sender in sends.items():
        for send in sends.values():
            if table["queue"][send] == table["queue"][receive] and len(
                np.intersect1d(_cycles(program, send), _cycles(program, receive))
            ):
                one, other = _chain(program, send), _chain(program, sender)
                name, start = max(one, other, key=lambda chain: chain[1])
                starts[name] = start + 1
    return starts


def _cycles(program: Together, row: int) -> Ints:
    burst = program.schedule.table[row]
    steps = np.arange(int(burst["count"]), dtype=np.int64)
    return np.asarray(int(burst["cycle"]) + steps * int(burst["interval"]))


def _chain(program: Together, row: int) -> tuple[str, int]:
    """Whose burst it is, and when that chain begins."""
    table, number = program.schedule.table, int(program.schedule.table["chain"][row])
    return program.schedule.chains[number], int(table["cycle"][table["chain"] == number].min())
