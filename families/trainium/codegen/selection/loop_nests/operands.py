"""The operands of a nest as views: where each buffer of the program stands at the moment.

Invariant: `tiles` holds, for every buffer on chip, the tile its last allocation gave it.
"""

from dataclasses import dataclass, field

from tilesmith.families.trainium.codegen.isa.instructions import DTYPES, Space
from tilesmith.families.trainium.codegen.isa.memory import Dims, HbmView, Tile
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.codegen.selection.loop_nests.nests import Environment, NestAccess
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.support.errors import CodegenError

SPACES = {"sbuf": Space.SBUF, "psum": Space.PSUM}


@dataclass
class Operands:
    """Tensors (`views`) and tiles by buffer name.

    Attributes:
        started: for each tile in PSUM (by allocation), the parts that a matmul has written, as
            partition, offset and axes.
    """

    kernel: Kernel
    views: dict[str, HbmView] = field(default_factory=dict)
    tiles: dict[str, Tile] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=lambda: {name: size_of(name) for name in DTYPES})
    started: dict[int, set[tuple[int, int, Dims]]] = field(default_factory=dict)

    def restart(self, view: Tile) -> None:
        """Nothing counts as written of the bytes from the first to the last of a view."""
        size = self.sizes[view.dtype]
        stop = view.offset + size * sum((count - 1) * step for count, step in view.dims)
        parts = self.started.setdefault(view.allocation, set())
        parts -= {part for part in parts if view.offset <= part[1] <= stop}

    def tile_view(
        self,
        access: NestAccess,
        env: Environment,
        partition: str,
        dims: list[tuple[str, int]],
        rows: int,
    ) -> Tile:
        """The part of a tile that `rows` of loop `partition` and the loops `dims` touch."""
        whole = self.tiles[access.buffer.name]
        strides = [(count, access.strides.get(name, 0)) for name, count in dims]
        offset = access.offset(env)
        for name in access.strides:
            if name in env:
                offset += access.strides[name] * env[name]
        row = access.row(env)
        for name in access.row_strides:
            if name in env and name != partition:
                row += access.row_strides[name] * env[name]
        return Tile(
            whole.name, whole.space, whole.allocation, whole.dtype, whole.partition + row, rows,
            whole.offset + offset * self.sizes[whole.dtype], tuple(strides) or ((1, 1),),
        )  # fmt: skip

    def hbm_view(
        self, access: NestAccess, env: Environment, dims: list[tuple[str, int]]
    ) -> HbmView:
        """The part of a tensor that the loops `dims` touch, the first of them on partitions."""
        whole = self.views[access.buffer.name]
        offset = access.offset(env)
        for name in access.strides:
            if name in env:
                offset += access.strides[name] * env[name]
        strides = tuple((count, access.strides.get(name, 0)) for name, count in dims)
        return HbmView(whole.name, whole.tensor, whole.dtype, offset, strides)

    def partition(self, access: NestAccess, sizes: dict[str, int]) -> str:
        """The loop on the partitions of an access ("" if it has one partition only)."""
        names = [name for name in access.row_strides if sizes.get(name, 1) > 1]
        if len(names) > 1 or any(access.row_strides[name] != 1 for name in names):
            raise CodegenError(
                f"buffer '{access.buffer.name}' must have one unit-stride loop on its partitions"
            )
        return names[0] if names else ""
