"""A schedule as the file that was asked for, with lanes of the operators it works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.kit.simulation.operator_lane import OperatorSpan
from tilesmith.families.lpu.codegen.isa.bursts import BurstOp, BurstSchedule
from tilesmith.families.lpu.simulator.views.picture import write_picture
from tilesmith.families.lpu.simulator.views.trace import write_trace

COMPUTING = (BurstOp.MOVE, BurstOp.ACCUMULATE, BurstOp.ALU, BurstOp.SHUFFLE, BurstOp.TRANSPOSE)
"""What computes; the others move rows, or install weights."""


def span_of(
    schedule: BurstSchedule, mine: NDArray[np.bool_], name: str, arguments: Mapping[str, Any]
) -> OperatorSpan | None:
    """When an operator is worked on: from its first computing burst to its last burst; where it
    only moves rows, all of them. Weights may be installed before.

    Args:
        mine: of every burst whether it is the operator's; None comes of none.
        arguments: what else a reader may want to know.
    """
    if not mine.any():
        return None
    table, us = schedule.table, schedule.chip.ghz * 1e3
    computing = mine & np.isin(table["op"], COMPUTING)
    working = computing if computing.any() else mine
    begin, end = float(table["cycle"][working].min()), float(ends(schedule)[mine].max())
    first = {"first_burst_us": float(table["cycle"][mine].min()) / us}
    return OperatorSpan(name, begin / us, end / us, {**arguments, **first})


def ends(schedule: BurstSchedule) -> NDArray[np.int64]:
    """The cycle after each burst's last instruction."""
    table = schedule.table
    lasting = (table["count"].astype(np.int64) - 1) * table["interval"] + 1
    return np.asarray(table["cycle"] + lasting)


def draw(placed: BurstSchedule, path: Path, operators: Sequence[OperatorSpan]) -> tuple[str, ...]:
    """Write a schedule: HTML where the path says so, else Perfetto JSON; a notice if it was cut.

    Raises:
        InputError, JobError: as `search_space.support.files.written`.
    """
    if path.suffix == ".html":
        write_picture(placed, path, operators)
        return ()
    notice = write_trace(placed, path, operators=operators)
    return (notice,) if notice else ()
