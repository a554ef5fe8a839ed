"""Rows picked by index. A table cut by rows is a vocabulary cut over cores: each finds the rows it
has, has zeros for the others, and the sum over cores is the answer."""

from collections.abc import Sequence

import numpy as np

from tilesmith.capabilities.sharding.layouts.dimension_maps import DimensionMap, Local, Maker, rules
from tilesmith.compiler.graph.graph import Node
from tilesmith.search_space.expressions.dtypes import is_floating, to_numpy


@rules.register("Gather")
def gather(maker: Maker) -> DimensionMap | None:
    """data[.. v ..], indices[i ..] -> [.. i .. ..]; v is looked up."""
    data, indices = maker.dims(0), maker.dims(1)
    axis = int(maker.node.attribute("axis", 0)) % len(data)
    before = maker.dimensions(data[:axis])
    looked = is_floating(maker.info(maker.node.inputs[0]).dtype) and data[axis] > 1
    rows = maker.dimension(data[axis], "looked_up" if looked else "whole")
    after = maker.dimensions(data[axis + 1 :])
    picked = maker.dimensions(indices)

    def localised(node: Node, local: Local) -> Sequence[Node]:
        if not rows or local.pieces(rows[0]) == 1:
            return (node,)
        return _own_rows(node, local, rows[0], len(after))

    return maker.map(
        ((*before, rows, *after), picked), ((*before, *picked, *after),),
        linear=((0,),), localise=localised,
    )  # fmt: skip


def _own_rows(node: Node, local: Local, rows: int, inner: int) -> Sequence[Node]:
    """Indices less where a core's rows begin; zeros where they point to another's. What points
    nowhere stays as it is, so that every core refuses it."""
    table, indices = node.inputs
    (result,) = node.outputs
    shape = local.shape(indices)
    axis = int(node.attribute("axis", 0)) % len(local.shape(table))
    held = local.shape(table)[axis]
    total = held * local.pieces(rows)
    nodes: list[Node] = []

    def step(
        operator: str, *inputs: str, dtype: str = "int64", like: tuple[int, ...] = shape
    ) -> str:
        name = local.tensor(f"{result}.{operator}", dtype, like)
        nodes.append(
            Node(operator, inputs, (name,), f"{node.name or result}.{operator}{len(nodes)}")
        )
        return name

    def number(value: int) -> str:
        return local.constant(f"{result}.{value}", np.array(value, np.int64))

    wide = indices
    if local.info(indices).dtype != "int64":
        wide = local.tensor(f"{result}.wide", "int64", shape)
        nodes.append(Node("Cast", (indices,), (wide,), f"{result}.wide", attributes=(("to", 7),)))
    negative = step("Less", wide, number(0), dtype="bool")
    forward = step("Where", negative, step("Add", wide, number(total)), wide)
    own = step("Sub", forward, local.start(rows, held))
    behind = step("Less", own, number(0), dtype="bool")
    beyond = step("Less", own, number(held), dtype="bool")
    inside = step("And", step("Not", behind, dtype="bool"), beyond, dtype="bool")
    low = step("Less", forward, number(0), dtype="bool")
    nowhere = step("Not", step("Less", forward, number(total), dtype="bool"), dtype="bool")
    strange = step("Or", low, nowhere, dtype="bool")
    place = step("Where", inside, own, step("Where", strange, wide, number(0)))
    info = local.info(result)
    gathered = local.tensor(f"{result}.found", info.dtype, local.shape(result))
    nodes.append(Node("Gather", (table, place), (gathered,), node.name, attributes=node.attributes))
    mask = inside
    if inner:
        like = (*shape, *(1,) * inner)
        target = local.constant(f"{result}.rows", np.array(like, np.int64))
        mask = step("Reshape", inside, target, dtype="bool", like=like)
    zero = local.constant(f"{result}.zero", np.array(0, to_numpy(info.dtype)))
    nodes.append(Node("Where", (mask, gathered, zero), (result,), f"{node.name or result}.own"))
    return nodes


def _elements(maker: Maker) -> DimensionMap | None:
    """ScatterElements and GatherElements: the axis is needed whole; where the others are as long in
    data as in indices, they are cut alike."""
    data, indices = maker.dims(0), maker.dims(1)
    axis = int(maker.node.attribute("axis", 0)) % len(data)
    if any(a != b for n, (a, b) in enumerate(zip(data, indices, strict=True)) if n != axis):
        return None
    others = [() if n == axis else maker.dimension(size) for n, size in enumerate(data)]

    def with_axis(size: int) -> tuple[tuple[int, ...], ...]:
        whole = maker.dimension(size, "whole")
        return tuple(whole if n == axis else factors for n, factors in enumerate(others))

    picked = with_axis(indices[axis])
    if maker.node.operator == "GatherElements":
        return maker.map((with_axis(data[axis]), picked), (picked,))
    if str(maker.node.attribute("reduction", "none")) != "none":
        return None
    table = with_axis(data[axis])
    return maker.map((table, picked, picked), (table,))


for _name in ("GatherElements", "ScatterElements"):
    rules.register(_name)(_elements)
