"""Activations that exporters write as several operators, and how to recognise each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilesmith.compiler.graph.access import clip_bounds, uniform
from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Graph, Node, attributes_of
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter

_Matcher = Callable[[Rewriter, Node], "tuple[str, str] | None"]


@dataclass(frozen=True)
class RecogniseActivations(Pass):
    """Activations that exporters write as several operators become one.

        y = Mul(x, Sigmoid(x))                                         before
        y = tilesmith.silu(x)                                          after

    Recognised: SiLU; HardSwish, also as x clip(x + 3, 0, 6) / 6; GELU through Erf and through Tanh;
    and the single operators Gelu, HardSwish, Swish of newer opsets. An internal activation has the
    name and arguments of the epilogue step that computes it.

    Contract: any graph in; float32 tensors of known shape only; values equal up to roundings.
    """

    name = "recognise-activations"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in rewriter.nodes():
            if len(node.writes) != 1 or node.kind != "host":
                continue
            result = rewriter.info(node.writes[0])
            if not result.known or result.dtype != "float32":
                continue
            matched = next((hit for match in _MATCHERS if (hit := match(rewriter, node))), None)
            if matched is not None and rewriter.info(matched[1]).shape == result.shape:
                step, source = matched
                rewriter.replace(node, activation(step, source, node.writes[0], node.name))
        return rewriter.finish()


def activation(
    step: str, source: str, result: str, name: str, arguments: tuple[float, ...] = ()
) -> Node:
    """An internal activation node."""
    attributes = attributes_of(arguments=arguments) if arguments else ()
    return Node(step, (source,), (result,), name, INTERNAL_DOMAIN, attributes)


def _single(rewriter: Rewriter, node: Node) -> tuple[str, str] | None:
    """Operators that newer opsets have for it."""
    if node.is_onnx("Gelu"):
        tanh = node.attribute("approximate", "none") == "tanh"
        return ("gelu_tanh" if tanh else "gelu"), node.inputs[0]
    if node.is_onnx("HardSwish"):
        return "hard_swish", node.inputs[0]
    if node.is_onnx("Swish") and node.attribute("alpha", 1.0) == 1.0:
        return "silu", node.inputs[0]
    return None


def _pairs(rewriter: Rewriter, name: str, operator: str) -> Iterator[tuple[str, str]]:
    """Both orders of the operands of the binary operator that writes `name`."""
    node = rewriter.producer(name)
    if node is not None and node.is_onnx(operator) and len(node.inputs) == 2:
        yield node.inputs[0], node.inputs[1]
        yield node.inputs[1], node.inputs[0]


def _argument(rewriter: Rewriter, name: str, *operators: str) -> str | None:
    """The input of the unary operator that writes `name`."""
    node = rewriter.producer(name)
    return node.inputs[0] if node is not None and node.is_onnx(*operators) else None


def _near(rewriter: Rewriter, name: str, value: float) -> bool:
    """Whether `name` is a constant equal to `value` up to single precision."""
    constant = uniform(rewriter.constant, name)
    return constant is not None and math.isclose(constant, value, rel_tol=1e-5)


def factors(rewriter: Rewriter, name: str, depth: int = 4) -> tuple[float, list[str]]:
    """`name` as a constant times tensors, products looked through."""
    constant = uniform(rewriter.constant, name)
    if constant is not None:
        return constant, []
    node = rewriter.producer(name)
    if depth and node is not None and node.is_onnx("Neg"):
        scale, tensors = factors(rewriter, node.inputs[0], depth - 1)
        return -scale, tensors
    if depth and node is not None and node.is_onnx("Mul", "Div") and len(node.inputs) == 2:
        left = factors(rewriter, node.inputs[0], depth - 1)
        right = factors(rewriter, node.inputs[1], depth - 1)
        if node.operator == "Mul":
            return left[0] * right[0], left[1] + right[1]
        if not right[1] and right[0]:
            return left[0] / right[0], left[1]
    return 1.0, [name]


def _product(rewriter: Rewriter, node: Node) -> tuple[float, list[str]] | None:
    """`node` as a product of a constant and two tensors."""
    if not node.is_onnx("Mul", "Div"):
        return None
    constant, tensors = factors(rewriter, node.writes[0])
    return (constant, tensors) if len(tensors) == 2 else None


def _silu(rewriter: Rewriter, node: Node) -> tuple[str, str] | None:
    if node.is_onnx("Mul"):
        for x, gate in _pairs(rewriter, node.writes[0], "Mul"):
            if _argument(rewriter, gate, "Sigmoid") == x:
                return "silu", x
    return None


def _hard_swish(rewriter: Rewriter, node: Node) -> tuple[str, str] | None:
    product = _product(rewriter, node)
    if product is None:
        return None
    constant, tensors = product
    for x, gate in (tensors, tensors[::-1]):
        clip = rewriter.producer(gate)
        if clip is None:
            continue
        if clip.is_onnx("HardSigmoid") and clip.inputs[0] == x:
            slope = clip.attribute("alpha", 0.2), clip.attribute("beta", 0.5)
            if math.isclose(slope[0], 1 / 6, rel_tol=1e-5) and slope[1] == 0.5 and constant == 1.0:
                return "hard_swish", x
        if clip.is_onnx("Clip") and clip_bounds(clip, rewriter.constant) == (0.0, 6.0):
            sixth = math.isclose(constant, 1 / 6, rel_tol=1e-5)
            for inner, three in _pairs(rewriter, clip.inputs[0], "Add"):
                if inner == x and sixth and _near(rewriter, three, 3.0):
                    return "hard_swish", x
    return None


def _gelu(rewriter: Rewriter, node: Node) -> tuple[str, str] | None:
    """0.5 x (1 + erf(x / sqrt 2)), or with tanh(sqrt(2 / pi) (x + 0.044715 x^3))."""
    product = _product(rewriter, node)
    if product is None or not math.isclose(product[0], 0.5, rel_tol=1e-5):
        return None
    tensors = product[1]
    for x, gate in (tensors, tensors[::-1]):
        if _is_complement(rewriter, gate, x):
            return "gelu", x
        for inner, one in _pairs(rewriter, gate, "Add"):
            if not _near(rewriter, one, 1.0):
                continue
            erf, tanh = (_argument(rewriter, inner, name) for name in ("Erf", "Tanh"))
            if erf and _is_scaled(rewriter, erf, x, math.sqrt(0.5)):
                return "gelu", x
            if tanh and _is_cubic(rewriter, tanh, x):
                return "gelu_tanh", x
    return None


def _is_complement(rewriter: Rewriter, gate: str, x: str) -> bool:
    """gate == 1 - erf(-x / sqrt 2)"""
    node = rewriter.producer(gate)
    if node is None or not node.is_onnx("Sub") or not _near(rewriter, node.inputs[0], 1.0):
        return False
    erf = _argument(rewriter, node.inputs[1], "Erf")
    return bool(erf) and _is_scaled(rewriter, erf or "", x, -math.sqrt(0.5))


def _is_scaled(rewriter: Rewriter, name: str, x: str, scale: float) -> bool:
    constant, tensors = factors(rewriter, name)
    return tensors == [x] and math.isclose(constant, scale, rel_tol=1e-5)


def _is_cubic(rewriter: Rewriter, name: str, x: str) -> bool:
    """name == sqrt(2 / pi) (x + 0.044715 x^3)"""
    constant, tensors = factors(rewriter, name)
    if len(tensors) != 1 or not math.isclose(constant, math.sqrt(2 / math.pi), rel_tol=1e-5):
        return False
    for linear, cubic in _pairs(rewriter, tensors[0], "Add"):
        scale, parts = factors(rewriter, cubic)
        power = rewriter.producer(parts[0]) if len(parts) == 1 else None
        cube = parts == [x, x, x] or (
            power is not None
            and power.is_onnx("Pow")
            and power.inputs[0] == x
            and _near(rewriter, power.inputs[1], 3.0)
        )
        if linear == x and cube and math.isclose(scale, 0.044715, rel_tol=1e-4):
            return True
    return False


_MATCHERS: tuple[_Matcher, ...] = (_single, _silu, _hard_swish, _gelu)
