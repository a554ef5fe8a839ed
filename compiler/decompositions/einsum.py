"""Einsum of two operands -> a (batched) product between transpositions.

    bqhd,bkhd->bhqk      batch b h, rows q, columns k, summed d

Labels of both operands and the result are the batch, those of both operands alone are summed, those
of one operand and the result are its rows or columns. What does not fit (diagonals, labels of one
operand alone, ellipses, other numbers of operands) stays on the host.
"""

import math
from string import ascii_letters

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Composer, decompositions


@decompositions.register("Einsum")
def einsum(composer: Composer, node: Node) -> str | None:
    equation = str(node.attribute("equation", "")).replace(" ", "")
    operands, arrow, result = equation.partition("->")
    left, comma, right = operands.partition(",")
    if not arrow or not comma:
        return None
    if "..." in equation:
        left, right, result = _spelled_out(composer, node, (left, right, result))
    if not all(part.isalpha() for part in (left, right, result)):
        return None
    if any(len(set(part)) != len(part) for part in (left, right, result)):
        return None
    batch = [label for label in result if label in left and label in right]
    rows = [label for label in result if label not in right]
    columns = [label for label in result if label not in left]
    summed = [label for label in left if label in right and label not in result]
    if {*left} != {*batch, *rows, *summed} or {*right} != {*batch, *columns, *summed}:
        return None
    extents = dict(zip(left, composer.dims(node.inputs[0]), strict=True))
    others = dict(zip(right, composer.dims(node.inputs[1]), strict=True))
    if any(extents.get(label, extent) != extent for label, extent in others.items()):
        return None
    extents |= others
    a = _matrices(composer, node.inputs[0], left, (batch, rows, summed), extents)
    b = _matrices(composer, node.inputs[1], right, (batch, summed, columns), extents)
    order = (*batch, *rows, *columns)
    whole = composer.view(composer.matmul(a, b), tuple(extents[label] for label in order))
    return composer.transpose(whole, tuple(order.index(label) for label in result))


def _spelled_out(composer: Composer, node: Node, parts: tuple[str, str, str]) -> list[str]:
    """Both operands and the result with labels in place of their ellipses, aligned at the right;
    unchanged where labels run out."""
    used = {label for part in parts for label in part}
    free = "".join(label for label in ascii_letters if label not in used)
    counts = [
        len(composer.dims(name)) - len(part.replace("...", "")) if "..." in part else 0
        for name, part in zip(node.inputs, parts, strict=False)
    ]
    if min(counts) < 0 or max(counts) > len(free):
        return list(parts)
    return [
        part.replace("...", free[len(free) - count :] if count else "")
        for part, count in zip(parts, (*counts, max(counts)), strict=False)
    ]


def _matrices(
    composer: Composer,
    source: str,
    labels: str,
    groups: tuple[list[str], list[str], list[str]],
    extents: dict[str, int],
) -> str:
    """`source` with its axes in the order of `groups`, each group one axis; no batch of one."""
    order = tuple(labels.index(label) for group in groups for label in group)
    moved = composer.transpose(source, order)
    shape = tuple(math.prod(extents[label] for label in group) for group in groups)
    return composer.view(moved, shape[1:] if shape[0] == 1 else shape)
