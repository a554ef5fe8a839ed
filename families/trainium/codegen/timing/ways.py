"""Ways: the engines that may take each instruction, and what it costs on each of them."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tilesmith.codegen.compiled import Floats, Ints
from tilesmith.families.trainium.codegen.isa.core import ENGINES, FIRST_DMA_QUEUE
from tilesmith.families.trainium.codegen.isa.instructions import (
    ENGINES_OF,
    LOCK_PSUM,
    LOCK_SBUF,
    OPERANDS,
    InstructionStream,
    Opcode,
    Space,
)
from tilesmith.families.trainium.codegen.timing.costs import costs

WAYS = 3
"""Engines that an instruction may go to, at most."""

MOVABLE = (Opcode.COPY, Opcode.TENSOR_SCALAR)
"""Operations that any engine that has them may take."""


class Choices(NamedTuple):
    """Engines beside its own that may take a row, and the ports it would hold there: one entry for
    each."""

    row: Ints
    engine: Ints
    lock: Ints


class IssueWays(NamedTuple):
    """How each row may be issued: engine or queue (-1: no such way), ports held, ns its engine is
    busy and until its result shows; each of shape (n * WAYS,), a row's own way first."""

    queue: Ints
    lock: Ints
    busy: Floats
    shown: Floats


def ways_of(stream: InstructionStream, choices: Choices) -> IssueWays:
    """All ways to issue each row."""
    n, rows, core = len(stream), stream.rows, stream.core
    queue, lock = np.full((n, WAYS), -1, dtype=np.int64), np.zeros((n, WAYS), dtype=np.int64)
    busy, shown = np.zeros((n, WAYS)), np.zeros((n, WAYS))
    queue[:, 0], lock[:, 0] = rows["queue"], rows["lock"]
    cost = costs(stream)
    dma = rows["queue"] >= FIRST_DMA_QUEUE
    busy[:, 0] = np.where(dma, cost.dma_work * cost.dma_engines / core.dma_engines, cost.issue)
    data = np.maximum(cost.dma_work, cost.dma_floor)
    last = np.where(rows["op"] == Opcode.COLLECTIVE, 0.0, np.where(dma, data, cost.issue))
    shown[:, 0] = cost.latency + last
    used = np.ones(n, dtype=np.int64)
    for engine in np.unique(choices.engine):
        mine = choices.engine == engine
        row = choices.row[mine]
        moved = {
            **{k: column[row] for k, column in rows.items()},
            "queue": np.full_like(row, engine),
        }
        there = costs(replace(stream, rows=moved, immediates=stream.immediates[row]))
        place = used[row]
        queue[row, place], lock[row, place] = engine, choices.lock[mine]
        busy[row, place], shown[row, place] = there.issue, there.issue + there.latency
        used[row] += 1
    return IssueWays(queue.reshape(-1), lock.reshape(-1), busy.reshape(-1), shown.reshape(-1))


def no_choices() -> Choices:
    """Every row stays on its engine."""
    return Choices(*(np.zeros(0, dtype=np.int64) for _ in Choices._fields))


def movable(stream: InstructionStream) -> Choices:
    """Copies may go to any engine that has them."""
    rows, core = stream.rows, stream.core
    alternatives: list[tuple[Ints, ...]] = [no_choices()]
    for op in MOVABLE:
        mine = np.flatnonzero(rows["op"] == op)
        sbuf, psum = (_touches(stream, mine, space) for space in (Space.SBUF, Space.PSUM))
        for name in ENGINES_OF[op]:
            number = ENGINES.index(name)
            able = (rows["queue"][mine] != number) & ~(psum & (name == "gpsimd"))
            held = sbuf & core.exclusive_sbuf & (name in ("vector", "gpsimd"))
            lock = np.where(held, LOCK_SBUF, 0)
            held = psum & core.exclusive_psum & (name in ("vector", "scalar"))
            lock |= np.where(held, LOCK_PSUM, 0)
            alternatives.append((mine[able], np.full(int(able.sum()), number), lock[able]))
    return Choices(*(np.concatenate(columns) for columns in zip(*alternatives, strict=True)))


def _touches(stream: InstructionStream, rows: Ints, space: Space) -> np.ndarray:
    """Whether each of some rows has an operand in a memory."""
    spaces = np.append(stream.accesses["space"], -1)
    touches: np.ndarray = np.any([spaces[stream.rows[name][rows]] == space for name in OPERANDS], 0)
    return touches
