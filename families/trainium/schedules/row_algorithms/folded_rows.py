"""Short rows of normalisations on Trainium-like cores: several come to a partition in one piece.

A partition's part of a transfer costs as much as one of some 2 KiB, however short it is; rows of
128 elements are far below that. `fold` rows that follow each other in memory stand beside each
other on a partition, which is one contiguous run of them:

    row = p*fold + j    x [rows, d] in HBM  -->  tile [p, j, d]    (p on partitions)

What is computed stays as it is, for one j at a time: a row's scalars are one column, that an
instruction takes one of for each partition. Only the transfers are of the whole tile.

Neighbours in a model keep row r in partition r mod 128 (`linking/residency`), where nothing is
transferred: inside a model the default is not folded.
"""

from dataclasses import replace
from functools import cached_property
from math import prod

from tilesmith.families.trainium.schedules.building_blocks.activations import UNARY, simplify
from tilesmith.families.trainium.schedules.row_algorithms.psum_rows import ALGORITHM, PsumRowsSpace
from tilesmith.families.trainium.schedules.row_algorithms.rows import PIECE, RowsSpace
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.scalar import Call, Load, Scalar, loads, rewrite
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import divisors
from tilesmith.search_space.spaces.space import SearchSpace, Subspace

KNOB = "fold"


class FoldedRowsSpace:
    """Space and schedule of a computation over rows, each number of rows to a partition.

    Args:
        compute: its stages have the rows first; see `RowsSpace`.
        dtype: of the result.
        early: the same computation where values in between stand in PSUM; None: `compute`.
    """

    def __init__(
        self,
        compute: ComputeDefinition,
        dtype: str,
        target: Target,
        early: ComputeDefinition | None = None,
    ) -> None:
        self.compute, self.target, self.size = compute, target, size_of(dtype)
        self.psum = PsumRowsSpace(early or compute, dtype, target)
        self.spaces: dict[int, RowsSpace] = {1: RowsSpace(compute, dtype, target)}
        if self.spaces[1].refusal is None and self.spaces[1].reduces:
            for n in folds(compute):
                self.spaces[n] = _Folded(beside(compute, n), dtype, target)

    @property
    def refusal(self) -> str | None:
        """See `Scheduler.refusal`."""
        return self.spaces[1].refusal

    def space(self) -> SearchSpace:
        """Copies and widths, for every number of rows to a partition that fits."""
        kept: list[Subspace] = []
        for n, space in self.spaces.items():
            subspaces = space.space().subspaces
            kept += [chosen(s, KNOB, n) for s in subspaces if n == 1 or s.size]
        if self.psum.offered:
            kept += [chosen(s, KNOB, 1) for s in self.psum.space().subspaces if s.size]
        return SearchSpace(tuple(kept))

    def default(self) -> Config:
        """The number of rows to a partition for which transfers and engines take least."""
        fits = [n for n, space in self.spaces.items() if n == 1 or space.space().size]
        return self._usual(min(fits, key=lambda n: (self._cost(n), n)))

    def inside(self) -> Config:
        """The default where neighbours keep the rows on chip."""
        return self._usual(1)

    def schedule(self, structure: Config) -> Schedule:
        """The schedule of a structural configuration."""
        if structure.text("algorithm") == ALGORITHM:
            return self.psum.schedule(structure)
        return self.spaces[structure.integer(KNOB)].schedule(structure)

    def _usual(self, n: int) -> Config:
        space = self.psum if n == 1 and self.psum.is_usual else self.spaces[n]
        return Config.of({**space.default(), KNOB: n})

    def _cost(self, n: int) -> float:
        """ns, roughly: whatever is busiest, all blocks one after another, and of one block what
        waits for that or follows it; of blocks under way each waits for the one whose place it
        takes, with what a transfer takes to begin and end."""
        number = self.target.number
        bandwidth = number("dma.gbps_practical") * number("dma.engines")
        partitions = self.target.integer("sbuf.partitions")
        rows = self.compute.output.axes[0].extent.constant or 1
        tensors = [t for t in self.compute.inputs if len(t.shape) > 1]
        groups = rows // n
        blocks = -(-groups // partitions)
        run = _run(self.target, n * longest(self.compute) * self.size)
        moved = (len(tensors) + 1) * run * groups / bandwidth
        vector, scalar = (n * blocks * ns for ns in self._row)
        copies = self._usual(n).integer("copies")
        total = moved + vector + scalar
        busiest = max(moved, vector, scalar)
        ends = 2 * blocks * (number("dma.start_ns") + number("dma.transfer_floor_ns"))
        return max(busiest + (total - busiest) / blocks, (total + ends) / copies)

    @cached_property
    def _row(self) -> tuple[float, float]:
        """ns of the vector and the scalar engine, roughly, for a row on each partition."""
        number = self.target.number
        cycles = {"vector": 0.0, "scalar": 0.0}
        for stage in self.compute.stages:
            over = stage.axes[1:] + stage.reduce_axes
            elements = prod(a.extent.constant or PIECE for a in over)
            for engine, passes in zip(cycles, _passes(stage), strict=True):
                cycles[engine] += passes * max(number(f"{engine}.min_ii"), elements)
        vector, scalar = (cycles[engine] / number(f"{engine}.ghz") for engine in cycles)
        return vector, scalar


class _Folded(RowsSpace):
    """Rows of one block and one place beside each other at a time; transfers of whole blocks."""

    has_pieces = False

    def schedule(self, structure: Config) -> Schedule:
        schedule = Schedule(self.compute)
        rows, beside = self.rows_axis.name, self.others[0].name
        inner = [a.name for a in self.others]
        schedule = schedule.split("result", rows, self.partitions, "ro", "ri")
        schedule = schedule.reorder("result", ("ro", "ri", *inner))
        for stage in self.compute.stages[:-1]:
            names = [a.name for a in stage.axes]
            whole = stage.name == "row" or stage.name.endswith(".rows")
            if stage.name == "row":
                names = [beside, *(name for name in names if name != beside)]
                schedule = schedule.reorder("row", tuple(names))
            elif stage.reduce_axes:
                over = tuple(a.name for a in stage.reduce_axes)
                schedule = schedule.reorder(stage.name, (*over, *names))
            place = ("result", "ro") if whole else ("row", beside)
            schedule = schedule.compute_at(stage.name, *place, "sbuf")
        copies = structure.integer("copies")
        schedule = schedule.interleave("result", "ro").interleave("row", beside)
        return schedule.pipeline("result", "ro", copies).pipeline("row", beside, copies)


def _passes(stage: Stage) -> tuple[int, int]:
    """Instructions of the vector and of the scalar engine, at most.

    A function of one argument is the scalar engine's, with an operation on its argument (a scale or
    a bias of the row) and with the sum of its results; all else is the vector engine's.
    """
    operation = simplify(stage.value)
    last = operation is not None and operation[0] in UNARY
    vector, scalar = _instructions(stage.value)
    return vector + (bool(stage.reduce_axes) and not (last and stage.reducer == "sum")), scalar


def _instructions(value: Scalar) -> tuple[int, int]:
    """Those of an expression: see `_passes`."""
    call = simplify(value)
    if call is None:
        return 0, 0
    function, arguments = call
    if function in UNARY:
        (argument,) = arguments
        inside = argument.arguments if isinstance(argument, Call) else ()
        parts = [_instructions(a) for a in (inside if len(inside) == 2 else arguments)]
    else:
        parts = [_instructions(a) for a in arguments]
    own = (0, 1) if function in UNARY else (1, 0)
    return sum(p[0] for p in parts) + own[0], sum(p[1] for p in parts) + own[1]


def _run(target: Target, nbytes: int) -> float:
    """What a run of bytes costs, in bytes."""
    return nbytes + target.number("dma.row_overhead_bytes")


def chosen(subspace: Subspace, knob: str, value: int) -> Subspace:
    """A subspace with one more knob that is fixed."""
    return replace(subspace, fixed=tuple(sorted((*subspace.fixed, (knob, value)))))


def longest(compute: ComputeDefinition) -> int:
    """Elements of a row that a stage goes over, of the longest."""
    return max(
        prod(a.extent.constant or PIECE for a in (*stage.axes[1:], *stage.reduce_axes))
        for stage in compute.stages
    )


def folds(compute: ComputeDefinition) -> tuple[int, ...]:
    """Numbers of rows to a partition beside 1: those that divide them, as far as runs are not much
    longer than what one costs anyway; none where a stage uses the number of its row."""
    rows, *_ = compute.output.axes
    extent = rows.extent.constant
    if extent is None or any(a.extent.constant is None for s in compute.stages for a in s.axes):
        return ()
    having = set(_with_rows(compute))
    for stage in compute.stages:
        for load in loads(stage.value):
            rest = load.indices[1:] if load.buffer in having else load.indices
            if any(rows.name in index.variables() for index in rest):
                return ()
    most = min(PIECE * 2 // longest(compute), extent)
    return tuple(n for n in divisors(extent, max(1, most)) if n > 1)


def _with_rows(compute: ComputeDefinition) -> list[str]:
    """Names of the tensors and stages that are read by rows."""
    rows, *_ = compute.output.axes
    return [
        load.buffer
        for stage in compute.stages
        for load in loads(stage.value)
        if load.indices[:1] == (rows.var,)
    ]


def beside(compute: ComputeDefinition, n: int) -> ComputeDefinition:
    """The computation with its first axis, the rows, as two: blocks of `n`, and rows in one."""
    if n == 1:
        return compute
    rows, *_ = compute.output.axes
    extent = rows.extent.constant or 1
    outer, inner = axis(rows.name, extent // n), axis(f"{rows.name}.p", n)
    having = set(_with_rows(compute))

    def access(load: Load) -> Load:
        if load.buffer not in having:
            return load
        return Load(load.buffer, (outer.var, inner.var, *load.indices[1:]))

    def tensor(old: Tensor) -> Tensor:
        if old.name not in having:
            return old
        return replace(old, extents=(extent // n, n, *old.shape[1:]))

    def stage(old: Stage) -> Stage:
        value = rewrite(old.value, lambda index: index, access)
        return replace(old, axes=(outer, inner, *old.axes[1:]), value=value)

    inputs, stages = map(tensor, compute.inputs), map(stage, compute.stages)
    return replace(compute, inputs=tuple(inputs), stages=tuple(stages))
