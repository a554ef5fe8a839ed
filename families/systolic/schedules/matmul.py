"""Matrix products on a systolic array with SBUF and PSUM, in the primitives every target shares.

    for blocks of rows and columns:
      load a's block and b's block into SBUF, the reduction on partitions    (dma.load)
      for tiles of m_tile x n_tile:
        for k, k_tile at a time:  psum += stationary.T @ moving               (tensor.matmul)
        tile = epilogue(psum); result = tile                          (pointwise, dma.store)

Every statement is an instruction (`machine.INTRINSICS`). The loops around them are
pipelined: what they allocate has two versions. Limits (array, PSUM bank, partitions, bytes of SBUF)
are the target's.
"""

from collections.abc import Iterable
from dataclasses import replace

from tilesmith.families.systolic.schedules.machine import limits, memories
from tilesmith.search_space.expressions.dtypes import is_floating, size_of
from tilesmith.search_space.expressions.expression import Expr, ceildiv, var
from tilesmith.search_space.expressions.scalar import Load, Scalar, rewrite
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import Constraint, choice, tile, tile_sizes
from tilesmith.search_space.spaces.space import SearchSpace, Subspace
from tilesmith.search_space.workloads.scheduler import Scheduler, schedules
from tilesmith.search_space.workloads.template import compute_of
from tilesmith.search_space.workloads.workload import Workload

STRUCTURE = (("algorithm", "systolic"),)


def _spread(stage: Stage, tensors: Iterable[Tensor]) -> tuple[Stage, ...]:
    """Channel operands repeated over the rows of a tile, one for each partition, and their reader.

    out[i, j] = f(bias[j])  -->  bias.rows[p, j] = bias[j]; out[i, j] = f(bias.rows[i % m_tile, j])
    """
    row, column = stage.axes[-2:]
    partition = axis("p", var("m_tile"))
    copies: list[Stage] = []
    value = stage.value
    for tensor in tensors:
        element = Load(tensor.name, (column.var,))
        spread = Load(f"{tensor.name}.rows", (row.var % partition.extent, column.var))
        copies.append(Stage(spread.buffer, (partition, column), element, dtype=tensor.dtype))
        value = _replace(value, element, spread)
    return (*copies, replace(stage, value=value))


def _replace(value: Scalar, old: Load, new: Load) -> Scalar:
    return rewrite(value, lambda index: index, lambda load: new if load == old else load)


def with_path_out(compute: ComputeDefinition, dtype: str) -> Schedule:
    """The stages of the way out: `sum` (PSUM), `tile` (SBUF, after the epilogue), the result (HBM).

    Without an epilogue `tile` is a plain copy of `sum`.
    """
    *before, last = compute.stages
    if last.reducer is not None:
        return Schedule(compute).cache_result(last.name, "sum").cache_result(last.name, "tile")
    channels = [tensor for tensor in compute.inputs if len(tensor.shape) == 1]
    stages = (*before, *_spread(replace(last, dtype=dtype), channels))
    return Schedule(replace(compute, stages=stages)).cache_result(last.name, "tile")


SHRINKING = ("m_tile", "n_tile")
"""Tiles that need not fill the array where SBUF is small."""


@schedules("matmul", on="systolic")
class SystolicMatmul(Scheduler):
    """See the module's docstring."""

    def refusal(self, workload: Workload, target: Target) -> str | None:
        if is_floating(workload.dtype):
            return None
        return (
            f"operator '{workload.operator}' has no instructions for dtype '{workload.dtype}' on "
            f"target '{target.name}'; a floating one is expected"
        )

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        """Tiles within the array and a PSUM bank, blocks within SBUF."""
        most = limits(target)
        m, n, k = (workload.integer(name) for name in "mnk")
        knobs = (
            choice("block_order", ("m,n", "n,m")),
            tile("m_tile", tile_sizes(m, most["columns"])),
            tile("n_tile", tile_sizes(n, min(most["moving"], memories(target)["psum"].bank // 4))),
            tile("k_tile", tile_sizes(k, most["rows"])),
            tile("m_block", _counts(m)),
            tile("n_block", _counts(n)),
        )
        whole = tuple(
            Constraint(
                var(f"{name}_tile") * var(f"{name}_block") - var(f"{name}_tile"),
                extent - 1,
                f"first row or column of a block's last tile, of {extent}",
                f"choose a smaller {name}_block",
            )
            for name, extent in (("m", m), ("n", n))
        )
        capacity = Constraint(
            sbuf_bytes(workload),
            memories(target)["sbuf"].bytes,
            "bytes of SBUF a partition of both operands' blocks and the result's tile, twice each",
            "choose a smaller m_block or n_block",
        )
        return SearchSpace((Subspace(STRUCTURE, knobs, (*whole, capacity)),))

    def default(self, workload: Workload, target: Target) -> Config:
        """Full array and bank, as far as SBUF holds their tiles; the largest square of these."""
        space = self.space(workload, target)
        (subspace,) = space.subspaces
        largest = {knob.name: knob.values[-1] for knob in subspace.knobs if not knob.structural}
        chosen = Config.of(
            dict(STRUCTURE), block_order="m,n", **{**largest, "m_block": 1, "n_block": 1}
        )
        sizes = {knob.name: knob.values for knob in subspace.knobs if knob.name in SHRINKING}
        while chosen not in space:
            smaller = {n: [v for v in sizes[n] if int(v) < chosen.integer(n)] for n in SHRINKING}
            name = max((n for n in SHRINKING if smaller[n]), key=chosen.integer, default="")
            if not name:
                space.validate(chosen)
            chosen = Config.of({**chosen, name: smaller[name][-1]})
        for blocks in _counts(max(workload.integer("m"), workload.integer("n"))):
            for name in ("m_block", "n_block"):
                wider = Config.of({**chosen, name: blocks})
                chosen = wider if wider in space else chosen
        return chosen

    def schedule(self, workload: Workload, target: Target, structure: Config) -> Schedule:
        """See the module's docstring. Tile and block sizes stay symbols."""
        schedule = with_path_out(compute_of(workload), workload.dtype)
        product = "c" if workload.epilogue else "sum"
        batch = ("b",) if workload.integer("batch") > 1 else ()
        for name, block in (("i", "m"), ("j", "n")):
            schedule = schedule.split(product, name, var(f"{block}_tile"), f"{name}t", f"{name}i")
            blocks = var(f"{block}_block")
            schedule = schedule.split(product, f"{name}t", blocks, f"{name}o", f"{name}m")
        schedule = schedule.split(product, "k", var("k_tile"), "km", "ki")
        outer = ("io", "jo") if structure.text("block_order") == "m,n" else ("jo", "io")
        schedule = schedule.reorder(product, (*batch, *outer, "im", "jm", "km", "ki", "ii", "ji"))
        schedule = schedule.tensorize(product, "ki", "tensor.matmul", "memset")
        schedule = schedule.assign_engine(product, "tensor")
        for loop in (*outer, "jm"):
            schedule = schedule.pipeline(product, loop, 2)
        for operand, loop in (("a", "io"), ("b", "jo")):
            schedule = _operand(schedule, workload, product, operand, loop)
        return _path_out(schedule, workload, product)


def sbuf_bytes(workload: Workload) -> Expr:
    """Bytes of each partition in use at once; everything is double-buffered."""
    size = size_of(workload.dtype)
    steps = ceildiv(workload.integer("k"), var("k_tile"))
    rows, columns = var("m_tile") * var("m_block"), var("n_tile") * var("n_block")
    kinds = [step.kind.operand for step in workload.epilogue]
    beside = var("n_tile") * (1 + kinds.count("full")) + columns * kinds.count("channel")
    return ((rows + columns) * steps + beside) * (2 * size)


def _counts(extent: int) -> list[int]:
    """Numbers of tiles in a block: powers of two."""
    return [1 << e for e in range(extent.bit_length())]


def _operand(
    schedule: Schedule, workload: Workload, product: str, operand: str, loop: str
) -> Schedule:
    """`operand`'s block in SBUF as [k % k_tile, k // k_tile, free], k on partitions."""
    rank = 3 if workload.integer("batch") > 1 else 2
    last = bool(workload.integer("tb")) if operand == "b" else not workload.integer("ta")
    k, free = (rank - 1, rank - 2) if last else (rank - 2, rank - 1)
    copy = f"{operand}.sbuf"
    schedule = schedule.set_scope(operand, "hbm").cache_read(operand, product, copy, "sbuf")
    lead = tuple(LayoutDimension(axis) for axis in range(rank - 2))
    parts = (LayoutDimension(k, "inner", var("k_tile")), LayoutDimension(k, "outer", var("k_tile")))
    schedule = schedule.set_layout(copy, Layout((*parts, *lead, LayoutDimension(free))))
    schedule = schedule.compute_at(copy, product, loop, "sbuf")
    schedule = schedule.split(copy, f"{copy}.{k}", var("k_tile"), f"{copy}.km", f"{copy}.ki")
    first = (f"{copy}.0",) if rank == 3 else ()
    schedule = schedule.reorder(copy, (*first, f"{copy}.km", f"{copy}.ki", f"{copy}.{free}"))
    return schedule.tensorize(copy, f"{copy}.ki", "dma.load").assign_engine(copy, "dma")


def _path_out(schedule: Schedule, workload: Workload, product: str) -> Schedule:
    """PSUM -> epilogue -> SBUF -> HBM, tile by tile, behind the product's loop jm."""
    result = "out" if workload.epilogue else "c"
    schedule = schedule.cache_write(product, "psum", "jm")
    schedule = schedule.reverse_compute_at("tile", product, "jm", "sbuf")
    schedule = schedule.tensorize("tile", "ii", "pointwise").assign_engine("tile", "vector")
    schedule = schedule.reverse_compute_at(result, "tile", "jm")
    schedule = schedule.tensorize(result, "ii", "dma.store").assign_engine(result, "dma")
    for tensor in schedule.compute.inputs:
        if tensor.name in ("a", "b"):
            continue
        schedule = schedule.set_scope(tensor.name, "hbm")
        if len(tensor.shape) == 1:
            copy, first, loop = f"{tensor.name}.rows", "p", "jo"
        else:
            copy, rows, loop = f"{tensor.name}.sbuf", len(tensor.shape) - 2, "jm"
            first = f"{copy}.{rows}"
            schedule = schedule.cache_read(tensor.name, "tile", copy, "sbuf")
            dimensions = (rows, *range(rows), rows + 1)
            layout = Layout(tuple(LayoutDimension(d) for d in dimensions))
            schedule = schedule.set_layout(copy, layout)
        schedule = schedule.compute_at(copy, product, loop, "sbuf")
        schedule = schedule.tensorize(copy, first, "dma.load").assign_engine(copy, "dma")
    return schedule.set_scope(result, "hbm")
