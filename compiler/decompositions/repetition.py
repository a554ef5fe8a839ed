"""Expand and Tile: x + 0, broadcast; what reads it takes the broadcast in where it can."""

import math

import numpy as np

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Composer, decompositions


def broadcast(composer: Composer, source: str, shape: tuple[int, ...]) -> str:
    """`source`, repeated to `shape` as numpy broadcasts."""
    if math.prod(composer.dims(source)) == math.prod(shape):
        return composer.view(source, shape)
    zeros = composer.constant(np.broadcast_to(np.float32(0), shape))
    return composer.pointwise("Add", source, zeros)


@decompositions.register("Expand")
def expand(composer: Composer, node: Node) -> str:
    return broadcast(composer, node.inputs[0], composer.dims(node.writes[0]))


@decompositions.register("Tile")
def tile(composer: Composer, node: Node) -> str:
    """(a, b) three times along the last axis: (a, 1, b) -> (a, 3, b) -> (a, 3 b)."""
    before, after = composer.dims(node.inputs[0]), composer.dims(node.writes[0])
    pairs = [(whole // part, part) for part, whole in zip(before, after, strict=True)]
    single = composer.view(node.inputs[0], tuple(n for _, part in pairs for n in (1, part)))
    repeated = broadcast(composer, single, tuple(n for pair in pairs for n in pair))
    return composer.view(repeated, after)
