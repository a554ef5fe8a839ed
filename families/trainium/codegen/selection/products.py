"""Matrix products and transposes: what the tensor engine does."""

from dataclasses import dataclass
from itertools import product

from tilesmith.families.trainium.codegen.selection.loop_nests.nests import Environment, PlannedNest
from tilesmith.families.trainium.codegen.selection.loop_nests.operands import Operands
from tilesmith.search_space.support.errors import CodegenError


@dataclass
class Products:
    """Emits MATMUL and TRANSPOSE."""

    operands: Operands

    def matmul(self, nest: PlannedNest, env: Environment, sizes: dict[str, int]) -> None:
        """MATMULs: reduction on partitions, one operand's loop on the result's partitions."""
        first, second = nest.reads.values()
        depth = self.operands.partition(first, sizes)
        column = self.operands.partition(nest.write, sizes)
        if depth != self.operands.partition(second, sizes):
            raise CodegenError(f"stage '{nest.block.stage}': operands reduce over different loops")
        stationary, moving = (first, second)
        free = [n for n in sizes if n in nest.write.strides and n != column]
        if column in second.strides or (
            column not in first.strides and any(n in first.strides for n in free)
        ):
            stationary, moving = second, first
        columns = [(n, sizes[n]) for n in free if sizes[n] > 1]
        reduce = [n for n in sizes if n not in nest.write.strides and n not in (depth, column)]
        for values in product(*(range(sizes[n]) for n in reduce)):
            inner = {**env, **dict(zip(reduce, values, strict=True))}
            k, m = sizes.get(depth, 1), sizes.get(column, 1)
            out = self.operands.tile_view(nest.write, inner, column, columns, m)
            key = (out.partition, out.offset, out.dims)
            begun = self.operands.started[out.allocation]
            self.operands.kernel.matmul(
                out,
                self.operands.tile_view(stationary, inner, depth, [(column, m)], k),
                self.operands.tile_view(moving, inner, depth, columns, k),
                accumulate=key in begun,
            )
            begun.add(key)

    def transpose(self, nest: PlannedNest, env: Environment, sizes: dict[str, int]) -> None:
        """TRANSPOSEs of one tile each."""
        (source,) = nest.reads.values()
        out_rows, in_rows = (
            self.operands.partition(nest.write, sizes),
            self.operands.partition(source, sizes),
        )
        rest = [n for n in sizes if n not in (out_rows, in_rows)]
        for values in product(*(range(sizes[n]) for n in rest)):
            inner = {**env, **dict(zip(rest, values, strict=True))}
            f, p = sizes.get(out_rows, 1), sizes.get(in_rows, 1)
            self.operands.kernel.transpose(
                self.operands.tile_view(nest.write, inner, out_rows, [(in_rows, p)], f),
                self.operands.tile_view(source, inner, in_rows, [(out_rows, f)], p),
            )
