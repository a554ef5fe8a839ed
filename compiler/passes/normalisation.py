"""Normalisations that exporters write as several operators, and how to recognise each."""

from dataclasses import dataclass

import numpy as np

from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Node, attributes_of
from tilesmith.compiler.passes.views import is_view
from tilesmith.compiler.rewriting.patterns import Patterns, is_of_rows
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule

_NORMALISATIONS = Patterns(
    ("(x - mean(x)) / Sqrt(mean((x - mean(x)) ** 2) + epsilon)", "LayerNormalization"),
    ("(x - mean(x)) / Sqrt(mean(x ** 2) - mean(x) ** 2 + epsilon)", "LayerNormalization"),
    ("(x - mean(x)) / Sqrt(Relu(mean(x ** 2) - mean(x) ** 2) + epsilon)", "LayerNormalization"),
    ("x / Sqrt(mean(x ** 2) + epsilon)", "RMSNormalization"),
)

_SOFTMAX = Patterns(("Exp(x - t) / sum(Exp(x - t))", "Softmax"))


@dataclass(frozen=True)
class RecogniseNormalisations(RulePass):
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

    @rule("Div", "Mul")
    def _recognise(self, rewriter: Rewriter, node: Node) -> None:
        if not rewriter.is_float(node):
            return
        for operator, match in _NORMALISATIONS.matches(rewriter, node):
            _replace(rewriter, node, operator, match.tensors["x"], match.numbers["epsilon"])
            return
        for operator, match in _SOFTMAX.matches(rewriter, node):
            x, top = match.tensors["x"], match.tensors["t"]
            if _is_maximum(rewriter, top, x):
                last = attributes_of(axis=-1)
                softmax = Node(operator, (x,), node.outputs, node.name, INTERNAL_DOMAIN, last)
                rewriter.replace(node, softmax)
                return


def _is_maximum(rewriter: Rewriter, top: str, x: str) -> bool:
    """Whether `top` holds the greatest number of each row of x. What is subtracted from a row
    changes nothing: it may be taken of the same elements in another order of rows."""
    highest = rewriter.producer(_origin(rewriter, top), "ReduceMax")
    if highest is None or not is_of_rows(rewriter, highest):
        return False
    rows = rewriter.info(top).shape == (*rewriter.info(x).dims[:-1], 1)
    return rows and _origin(rewriter, highest.inputs[0]) == _origin(rewriter, x)


def _origin(rewriter: Rewriter, name: str) -> str:
    """The tensor whose elements `name` has in another order or shape."""
    while (node := rewriter.producer(name)) is not None and (
        node.is_onnx("Reshape", "Transpose") or (is_view(node) and not node.attribute("offset", 0))
    ):
        name = node.inputs[0]
    return name


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
