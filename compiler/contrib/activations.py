"""Activations of com.microsoft, with a bias before them or a gate behind.

    Gelu(x)            x / 2 (1 + erf(x / sqrt 2))
    BiasGelu(x, b)     Gelu(x + b)
    BiasSplitGelu(x, b)   l Gelu(r), where l and r are the halves of x + b along the last axis
    FastGelu(x, b?)    t / 2 (1 + tanh(sqrt(2 / pi) (t + 0.044715 t^3))), t = x + b
    QuickGelu(x)       x sigmoid(alpha x), alpha = 1.702

Source: ONNX Runtime, docs/ContribOperators.md, version 1 of the domain.
"""

from tilesmith.compiler.rewriting.expansion import Expansion, operator


@operator("com.microsoft.Gelu", 1, 1)
def gelu(e: Expansion) -> str:
    return e.newest("gelu", e.input(0))


@operator("com.microsoft.BiasGelu", 2, 2)
def bias_gelu(e: Expansion) -> str:
    return e.newest("gelu", e.apply("Add", e.input(0), e.input(1)))


@operator("com.microsoft.FastGelu", 1, 2)
def fast_gelu(e: Expansion) -> str:
    return e.newest("gelu_tanh", e.add(e.input(0), e.input(1)))


@operator("com.microsoft.QuickGelu", 1, 1, alpha=1.702)
def quick_gelu(e: Expansion) -> str:
    x, alpha = e.input(0), float(e.attribute("alpha"))
    if alpha == 1.0:
        return e.newest("silu", x)
    inner = e.apply("Mul", x, e.number(alpha, x))
    return e.apply("Mul", x, e.apply("Sigmoid", inner))


@operator("com.microsoft.BiasSplitGelu", 2, 2)
def bias_split_gelu(e: Expansion) -> str:
    total = e.apply("Add", e.input(0), e.input(1))
    last = e.rank(total) - 1
    half = e.dims(total)[last] // 2
    left, right = e.slice(total, last, 0, half), e.slice(total, last, half, 2 * half)
    return e.apply("Mul", left, e.newest("gelu", right))
