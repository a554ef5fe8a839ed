"""Operators that work element by element, with numpy's broadcasting: every axis is kept."""

from tilesmith.capabilities.sharding.layouts.dimension_maps import DimensionMap, Maker, rules
from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.search_space.workloads.epilogue import STEPS

_ALL = ("Add", "Sub", "Sum")
"""Linear in all operands together."""

_UNARY_LINEAR = ("Identity", "Neg")

_ONE_AT_A_TIME = {"Mul": ((0,), (1,)), "Div": ((0,),), "Where": ((1, 2),)}
"""Linear in these operands while the others stay as they are."""

OPERATORS = having("pointwise")


def pointwise(maker: Maker) -> DimensionMap | None:
    """Every output axis is that of each operand which is not stretched along it."""
    node, shape = maker.node, maker.out()
    if len(node.outputs) != 1:
        return None
    result = maker.dimensions(shape)
    inputs = [
        maker.broadcast(result, maker.info(name).dims, shape) if name else None
        for name in node.inputs
    ]
    linear = _ONE_AT_A_TIME.get(node.operator, ())
    if node.operator in (*_ALL, *_UNARY_LINEAR):
        linear = (tuple(range(len(node.inputs))),)
    return maker.map(inputs, (result,), linear=linear)


@rules.register("Dropout")
def dropout(maker: Maker) -> DimensionMap | None:
    """While inferring, its input; a mask of it is all true."""
    result = maker.dimensions(maker.out())
    training = maker.constant(2)
    if maker.node.input(2) and (training is None or training.any()):
        return None
    given = (result, *(maker.whole(name) for name in maker.node.inputs[1:]))
    return maker.map(given, (result,) * len(maker.node.outputs))


for _name in dict.fromkeys((*OPERATORS, *STEPS)):
    rules.register(_name)(pointwise)

assert INTERNAL_DOMAIN == "tilesmith"  # where activations that the passes recognise are
