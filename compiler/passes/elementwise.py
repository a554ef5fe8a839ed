"""Elementwise operators: chains of them are one kernel, whose formula is composed here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.graph import INTERNAL_DOMAIN, Graph, Node, kernel
from tilesmith.compiler.host.nodes import activation_step
from tilesmith.compiler.lower import is_computable
from tilesmith.compiler.onnx.access import clip_bounds, uniform
from tilesmith.compiler.passes.base import Pass
from tilesmith.compiler.rewrite import Rewriter
from tilesmith.search_space.epilogue import STEPS
from tilesmith.search_space.errors import WorkloadError
from tilesmith.search_space.flattening import flatten
from tilesmith.search_space.workload import Workload, shape_text

_OPERAND = re.compile(r"x(\d+)(?![\w.(])")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class LowerElementwise(Pass):
    """Elementwise operators become `elementwise` kernels, chains of them one kernel.

        t = Add(a, b); u = Exp(t); y = Mul(u, c)                                      before
        y = Kernel(elementwise expression=multiply(exp(add(x0,x1)),x2))(a, b, c)      after

    What one kernel alone would read is computed inside the next, as long as no operand is broadcast
    on the way and no more operands come together than the template takes. Axes are merged as far as
    the operands allow, so that equal work has one key whatever its shape.

    Contract: a lowered graph in, epilogues fused; float32 tensors of known shape; values equal up
    to roundings.
    """

    name = "lower-elementwise"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in graph.nodes:
            if node.kind == "host" and len(node.writes) == 1:
                _lower(rewriter, node)
        return rewriter.finish()


def _lower(rewriter: Rewriter, node: Node) -> None:
    result = rewriter.info(node.writes[0])
    node, masked = _with_numeric_mask(rewriter, node), node
    if not is_computable(result) or not all(is_computable(rewriter.info(n)) for n in node.reads):
        return
    found = formula_of(rewriter, node)
    if found is None:
        return
    text, operands = found
    if not operands or any(
        not _broadcasts(rewriter.info(name).dims, result.dims) for name in operands
    ):
        return
    try:
        own = kernel(
            _workload(rewriter, text, operands, result.dims), operands, result.name, node.name
        )
    except WorkloadError:
        return
    rewriter.replace(masked, own)
    _absorb(rewriter, own)


def _with_numeric_mask(rewriter: Rewriter, node: Node) -> Node:
    """A Where whose condition is constant reads it as numbers, which is what formulas know."""
    mask = rewriter.constant(node.input(0)) if node.is_onnx("Where") else None
    if mask is None:
        return node
    name = rewriter.add_constant(node.inputs[0], mask.astype(np.float32), "float32")
    return replace(node, inputs=(name, *node.inputs[1:]))


def _absorb(rewriter: Rewriter, node: Node) -> None:
    """Take in producers that only `node` reads, one after another."""
    merged = True
    while merged:
        merged = False
        for name in node.inputs:
            before = rewriter.producer(name)
            if before is None or not is_elementwise(before):
                continue
            if rewriter.only_consumer(name) is not node:
                continue
            together = _merged(rewriter, before, node)
            if together is not None:
                rewriter.replace((before, node), together)
                node, merged = together, True
                break


def is_elementwise(node: Node) -> bool:
    """Whether it is a kernel of the elementwise template."""
    return node.workload is not None and node.workload.operator == "elementwise"


def _merged(rewriter: Rewriter, before: Node, node: Node) -> Node | None:
    """One kernel that computes `before` inside `node`."""
    assert before.workload is not None and node.workload is not None
    name = before.outputs[0]
    shape = rewriter.info(node.writes[0]).dims
    text = node.workload.text("expression")
    position = node.inputs.index(name)
    if rewriter.info(name).dims != shape or _uses(text, position) != 1:
        return None
    others = [other for other in node.inputs if other != name]
    operands = tuple(dict.fromkeys((*before.inputs, *others)))
    inner = _renumbered(
        before.workload.text("expression"),
        {i: f"x{operands.index(n)}" for i, n in enumerate(before.inputs)},
    )
    mapping = {i: f"x{operands.index(n)}" for i, n in enumerate(node.inputs) if n != name}
    whole = _renumbered(text, {**mapping, position: inner})
    try:
        workload = _workload(rewriter, whole, operands, shape)
    except WorkloadError:
        return None
    return kernel(workload, operands, node.writes[0], node.name)


def _uses(text: str, operand: int) -> int:
    return sum(int(found) == operand for found in _OPERAND.findall(text))


def _renumbered(text: str, names: Mapping[int, str]) -> str:
    return _OPERAND.sub(lambda found: names[int(found[1])], text)


def _broadcasts(shape: Shape, full: Shape) -> bool:
    """Whether `shape` broadcasts to `full` without adding axes."""
    tail = full[len(full) - len(shape) :] if len(shape) <= len(full) else None
    return tail is not None and all(a in (1, b) for a, b in zip(shape, tail, strict=True))


def _workload(rewriter: Rewriter, text: str, operands: Sequence[str], shape: Shape) -> Workload:
    return elementwise_workload(text, [rewriter.info(name).dims for name in operands], shape)


def elementwise_workload(text: str, operands: Sequence[Shape], shape: Shape) -> Workload:
    """The elementwise workload of a formula, axes merged.

    Args:
        text: over x0, x1, ...
        operands: their shapes, broadcast to `shape`.
    """
    flat = flatten(shape, operands)
    parameters: dict[str, int | str] = {"shape": shape_text(flat.shape), "expression": text}
    for position, varies in enumerate(flat.varies):
        own = [extent if v else 1 for extent, v in zip(flat.shape, varies, strict=True)]
        while len(own) > 1 and own[0] == 1:
            own.pop(0)
        if tuple(own) != flat.shape:
            parameters[f"x{position}"] = shape_text(own)
    return Workload.of("elementwise", parameters)


# -- formulas -----------------------------------------------------------------------------------
Formula = tuple[str, tuple[str, ...]]
"""A formula over x0, x1, ... and the tensors these are."""


def formula_of(rewriter: Rewriter, node: Node) -> Formula | None:
    """The formula of an elementwise node; None if it is none, or not expressible."""
    if node.domain == INTERNAL_DOMAIN:
        if node.operator not in STEPS:
            return None
        step = activation_step(node)
        numbers = "".join(f",{number(a)}" for a in step.arguments)
        return f"{step.name}(x0{numbers})", node.inputs
    if node.domain != "" or node.operator not in _FORMULAS:
        return None
    terms: list[str] = []
    operands: list[str] = []
    for name in node.inputs:
        value = uniform(rewriter.constant, name) if name else None
        if value is not None and math.isfinite(value):
            terms.append(number(value))
        elif name:
            if name not in operands:
                operands.append(name)
            terms.append(f"x{operands.index(name)}")
    text = _FORMULAS[node.operator](rewriter, node, terms)
    if text is None:
        return None
    used = tuple(name for i, name in enumerate(operands) if _uses(text, i))
    return _renumbered(text, {operands.index(n): f"x{i}" for i, n in enumerate(used)}), used


def number(value: float) -> str:
    """A number as formulas write it: the shortest that single precision tells from others."""
    return str(np.float32(value))


_Writer = Callable[[Rewriter, Node, list[str]], "str | None"]


def _function(name: str) -> _Writer:
    return lambda rewriter, node, terms: f"{name}({','.join(terms)})"


def _binary(name: str) -> _Writer:
    def write(rewriter: Rewriter, node: Node, terms: list[str]) -> str | None:
        return f"{name}({','.join(terms)})" if len(terms) == 2 else None

    return write


def _power(rewriter: Rewriter, node: Node, terms: list[str]) -> str | None:
    exponent = uniform(rewriter.constant, node.inputs[1])
    if exponent is None or exponent == 0:
        return None
    x = terms[0]
    if abs(exponent) == 0.5:
        found = f"sqrt({x})"
    elif abs(exponent) == 1.0:
        found = f"add({x},0)" if exponent > 0 else x
    elif exponent.is_integer() and abs(exponent) <= _LONGEST_PRODUCT:
        found = _repeated(x, int(abs(exponent)))
    else:  # through a logarithm, which a negative base with an even exponent does not have
        return None if exponent.is_integer() else f"power({x},{number(exponent)})"
    return found if exponent > 0 else f"reciprocal({found})"


_LONGEST_PRODUCT = 8
"""Exponent up to which a power is written as a product."""


def _repeated(x: str, times: int) -> str:
    """x to an integer power, by the fewest products of halves."""
    if times == 1:
        return x
    half = times // 2
    return f"multiply({_repeated(x, half)},{_repeated(x, times - half)})"


def _clip(rewriter: Rewriter, node: Node, terms: list[str]) -> str | None:
    bounds = clip_bounds(node, rewriter.constant)
    if bounds is None:
        return None
    low, high = bounds
    if math.isinf(high):
        return f"maximum({terms[0]},{number(low)})" if math.isfinite(low) else None
    if math.isinf(low):
        return f"minimum({terms[0]},{number(high)})"
    return f"clip({terms[0]},{number(low)},{number(high)})"


def _leaky(rewriter: Rewriter, node: Node, terms: list[str]) -> str:
    return f"leaky_relu({terms[0]},{number(node.attribute('alpha', 0.01))})"


def _hard_sigmoid(rewriter: Rewriter, node: Node, terms: list[str]) -> str:
    alpha, beta = node.attribute("alpha", 0.2), node.attribute("beta", 0.5)
    return f"hard_sigmoid({terms[0]},{number(alpha)},{number(beta)})"


def _elu(rewriter: Rewriter, node: Node, terms: list[str]) -> str:
    x, alpha = terms[0], number(node.attribute("alpha", 1.0))
    return f"where(greater_equal({x},0),{x},multiply(subtract(exp({x}),1),{alpha}))"


def _prelu(rewriter: Rewriter, node: Node, terms: list[str]) -> str:
    x, slope = terms
    return f"where(greater_equal({x},0),{x},multiply({x},{slope}))"


def _selu(rewriter: Rewriter, node: Node, terms: list[str]) -> str:
    x = terms[0]
    alpha = node.attribute("alpha", 1.6732632423543772)
    gamma = node.attribute("gamma", 1.0507009873554805)
    low = f"multiply(subtract(exp({x}),1),{number(alpha * gamma)})"
    return f"where(greater_equal({x},0),multiply({x},{number(gamma)}),{low})"


def _celu(rewriter: Rewriter, node: Node, terms: list[str]) -> str:
    x, alpha = terms[0], node.attribute("alpha", 1.0)
    low = f"multiply(subtract(exp(multiply({x},{number(1 / alpha)})),1),{number(alpha)})"
    return f"where(greater_equal({x},0),{x},{low})"


def _softplus(rewriter: Rewriter, node: Node, terms: list[str]) -> str:
    """log(1 + exp(x)), in a form that does not overflow."""
    x = terms[0]
    return f"add(maximum({x},0),log(add(exp(negate(absolute({x}))),1)))"


def _mish(rewriter: Rewriter, node: Node, terms: list[str]) -> str:
    return f"multiply({terms[0]},tanh({_softplus(rewriter, node, terms)}))"


def _thresholded_relu(rewriter: Rewriter, node: Node, terms: list[str]) -> str:
    return f"where(greater_equal({number(node.attribute('alpha', 1.0))},{terms[0]}),0,{terms[0]})"


_FORMULAS: dict[str, _Writer] = {
    "Add": _binary("add"), "Sub": _binary("subtract"), "Mul": _binary("multiply"),
    "Div": _binary("divide"), "Max": _binary("maximum"), "Min": _binary("minimum"),
    "Neg": _function("negate"), "Abs": _function("absolute"), "Exp": _function("exp"),
    "Log": _function("log"), "Sqrt": _function("sqrt"), "Reciprocal": _function("reciprocal"),
    "Tanh": _function("tanh"), "Erf": _function("erf"), "Sigmoid": _function("sigmoid"),
    "Floor": _function("floor"), "Ceil": _function("ceil"), "Round": _function("round"),
    "Relu": _function("relu"), "HardSwish": _function("hard_swish"),
    "Softsign": lambda r, n, t: f"divide({t[0]},add(absolute({t[0]}),1))",
    "Pow": _power, "Clip": _clip, "LeakyRelu": _leaky, "HardSigmoid": _hard_sigmoid, "Elu": _elu,
    "PRelu": _prelu, "Selu": _selu, "Celu": _celu, "Softplus": _softplus, "Mish": _mish,
    "ThresholdedRelu": _thresholded_relu, "Where": _function("where"),
}  # fmt: skip
