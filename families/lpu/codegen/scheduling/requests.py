"""What a chain, and the weights its products need, ask of the board (`settling.Request`)."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tilesmith.families.lpu.codegen import dataflow
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.isa.bursts import depths
from tilesmith.families.lpu.codegen.scheduling.readiness import StartRequest
from tilesmith.families.lpu.codegen.scheduling.resources.board import Board
from tilesmith.families.lpu.codegen.scheduling.rigid import Rigid, RowAccess, StreamFlow

UNIT_KINDS = {
    "shift": "shifter", "rotate": "distributor", "distribute": "distributor", "permute": "permuter",
}  # fmt: skip
"""Which unit of SXM does a movement."""


class Label(NamedTuple):
    """What a pool's line is for: a step, and of VXM one of its operations."""

    step: int
    operation: int = 0


@dataclass(eq=False)
class ChainRequest(StartRequest):
    """A chain's request; `labels` go with `pools`."""

    labels: list[Label] = field(default_factory=list)


def chain_request(board: Board, plan: Rigid) -> ChainRequest:
    """Everything but MXM, whose planes are not shared within a chain's time."""
    chain, chip, span = plan.chain, board.chip, plan.span
    request = ChainRequest(
        chain.name, chain.count, plan.interval, plan.flows, plan.accesses, floor=chain.not_before
    )
    for number, step in enumerate(chain.steps):
        time = plan.times[number] or 0
        match step:
            case dataflow.Compute(inputs=inputs):
                operations = plan.operations[number]
                for at, depth in enumerate(depths(len(inputs), operations)):
                    request.pools.append((board.alus, time + depth * chip.delay("alu"), span))
                    request.labels.append(Label(number, at))
            case dataflow.Shuffle(kind=kind):
                lines = board.sxm[plan.choice.east, UNIT_KINDS[kind]]
                request.pools.append((lines, time, span))
                request.labels.append(Label(number))
            case dataflow.Transpose(inputs=inputs):
                lines = board.sxm[plan.choice.east, "transposer"]
                for _ in range(plan.feeds[number, 0].width):
                    request.pools.append((lines, time, span))
                    request.labels.append(Label(number))
            case dataflow.Send(link=link):
                request.units.append((board.links[link, True], time, span))
            case dataflow.Receive(link=link):
                request.units.append((board.links[link, False], time, span))
            case _:
                pass
    return request


@dataclass(eq=False)
class LoadRequest(StartRequest):
    """Weights of one product into the load buffer of a plane.

    Attributes:
        plane: the first.
        rows: columns of the matrix.
        width: rows that come at once.
    """

    plane: int = 0
    rows: int = 0
    width: int = 1
    flow: StreamFlow | None = None


def load_request(board: Board, plan: Rigid, number: int, dtype: str) -> LoadRequest:
    """The load for the product that is step `number`; its start is LW's first cycle."""
    step, chip = plan.chain.steps[number], board.chip
    assert isinstance(step, dataflow.Product), "only products have weights"
    plane, east = plan.choice.planes[number], plan.choice.planes[number] >= 2
    place = chip.mxm_place if east else -chip.mxm_place
    rows, layout = step.weights.numbers, board.layouts[step.weights.tensor]
    width = rows_at_once(rows, layout.block, layout.stripes, chip, dataflow.DTYPES[dtype])
    count, size = -(-len(rows) // width), dataflow.DTYPES[dtype]
    flow = StreamFlow(
        dataflow.ChainValue(number), east, -chip.mxm_place, width * size, dtype, stops=[place]
    )
    (side,) = board.side(step.weights.tensor, int(rows[0]), east)[-1:]
    if east in board.side(step.weights.tensor, int(rows[0]), east):
        side = east
    accesses = [
        RowAccess(
            number, flow, step.weights.tensor, rows[first::width], False, side,
            np.arange(len(rows[first::width]), dtype=np.int64), first * size,
        )
        for first in range(width)
    ]  # fmt: skip
    request = LoadRequest(f"{plan.chain.name} (weights)", count, 1, [flow], accesses)
    request.plane, request.rows, request.width, request.flow = plane, len(rows), width, flow
    return request


def rows_at_once(rows: np.ndarray, block: int, stripes: int, chip: Chip, size: int) -> int:
    """How many rows of weights come in one cycle: as many as streams and different slices allow."""
    width = min(stripes, max(1, chip.load_streams // size), len(rows))
    keys = rows // block * stripes + rows % block % stripes
    while width > 1:
        whole = len(rows) // width * width
        groups = np.sort(keys[:whole].reshape(-1, width), axis=1)
        tail = keys[whole:]
        if (np.diff(groups, axis=1) != 0).all() and len(np.unique(tail)) == len(tail):
            return width
        width -= 1
    return 1
