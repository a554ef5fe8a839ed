"""Sums of passes as graphs: what they start from, and how many go in series."""

from collections import Counter
from dataclasses import replace

from tilesmith.families.lpu.codegen.selection.graphs.vectors import (
    Applied,
    Moved,
    Picked,
    Stored,
    Total,
    Vectors,
    nodes_of,
    operands_of,
)

PAIR = 2
"""Passes that go in series through MXM: a plane's sums flow on to one of the other hemisphere."""


def with_sums(value: Vectors) -> Vectors:
    """A graph in which whole numbers added to the sum of passes are what the passes add to: MXM
    does that, and VXM need not."""
    done: dict[int, Vectors] = {}
    readers = Counter(id(o) for node in nodes_of(value) for o in operands_of(node))
    for node in nodes_of(value):
        new = with_operands(node, [done[id(o)] for o in operands_of(node)])
        if isinstance(new, Applied) and new.function == "add" and new.dtype == "int32":
            for total, more in (new.operands, new.operands[::-1]):
                if not isinstance(total, Total) or not isinstance(more, Stored):
                    continue
                if total.sums is None and more.dtype == total.dtype and readers[id(total)] <= 1:
                    new = replace(total, sums=more)
                    break
        done[id(node)] = new
    return done[id(value)]


def in_pairs(node: Total) -> Vectors:
    """More than two passes as two sums that VXM adds: each pair goes from one hemisphere to the
    other and back to the middle."""
    if len(node.passes) <= PAIR:
        return node
    half = -(-len(node.passes) // 2)
    parts = (
        replace(node, passes=node.passes[:half]),
        replace(node, passes=node.passes[half:], sums=None),
    )
    return Applied("add", parts, node.dtype)


def with_operands(node: Vectors, new: list[Vectors]) -> Vectors:
    """A node with other operands, in the order of `operands_of`."""
    if all(a is b for a, b in zip(new, operands_of(node), strict=True)):
        return node
    match node:
        case Applied():
            return replace(node, operands=tuple(new))
        case Total(passes=passes):
            moved = tuple(
                replace(p, moving=m) for p, m in zip(passes, new[: len(passes)], strict=True)
            )
            sums = new[-1] if node.sums is not None else None
            assert sums is None or isinstance(sums, Stored), "sums are written before"
            return replace(node, passes=moved, sums=sums)
        case Moved():
            return replace(node, value=new[0])
        case Picked():
            return replace(node, index=new[0])
        case _:
            return node
