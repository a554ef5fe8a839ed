"""DepthToSpace and SpaceToDepth: a transposition of blocks between views."""

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Composer, decompositions


@decompositions.register("DepthToSpace")
def depth_to_space(composer: Composer, node: Node) -> str:
    n, c, h, w = composer.dims(node.inputs[0])
    size = int(node.attribute("blocksize"))
    inner = c // size**2
    if node.attribute("mode", "DCR") == "DCR":
        cut, order = (n, size, size, inner, h, w), (0, 3, 4, 1, 5, 2)
    else:
        cut, order = (n, inner, size, size, h, w), (0, 1, 4, 2, 5, 3)
    moved = composer.transpose(composer.view(node.inputs[0], cut), order)
    return composer.view(moved, (n, inner, h * size, w * size))


@decompositions.register("SpaceToDepth")
def space_to_depth(composer: Composer, node: Node) -> str:
    n, c, h, w = composer.dims(node.inputs[0])
    size = int(node.attribute("blocksize"))
    cut = composer.view(node.inputs[0], (n, c, h // size, size, w // size, size))
    blocks_first = node.attribute("mode", "DCR") == "DCR"
    moved = composer.transpose(cut, (0, 3, 5, 1, 2, 4) if blocks_first else (0, 1, 3, 5, 2, 4))
    return composer.view(moved, (n, c * size**2, h // size, w // size))
