"""What no schedule of a program is shorter than: its busiest resource, and its longest path.

- MXM: products take `count` x interval cycles of a plane (of two in float16); four planes.
- VXM: every operation takes an ALU for its chain's time; sixteen.
- MEM: a slice gives a word and takes a word a cycle.
- Streams: a token outward to MXM takes one of the streams into its hemisphere.
- Paths: a chain that reads rows reads each after it was written; `lag` has the least time between.

Installs, loads of weights, where things stand and who waits for whom on a port are left out, so
that the bound holds whatever a scheduler does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import (
    DTYPES,
    Chain,
    Compute,
    Dataflow,
    Ints,
    Product,
    types_of,
)
from tilesmith.families.lpu.codegen.scheduling.resources.dependences import (
    predecessors,
    reads_of,
    writes_of,
)
from tilesmith.families.lpu.codegen.scheduling.rigid import interval_of


@dataclass(frozen=True)
class CycleBounds:
    """Least cycles, by what they are for."""

    cycles: Mapping[str, int]

    @property
    def least(self) -> int:
        return max(self.cycles.values())

    @property
    def binding(self) -> str:
        return max(self.cycles, key=lambda name: self.cycles[name])


def bounds(flow: Dataflow, chip: Chip) -> CycleBounds:
    """Bounds of a program."""
    work = dict.fromkeys(("mxm", "vxm", "mem", "streams"), 0.0)
    spans = []
    for chain in flow.chains:
        types = types_of(chain, flow.tensors)
        span = chain.count * interval_of(chain, types, chip)
        spans.append(span)
        for step in chain.steps:
            if isinstance(step, Product):
                dtype = types[step.moving]
                work["mxm"] += span * (2 if dtype == "float16" else 1)
                outward = DTYPES[dtype] + (4 if step.add is not None else 0)
                work["streams"] += chain.count * outward
            elif isinstance(step, Compute):
                work["vxm"] += chain.count * len(step.operations)
        moved = [
            sum(len(rows) * DTYPES[flow.tensors[name].dtype] for name, rows in part)
            for part in (_paced(chain), writes_of(chain))
        ]
        work["mem"] += max(moved)
    fill = chip.tiles + chip.delay("read")
    parts = {"mxm": 4, "vxm": chip.alus, "mem": chip.slices, "streams": 2 * chip.streams}
    cycles = {name: int(-(-work[name] // parts[name])) + fill for name in work}
    cycles["path"] = max(_ends(flow, chip, spans), default=0) + fill
    return CycleBounds(cycles)


def _paced(chain: Chain) -> list[tuple[str, Ints]]:
    """Rows read one a vector; tables of gathers and weights that stay are not."""
    return [(name, rows) for name, rows in reads_of(chain) if len(rows) == chain.count]


def lag(first: Chain, then: Chain, paces: tuple[int, int], chip: Chip) -> int:
    """Cycles that `then` begins to read after `first` does, at least: every row that both touch is
    read `delay.write` after it was written, which is `delay.read` after its vector was read."""
    turns = {}
    for name, rows in writes_of(first):
        turns[name] = (rows, np.arange(len(rows), dtype=np.int64) * paces[0])
    least = 0
    for name, rows in reads_of(then):
        if name not in turns or len(rows) != then.count:
            continue
        theirs, when = turns[name]
        order = np.argsort(theirs, kind="stable")
        at = np.searchsorted(theirs[order], rows)
        at = np.minimum(at, len(theirs) - 1)
        same = theirs[order][at] == rows
        if same.any():
            wanted = np.arange(len(rows), dtype=np.int64) * paces[1]
            least = max(least, int((when[order][at] - wanted)[same].max()))
    return max(0, least + chip.delay("read") + chip.delay("write"))


def _ends(flow: Dataflow, chip: Chip, spans: list[int]) -> list[int]:
    """The earliest end of every chain by its predecessors alone."""
    starts = [0] * len(spans)
    for number, before in enumerate(predecessors(flow)):
        chain = flow.chains[number]
        for other in before:
            earlier = flow.chains[other]
            paces = (spans[other] // earlier.count, spans[number] // chain.count)
            least = starts[other] + lag(earlier, chain, paces, chip)
            starts[number] = max(starts[number], least)
    return [start + span for start, span in zip(starts, spans, strict=True)]
