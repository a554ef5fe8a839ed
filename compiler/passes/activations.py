"""Activations that exporters write as several operators, and the one operator for each."""

from dataclasses import dataclass

from tilesmith.compiler.graph.graph import INTERNAL_DOMAIN, Node, attributes_of
from tilesmith.compiler.rewriting.patterns import Patterns
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.compiler.rewriting.rule_pass import RulePass, rule

_ACTIVATIONS = Patterns(
    ("Gelu(x, approximate='none')", "gelu"),
    ("Gelu(x, approximate='tanh')", "gelu_tanh"),
    ("HardSwish(x)", "hard_swish"),
    ("Swish(x, alpha=1)", "silu"),
    ("x * Sigmoid(x)", "silu"),
    ("x * HardSigmoid(x, alpha=0.16666667, beta=0.5)", "hard_swish"),
    ("x * Clip(x + 3, 0, 6) / 6", "hard_swish"),
    ("0.5 * x * (1 + Erf(x * 0.70710678))", "gelu"),
    ("0.5 * x * (1 - Erf(x * -0.70710678))", "gelu"),
    ("0.5 * x * (1 + Tanh(0.79788456 * (x + 0.044715 * x ** 3)))", "gelu_tanh"),
)
"""What is recognised, and the epilogue step that computes it."""


@dataclass(frozen=True)
class RecogniseActivations(RulePass):
    """Activations that exporters write as several operators become one.

        y = Mul(x, Sigmoid(x))                                         before
        y = tilesmith.silu(x)                                          after

    Recognised: SiLU; HardSwish, also as x clip(x + 3, 0, 6) / 6; GELU through Erf and through Tanh;
    and the single operators Gelu, HardSwish, Swish of newer opsets. An internal activation has the
    name and arguments of the epilogue step that computes it.

    Contract: any graph in; float32 tensors of known shape only; values equal up to roundings.
    """

    name = "recognise-activations"

    @rule(*_ACTIVATIONS.roots)
    def _recognise(self, rewriter: Rewriter, node: Node) -> None:
        if not rewriter.is_float(node):
            return
        for step, match in _ACTIVATIONS.matches(rewriter, node):
            source, result = match.tensors["x"], node.writes[0]
            if rewriter.info(source).shape == rewriter.info(result).shape:
                rewriter.replace(node, activation(step, source, result, node.name))
                break


def activation(
    step: str, source: str, result: str, name: str, arguments: tuple[float, ...] = ()
) -> Node:
    """An internal activation node."""
    attributes = attributes_of(arguments=arguments) if arguments else ()
    return Node(step, (source,), (result,), name, INTERNAL_DOMAIN, attributes)
