"""QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear -> arithmetic of float32.

    q = saturate(round(x / scale) + zero point)        x = (q - zero point) * scale

Scale and zero point are one number, one for each place along an axis, or one for each block of
places along it. DynamicQuantizeLinear finds a scale that spreads what x holds, and 0, over a byte;
where x holds zeros only the scale is 1, as in ONNX Runtime (the standard's formula would divide by
0). Halves round to the even neighbour. Source: ONNX's operators, 10 to 25.
"""

import numpy as np

from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.numerics.whole_numbers import NARROW, limits
from tilesmith.compiler.rewriting.decomposition import Composer, typed_decompositions


@typed_decompositions.register("DequantizeLinear")
def dequantize_linear(composer: Composer, node: Node) -> str | None:
    x, scale, zero = node.input(0), node.input(1), node.input(2)
    if composer.dtype(x) not in (*NARROW, "int32") or composer.dtype(scale) != "float32":
        return None
    if composer.dtype(node.writes[0]) != "float32":
        return None
    cut, whole = _blocks(composer, node, x)
    if cut is None:
        return None
    numbers = composer.cast(x, "float32")
    wide = composer.view(numbers, cut)
    if zero and not _is_zero(composer, zero):
        shift = _spread(composer, node, composer.cast(zero, "float32"), cut)
        wide = composer.pointwise("Sub", wide, shift)
    result = composer.pointwise("Mul", wide, _spread(composer, node, scale, cut))
    return composer.view(result, whole)


@typed_decompositions.register("QuantizeLinear")
def quantize_linear(composer: Composer, node: Node) -> str | None:
    x, scale, zero = node.input(0), node.input(1), node.input(2)
    dtype = composer.dtype(node.writes[0])
    if composer.dtype(x) != "float32" or composer.dtype(scale) != "float32":
        return None
    if dtype not in NARROW or node.attribute("precision", 0) not in (0, 1):
        return None
    cut, whole = _blocks(composer, node, x)
    if cut is None:
        return None
    wide = composer.view(x, cut)
    factor = _spread(composer, node, scale, cut)
    shift = ""
    if zero and not _is_zero(composer, zero):
        shift = _spread(composer, node, composer.cast(zero, "float32"), cut)
    return composer.view(quantised(composer, wide, factor, shift, dtype), whole)


def quantised(composer: Composer, x: str, scale: str, shift: str, dtype: str) -> str:
    """saturate(round(x / scale) + shift), of `dtype`; no `scale` or `shift` is 1 or 0."""
    quotient = composer.exactly("Div", x, scale) if scale else x
    rounded = composer.pointwise("Round", quotient)
    moved = composer.pointwise("Add", rounded, shift) if shift else rounded
    return composer.cast(clipped(composer, moved, dtype), dtype)


def clipped(composer: Composer, x: str, dtype: str) -> str:
    """In the range of an element type."""
    low, high = limits(dtype)
    if composer.opset < 11:
        return composer.apply("Clip", x, shape=composer.dims(x), min=low, max=high)
    bounds = (composer.number(low), composer.number(high))
    return composer.apply("Clip", x, *bounds, shape=composer.dims(x))


def _is_zero(composer: Composer, name: str) -> bool:
    value = composer.value(name)
    return value is not None and not value.any()


def _blocks(
    composer: Composer, node: Node, x: str
) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """The shape with the axis of blocks cut into blocks and their places (None where they do not
    divide it), and the shape itself."""
    shape, block = composer.dims(x), int(node.attribute("block_size", 0))
    if not block or len(composer.dims(node.inputs[1])) < len(shape):
        return shape, shape
    axis = int(node.attribute("axis", 1)) % len(shape)
    if shape[axis] % block:
        return None, shape
    return (*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :]), shape


def _spread(composer: Composer, node: Node, name: str, cut: tuple[int, ...]) -> str:
    """A scale or zero point in a form that broadcasts."""
    own = composer.dims(name)
    if int(np.prod(own)) == 1:
        return composer.view(name, ())
    rank = len(composer.dims(node.inputs[0]))
    axis = int(node.attribute("axis", 1)) % rank
    if len(cut) > rank:
        return composer.view(name, (*own[: axis + 1], 1, *own[axis + 1 :]))
    return composer.view(name, (own[0], *(1,) * (rank - 1 - axis)))


@typed_decompositions.register("DynamicQuantizeLinear")
def dynamic_quantize_linear(composer: Composer, node: Node) -> tuple[str, ...] | None:
    x = node.input(0)
    if composer.dtype(x) != "float32":
        return None
    zero = composer.number(0.0)
    least, most = (
        composer.pointwise(pick, composer.apply(kind, x, shape=(), keepdims=0), zero)
        for kind, pick in (("ReduceMin", "Min"), ("ReduceMax", "Max"))
    )
    span = composer.pointwise("Sub", most, least)
    step = composer.exactly("Div", span, composer.number(255.0))
    flat = composer.pointwise("Equal", step, zero, dtype="bool")
    scale = composer.pointwise("Where", flat, composer.number(1.0), step)
    first = composer.exactly("Div", composer.pointwise("Neg", least), scale)
    shift = clipped(composer, composer.pointwise("Round", first), "uint8")
    y = quantised(composer, x, scale, shift, "uint8")
    return y, scale, composer.cast(shift, "uint8")
