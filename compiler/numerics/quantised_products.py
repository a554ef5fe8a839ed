"""Which products of a model are of quantised tensors, and why one is not of whole numbers.

`product_of` reads Conv, MatMul and Gemm of dequantised operands, and MatMulInteger and ConvInteger,
as one `QuantisedProduct`. Where a product has something quantised about it but cannot be one of
unsigned bytes and constant int8 weights, the answer is the reason, in words for a report.
"""

import numpy as np

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.numerics import quantised
from tilesmith.compiler.numerics.integer_products import QuantisedProduct
from tilesmith.compiler.rewriting.rewrite import Rewriter

DEQUANTISED = ("Conv", "MatMul", "Gemm")
SUMS = ("MatMulInteger", "ConvInteger")

_MOST = 2**31 - 1


def product_of(rewriter: Rewriter, node: Node) -> QuantisedProduct | str | None:
    """The product that a node is; why it is none; None where nothing about it is quantised."""
    if not node.is_onnx(*DEQUANTISED, *SUMS) or not rewriter.shapes_known(node):
        return None
    product = (
        _of_numbers(rewriter, node) if node.is_onnx(*DEQUANTISED) else _of_sums(rewriter, node)
    )
    if not isinstance(product, QuantisedProduct):
        return product
    return _refused(rewriter, product) or product


def _refused(rewriter: Rewriter, product: QuantisedProduct) -> str:
    """Why a product cannot be a kernel's whose values are right; "" where it can."""
    dims = rewriter.info(product.source).dims
    values = product.weights.values
    if product.convolution and len(dims) not in (3, 4):
        return "windows of three axes"
    if not product.convolution and (values.ndim != 2 or len(dims) < 2):
        return "several matrices of weights" if values.ndim > 2 else "products with vectors"
    if product.most + 255 * int(np.abs(product.weight_sums).max(initial=0)) > _MOST:
        return "sums exceed 32 bits"
    return ""


def _of_numbers(rewriter: Rewriter, node: Node) -> QuantisedProduct | str | None:
    """Of Conv, MatMul and Gemm."""
    before = rewriter.producer(node.inputs[0])
    weights = quantised.weights_of(rewriter, node.inputs[1])
    if before is None or not quantised.is_dequantise(before):
        if before is not None and quantised.is_dequantised(before):
            return "activations have several scales"
        return None if isinstance(weights, str) else "activations are float32"
    if isinstance(weights, str):
        return weights
    coding, source = quantised.coding_of(rewriter, before), before.inputs[0]
    if coding.dtype != "uint8":
        return "activations have a sign"
    if node.is_onnx("Gemm") and node.attribute("transB", 0):
        weights = weights.transposed((1, 0))
    channels = 0 if node.is_onnx("Conv") else weights.values.ndim - 1
    scales = weights.scales_along(channels)
    if scales is None:
        return "scales of weights vary along what is summed"
    steps = (np.float32(coding.scale) * scales).astype(np.float64)
    steps *= float(node.attribute("alpha", 1.0))
    if not np.all((steps > 0) & (steps <= np.finfo(np.float32).max)):
        return "scales are not positive"
    bias = np.zeros(steps.size)
    if node.input(2):
        steps_of_bias = quantised.bias_in_steps(rewriter, node.inputs[2], steps)
        if steps_of_bias is None or steps_of_bias.size not in (1, steps.size):
            return "the bias varies"
        bias = np.broadcast_to(steps_of_bias * float(node.attribute("beta", 1.0)), steps.shape)
    return QuantisedProduct(node, source, coding.zero, weights, steps, bias)


def _of_sums(rewriter: Rewriter, node: Node) -> QuantisedProduct | str:
    """Of MatMulInteger and ConvInteger."""
    a, b = node.inputs[:2]
    values = rewriter.constant(b)
    if values is None:
        return "both operands vary"
    if rewriter.info(a).dtype != "uint8":
        return "activations have a sign"
    zero = rewriter.constant(node.input(3)) if node.input(3) else np.zeros((), values.dtype)
    if zero is None:
        return "zero points of weights vary"
    channels = 0 if node.is_onnx("ConvInteger") else values.ndim - 1
    weights = quantised.coded_weights(values, np.ones(1, np.float32), zero, channels)
    if isinstance(weights, str):
        return weights
    count = values.shape[channels]
    start = _start(rewriter, node.input(2))
    if start is None:
        return "activations have several zero points"
    return QuantisedProduct(node, a, start, weights, np.ones(count), np.zeros(count))


def _start(rewriter: Rewriter, name: str) -> int | str | None:
    """The zero point of activations: a number, or a tensor of one; None if there are several."""
    if not name:
        return 0
    value = rewriter.constant(name)
    if value is None:
        return name if rewriter.info(name).elements == 1 else None
    return int(value.reshape(-1)[0]) if value.size and np.all(value == value.flat[0]) else None
