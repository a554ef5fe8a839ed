"""Kernels that convert what they read: they can take it converted, and say which they are.

Engines that have no integers compute with whole numbers as floating ones. Whoever makes such a
tensor floating asks here whether its readers do nothing else with it, and has them take it so.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tilesmith.compiler.graph.graph import Node
from tilesmith.search_space.expressions.scalar import CONVERSIONS, Call, Load, Scalar, Select, call
from tilesmith.search_space.operator_parts.formula import formula_text, parse_formula
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload


def conversions_of(node: Node, names: Collection[str]) -> set[str]:
    """Functions that a kernel applies to operands of these names directly; "" for any other use."""
    if node.workload is None or node.workload.operator != "elementwise":
        return {""}
    formula = parse_formula(node.workload.text("expression"))
    places = [place for place, name in enumerate(node.inputs) if name in names]
    return set().union(*(_applied(formula, f"x{place}") for place in places))


def taking(node: Node, names: Collection[str], kind: str) -> Node:
    """The kernel reading operands of these names as `kind`, unconverted."""
    places = [place for place, name in enumerate(node.inputs) if name in names]
    types = [operand.dtype for operand in template_of("elementwise").inputs(node.work)]
    formula = parse_formula(node.work.text("expression"))
    for place in places:
        types[place] = kind
        formula = without(formula, f"x{place}", f"to_{kind}")
    return replace(node, workload=of_types(node.work, formula, types))


def of_types(workload: Workload, formula: Scalar, types: Sequence[str]) -> Workload:
    """An elementwise workload of another formula, over operands of other types."""
    stated = "" if set(types) == {workload.dtype} else ",".join(types)
    return workload.with_parameters(expression=formula_text(formula), types=stated)


def without(value: Scalar, operand: str, conversion: str) -> Scalar:
    """A formula whose conversions of an operand are left out."""
    if isinstance(value, Call):
        (first, *rest) = value.arguments
        if not rest and isinstance(first, Load) and first.buffer == operand:
            return first if value.function == conversion else value
        parts = (without(argument, operand, conversion) for argument in value.arguments)
        return call(value.function, *parts)
    return value


def _applied(value: Scalar, operand: str) -> set[str]:
    match value:
        case Call(name, (Load(buffer),)) if buffer == operand and name in CONVERSIONS:
            return {name}
        case Call(_, arguments):
            return set().union(*(_applied(argument, operand) for argument in arguments))
        case Select(_, then, otherwise):
            return _applied(then, operand) | _applied(otherwise, operand)
        case Load(buffer) if buffer == operand:
            return {""}
    return set()
