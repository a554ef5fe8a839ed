"""Normalisations that exporters write as several operators, and how to recognise each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilesmith.compiler.graph.access import axes, scalar, uniform
from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Graph, Node, attributes_of
from tilesmith.compiler.passes.activations import factors
from tilesmith.compiler.passes.views import is_view
from tilesmith.compiler.rewriting.graph_pass import Pass
from tilesmith.compiler.rewriting.rewrite import Rewriter


@dataclass(frozen=True)
class RecogniseNormalisations(Pass):
    """Normalisations and softmax that exporters write as several operators become one.

        d = Sub(x, ReduceMean(x))                                               before
        y = Add(Mul(Div(d, Sqrt(Add(ReduceMean(Pow(d, 2)), e))), g), b)
        y = LayerNormalization(x, g, b, epsilon=e)                              after

        y = Mul(Mul(x, Reciprocal(Sqrt(Add(ReduceMean(Pow(x, 2)), e)))), g)     before
        y = RMSNormalization(x, g, epsilon=e)                                   after

        e = Exp(Sub(x, ReduceMax(x))); y = Div(e, ReduceSum(e))                 before
        y = Softmax(x)                                                          after

    All over the last axis; the variance of a layer normalisation may also be written as
    max(0, mean(x x) - mean(x) mean(x)), and a maximum be taken before the rows were put in another
    order.

    Contract: any graph in; float32 of known shape only; the new operators are of the newest opset
    (domain "tilesmith"); values equal up to roundings; dead code is left behind.
    """

    name = "recognise-normalisations"

    def run(self, graph: Graph) -> Graph:
        rewriter = Rewriter(graph)
        for node in rewriter.nodes():
            if len(node.writes) != 1 or not rewriter.info(node.writes[0]).known:
                continue
            if rewriter.info(node.writes[0]).dtype != "float32":
                continue
            if node.is_onnx("Div"):
                _softmax(rewriter, node)
            if node.is_onnx("Div", "Mul") and rewriter.alive(node):
                _normalisation(rewriter, node)
        return rewriter.finish()


def _reduced(rewriter: Rewriter, name: str, operator: str) -> str | None:
    """x where `name` is `operator` of x over its last axis, kept as an extent of one."""
    node = rewriter.producer(name)
    if node is None or not node.is_onnx(operator) or not node.attribute("keepdims", 1):
        return None
    source = rewriter.info(node.inputs[0])
    if not source.known or axes(node, len(source.dims), rewriter.constant) != (
        len(source.dims) - 1,
    ):
        return None
    return node.inputs[0]


def _origin(rewriter: Rewriter, name: str) -> str:
    """The tensor whose elements `name` has in another order or shape."""
    while (node := rewriter.producer(name)) is not None and (
        node.is_onnx("Reshape", "Transpose") or (is_view(node) and not node.attribute("offset", 0))
    ):
        name = node.inputs[0]
    return name


def _softmax(rewriter: Rewriter, node: Node) -> None:
    """What is subtracted from a row changes nothing: the maximum may be taken of the same elements
    in another order of rows."""
    power = rewriter.producer(node.inputs[0])
    if power is None or not power.is_onnx("Exp") or _reduced(
        rewriter, node.inputs[1], "ReduceSum"
    ) != node.inputs[0]:  # fmt: skip
        return
    shifted = rewriter.producer(power.inputs[0])
    if shifted is None or not shifted.is_onnx("Sub"):
        return
    x, top = shifted.inputs
    highest = _reduced(rewriter, _origin(rewriter, top), "ReduceMax")
    rows = (*rewriter.info(x).dims[:-1], 1)
    if not highest or rewriter.info(top).shape != rows:
        return
    if _origin(rewriter, highest) == _origin(rewriter, x):
        rewriter.replace(
            node,
            Node("Softmax", (x,), node.outputs, node.name, INTERNAL_DOMAIN, attributes_of(axis=-1)),
        )


def _normalisation(rewriter: Rewriter, node: Node) -> None:
    """`node` is x / sqrt(mean(x^2) + e), or x * (1 / sqrt(mean(x^2) + e)): of a centred x a layer
    normalisation, of another an RMS normalisation."""
    source, deviation = _source_and_deviation(rewriter, node)
    root = rewriter.producer(deviation) if deviation else None
    total = rewriter.producer(root.inputs[0]) if root and root.is_onnx("Sqrt") else None
    if total is None or not total.is_onnx("Add"):
        return
    for variance, small in (total.inputs, total.inputs[::-1]):
        epsilon = uniform(rewriter.constant, small)
        whole = _uncentred(rewriter, source)
        squares = _reduced(rewriter, variance, "ReduceMean")
        centred = bool(squares) and _is_square(rewriter, squares or "", source)
        if epsilon is not None and (centred or _is_variance(rewriter, variance, whole)):
            operator = "RMSNormalization" if whole is None else "LayerNormalization"
            _replace(rewriter, node, operator, whole or source, epsilon)
            return


def _uncentred(rewriter: Rewriter, name: str) -> str | None:
    """x where `name` is x less its mean."""
    subtraction = rewriter.producer(name)
    if subtraction is None or not subtraction.is_onnx("Sub"):
        return None
    x = subtraction.inputs[0]
    return x if _reduced(rewriter, subtraction.inputs[1], "ReduceMean") == x else None


def _is_variance(rewriter: Rewriter, name: str, x: str | None) -> bool:
    """Whether `name` is max(0, mean(x^2) - mean(x)^2)."""
    node = rewriter.producer(name)
    if node is not None and node.is_onnx("Relu"):
        node = rewriter.producer(node.inputs[0])
    if x is None or node is None or not node.is_onnx("Sub"):
        return False
    squares, mean = (_reduced(rewriter, node.inputs[0], "ReduceMean"), _squared(rewriter, node))
    of_x = bool(squares) and _is_square(rewriter, squares or "", x)
    return of_x and bool(mean) and _reduced(rewriter, mean, "ReduceMean") == x


def _squared(rewriter: Rewriter, node: Node) -> str:
    """m where a Sub subtracts m m."""
    square = rewriter.producer(node.inputs[1])
    mean = square.inputs[0] if square is not None and square.inputs else ""
    return mean if mean and _is_square(rewriter, node.inputs[1], mean) else ""


def _source_and_deviation(rewriter: Rewriter, node: Node) -> tuple[str, str]:
    if node.operator == "Div":
        return node.inputs[0], node.inputs[1]
    for source, inverse in (node.inputs, node.inputs[::-1]):
        producer = rewriter.producer(inverse)
        if producer is not None and producer.is_onnx("Reciprocal"):
            return source, producer.inputs[0]
        is_div = producer is not None and producer.is_onnx("Div")
        if producer and is_div and uniform(rewriter.constant, producer.inputs[0]) == 1.0:
            return source, producer.inputs[1]
    return "", ""


def _is_square(rewriter: Rewriter, name: str, x: str) -> bool:
    node = rewriter.producer(name)
    if node is None:
        return False
    if node.is_onnx("Pow"):
        return node.inputs[0] == x and scalar(node, "", 1, rewriter.constant, 0.0) == 2.0
    constant, parts = factors(rewriter, name, 1)
    return constant == 1.0 and parts == [x, x]


def _replace(rewriter: Rewriter, node: Node, operator: str, x: str, epsilon: float) -> None:
    """Take the scale that follows along, if any; of a layer normalisation the shift, too."""
    width = rewriter.info(x).dims[-1]
    consumed, result = [node], node.writes[0]
    parameters: list[str] = []
    for step in ("Mul", "Add") if operator == "LayerNormalization" else ("Mul",):
        after = rewriter.only_consumer(result)
        if after is None or not after.is_onnx(step) or len(parameters) != len(consumed) - 1:
            break
        other = after.inputs[1] if after.inputs[0] == result else after.inputs[0]
        info = rewriter.info(other)
        if info.shape != (width,) or info.dtype != "float32":
            break
        consumed.append(after)
        parameters.append(other)
        result = after.outputs[0]
    if not parameters:
        parameters.append(rewriter.add_constant("ones", np.ones(width, np.float32), "float32"))
    attributes = attributes_of(axis=-1, epsilon=epsilon)
    new = Node(operator, (x, *parameters), (result,), node.name, INTERNAL_DOMAIN, attributes)
    rewriter.replace(consumed, new)
