"""Tiles of numbers that depend on the position only: identities, triangles.

t[p, f] = a if i(p, f) >= 0 and ... else b        MEMSET, then a SELECT for each condition
"""

from dataclasses import dataclass

from tilesmith.families.trainium.codegen.selection.loop_nests.nests import (
    Environment,
    PlannedNest,
    compile_expression,
)
from tilesmith.families.trainium.codegen.selection.loop_nests.operands import Operands
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import Const, Select
from tilesmith.search_space.support.errors import CodegenError


@dataclass
class PositionEmitter:
    """Emits nests that choose between two numbers (specification `select`)."""

    operands: Operands

    def emit(self, nest: PlannedNest, env: Environment, sizes: dict[str, int]) -> None:
        """One tile of at most one free axis.

        Raises:
            CodegenError: it has more, or a condition is not affine.
        """
        value, kernel = nest.block.value, self.operands.kernel
        assert isinstance(value, Select)
        assert isinstance(value.then, Const) and isinstance(value.otherwise, Const)
        row = self.operands.partition(nest.write, sizes)
        free = [(name, size) for name, size in sizes.items() if name != row and size > 1]
        if len(free) > 1:
            raise CodegenError(f"stage '{nest.block.stage}' chooses numbers over several free axes")
        tile = self.operands.tile_view(nest.write, env, row, free, sizes.get(row, 1))
        kernel.memset(tile, value.then.value, engine="gpsimd")
        for condition in value.condition:
            base = compile_expression(condition)({**dict.fromkeys(sizes, 0), **env})
            channel = _step(condition, row)
            step = _step(condition, free[0][0]) if free else 0
            kernel.select(tile, tile, base, channel, step, value.otherwise.value)


def _step(condition: Expr, name: str) -> int:
    if not name:
        return 0
    factor = condition.coefficient(name)
    if factor is None or factor.constant is None:
        raise CodegenError(f"condition {condition} >= 0 is not affine in '{name}'")
    return factor.constant
