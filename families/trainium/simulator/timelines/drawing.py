"""A timeline as the file that was asked for, with lanes of the operators it works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.kit.simulation.operator_lane import OperatorSpan
from tilesmith.families.trainium.codegen.isa.core import FIRST_DMA_QUEUE
from tilesmith.families.trainium.simulator.timelines.picture import write_picture
from tilesmith.families.trainium.simulator.timelines.timeline import Timeline
from tilesmith.families.trainium.simulator.timelines.trace import write_trace


def span_of(
    played: Timeline, mine: NDArray[np.bool_], name: str, arguments: Mapping[str, Any]
) -> OperatorSpan | None:
    """When an operator is worked on: from its first instruction on an engine to its last result;
    where it only moves data, its transfers. Weights may be loaded long before.

    Args:
        mine: of every instruction whether it is the operator's; None comes of none.
        arguments: what else a reader may want to know.
    """
    if not mine.any():
        return None
    engines = mine & (played.stream.rows["queue"] < FIRST_DMA_QUEUE)
    working = engines if engines.any() else mine
    begin, end = float(played.start[working].min()), float(played.end[mine].max())
    first = {"first_transfer_us": float(played.start[mine].min()) / 1e3}
    return OperatorSpan(name, begin / 1e3, end / 1e3, {**arguments, **first})


def draw(played: Timeline, path: Path, operators: Sequence[OperatorSpan]) -> tuple[str, ...]:
    """Write a timeline: HTML where the path says so, else Perfetto JSON; a notice if it was cut.

    Raises:
        InputError, JobError: as `search_space.support.files.written`.
    """
    if path.suffix == ".html":
        write_picture(played, path, operators)
        return ()
    notice = write_trace(played, path, operators=operators)
    return (notice,) if notice else ()
