"""RotaryEmbedding (opset 23 on) -> slices, products with cosines and sines, and a join.

    y1 = cos x1 - sin x2;  y2 = sin x1 + cos x2

x1 and x2 are the halves of a head's first `rotary_embedding_dim` features, or (interleaved) every
other one of them; what follows stays as it is. Cosines and sines are rows of tables picked by
position, or are given for each place. Source: ONNX's RotaryEmbedding 23.
"""

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Composer, typed_decompositions


@typed_decompositions.register("RotaryEmbedding")
def rotary_embedding(composer: Composer, node: Node) -> str | None:
    x, cosines, sines, positions = (node.input(i) for i in range(4))
    if any(composer.dtype(name) != "float32" for name in (x, cosines, sines)):
        return None
    dims = composer.dims(x)
    if len(dims) == 3:  # [batch, length, heads, features]
        heads = int(node.attribute("num_heads", 0))
        x = composer.view(x, (*dims[:2], heads, dims[2] // heads))
    batch, length = (dims[0], dims[1]) if len(dims) == 3 else (dims[0], dims[2])
    size = composer.dims(x)[3]
    turning = int(node.attribute("rotary_embedding_dim", 0)) or size
    between = (1,) if len(dims) == 3 else ()
    lead = () if len(dims) == 3 else (1,)
    tables = []
    for table in (cosines, sines):
        if positions:
            picked = (*composer.dims(positions), composer.dims(table)[-1])
            table = composer.apply("Gather", table, positions, shape=picked, axis=0)
        own = composer.dims(table)
        if own != (batch, length, turning // 2):
            return None
        table = composer.view(table, (batch, *lead, length, *between, turning // 2))
        tables.append(table)
    turned = _turned(composer, node, x, turning, tables)
    if turning < size:
        turned = composer.concat(3, turned, composer.cut(x, 3, turning, size))
    return composer.view(turned, dims)


def _turned(composer: Composer, node: Node, x: str, turning: int, tables: list[str]) -> str:
    """The first features of each head."""
    cosine, sine = tables
    whole, half = composer.dims(x), turning // 2
    if node.attribute("interleaved", 0):
        inner = composer.cut(x, 3, 0, turning) if turning < whole[3] else x
        pairs = composer.view(inner, (*whole[:3], half, 2))
        one, two = (
            composer.view(composer.cut(pairs, 4, i, i + 1), (*whole[:3], half)) for i in (0, 1)
        )
    else:
        one, two = (composer.cut(x, 3, start, start + half) for start in (0, half))
    parts = []
    for first, second, operator in ((cosine, sine, "Sub"), (sine, cosine, "Add")):
        products = (
            composer.pointwise("Mul", first, one), composer.pointwise("Mul", second, two)
        )  # fmt: skip
        parts.append(composer.pointwise(operator, *products))
    if not node.attribute("interleaved", 0):
        return composer.concat(3, *parts)
    apart = [composer.view(part, (*whole[:3], half, 1)) for part in parts]
    return composer.view(composer.concat(4, *apart), (*whole[:3], turning))
