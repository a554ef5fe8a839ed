"""`DimensionMap`: what an operator means for cutting: which axis of its output is which input's.

An operator's dimensions are made of *factors*, as an einsum's are of letters; a MatMul is

    x[m k], w[k n] -> y[m n]       m, n: kept, k: summed

A mesh axis may cut one factor of a node. What each core computes is then the same operator on its
part: of a kept factor its part of the output, of a summed one a term of the sum (the output is
partial). A dimension may be several factors, outermost first: Reshape of (B, S) into B*S rows
is `[b s] -> [(b s)]`. A file in `rules/` says it for one kind of operator; one without a rule is
computed whole on every core. Invariants: a rule describes what the operator computes, never a
mesh; a factor that must not be cut is of kind "whole"; shapes are known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo
from tilesmith.search_space.support.registry import Registry

FactorKind = Literal["kept", "summed", "whole", "averaged", "looked_up"]
"""`averaged`: summed, and divided by its size; `looked_up`: indices point into it, so that a core
finds some of the rows and has zeros for the others."""

SUMS: tuple[FactorKind, ...] = ("summed", "averaged", "looked_up")
"""Factors that leave partial sums when cut."""

Factors = tuple[int, ...]
"""The factors of one dimension by number, outermost first; () for a dimension of length one."""


@dataclass(frozen=True)
class _Factor:
    size: int
    kind: FactorKind = "kept"


class Local(Protocol):
    """What a node that computes one core's part is made with."""

    def info(self, name: str) -> TensorInfo:
        """A tensor as one core has it."""

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape on one core."""

    def constant(self, base: str, value: NDArray[Any]) -> str:
        """A new constant's name, the same on all cores."""

    def tensor(self, base: str, dtype: str, shape: tuple[int, ...]) -> str:
        """A new tensor's name."""

    def pieces(self, factor: int) -> int:
        """Into how many parts a factor is cut."""

    def start(self, factor: int, length: int) -> str:
        """An int64 scalar that differs from core to core: the number of the core's part of a
        factor, times `length`."""


Localise = Callable[[Node, Local], Sequence[Node]]
"""Nodes that compute a node's outputs on one core, of the names that the node has."""


@dataclass(frozen=True)
class DimensionMap:
    """What an operator means for cutting.

    Attributes:
        factors: sizes and kinds.
        inputs: of each input the factors of each dimension; None for an input left out.
        outputs: likewise.
        addends: inputs that are added to a sum: while a summed factor is cut, one core alone adds
            them.
        linear: groups of inputs in which the operator is linear: if all of a group are partial
            sums, so are the outputs.
        localise: how one core's part is computed; None: by the node as it is.
    """

    factors: tuple[_Factor, ...]
    inputs: tuple[tuple[Factors, ...] | None, ...]
    outputs: tuple[tuple[Factors, ...] | None, ...]
    addends: frozenset[int] = frozenset()
    linear: tuple[tuple[int, ...], ...] = ()
    localise: Localise | None = field(default=None, compare=False)

    def check(self, graph: Graph, node: Node) -> None:
        """The map's dimensions multiply up to the tensors' (an invariant of rules)."""
        for names, maps in ((node.inputs, self.inputs), (node.outputs, self.outputs)):
            assert len(names) == len(maps), (node.describe(), maps)
            for name, dims in zip(names, maps, strict=True):
                assert bool(name) == (dims is not None), (node.describe(), maps)
                if dims is None:
                    continue
                sizes = tuple(
                    int(np.prod([self.factors[f].size for f in dim], dtype=np.int64))
                    for dim in dims
                )
                assert sizes == graph.info(name).dims, (node.describe(), name, sizes)


class Maker:
    """Makes a map factor by factor; what rules are written with."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.factors: list[_Factor] = []

    def factor(self, size: int, kind: FactorKind = "kept") -> int:
        """A new factor's number."""
        self.factors.append(_Factor(size, kind))
        return len(self.factors) - 1

    def info(self, name: str) -> TensorInfo:
        return self.graph.info(name)

    def dims(self, position: int) -> tuple[int, ...]:
        """Shape of an input."""
        return self.graph.info(self.node.inputs[position]).dims

    def out(self, position: int = 0) -> tuple[int, ...]:
        """Shape of an output."""
        return self.graph.info(self.node.outputs[position]).dims

    def constant(self, position: int) -> NDArray[Any] | None:
        """The value of an input that is known."""
        return self.graph.constants.get(self.node.input(position))

    def dimension(self, size: int, kind: FactorKind = "kept") -> Factors:
        """A dimension that is one new factor, or none if it is one long."""
        return (self.factor(size, kind),) if size > 1 else ()

    def dimensions(self, shape: Sequence[int], kind: FactorKind = "kept") -> tuple[Factors, ...]:
        """A new factor for each dimension."""
        return tuple(self.dimension(size, kind) for size in shape)

    def whole(self, name: str) -> tuple[Factors, ...] | None:
        """An operand that is the same on all cores; None for one left out."""
        return self.dimensions(self.info(name).dims, "whole") if name else None

    def broadcast(
        self, result: Sequence[Factors], shape: Sequence[int], length: Sequence[int]
    ) -> tuple[Factors, ...]:
        """The dimensions of an operand that numpy's rules stretch to a result's.

        Args:
            result: the result's dimensions, `length` their lengths.
            shape: the operand's.
        """
        skipped = len(result) - len(shape)
        return tuple(
            factors if size == whole else ()
            for factors, size, whole in zip(result[skipped:], shape, length[skipped:], strict=True)
        )

    def map(
        self,
        inputs: Sequence[tuple[Factors, ...] | None],
        outputs: Sequence[tuple[Factors, ...] | None],
        **others: Any,
    ) -> DimensionMap:
        """The map of these; operands that are not named are whole."""
        given = list(inputs)
        given += [self.whole(name) for name in self.node.inputs[len(given) :]]
        results = list(outputs)
        results += [self.whole(name) for name in self.node.outputs[len(results) :]]
        return DimensionMap(tuple(self.factors), tuple(given), tuple(results), **others)


Rule = Callable[[Maker], "DimensionMap | None"]
"""A rule gives None for an instance that it says nothing of."""

rules: Registry[Rule] = Registry("sharding rule", "tilesmith.capabilities.sharding.rules")


def dimension_map(graph: Graph, node: Node) -> DimensionMap:
    """What a node means for cutting; without a rule every core computes all of it."""
    rule = rules.find(node.operator) if node.domain in ("", "tilesmith") else None
    mapping = rule(Maker(graph, node)) if rule is not None and not node.captures else None
    if mapping is None:
        maker = Maker(graph, node)
        mapping = maker.map((), ())
    mapping.check(graph, node)
    return mapping
