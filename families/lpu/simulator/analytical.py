"""A closed form of what chains cost, for tuning: no slices, no streams, no search.

A program takes as long as its chains do that follow each other and share MXM's planes (`pace`), and
as long as its busiest resource: MXM's planes with the installs between, the ALUs of VXM, the ports
of MEM. How well the scheduler does, which slice is in whose way, is not in it.

`pace` is a list schedule without slices, streams and ports: when chains run if they wait for
nothing but rows, MXM's planes and weights. What is counted, all of it from the target: how long a
vector is under way in a chain (functions, and hops between MEM, in its middle, and VXM, SXM and
MXM); rows that are read a block behind their writer, or, as weights, when all are there; loads,
which come before installs and go on under products; products on the plane that is free first.
Chains start by the time their rows are there.
"""

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilesmith.families.lpu.codegen import dataflow
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.scheduling.resources.board import cut_for_chasing
from tilesmith.families.lpu.codegen.scheduling.resources.dependences import (
    predecessors,
    reads_of,
    writes_of,
)
from tilesmith.families.lpu.codegen.scheduling.rigid import delay_of, interval_of

EARLY = -(1 << 30)
"""A cycle before all others."""


@dataclass(frozen=True)
class Paced:
    """A chain with its times.

    Attributes:
        interval: cycles between vectors.
        span: from its first vector to behind its last.
        depth: from its start until who reads its first row may begin.
        products: of each, when its first vector is there, its weights, and the planes it takes.
    """

    interval: int
    span: int
    depth: int
    products: tuple[tuple[int, dataflow.Rows, int], ...]


@dataclass
class _Plane:
    free: int = EARLY
    buffer: int = EARLY
    held: object = None


@dataclass
class _Machine:
    """Planes so far, and until when each hemisphere loads: beside a load's streams there is no room
    for those of another and what flows past MXM."""

    chip: Chip
    planes: list[_Plane] = field(default_factory=lambda: [_Plane() for _ in range(4)])
    loading: list[int] = field(default_factory=lambda: [EARLY, EARLY])

    def place(self, paced: Paced, ready: int, loadable: int) -> int:
        """Take planes for a chain whose rows and weights are there from two cycles on; gives its
        start."""
        chip, start, taken = self.chip, ready, list[tuple[int, tuple[str, int, int], int]]()
        loadable += chip.delay("read") + chip.mxm_place - _middle(chip)
        for arrival, rows, planes in paced.products:
            key = rows.tensor, int(rows.numbers[0]), len(rows)
            load = -(-len(rows) * planes // chip.load_streams)
            left = [n for n in range(0, 4, planes) if n not in [first for first, _, _ in taken]]
            begin, first, loaded = min(self.begin(n, key, loadable, load) for n in left or [0])
            self.loading[first // 2] = max(self.loading[first // 2], loaded)
            taken.append((first, key, begin))
            start = max(start, begin - arrival)
        for (first, key, begin), (arrival, _, planes) in zip(taken, paced.products, strict=True):
            for plane in self.planes[first : first + planes]:
                plane.buffer = plane.buffer if plane.held == key else begin
                plane.free, plane.held = start + arrival + paced.span, key
        return start

    def begin(self, first: int, key: object, loadable: int, load: int) -> tuple[int, int, int]:
        """When vectors may meet weights on a plane, its number, and until when it is loaded."""
        plane = self.planes[first]
        if plane.held == key:
            return plane.free, first, EARLY
        loaded = max(plane.buffer, loadable, self.loading[first // 2]) + load
        return max(loaded, plane.free) + self.chip.install, first, loaded


def cycles_of(flow: dataflow.Dataflow, chip: Chip, before: list[list[int]]) -> int:
    """Cycles until the last row is written.

    Args:
        before: for every chain those that it follows (`dependences.predecessors`).
    """
    paced = [paced_of(chain, flow.tensors, chip) for chain in flow.chains]
    after: dict[int, list[int]] = defaultdict(list)
    for number, earlier in enumerate(before):
        for other in earlier:
            after[other].append(number)
    missing = [len(earlier) for earlier in before]
    machine, start = _Machine(chip), [0] * len(paced)
    rows = [(0, 0)] * len(paced)
    waiting = [(0, number) for number, many in enumerate(missing) if not many]
    end = 0
    while waiting:
        _, number = heapq.heappop(waiting)
        start[number] = machine.place(paced[number], *rows[number])
        end = max(end, start[number] + paced[number].depth + paced[number].span - 1)
        for other in after[number]:
            missing[other] -= 1
            if not missing[other]:
                rows[other] = _ready(flow, paced, start, before[other], other)
                heapq.heappush(waiting, (max(rows[other]), other))
    return end


def _ready(
    flow: dataflow.Dataflow, paced: list[Paced], start: list[int], before: list[int], number: int
) -> tuple[int, int]:
    """When a chain's rows are there for it to start, and all its weights."""
    mine, chain = paced[number], flow.chains[number]
    weights = {rows.tensor for _, rows, _ in mine.products}
    read = {tensor for tensor, _ in reads_of(chain)}
    ready = loadable = 0
    for other in before:
        theirs, written = paced[other], writes_of(flow.chains[other])
        begin, apart = start[other] + theirs.depth, max(0, theirs.span - mine.span)
        for tensor, rows in written:
            if tensor in weights:
                loadable = max(loadable, begin + theirs.span)
            elif tensor in read:
                block = _block(flow.tensors[tensor])
                lag = min(len(rows), block) * theirs.interval
                ready = max(ready, begin + max(lag, apart))
        if not any(tensor in read for tensor, _ in written):  # it has read what is overwritten
            ready = max(ready, start[other] + apart)
    return ready, loadable


def _block(tensor: dataflow.VectorTensor) -> int:
    """Rows of a block, which is not read while it is written."""
    return tensor.block or cut_for_chasing(tensor, tensor.stripes)


def paced_of(chain: dataflow.Chain, tensors: dict[str, dataflow.VectorTensor], chip: Chip) -> Paced:
    """The times of a chain on its own."""
    types = dataflow.types_of(chain, tensors)
    interval = interval_of(chain, types, chip)
    done, depth, products = list[int](), 0, []
    for step in chain.steps:
        inputs = [value.step for value in dataflow.inputs_of(step)]
        there = [done[n] + abs(_place(step, chip) - _place(chain.steps[n], chip)) for n in inputs]
        arrival = max(there, default=0)
        if isinstance(step, dataflow.Product):
            arrival = there[0]
            planes = dataflow.DTYPES[types[step.moving]]
            products.append((arrival, step.weights, planes))
        took = [delay_of(step, output, chip) for output in range(_outputs(step))]
        done.append(arrival + max(took, default=0))
        if isinstance(step, dataflow.Read):
            done[-1] = chip.delay("read")
        if isinstance(step, dataflow.Write):
            depth = max(depth, done[-1] + chip.delay("write"))
    return Paced(interval, chain.count * interval, max(depth, *done), tuple(products))


def _outputs(step: dataflow.Step) -> int:
    match step:
        case dataflow.Compute(outputs=outputs):
            return len(outputs)
        case dataflow.Product() | dataflow.Shuffle() | dataflow.Transpose():
            return 1
        case _:
            return 0


def _middle(chip: Chip) -> int:
    """About where rows lie."""
    return (chip.places[-1] + 1) // 2


def _place(step: dataflow.Step, chip: Chip) -> int:
    """The position of what does a step, from VXM outward."""
    match step:
        case dataflow.Product():
            return chip.mxm_place
        case dataflow.Shuffle() | dataflow.Transpose():
            return chip.sxm_place
        case dataflow.Compute():
            return 0
        case _:
            return _middle(chip)


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


def estimate(flow: dataflow.Dataflow, chip: Chip) -> CycleEstimate:
    """What a program costs."""
    mxm = vxm = sxm = 0.0
    reads = writes = loads = installs = operations = vectors = 0
    known = None
    for chain in flow.chains:
        types = dataflow.types_of(chain, flow.tensors)
        span = chain.count * interval_of(chain, types, chip)
        vectors += chain.count
        for number, step in enumerate(chain.steps):
            match step:
                case dataflow.Product(moving=moving, weights=weights):
                    planes = 2 if types[moving] == "float16" else 1
                    key = (weights.tensor, int(weights.numbers[0]), len(weights))
                    mxm += planes * (span + (chip.install if key != known else 0))
                    if key != known:
                        loads += len(weights) * dataflow.DTYPES[types[moving]]
                        installs += 1
                    known = key
                case dataflow.Compute(operations=ops):
                    vxm += len(ops) * span
                    operations += len(ops)
                case dataflow.Shuffle() | dataflow.Transpose():
                    sxm += span
                case dataflow.Read(rows) | dataflow.Write(rows=rows):
                    words = chain.count * dataflow.DTYPES[flow.tensors[rows.tensor].dtype]
                    if isinstance(step, dataflow.Write):
                        writes += words * flow.tensors[rows.tensor].copies
                    else:
                        reads += words
                case dataflow.Gather(table=table):
                    reads += chain.count * dataflow.DTYPES[flow.tensors[table].dtype]
                case _:
                    pass
            del number
    busy = (
        mxm / 4, vxm / chip.alus, sxm / (2 * sum(chip.sxm)),
        max(reads + loads, writes) / chip.slices,
    )  # fmt: skip
    counts = (reads, writes, loads, installs, operations, len(flow.chains), vectors)
    return CycleEstimate(busy, cycles_of(flow, chip, predecessors(flow)), counts, chip.tiles)
