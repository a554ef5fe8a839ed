"""Which instruction a nest is: the specifications of the family, matched.

A specification (`search_space.ir.intrinsics`) fits by its form and by the memories its operands are
in; which loops run along partitions has to agree with it, too:

    psum[f, p] = sbuf[p, f]     tensor.transpose: other loops on the partitions of either side
    psum[p, f] = sbuf[p, f]     pointwise: the same loop on both

Invariant: a nest is matched once, when it is planned, and not again when it is emitted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilesmith.families.trainium.codegen.selection.copies import CopyNest, plan_copy
from tilesmith.families.trainium.codegen.selection.gathers import GatherNest, plan_gather
from tilesmith.families.trainium.codegen.selection.loop_nests import nests
from tilesmith.families.trainium.schedules.building_blocks.machine import INTRINSICS
from tilesmith.search_space.expressions.scalar import Select
from tilesmith.search_space.ir.intrinsics import IntrinsicSpec, fits, operands
from tilesmith.search_space.ir.program import Block, Buffer, Intrinsic, Statement
from tilesmith.search_space.support.errors import CodegenError

AnyNest = nests.PlannedNest | CopyNest | GatherNest


@dataclass(frozen=True)
class Selected:
    """A planned nest, and the instruction that it is."""

    spec: IntrinsicSpec
    nest: AnyNest


def select(statement: Statement, buffers: Mapping[str, Buffer]) -> Selected | None:
    """The instruction that a statement is, its nest planned; None for what is no perfect nest.

    Args:
        buffers: those in sight.

    Raises:
        CodegenError: no instruction does this, or none from there.
    """
    matched = nests.match_nest(statement)
    if matched is None:
        return None
    loops, block = matched
    nest = (
        plan_gather(loops, block, buffers)
        or plan_copy(loops, block, buffers)
        or nests.plan_nest(loops, block, buffers)
    )
    for spec in fitting(block, buffers):
        named = not isinstance(statement, Intrinsic) or statement.name == spec.name
        if named and _stands(spec, nest):
            return Selected(spec, nest)
    raise CodegenError(_refusal(block, buffers))


def fitting(block: Block, buffers: Mapping[str, Buffer]) -> Iterator[IntrinsicSpec]:
    """The specifications that a block fits by its form and the memories of its operands."""
    return (spec for spec in INTRINSICS if fits(spec, block, buffers))


def specification(block: Block, buffers: Mapping[str, Buffer]) -> IntrinsicSpec | None:
    """The first of them: of a symbolic program, as long as loops are not dealt to partitions."""
    return next(fitting(block, buffers), None)


def _stands(spec: IntrinsicSpec, nest: AnyNest) -> bool:
    """Whether operands on chip have the same loops on their partitions where the specification has
    the same dimension there, and other loops where it has another.
    """
    if not isinstance(nest, nests.PlannedNest):
        return True
    places: dict[str, frozenset[str]] = {}
    for _, pattern, access in operands(spec, nest.block) or ():
        reached = nest.write if access == nest.block.write else nest.reads[access]
        if not pattern.indices or reached.buffer.scope not in ("sbuf", "psum"):
            continue
        loops = _on_partitions(reached)
        if places.setdefault(str(pattern.indices[0]), loops) != loops:
            return False
    together = [name for loops in places.values() for name in loops]
    return len(together) == len(set(together))


def _on_partitions(access: nests.NestAccess) -> frozenset[str]:
    """Loops along the partitions of an access; those that skip partitions are run one by one."""
    return frozenset(name for name, step in access.row_strides.items() if step == 1)


def _refusal(block: Block, buffers: Mapping[str, Buffer]) -> str:
    places = ", ".join(
        f"'{name}' in {buffers[name].scope}"
        for name in dict.fromkeys(access.buffer for access, _ in block.accesses())
    )
    reason = "chooses by position; " if isinstance(block.value, Select) else ""
    return (
        f"stage '{block.stage}': {block.value} {reason}no instruction computes that with {places}; "
        f"there are {', '.join(spec.name for spec in INTRINSICS)}"
    )
