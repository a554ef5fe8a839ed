"""Convolution and pooling: images and channels; places are needed whole, for windows overlap."""

from collections.abc import Sequence
from dataclasses import replace

from tilesmith.capabilities.sharding.layouts.dimension_maps import DimensionMap, Local, Maker, rules
from tilesmith.compiler.graph.graph import Node, attributes_of
from tilesmith.compiler.graph.operator_traits import having


@rules.register("Conv")
def convolution(maker: Maker) -> DimensionMap | None:
    """x[n (g c) ..], w[(g o) c ..], b[(g o)] -> [n (g o) ..]; c is summed, the bias added once."""
    x, w, out = maker.dims(0), maker.dims(1), maker.out()
    groups = int(maker.node.attribute("group", 1))
    images = maker.dimension(x[0])
    group = maker.dimension(groups)
    inner = maker.dimension(w[1], "summed")
    outer = maker.dimension(w[0] // groups)
    places = maker.dimensions(out[2:], "whole")
    given = [
        (images, (*group, *inner), *maker.dimensions(x[2:], "whole")),
        ((*group, *outer), inner, *maker.dimensions(w[2:], "whole")),
    ]
    if len(maker.node.inputs) > 2:
        given.append(((*group, *outer),) if maker.node.input(2) else None)  # type: ignore[arg-type]
    linear = ((0,), (1,)) if len(given) < 3 or given[2] is None else ((0, 2), (1, 2))
    return maker.map(
        given, ((images, (*group, *outer), *places),),
        addends=frozenset({2}), linear=linear, localise=_grouped(group),
    )  # fmt: skip


def _grouped(group: tuple[int, ...]):  # type: ignore[no-untyped-def]
    """A core's share of the groups."""

    def localised(node: Node, local: Local) -> Sequence[Node]:
        if not group or local.pieces(group[0]) == 1:
            return (node,)
        own = {k: v for k, v in node.attributes if k != "group"}
        count = int(node.attribute("group")) // local.pieces(group[0])
        return (replace(node, attributes=attributes_of(group=count, **own)),)

    return localised


def _pooled(maker: Maker) -> DimensionMap | None:
    """Images and channels are kept."""
    x = maker.dims(0)
    kept = maker.dimensions(x[:2])
    given = (*kept, *maker.dimensions(x[2:], "whole"))
    if len([name for name in maker.node.outputs if name]) > 1:
        return None  # indices count through whole images
    results = (*kept, *maker.dimensions(maker.out()[2:], "whole"))
    return maker.map((given,), (results, *(None,) * (len(maker.node.outputs) - 1)))


for _name in having("pools"):
    rules.register(_name)(_pooled)
