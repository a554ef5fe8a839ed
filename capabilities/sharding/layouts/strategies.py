"""`ShardingStrategy`: one way to compute a node on a mesh: what each mesh axis does to it.

For each axis of the mesh: it cuts one factor of the node's dimension map, it holds terms of a sum
that the node hands on (where it is linear), or its cores compute the same. Which specs a node reads
and writes follows. Invariant: what is cut divides; of strategies that read and write the same specs
the first is kept.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilesmith.capabilities.sharding.layouts.dimension_maps import SUMS, DimensionMap, Factors
from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
from tilesmith.capabilities.sharding.layouts.specs import Cut, Dimension, Spec, divides
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.rounds import Rounds

Specs = tuple[Spec | None, ...]


CutFactor = tuple[str, int, int]
"""(axis, factor, blocks): the axis cuts each of so many blocks of the factor."""


@dataclass(frozen=True)
class ShardingStrategy:
    """One way to compute a node.

    Attributes:
        cut: what axes cut, in the mesh's order.
        passed: (axis, linear group whose partial sums pass through).
        inputs, outputs: the spec of each operand, None where one is left out.
    """

    cut: tuple[CutFactor, ...]
    passed: tuple[tuple[str, int], ...]
    inputs: Specs
    outputs: Specs

    def pieces(self, factor: int, mesh: LogicalMesh) -> int:
        """Into how many parts it cuts a factor."""
        pieces = 1
        for axis, number, _ in self.cut:
            pieces *= mesh.sizes[axis] if number == factor else 1
        return pieces

    def axes_of(self, factor: int) -> tuple[str, ...]:
        """The axes that cut a factor, outermost first."""
        return tuple(axis for axis, number, _ in self.cut if number == factor)


def strategies_of(
    mapping: DimensionMap, mesh: LogicalMesh, blocks: "Blocks | None" = None
) -> tuple[ShardingStrategy, ...]:
    """Every strategy of a node; the first computes all of it on every core.

    Args:
        blocks: by factor the numbers of blocks it may be cut in, beside one.
    """
    choices: list[CutFactor | tuple[str, int]] = []
    for number, factor in enumerate(mapping.factors):
        if factor.kind != "whole" and factor.size > 1:
            inside = (blocks or {}).get(number, ()) if factor.kind != "looked_up" else ()
            choices += [("", number, count) for count in (1, *sorted(set(inside) - {1}))]
    choices += [("", group) for group in range(len(mapping.linear))]
    distinct: dict[tuple[Specs, Specs], ShardingStrategy] = {}
    for chosen in itertools.product((None, *choices), repeat=len(mesh.names)):
        named = [(a, *c[1:]) for a, c in zip(mesh.names, chosen, strict=True) if c is not None]
        cut = tuple((c[0], c[1], c[2]) for c in named if len(c) == 3)
        passed = tuple((c[0], c[1]) for c in named if len(c) == 2)
        candidate = strategy(mapping, mesh, cut, passed)
        if candidate is not None:
            distinct.setdefault((candidate.inputs, candidate.outputs), candidate)
    return tuple(distinct.values())


Blocks = Mapping[int, Iterable[int]]


def strategy(
    mapping: DimensionMap,
    mesh: LogicalMesh,
    cut: tuple[CutFactor, ...],
    passed: tuple[tuple[str, int], ...] = (),
) -> ShardingStrategy | None:
    """The strategy in which axes cut these factors; None where something does not divide."""
    inside: dict[int, list[Cut]] = {}
    for number, factor in enumerate(mapping.factors):
        cuts = _nested([(c[0], c[2]) for c in cut if c[1] == number], mesh)
        if cuts and not divides(tuple(cuts), factor.size, mesh.sizes):
            return None
        inside[number] = cuts
    sums = [axis for axis, factor, _ in cut if mapping.factors[factor].kind in SUMS]
    handed = dict(passed)

    def spec(dims: tuple[Factors, ...] | None, partial: Sequence[str]) -> Spec | None:
        if dims is None:
            return None
        return Spec(tuple(_cuts(dim, mapping, inside) for dim in dims), frozenset(partial))

    inputs = []
    for number, dims in enumerate(mapping.inputs):
        partial = list(sums) if number in mapping.addends else []
        partial += [axis for axis, group in handed.items() if number in mapping.linear[group]]
        inputs.append(spec(dims, partial))
    outputs = tuple(spec(dims, [*sums, *handed]) for dims in mapping.outputs)
    return ShardingStrategy(cut, passed, tuple(inputs), outputs)


def _nested(asked: Sequence[tuple[str, int]], mesh: LogicalMesh) -> list[Cut]:
    """Cuts of one factor: of axes that ask for the same blocks each is inside the one before."""
    cuts: list[Cut] = []
    nominal = 0
    for axis, blocks in sorted(asked, key=lambda pair: pair[1]):
        actual = blocks
        if cuts and blocks == nominal:
            actual = cuts[-1].blocks * mesh.sizes[cuts[-1].axis]
        cuts.append(Cut(actual, axis))
        nominal = blocks
    return cuts


def _cuts(dim: Factors, mapping: DimensionMap, inside: Mapping[int, Sequence[Cut]]) -> Dimension:
    """The cuts of a dimension, of the cuts of its factors."""
    cuts, outside = [], 1
    for factor in dim:
        cuts += [Cut(outside * cut.blocks, cut.axis) for cut in inside[factor]]
        outside *= mapping.factors[factor].size
    return tuple(cuts)


# -- blocks -------------------------------------------------------------------------------------
def blocks_of(
    maps: Mapping[Node, DimensionMap], mesh: LogicalMesh
) -> dict[Node, dict[int, set[int]]]:
    """In how many blocks the factors of nodes may be worth cutting, by node and factor.

    Where the outer factors of a dimension cannot be cut (the three of a fused projection), a cut
    lies inside each of their blocks; that is worth considering in all nodes which the dimension
    passes through.
    """
    least = min(mesh.sizes.values(), default=1)
    dims: dict[tuple[str, int], set[int]] = {}
    by_node: dict[Node, dict[int, set[int]]] = {node: {} for node in maps}
    rounds = Rounds("finding blocks that shardings may cut", 1 << 16)
    changed = True
    while changed:
        rounds.another()
        changed = False
        for node, known in maps.items():
            for name, axis, factors in _dimensions(node, known):
                blocks = dims.setdefault((name, axis), set())
                outside, fixed = 1, True
                for factor in factors:
                    size, kind = known.factors[factor].size, known.factors[factor].kind
                    own = by_node[node].setdefault(factor, set())
                    wanted = {outside * inner for inner in own}
                    if outside > 1 and fixed and kind != "whole":
                        wanted.add(outside)
                    heard = {b // outside for b in blocks if outside <= b < outside * size}
                    heard = {b for b in heard if b > 1 and b * outside in blocks}
                    changed |= not wanted <= blocks or not heard <= own
                    blocks |= wanted
                    own |= heard
                    fixed = fixed and (kind == "whole" or size % least > 0)
                    outside *= size
    return by_node


def _dimensions(node: Node, known: DimensionMap) -> Iterator[tuple[str, int, Factors]]:
    for names, maps in ((node.inputs, known.inputs), (node.outputs, known.outputs)):
        for name, dims in zip(names, maps, strict=True):
            for axis, factors in enumerate(dims or ()):
                yield name, axis, factors
