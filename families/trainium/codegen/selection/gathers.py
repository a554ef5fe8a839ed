"""Rows picked by index: DMA whose addresses are in SBUF.

    tile[p, t] = x[o, indices[i + p], t]

The indices of up to 128 rows come to SBUF, one on each partition; negative ones have the axis's
extent added, others are clipped to it (whole numbers below 2**24 are exact in fp32, which engines
compute in); then DMA fetches each partition's row from where its index says.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tilesmith.families.trainium.codegen.isa.memory import HbmView, Tile
from tilesmith.families.trainium.codegen.kernel.builder import Buffers, Kernel
from tilesmith.families.trainium.codegen.selection.loop_nests import nests
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import ZERO, Atom, Expr
from tilesmith.search_space.expressions.scalar import Load
from tilesmith.search_space.ir.program import Block, Buffer, Loop
from tilesmith.search_space.support.errors import CodegenError

LARGEST_EXTENT = 1 << 24
"""Whole numbers from here on are not exact in fp32."""


@dataclass(frozen=True)
class GatherNest:
    """A planned gather.

    Attributes:
        fixed: loops run outside: those that extents depend on.
        rows: the loop on partitions, which the index follows ("" if there is one row).
        index: the atom of the tensor of indices: its name, where it is read, the axis's extent.
        pitch: elements from one row of the axis to the next.
        offset: of the source with index zero; target: of the tile, without its partition.
    """

    loops: tuple[Loop, ...]
    extents: tuple[nests.Evaluate, ...]
    fixed: frozenset[str]
    rows: str
    index: Atom
    pitch: int
    source: Buffer
    offset: Expr
    tile: Buffer
    partition: Expr
    target: Expr


def plan_gather(
    loops: tuple[Loop, ...], block: Block, buffers: Mapping[str, Buffer]
) -> GatherNest | None:
    """Plan a nest that copies rows picked by a tensor of indices to SBUF, else None.

    Raises:
        CodegenError: the index does not follow the partitions, or its axis is too long.
    """
    value = block.value
    if not isinstance(value, Load) or block.reducer is not None:
        return None
    places = [d for d, e in enumerate(value.indices) if any(a.kind == "element" for a in e.atoms())]
    if not places:
        return None
    (place,) = places
    atoms = [a for a in value.indices[place].atoms() if a.kind == "element"]
    source, tile = buffers[value.buffer], buffers[block.buffer]
    single = {loop.variable: 0 for loop in loops if loop.extent.constant == 1}
    offset, pitch = _flat(value.indices, source, place)
    inner = {loop.variable for loop in loops} - set(single)
    rows = block.indices[0].substitute(single).variables() & inner
    index = atoms[0].left
    assert index is not None and atoms[0].right is not None
    if (
        tile.scope != "sbuf"
        or index.substitute(single).variables() & inner != rows
        or len(rows) > 1
    ):
        raise CodegenError(f"stage '{block.stage}' must have what it picks by index on partitions")
    if nests.integer(atoms[0].right, "the extent picked from") >= LARGEST_EXTENT:
        raise CodegenError(
            f"stage '{block.stage}' picks from {atoms[0].right} rows; at most {LARGEST_EXTENT - 1}"
        )
    target, _ = _flat(block.indices[1:], tile, None)
    names = {loop.variable for loop in loops}
    return GatherNest(
        loops,
        tuple(nests.compile_expression(loop.extent) for loop in loops),
        frozenset(n for loop in loops for n in loop.extent.variables() if n in names),
        next(iter(rows), ""),
        atoms[0],
        pitch,
        source,
        offset.substitute(single),
        tile,
        block.indices[0].substitute(single),
        target.substitute(single),
    )


def _flat(indices: tuple[Expr, ...], buffer: Buffer, place: int | None) -> tuple[Expr, int]:
    """Element offset without index `place`, and the step of that one."""
    offset, step, pitch = ZERO, 1, 0
    extents = buffer.shape[len(buffer.shape) - len(indices) :]
    for d in range(len(indices) - 1, -1, -1):
        if d == place:
            pitch = step
        else:
            offset = offset + indices[d] * step
        step *= nests.integer(extents[d], f"the shape of '{buffer.name}'")
    return offset, pitch


class Gathers:
    """Emits planned gathers into a kernel.

    Args:
        tiles: the tile each buffer has at present.
        views: tensors in HBM by name.
    """

    def __init__(
        self, kernel: Kernel, tiles: Mapping[str, Tile], views: Mapping[str, HbmView]
    ) -> None:
        self.kernel, self.tiles, self.views = kernel, tiles, views
        self.pools: dict[str, Buffers] = {}

    def emit(self, nest: GatherNest, env: nests.Environment, sizes: dict[str, int]) -> None:
        """A nest at one point of its outer loops; `sizes` are its free loops."""
        rows = sizes.get(nest.rows, 1)
        at = {**env, **dict.fromkeys(sizes, 0)}
        places = self.indices(nest, at, rows)
        free = [(n, s) for n, s in sizes.items() if n != nest.rows and s > 1]
        whole, source = self.tiles[nest.tile.name], self.views[nest.source.name]
        target = int(nests.compile_expression(nest.target)(at)) * size_of(whole.dtype)
        first = whole.partition + int(nests.compile_expression(nest.partition)(at))
        dims = tuple((count, self._step(nest.target, name, at)) for name, count in free)
        out = Tile(
            whole.name, whole.space, whole.allocation, whole.dtype, first, rows,
            whole.offset + target, dims or ((1, 1),),
        )  # fmt: skip
        steps = tuple((count, self._step(nest.offset, name, at)) for name, count in free)
        offset = int(nests.compile_expression(nest.offset)(at))
        view = HbmView(source.name, source.tensor, source.dtype, offset, ((rows, 0), *steps))
        assert nest.index.right is not None
        self.kernel.gather(out, view, places, nest.pitch, nest.index.right.constant or 1)

    @staticmethod
    def _step(expression: Expr, name: str, env: nests.Environment) -> int:
        evaluate = nests.compile_expression(expression)
        return int(evaluate({**env, name: 1}) - evaluate(env))

    def indices(self, nest: GatherNest, env: nests.Environment, rows: int) -> Tile:
        """The indices of `rows` rows in SBUF, [rows, 1], all within their axis."""
        kernel, view = self.kernel, self.views[nest.index.name]
        assert nest.index.left is not None and nest.index.right is not None
        offset = int(nests.compile_expression(nest.index.left)(env))
        last = (nest.index.right.constant or 1) - 1
        raw = self._column("index", view.dtype, rows)
        kernel.load(raw, HbmView(view.name, view.tensor, view.dtype, offset, ((rows, 1),)))
        value, wrap = (self._column(name, "float32", rows) for name in ("index.value", "wrap"))
        kernel.copy(value, raw)
        kernel.tensor_scalar(wrap, value, "is_ge", 0.0, "multiply", -float(last + 1))
        kernel.scalar_tensor_tensor(value, wrap, "add", float(last + 1), "add", value)
        kernel.tensor_scalar(value, value, "max", 0.0, "min", float(last))
        column = self._column("index.place", "int32", rows)
        kernel.copy(column, value)
        return column

    def _column(self, name: str, dtype: str, rows: int) -> Tile:
        """A [rows, 1] tile in the next of two places."""
        if name not in self.pools:
            partitions = self.kernel.core.sbuf_partitions
            self.pools[name] = self.kernel.buffers(2, (partitions, 1), dtype, name)
        return self.pools[name].next()[:rows]
