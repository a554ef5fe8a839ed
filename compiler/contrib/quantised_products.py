"""Products of bytes of com.microsoft.

    DynamicQuantizeMatMul(a, b, sb, zb?, bias?)    a is quantised at run time; result float32
    MatMulIntegerToFloat(a, b, sa, sb, za?, zb?, bias?)    (a - za) (b - zb) sa sb + bias
    QGemm(a, sa, za, b, sb, zb, c?, sy?, zy?)    alpha a' b' + c of whole numbers, c of the scale
                                                 alpha sa sb; quantised again where there is sy
    QLinearConv    ONNX's, with `channels_last`
    MatMulInteger16(a, b)    int16 to int32

Scales and zero points are one number, or one for each column. Source: ONNX Runtime,
docs/ContribOperators.md.
"""

from tilesmith.compiler.contrib.convolutions import (
    CONVOLUTION,
    channels_first,
    channels_last,
    stated,
)
from tilesmith.compiler.contrib.quantised import quantised
from tilesmith.compiler.rewriting.expansion import Expansion, operator


def scaled_product(e: Expansion, a: tuple[str, str, str], b: tuple[str, str, str]) -> str:
    """A product of two tensors of bytes, each with its scale and zero point, as numbers."""
    total = e.apply("MatMulInteger", a[0], b[0], a[2], b[2])
    return e.apply("Mul", e.cast(total, e.dtype(a[1])), e.apply("Mul", a[1], b[1]))


@operator("com.microsoft.MatMulIntegerToFloat", 4, 7)
def matmul_integer_to_float(e: Expansion) -> str:
    a, b = ((e.input(i), e.input(i + 2), e.input(i + 4)) for i in (0, 1))
    return e.add(scaled_product(e, a, b), e.input(6))


@operator("com.microsoft.DynamicQuantizeMatMul", 3, 5)
def dynamic_quantize_matmul(e: Expansion) -> str:
    codes, scale, zero = e.outputs(3, "DynamicQuantizeLinear", e.input(0))
    b = (e.input(1), e.input(2), e.input(3))
    return e.add(scaled_product(e, (codes, scale, zero), b), e.input(4))


@operator("com.microsoft.QGemm", 6, 9, alpha=1.0, transA=0, transB=0)
def qgemm(e: Expansion) -> str:
    a, b = e.input(0), e.input(3)
    a = e.transpose(a, 1, 0) if int(e.attribute("transA")) else a
    b = e.transpose(b, 1, 0) if int(e.attribute("transB")) else b
    total = e.apply("MatMulInteger", a, b, e.input(2), e.input(5))
    scale = e.apply("Mul", e.input(1), e.input(4))
    total = e.cast(total, e.dtype(scale))
    if e.input(6):
        total = e.apply("Add", total, e.cast(e.input(6), e.dtype(scale)))
    if (alpha := float(e.attribute("alpha"))) != 1.0:
        scale = e.apply("Mul", scale, e.number(alpha, scale))
    if e.input(7):
        scale = e.newest("Div", scale, e.input(7))
    y = e.apply("Mul", total, scale)
    if not e.input(7):
        return y
    return quantised(e, y, e.number(1.0, scale), e.input(8), e.dtype(e.input(0)))


@operator("com.microsoft.QLinearConv", 8, 9, channels_last=0, **CONVOLUTION)
def qlinear_conv(e: Expansion) -> str:
    x, *rest = e.node.inputs
    given = stated(e, *CONVOLUTION)
    if not int(e.attribute("channels_last")):
        return e.apply("QLinearConv", x, *rest, **given)
    return channels_last(e, e.apply("QLinearConv", channels_first(e, x), *rest, **given))


@operator("com.microsoft.MatMulInteger16", 2, 2)
def matmul_integer_16(e: Expansion) -> str:
    return e.apply("MatMul", *(e.cast(e.input(i), "int32") for i in (0, 1)))
