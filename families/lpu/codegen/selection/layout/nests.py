"""Perfect nests: loops around one block, one of them along the lanes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilesmith.families.lpu.schedules.building_blocks.machine import INTRINSICS
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.scalar import Call, Index, Load, Scalar, Select, call
from tilesmith.search_space.ir.intrinsics import IntrinsicSpec, fits
from tilesmith.search_space.ir.program import Block, Buffer, Intrinsic, Loop, Statement
from tilesmith.search_space.support.errors import CodegenError


@dataclass(frozen=True)
class VectorNest:
    """Loops (outermost first) around a block.

    Attributes:
        spec: the instruction that the block is.
    """

    loops: tuple[Loop, ...]
    block: Block
    spec: IntrinsicSpec

    def without(self, *names: str) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if loop.variable not in names)

    def loop(self, name: str) -> Loop:
        return next(loop for loop in self.loops if loop.variable == name)


def nest_of(statement: Statement, buffers: Mapping[str, Buffer]) -> VectorNest | None:
    """A statement as a nest, or None; a loop that is unrolled is run, whatever it holds.

    Raises:
        CodegenError: it is a nest of something that no instruction computes.
    """
    loops: list[Loop] = []
    inner = statement.body if isinstance(statement, Intrinsic) else statement
    while isinstance(inner, Loop):
        if inner.kind == "unroll":
            return None
        loops.append(inner)
        inner = inner.body
    if not isinstance(inner, Block):
        return None
    plain = replace(inner, value=_chosen(inner.value))
    for spec in INTRINSICS:
        if fits(spec, inner, buffers) or (spec.pointwise and fits(spec, plain, buffers)):
            return VectorNest(tuple(loops), inner, spec)
    known = ", ".join(f"{spec.name} ({spec})" for spec in INTRINSICS)
    raise CodegenError(
        f"stage '{inner.stage}' has no instruction for {inner.write} "
        f"{'=' if inner.reducer is None else inner.reducer + '='} {inner.value}; there are {known}"
    )


def _chosen(value: Scalar) -> Scalar:
    """An expression whose choices by position are functions: a mask is an operand of VXM."""
    match value:
        case Select(condition, then, otherwise):
            return call("where", Index(condition[0]), _chosen(then), _chosen(otherwise))
        case Call(name, arguments):
            return Call(name, tuple(map(_chosen, arguments)))
        case _:
            return value


def lane_loop(nest: VectorNest, access: Load) -> str:
    """The loop along the lanes of an access: the innermost that moves its last index lane by lane
    and nothing else of it; "" if none does."""
    if not access.indices:
        return ""
    *lead, last = access.indices
    for loop in reversed(nest.loops):
        name = loop.variable
        factor = last.coefficient(name) if name in last.variables() else None
        if factor is not None and factor.constant == 1 and not _among(name, lead):
            return name
    return ""


def _among(name: str, indices: list[Expr]) -> bool:
    return any(name in index.variables() for index in indices)
