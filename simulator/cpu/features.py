"""What a cost model learns from: one row of fixed width for every configuration.

The columns mean the same for every operator, structure and CPU: the terms of the analytical model
as shares of its total; of the phase that takes longest, the shape of its nest (register tile,
reduction, trip counts, footprints, runs); and of the whole program, tails and copies included, what
it executes for each arithmetic operation. Sizes are base-2 logarithms.
"""

import numpy as np
from numpy.typing import NDArray

from tilesmith.simulator.cpu.core import COUNTED
from tilesmith.simulator.cpu.facts import Facts, Floats
from tilesmith.simulator.cpu.model import TERMS, PhaseCost, ProgramCost
from tilesmith.simulator.cpu.skeleton import Skeleton

_LOOPS = 6
"""Serial loops described, from the innermost outwards."""
_UNROLLED = 4
_ACCESSES = 3
"""Accesses described, those that move most lines first."""

NAMES: tuple[str, ...] = (
    "cycles",
    *(f"share.{term}" for term in TERMS),
    "phases",
    "slices",
    "core.share",
    "tile",
    "registers",
    "steps",
    "executions",
    "operations",
    *(f"trip.{i}" for i in range(_LOOPS)),
    *(f"unrolled.{i}" for i in range(_UNROLLED)),
    "short.share",
    *(f"lines.{i}" for i in range(_LOOPS)),
    *(
        f"{what}.{i}"
        for i in range(_ACCESSES)
        for what in ("moved.l1", "moved.l2", "run", "rows", "pitch")
    ),
    "work",
    "rounds",
    *(f"moved.{level}" for level in ("l1", "l2", "l3")),
    *(f"moved.{level}.work" for level in ("l1", "l2", "l3")),
    *(f"{name}.arithmetic" for name in (*COUNTED[1:], "tiles")),
)
"""The columns, in order."""

VERDICT: tuple[int, ...] = tuple(
    number
    for number, name in enumerate(NAMES)
    if name in ("cycles", "core.share") or name.startswith("share.")
)
"""Columns that are the model's own answer, or parts of it."""


def features(skeleton: Skeleton, facts: Facts, cost: ProgramCost) -> NDArray[np.float32]:
    """The feature matrix of a batch, shape (n, len(NAMES)), float32."""
    total = cost.cycles
    terms = sum((phase.terms for phase in cost.phases), np.zeros((len(TERMS), len(total))))
    rows = [_log(total), *(terms / total), np.full_like(total, float(len(cost.phases)))]
    described = np.stack([np.stack(_phase(skeleton, facts, cost, phase)) for phase in cost.phases])
    longest = np.argmax(np.stack([phase.cycles for phase in cost.phases]), axis=0)
    chosen = np.take_along_axis(described, longest[None, None, :], axis=0)[0]
    counted = _counted(skeleton, facts, cost)
    matrix = np.concatenate([np.stack(rows), chosen, counted]).T.astype(np.float32)
    assert matrix.shape[1] == len(NAMES), (matrix.shape, len(NAMES))
    return matrix


def _counted(skeleton: Skeleton, facts: Facts, cost: ProgramCost) -> Floats:
    """Of the whole program: what is issued, and the register tiles begun, for each arithmetic
    operation, (5, n).
    """
    blocks = [block for phase in cost.phases for block in phase.costs]
    counts = sum((block.counts for block in blocks), np.zeros((len(COUNTED), *cost.cycles.shape)))
    tiles = np.zeros_like(cost.cycles)
    for number, block in enumerate(skeleton.blocks):
        if block.accumulates and block.tile_depth >= 0:
            outer = list(block.serial[: block.tile_depth])
            tiles = tiles + facts.taken[number] * np.prod(facts.trips[outer], axis=0)
    each = (np.vstack([counts[1:], tiles]) + 1.0) / (counts[0] + 1.0)
    return np.asarray(np.log2(each))


def _log(values: Floats) -> Floats:
    return np.asarray(np.log2(np.maximum(values, 0.0) + 1.0))


def _phase(skeleton: Skeleton, facts: Facts, cost: ProgramCost, phase: PhaseCost) -> list[Floats]:
    """The columns after "phases", of one phase."""
    place = _main_block(skeleton, phase)
    number, main = phase.blocks[place], phase.costs[place]
    block = skeleton.blocks[number]
    zero = np.zeros(facts.trips.shape[1])
    serial = [facts.trips[loop] for loop in reversed(block.serial)]
    unrolled = [facts.full[loop] for loop in block.unrolled]
    chance = [facts.chance[loop] for loop in block.unrolled]
    return [
        _log(facts.slices[number]),
        phase.core / np.maximum(phase.cycles, 1.0),
        _log(main.tile),
        main.registers,
        _log(main.steps),
        _log(main.executions),
        _log(main.operations),
        *_padded([_log(trip) for trip in serial], _LOOPS, zero),
        *_padded(unrolled, _UNROLLED, zero),
        sum(chance, zero),
        *_footprints(cost, phase, zero),
        *_accesses(cost, phase, zero),
        *_totals(cost, phase, zero),
    ]


def _totals(cost: ProgramCost, phase: PhaseCost, zero: Floats) -> list[Floats]:
    """Work and traffic of the whole phase, and their ratios: trees add and divide badly."""
    work = _log(sum((block.executions * block.operations for block in phase.costs), zero))
    rounds = _log(sum((block.rounds for block in phase.costs), zero))
    entries = [i for i, block in enumerate(cost.traffic.blocks) if block in phase.blocks]
    moved = [_log(lines) for lines in cost.traffic.moved[:, entries].sum(axis=1)]
    return [work, rounds, *moved, *(lines - work for lines in moved)]


def _main_block(skeleton: Skeleton, phase: PhaseCost) -> int:
    """Position in the phase of its innermost block, reductions before others."""
    blocks = [skeleton.blocks[number] for number in phase.blocks]
    return max(range(len(blocks)), key=lambda i: (len(blocks[i].serial), blocks[i].accumulates, -i))


def _padded(rows: list[Floats], length: int, zero: Floats) -> list[Floats]:
    return (rows + [zero] * length)[:length]


def _footprints(cost: ProgramCost, phase: PhaseCost, zero: Floats) -> list[Floats]:
    """Lines touched by one iteration of each of the innermost loops, all tensors together."""
    entries = [
        i
        for i, block in enumerate(cost.traffic.blocks)
        if block in phase.blocks and not cost.traffic.back[i]
    ]
    if not entries:
        return [zero] * _LOOPS
    by_depth = cost.traffic.lines[:, entries].sum(axis=1)
    return _padded([_log(lines) for lines in by_depth[::-1]], _LOOPS, zero)


def _accesses(cost: ProgramCost, phase: PhaseCost, zero: Floats) -> list[Floats]:
    """Traffic and runs of the accesses that move most lines into L1."""
    traffic = cost.traffic
    entries = [
        i for i, block in enumerate(traffic.blocks) if block in phase.blocks and not traffic.back[i]
    ]
    if not entries:
        return [zero] * (_ACCESSES * 5)
    columns = np.stack(
        [
            _log(traffic.moved[0, entries]),
            _log(traffic.moved[1, entries]),
            _log(traffic.run[entries]),
            _log(traffic.rows_apart[entries]),
            _log(traffic.pitch[entries]),
        ]
    )
    order = np.argsort(-columns[0], axis=0, kind="stable")[:_ACCESSES]
    chosen = np.take_along_axis(columns, order[None], axis=1)
    rows = [chosen[what, i] for i in range(chosen.shape[1]) for what in range(5)]
    return _padded(rows, _ACCESSES * 5, zero)
