"""Groups of elementwise operators that become one kernel each.

A group is its last operator's formula and the groups that are computed inside it. Whether another
may join is known by counts alone - how often each tensor is read, how deep it stands, which type
the whole has - so that a chain of n operators costs n; the whole formula is composed, typed and
printed once, when nothing more joins. Invariant: `formula()` of a group has the operands
`FormulaGroup.uses`, in that order, the depth `FormulaGroup.depth` and the type
`FormulaGroup.dtype`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilesmith.compiler.graph.graph import Node, TensorInfo
from tilesmith.compiler.graph.sources import together
from tilesmith.search_space.expressions.dtypes import is_floating, is_narrow
from tilesmith.search_space.expressions.scalar import Call, Load, Scalar, call
from tilesmith.search_space.operator_parts.formula import (
    DEEPEST,
    formula_text,
    operand,
    parse_formula,
    substituted,
)
from tilesmith.search_space.operator_parts.formula_types import NUMBER, is_flag, settled, type_of
from tilesmith.search_space.operators.elementwise import MAXIMUM_OPERANDS
from tilesmith.search_space.support.errors import WorkloadError


@dataclass(frozen=True)
class FormulaGroup:
    """Operators that are one kernel.

    Attributes:
        node: the last of them, which writes `result`.
        own: its formula, over x0, x1, ..., which are the tensors `reads`.
        dtype: the type of the whole formula.
        uses: every tensor that the whole reads, in the kernel's order, and how often it does.
        depths: how many functions stand around each of them at most.
        depth: functions inside each other.
        nodes: all of them.
        inside: what computes tensors of `reads` here, by their names.
    """

    node: Node
    result: TensorInfo
    own: Scalar
    reads: tuple[TensorInfo, ...]
    dtype: str
    uses: Mapping[str, int]
    depths: Mapping[str, int]
    depth: int
    nodes: tuple[Node, ...]
    inside: "Mapping[str, FormulaGroup]" = field(default_factory=dict)

    @classmethod
    def of(
        cls, node: Node, result: TensorInfo, own: Scalar, reads: Sequence[TensorInfo]
    ) -> "FormulaGroup | None":
        """The group of one operator; None where no kernel computes its formula."""
        types = [info.dtype for info in reads]
        try:
            if (dtype := type_of(own, types)) == NUMBER:
                own = settled(own, result.dtype)
                dtype = type_of(own, types)
            parse_formula(formula_text(own))
        except WorkloadError:
            return None
        if not 1 <= len(reads) <= MAXIMUM_OPERANDS or not _gives(dtype, result.dtype):
            return None
        uses = dict.fromkeys((info.name for info in reads), 0)
        depths: dict[str, int] = {}
        depth = 0
        for index, inner in _leaves(own):
            depth = max(depth, inner)
            if index is not None:
                name = reads[index].name
                uses[name] += 1
                depths[name] = max(depths.get(name, 0), inner)
        return cls(node, result, own, tuple(reads), dtype, uses, depths, depth, (node,))

    def joined(self, before: "FormulaGroup") -> "FormulaGroup | None":
        """The group with another in place of a tensor of `reads`; None where no kernel computes it.

        A tensor that is read twice or broadcast on the way, or whose values were rounded, stays
        one, and so does what would make more operands or functions than a kernel has.
        """
        name = before.result.name
        if self.uses.get(name) != 1 or before.result.dims != self.result.dims:
            return None
        above = self.depths[name]
        depth = max(self.depth, above + before.depth)
        if is_narrow(before.result.dtype) or depth > DEEPEST:
            return None
        uses, depths = dict(before.uses), {n: above + d for n, d in before.depths.items()}
        for other, times in self.uses.items():
            if other != name:
                uses[other] = uses.get(other, 0) + times
                depths[other] = max(depths.get(other, 0), self.depths[other])
        inside = {**self.inside, name: before}
        dtype = self._dtype(inside)
        if len(uses) > MAXIMUM_OPERANDS or dtype is None:
            return None
        nodes = (*before.nodes, *self.nodes)
        return replace(
            self, uses=uses, depths=depths, depth=depth, nodes=nodes, inside=inside, dtype=dtype
        )

    def _dtype(self, inside: "Mapping[str, FormulaGroup]") -> str | None:
        """The type of the whole with groups inside; None where a function is not for theirs."""
        types, stand_ins = [], {}
        for index, info in enumerate(self.reads):
            own = inside[info.name].dtype if info.name in inside else info.dtype
            types.append(own or info.dtype)
            if own != info.dtype:
                stand_ins[index] = _stand_in(inside[info.name], index)
        if not stand_ins:
            return self.dtype
        try:
            dtype = type_of(substituted(self.own, stand_ins), types)
        except WorkloadError:
            return None
        return dtype if _gives(dtype, self.result.dtype) else None

    def formula(self) -> Scalar:
        """The whole, over the tensors of `uses`."""
        return self._over({name: operand(i) for i, name in enumerate(self.uses)})

    def _over(self, operands: Mapping[str, Scalar]) -> Scalar:
        names = [info.name for info in self.reads]
        parts = {
            i: self.inside[n]._over(operands) if n in self.inside else operands[n]
            for i, n in enumerate(names)
        }
        return substituted(self.own, parts)

    @property
    def sources(self) -> tuple[str, ...]:
        """The model's nodes that it does the work of."""
        return together(self.nodes)


def _gives(dtype: str, wanted: str) -> bool:
    """Whether a kernel of a formula of this type may write elements of the wanted one."""
    return dtype == wanted or (dtype in (NUMBER, "bool") and is_floating(wanted))


def _stand_in(group: FormulaGroup, index: int) -> Scalar:
    """What has a group's type, which is not its result's, in place of operand number `index`."""
    if group.dtype == NUMBER:
        return call("to_float32", operand(index))
    return call("is_nan", operand(index)) if is_flag(group.own) else operand(index)


def _leaves(formula: Scalar, depth: int = 0) -> list[tuple[int | None, int]]:
    """The number of each operand (None: a number) in it, and how many functions it stands in."""
    if isinstance(formula, Call):
        return [leaf for inner in formula.arguments for leaf in _leaves(inner, depth + 1)]
    return [(int(formula.buffer[1:]) if isinstance(formula, Load) else None, depth)]
