"""Matrix products on CPUs in matrix registers (AMX).

    a.tiles = a in tiles of rows x products, in zeros                       (or as it is)
    b.tiles = b in panels, its neighbours along k side by side, in zeros    (once for constant b)
    for blocks of rows and panels of columns:
      allocate products[m_tiles, n_tiles, 16, 16] in amx;  products = 0     (tile_zero)
      for tiles along k:
        products += a.tiles b.tiles                                         (tile_multiply)
      sums = products                                                       (tile_store)
      c = epilogue(sums), those inside the matrix

Everything is padded to whole tiles, so every instruction sees one shape and the processor is told
of it once; whole tiles of a may be read where they lie (`pack_a`). Two by two accumulators read
each operand twice (Intel's optimization manual, chapter on AMX); every load of an operand is one of
a kilobyte that lies together, or of rows of a panel.
"""

from dataclasses import replace

from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import Expr, as_expr, ceildiv, var
from tilesmith.search_space.expressions.scalar import Const, Load, Scalar, Select, load
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.matrix_registers import tile_product
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.operator_parts.fusion import epilogue_tensors, epilogue_value
from tilesmith.search_space.operator_parts.integer_products import product_stage
from tilesmith.search_space.schedules.cpu.vectorisation.dot_products import grouped
from tilesmith.search_space.schedules.cpu.vectorisation.register_tiles import (
    registers_of,
    tile_knobs,
    tile_limit,
)
from tilesmith.search_space.scheduling.compute import Axis, ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.layout import Layout, LayoutDimension
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.spaces.knobs import block_counts, choice
from tilesmith.search_space.spaces.space import Subspace
from tilesmith.search_space.workloads.scheduler import Panels
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

ALGORITHM = "tiles"


def applies(workload: Workload, target: Target) -> bool:
    """Whether the target has an instruction for the operands' element types."""
    a, b = template_of("matmul").inputs(workload)
    return tile_product(target, a.dtype, b.dtype) is not None


def subspace(workload: Workload, target: Target) -> Subspace:
    """The knobs; operands need a tile for each column of the accumulators, and one more."""
    tiles = registers_of(target)
    down = -(-workload.integer("m") // tiles.rows)
    across = -(-workload.integer("n") // (tiles.row_bytes // 4))
    knobs = (
        choice("pack_a", ("none", "tiles") if _whole(workload, target) else ("tiles",)),
        *tile_knobs(down, across),
    )
    return Subspace((("algorithm", ALGORITHM),), knobs, (tile_limit(tiles),))


def default(workload: Workload, target: Target) -> Config:
    """Two by two tiles, a panel of b against all rows."""
    tiles = registers_of(target)
    down = -(-workload.integer("m") // tiles.rows)
    across = -(-workload.integer("n") // (tiles.row_bytes // 4))
    return Config.of(
        algorithm=ALGORITHM,
        pack_a="none" if _whole(workload, target) else "tiles",
        block_order="m,n" if down == 1 else "n,m",
        tile_order="nm",
        m_tiles=min(2, down),
        n_tiles=min(2, across),
        m_block=block_counts(down)[-1],
        n_block=1,
    )


def schedule(workload: Workload, target: Target, structure: Config) -> Schedule:
    """See the module's docstring."""
    form = _Form(workload, target, structure.text("pack_a") == "tiles")
    schedule = form.packed(Schedule(form.compute))
    for loop, size, count, block in (
        ("i", form.rows, var("m_tiles"), "m_block"),
        ("j", form.columns, var("n_tiles"), "n_block"),
    ):
        schedule = schedule.split("products", loop, size, f"{loop}t", f"{loop}l")
        schedule = schedule.split("products", f"{loop}t", count, f"{loop}t", f"{loop}i")
        schedule = schedule.split("products", f"{loop}t", var(block), f"{loop}o", f"{loop}m")
    schedule = schedule.split("products", "k", form.products, "k", "kp")
    schedule = schedule.split("products", "k", form.depth // form.products, "kt", "kq")
    batch = ("b",) if form.lead else ()
    outer = [{"m": "io", "n": "jo"}[x] for x in structure.text("block_order").split(",")]
    middle = ["im", "jm"] if structure.text("tile_order") == "mn" else ["jm", "im"]
    inner = ("kt", "ii", "ji", "il", "jl", "kq", "kp")
    schedule = schedule.reorder("products", (*batch, *outer, *middle, *inner))
    schedule = schedule.unroll("products", "ii", "ji")
    schedule = schedule.tensorize("products", "il", form.instruction, "tile_zero")
    schedule = schedule.cache_write("products", "amx", middle[-1])
    schedule = schedule.reverse_compute_at("sums", "products", middle[-1])
    schedule = schedule.tensorize("sums", "il", "tile_store")
    last = form.compute.output.name
    schedule = schedule.reverse_compute_at(last, "sums", middle[-1]).vectorize(last, "jl")
    return schedule.parallel("products", *batch, *outer)


def panels(workload: Workload, target: Target, config: Config, axis: int) -> Panels:
    """How b.tiles hold b, whose columns are `axis`."""
    form = _Form(workload, target, pack_a=False)
    block = config.integer("n_tiles") * form.columns
    return Panels(axis, block, "b.tiles", form.products, form.depth)


def _whole(workload: Workload, target: Target) -> bool:
    """Whether a, as it lies in memory, is whole tiles."""
    tiles, (a, _) = registers_of(target), template_of("matmul").inputs(workload)
    depth = tiles.row_bytes // size_of(a.dtype)
    m, k = (workload.integer(name) for name in "mk")
    return not workload.integer("ta") and m % tiles.rows == 0 and k % depth == 0


class _Form:
    """The stages of one product, padded to whole tiles, and the numbers they are made of."""

    def __init__(self, workload: Workload, target: Target, pack_a: bool) -> None:
        self.workload, self.template = workload, template_of("matmul")
        self.pack_a = pack_a
        tiles, (a, b) = registers_of(target), self.template.inputs(workload)
        instruction = tile_product(target, a.dtype, b.dtype)
        assert instruction is not None, workload
        self.products = instruction.products
        self.lanes = vector_width(target)
        self.rows, self.columns = tiles.rows, tiles.row_bytes // 4
        self.depth = tiles.row_bytes // size_of(a.dtype)
        self.whole = instruction.accumulator == "int32"
        self.instruction = "tile_multiply_whole" if self.whole else "tile_multiply"
        batch = workload.extent("batch")
        self.lead = () if batch == 1 else (axis("b", batch),)
        self.a, self.b = (
            Tensor(o.name, o.extents, o.dtype, workload.is_constant(o.name)) for o in (a, b)
        )

    @property
    def compute(self) -> ComputeDefinition:
        """Stages a.tiles, b.tiles, products, sums and the result, named as elsewhere."""
        workload = self.workload
        m, n, k = (as_expr(workload.extent(name)) for name in "mnk")
        i, j = self._padded("i", m, self.rows), self._padded("j", n, self.columns)
        depth = self._padded("k", k, self.depth)
        ahead = tuple(x.var for x in self.lead)
        ta, tb = (bool(workload.integer(name)) for name in ("ta", "tb"))
        left = self._in_zeros(self.a, (i, m), (depth, k), ta)
        right = self._in_zeros(self.b, (depth, k), (j, n), tb)
        x = load("a.tiles" if self.pack_a else "a", *ahead, i.var, depth.var)
        y = load("b.tiles", *ahead, depth.var, j.var)
        axes = (*self.lead, i, j)
        products = product_stage(workload, "products", axes, x, y, (depth,))
        at = tuple(x.var for x in axes)
        sums = Stage("sums", axes, Load("products", at), dtype=products.dtype)
        result = self._result(axes, (m, n))
        tensors = (self.a, self.b, *epilogue_tensors(self.template, workload))
        packed = (left, right) if self.pack_a else (right,)
        return ComputeDefinition("matmul", tensors, (*packed, products, sums, result))

    def _padded(self, name: str, extent: Expr, unit: int) -> Axis:
        return axis(name, ceildiv(extent, as_expr(unit)) * unit)

    def _in_zeros(
        self, tensor: Tensor, row: tuple[Axis, Expr], column: tuple[Axis, Expr], turned: bool
    ) -> Stage:
        """`a.tiles`: a matrix (stored transposed where `turned`) up to whole tiles.

        Args:
            row, column: axis of whole tiles, and where the matrix ends.
        """
        name = tensor.name
        lead = tuple(axis(f"{name}b", x.extent) for x in self.lead)
        (r, rows), (c, columns) = row, column
        own = replace(r, name=f"{name}r"), replace(c, name=f"{name}c")
        y, x = (a.var for a in own)
        value: Scalar = load(tensor.name, *(a.var for a in lead), *((x, y) if turned else (y, x)))
        ends = ((y, rows, r), (x, columns, c))
        inside = tuple(end - 1 - at for at, end, whole in ends if whole.extent != end)
        if inside:
            value = Select(inside, value, Const(0.0))
        return Stage(f"{name}.tiles", (*lead, *own), value, dtype=tensor.dtype)

    def _result(self, axes: tuple[Axis, ...], shape: tuple[Expr, Expr]) -> Stage:
        """The epilogue of what lies inside the matrix."""
        at = tuple(x.var for x in axes)
        value = epilogue_value(self.template, self.workload, at, Load("sums", at))
        name = "out" if self.workload.epilogue else "c"
        dtype = self.template.result_dtype(self.workload)
        i, j = axes[-2:]
        inside = tuple(
            end - 1 - a.var for a, end in zip((i, j), shape, strict=True) if a.extent != end
        )
        whole = (*(x.extent for x in self.lead), *shape)
        return Stage(name, axes, value, store=at, shape=whole, guard=inside, dtype=dtype)

    def packed(self, schedule: Schedule) -> Schedule:
        """a.tiles[i/rows, k/depth, i%rows, k%depth] and b.tiles in panels (batch first)."""
        rank, lanes = 2 + len(self.lead), self.lanes
        panel = var("n_tiles") * self.columns
        layout = grouped(rank, rank - 1, rank - 2, panel, self.products)
        schedule = schedule.set_layout("b.tiles", layout)
        schedule = schedule.split("b.tiles", "bc", lanes, "pv", "pl")
        schedule = schedule.split("b.tiles", "pv", var("n_tiles"), "pt", "pi")
        schedule = schedule.split("b.tiles", "br", self.products, "pk", "pp")
        schedule = schedule.reorder("b.tiles", ("pt", "pk", "pi", "pp", "pl")).unroll(
            "b.tiles", "pp"
        )
        schedule = schedule.vectorize("b.tiles", "pl").tensorize("b.tiles", "pp", "interleave")
        if self.pack_a:
            schedule = schedule.set_layout("a.tiles", self._tile_layout(rank))
            schedule = schedule.split("a.tiles", "ar", self.rows, "ro", "ri")
            schedule = schedule.split("a.tiles", "ac", lanes, "co", "cl").vectorize("a.tiles", "cl")
        for name, loop in (("a", "ro"), ("b", "pt"))[not self.pack_a :]:
            if self.workload.is_constant(name):
                schedule = schedule.compile_time(f"{name}.tiles")
            else:
                schedule = schedule.parallel(
                    f"{name}.tiles", *((f"{name}b",) if self.lead else ()), loop
                )
        return schedule

    def _tile_layout(self, rank: int) -> Layout:
        row, depth = as_expr(self.rows), as_expr(self.depth)
        return Layout(
            (
                *(LayoutDimension(x) for x in range(rank - 2)),
                LayoutDimension(rank - 2, "outer", row),
                LayoutDimension(rank - 1, "outer", depth),
                LayoutDimension(rank - 2, "inner", row),
                LayoutDimension(rank - 1, "inner", depth),
            )
        )
