"""What one instruction costs: issue time, latency, DMA work. The scheduling model of the
instruction set.

All formulas are evaluated for a whole stream at once, as numpy arrays. Sources are those of the
target files: ISA = NKI instruction reference 2.26, A1 = NKI architecture guide, DMA = NKI DMA
guides.

- tensor: `max(min_ii, N)` cycles for N moving columns (A1; the ISA's `min(64, stationary columns)`
  differs only for narrow stationaries); fp32 takes four passes (transposes on Trainium2 two, A2),
  each a little longer (fitted). A new stationary tile loads in the background, 4 times as fast as
  it would move; it shows only where it takes longer than what it hides behind.
- vector, scalar, gpsimd: `engine_costs`.
- collectives: what their mesh says (the immediates), of which they take all DMA engines a part.
- DMA: `(bytes + overhead) / bandwidth` for each contiguous run, runs spread evenly over the engines
  (long ones cut): the engines' work. A run ends with its partition: partitions are apart in the
  address map, so each is a DMA buffer, and a descriptor, of its own (A1, "Data movement between HBM
  and SBUF"). A transfer takes a start time, and its data no less than a floor; both overlap with
  other transfers, as an engine serves 16 queues side by side (DMA). AWS's plot of throughput
  against bytes a partition is of one transfer at a time: its rows below 2 KiB show that floor.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilesmith.families.trainium.codegen.isa.core import (
    ENGINES,
    FIRST_DMA_QUEUE,
    ROW_MINIMUM_BYTES,
    Core,
)
from tilesmith.families.trainium.codegen.isa.instructions import (
    DTYPE_BYTES,
    Floats,
    InstructionStream,
    Ints,
    Opcode,
)
from tilesmith.families.trainium.codegen.timing.engine_costs import (
    dtype_of,
    elements,
    engine_cycles,
)

TENSOR = ENGINES.index("tensor")


@dataclass(frozen=True)
class InstructionCosts:
    """Costs of each instruction of a stream; ns unless said otherwise, shape (n,).

    Attributes:
        issue: how long the engine is occupied (0 for DMA).
        latency: from the end of issue until the result is visible (DMA: the start time, before
            data).
        stationary: load time of a new stationary tile (0 where it is the one already there).
        dma_engines: DMA engines a transfer uses (0 for others).
        dma_work: time each of these is busy.
        dma_floor: the least time from the start of a transfer's data to its end.
        hbm: time HBM itself is busy.
        bytes: bytes moved between HBM and the chip.
        flops: floating-point operations of the tensor engine's matmuls.
    """

    issue: Floats
    latency: Floats
    stationary: Floats
    dma_engines: Ints
    dma_work: Floats
    dma_floor: Floats
    hbm: Floats
    bytes: Ints
    flops: Floats

    @cached_property
    def total_bytes(self) -> int:
        return int(self.bytes.sum())


def costs(stream: InstructionStream, core: Core | None = None) -> InstructionCosts:
    """Costs of every instruction, on the stream's own core or on `core` (a what-if)."""
    core = core or stream.core
    rows, n = stream.rows, len(stream)
    queue, collective = rows["queue"], rows["op"] == Opcode.COLLECTIVE
    others = np.flatnonzero((queue < FIRST_DMA_QUEUE) & (queue != TENSOR))
    tensor = np.flatnonzero(queue == TENSOR)
    dma = np.flatnonzero((queue >= FIRST_DMA_QUEUE) & ~collective)
    cycles, stationary, flops, work, floor, hbm = (np.zeros(n) for _ in range(6))
    engines, moved = (np.zeros(n, dtype=np.int64) for _ in range(2))
    cycles[others] = engine_cycles(stream.picked(others), core)
    cycles[tensor], stationary[tensor], flops[tensor] = _tensor(
        stream.picked(tensor, ("op", "function", "in0", "in1")), core
    )
    lanes = np.minimum(queue, len(ENGINES))
    clocks = np.array([*core.clocks, 1.0])
    latency = (np.array([*core.latencies, 0.0]) / clocks)[lanes]
    engines[dma], work[dma], moved[dma] = _dma(stream, core, dma)
    latency[dma], floor[dma] = core.dma_start_ns, core.dma_transfer_floor_ns
    hbm[dma] = moved[dma] / core.hbm_bytes_per_ns
    engines[collective] = core.dma_engines
    latency[collective], work[collective] = stream.immediates[collective, :2].T
    return InstructionCosts(
        issue=cycles / clocks[lanes],
        latency=latency,
        stationary=stationary,
        dma_engines=engines,
        dma_work=work,
        dma_floor=floor,
        hbm=hbm,
        bytes=moved,
        flops=flops,
    )


def values_a_row(stream: InstructionStream) -> Ints:
    """2 for matmuls of two fp8 values in each row of the array, else 1."""
    double = (stream.rows["op"] == Opcode.MATMUL) & (stream.rows["function"] == 1)
    return np.where(double, 2, 1)


def _partitions(stream: InstructionStream, operand: str) -> Ints:
    index = stream.rows[operand]
    return np.where(index >= 0, stream.accesses["count"][index, 0], 0)


def _tensor(stream: InstructionStream, core: Core) -> tuple[Floats, Floats, Floats]:
    """Issue cycles of each row of a stream that is the tensor engine's alone, exposable load time
    of its stationary tile, and flops of each matmul.
    """
    op, held = stream.rows["op"], stream.rows["in0"]
    turns, values = op == Opcode.TRANSPOSE, values_a_row(stream)
    partitions, columns = _partitions(stream, "in0"), elements(stream, "in0")
    other = elements(stream, "in1")
    fp32 = (dtype_of(stream, "in0") == 0) | (dtype_of(stream, "in1") == 0)  # the slower decides
    moving = np.where(turns, partitions, other // values)
    cycles = np.maximum(core.minimums[TENSOR], moving).astype(np.float64)
    passes = np.where(turns, core.fp32_transpose_factor, core.fp32_factor)
    cycles = np.where(fp32, (cycles + core.fp32_pass_overhead) * passes, cycles)
    fresh = np.ones(len(stream), dtype=bool)
    fresh[1:] = (held[1:] != held[:-1]) | (op[1:] != op[:-1])
    load = columns // values / core.load_stationary_speedup * np.where(fp32, core.fp32_factor, 1)
    product = partitions * columns * other * 2.0 / values
    return (
        cycles,
        np.where(fresh, load / core.clocks[TENSOR], 0.0),
        np.where(op == Opcode.MATMUL, product, 0.0),
    )


def _dma(stream: InstructionStream, core: Core, mine: Ints) -> tuple[Ints, Floats, Ints]:
    """DMA engines used, work of each in ns, and bytes of rows `mine`."""
    rows = stream.rows
    store = rows["op"][mine] == Opcode.STORE
    loaded, written = rows["in0"][mine], rows["out"][mine]
    chip = np.where(store, loaded, written)
    scattered = _scattered(stream, chip)
    runs, length = contiguous_runs(stream, np.where(store, written, loaded), scattered)
    return *transfer_time(runs, length, core), runs * length


def _scattered(stream: InstructionStream, chip: Ints) -> np.ndarray:
    """Whether the elements of accesses on chip lie apart along their innermost axis."""
    steps = stream.access_steps
    apart: np.ndarray = (steps != 0) & (steps != 1)
    return apart[chip]


def contiguous_runs(
    stream: InstructionStream, accesses: Ints, scattered: np.ndarray | bool = False
) -> tuple[Ints, Ints]:
    """Number and bytes of the contiguous runs of each access to HBM.

    Its first axis goes over partitions, where every run ends. Where the other side of a transfer is
    `scattered`, every element is a run of its own.
    """
    table = stream.accesses
    counts, strides = table["count"][accesses], table["stride"][accesses]
    run = np.ones(len(accesses), dtype=np.int64)
    growing = np.ones(len(accesses), dtype=bool) & ~np.asarray(scattered)
    for axis in range(counts.shape[1] - 1, 0, -1):
        single = counts[:, axis] == 1
        joins = (strides[:, axis] == run) & growing
        run = np.where(joins & ~single, run * counts[:, axis], run)
        growing &= joins | single
    total = counts.prod(axis=1)
    return total // run, run * DTYPE_BYTES[table["dtype"][accesses]]


def transfer_time(runs: Ints, length: Ints, core: Core) -> tuple[Ints, Floats]:
    """DMA engines that transfers of `runs` runs of `length` bytes use, and the time each takes
    (ns).

    A run is cut into pieces for several engines, but not into short ones: they would end no sooner
    than the transfer's floor and keep engines from other transfers.
    """
    pieces = np.clip(core.dma_engines // np.maximum(runs, 1), 1, None)
    most = np.maximum(np.ceil(length / ROW_MINIMUM_BYTES), 1)
    pieces = np.minimum(pieces, most).astype(np.int64)
    rows = runs * pieces
    size = length / pieces
    engines = np.minimum(rows, core.dma_engines)
    row_time = (size + core.dma_row_overhead) / core.dma_bytes_per_ns
    return engines, rows / engines * row_time
