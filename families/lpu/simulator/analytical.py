"""A closed form of what chains cost, for tuning: no slices, no streams, no search.

A program takes as long as its chains do that follow each other and share MXM's planes (`pace`), and
as long as its busiest resource: MXM's planes with the installs between, the ALUs of VXM, the ports
of MEM. How well the scheduler does, which slice is in whose way, is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import (
    DTYPES,
    Compute,
    Dataflow,
    Gather,
    Product,
    Read,
    Shuffle,
    Transpose,
    Write,
    types_of,
)
from tilesmith.families.lpu.codegen.scheduling.resources.dependences import predecessors
from tilesmith.families.lpu.codegen.scheduling.rigid import interval_of
from tilesmith.families.lpu.simulator.pace import cycles_of

RESOURCES = ("mxm", "vxm", "sxm", "mem")

COLUMNS = (
    *RESOURCES, "reads", "writes", "loads", "installs", "operations", "chains", "vectors",
    "path", "latency",
)  # fmt: skip
"""What a cost model sees, each as log2 of the value plus one; `latency` is the estimate itself."""

VERDICT = (COLUMNS.index("latency"),)


@dataclass(frozen=True)
class CycleEstimate:
    """Cycles, and what they are made of.

    Attributes:
        busy: cycles of each of `RESOURCES`, evenly spread over its parts.
        path: of chains that wait for rows, weights and planes.
        counts: of reads, writes, loads, installs (each in words or times), operations, chains,
            vectors.
    """

    busy: tuple[float, float, float, float]
    path: int
    counts: tuple[int, ...]
    tiles: int

    @property
    def cycles(self) -> int:
        return round(max(*self.busy, self.path)) + self.tiles

    @property
    def bound(self) -> str:
        busiest = max(range(len(RESOURCES)), key=lambda n: self.busy[n])
        return RESOURCES[busiest] if self.busy[busiest] >= self.path else "dependences"

    def features(self) -> NDArray[np.float32]:
        """A row of `COLUMNS`."""
        row = np.array([*self.busy, *self.counts, self.path, self.cycles], np.float64)
        return np.log2(row + 1.0).astype(np.float32)


def estimate(flow: Dataflow, chip: Chip) -> CycleEstimate:
    """What a program costs."""
    mxm = vxm = sxm = 0.0
    reads = writes = loads = installs = operations = vectors = 0
    known = None
    for chain in flow.chains:
        types = types_of(chain, flow.tensors)
        span = chain.count * interval_of(chain, types, chip)
        vectors += chain.count
        for number, step in enumerate(chain.steps):
            match step:
                case Product(moving=moving, weights=weights):
                    planes = 2 if types[moving] == "float16" else 1
                    key = (weights.tensor, int(weights.numbers[0]), len(weights))
                    mxm += planes * (span + (chip.install if key != known else 0))
                    if key != known:
                        loads += len(weights) * DTYPES[types[moving]]
                        installs += 1
                    known = key
                case Compute(operations=ops):
                    vxm += len(ops) * span
                    operations += len(ops)
                case Shuffle() | Transpose():
                    sxm += span
                case Read(rows) | Write(rows=rows):
                    words = chain.count * DTYPES[flow.tensors[rows.tensor].dtype]
                    if isinstance(step, Write):
                        writes += words * flow.tensors[rows.tensor].copies
                    else:
                        reads += words
                case Gather(table=table):
                    reads += chain.count * DTYPES[flow.tensors[table].dtype]
                case _:
                    pass
            del number
    busy = (
        mxm / 4, vxm / chip.alus, sxm / (2 * sum(chip.sxm)),
        max(reads + loads, writes) / chip.slices,
    )  # fmt: skip
    counts = (reads, writes, loads, installs, operations, len(flow.chains), vectors)
    return CycleEstimate(busy, cycles_of(flow, chip, predecessors(flow)), counts, chip.tiles)
