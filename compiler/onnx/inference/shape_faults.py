"""What is wrong with the shapes of a node's operands together, where ONNX's inference is silent.

A rule yields what is wrong with the operands of one operator, in words of the ONNX standard, and
`compiler.onnx.inference.checks` refuses the node. Invariant: shapes that are not known are not
looked at.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from tilesmith.compiler.graph.access import pads
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.search_space.workloads.workload import shape_text

Shapes = list[tuple[int, ...] | None]


def _attention_faults(node: Node, shapes: Shapes) -> Iterator[str]:
    """Q, K and V share batch, heads and lengths (ONNX operators, Attention, opset 23)."""
    if any(shape is None for shape in shapes[:3]):
        return
    query, key, value = (shape for shape in shapes[:3] if shape is not None)
    texts = ", ".join(shape_text(shape) for shape in (query, key, value))
    ranks = {len(query), len(key), len(value)}
    if ranks not in ({3}, {4}):
        yield f"Q, K and V have the shapes {texts}; all three have 3 axes, or all three have 4"
        return
    heads, shared = query[1], key[1]
    if ranks == {3}:
        heads, shared = (int(node.attribute(f"{n}_num_heads", 0)) for n in ("q", "kv"))
        if not heads or not shared:
            yield "operands of 3 axes need the attributes 'q_num_heads' and 'kv_num_heads'"
            return
        if query[2] % heads or key[2] % shared or value[2] % shared:
            yield f"features of the shapes {texts} are no multiples of {heads} and {shared} heads"
            return
    if len({query[0], key[0], value[0]}) > 1 or key[-2] != value[-2]:
        yield f"Q, K and V have the shapes {texts}; batches, and lengths of K and V, have to agree"
    elif len(query) == 4 and key[1] != value[1]:
        yield f"Q, K and V have the shapes {texts}; K and V have to have the same number of heads"
    elif not shared or heads % shared:
        yield f"{heads} heads of Q are no multiple of {shared} heads of K and V"
    elif _width(query, heads) != _width(key, shared):
        yield f"Q, K and V have the shapes {texts}; heads of Q and K have to be of one size"
    if shared:
        yield from _cache_faults((query[0], shared), (key, value), shapes[4:6])
    mask = shapes[3] if len(shapes) > 3 else None
    wanted = (query[0], heads, query[-2])
    for given, extent in zip(reversed((mask or ())[:-1]), reversed(wanted), strict=False):
        if given not in (1, extent):
            shown = shape_text(mask or ())
            yield f"the mask has the shape {shown}, which does not broadcast over {wanted}"


def _cache_faults(
    lead: tuple[int, int], new: Sequence[tuple[int, ...]], caches: Shapes
) -> Iterator[str]:
    """Earlier keys and values are of the batches, heads and features of the new ones, and as many.

    Args:
        lead: batches, and heads of keys and values.
        new: shapes of K and V.
        caches: those of past_key and past_value, so far as they are given.
    """
    given = [cache for cache in caches if cache is not None]
    for name, shape, cache in zip(("past_key", "past_value"), new, caches, strict=False):
        wanted = (*lead, _width(shape, lead[1]))
        if cache is not None and (len(cache) != 4 or (*cache[:2], cache[3]) != wanted):
            due = f"{lead[0]}x{lead[1]}xNx{wanted[2]}"
            yield f"{name} has the shape {shape_text(cache)}; {due} is due, beside new ones"
            return
    if len({cache[2] for cache in given}) > 1:
        texts = " and ".join(shape_text(cache) for cache in given)
        yield f"past_key and past_value have the shapes {texts}; they have to be of one length"


def _width(shape: tuple[int, ...], heads: int) -> int:
    return shape[3] if len(shape) == 4 else shape[2] // heads


def _transpose_faults(node: Node, shapes: Shapes) -> Iterator[str]:
    order = node.attribute("perm")
    if order is not None and shapes[0] is not None and sorted(order) != [*range(len(shapes[0]))]:
        axes = len(shapes[0])
        yield f"attribute 'perm' is {list(order)}, not all axes of its input, 0 to {axes - 1}"


def _convolution_faults(node: Node, shapes: Shapes) -> Iterator[str]:
    """Input, weight and bias belong together (ONNX operators, Conv and ConvTranspose)."""
    given, weight = shapes[:2]
    if given is None or weight is None:
        return
    if len(given) != len(weight) or len(given) < 3:
        yield (
            f"its input has the shape {shape_text(given)} and its weight {shape_text(weight)}; "
            "both have to have the same number of axes, 3 or more"
        )
        return
    groups, transposed = int(node.attribute("group", 1)), node.operator == "ConvTranspose"
    channels, filters = weight[0] if transposed else weight[1] * groups, weight[0]
    if groups < 1 or filters % groups or channels != given[1]:
        yield (
            f"its weight {shape_text(weight)} with {groups} groups is for inputs of {channels} "
            f"channels, each group of as many filters; its input has the shape {shape_text(given)}"
        )
    if tuple(node.attribute("kernel_shape") or weight[2:]) != tuple(weight[2:]):
        yield (
            f"attribute 'kernel_shape' is {list(node.attribute('kernel_shape'))} and its weight "
            f"{shape_text(weight)}; both have to say the same"
        )
    outputs, bias = weight[1] * groups if transposed else filters, (*shapes, None, None)[2]
    if bias is not None and bias != (outputs,):
        yield f"its bias has the shape {shape_text(bias)}; one number a channel, {outputs}, is due"


def _integer_convolution_faults(node: Node, shapes: Shapes) -> Iterator[str]:
    """Zero points and scales stand among the operands of whole numbers."""
    if node.operator == "ConvInteger":
        return _convolution_faults(node, shapes[:2])
    return _convolution_faults(node, [shapes[0], shapes[3], *shapes[8:9]])


def _windows_faults(node: Node, shapes: Shapes) -> Iterator[str]:
    """Operands belong together, and `pads` is not stated beside an `auto_pad` that means others:
    ONNX allows only one of them, and its inference goes by the first, its reference by the second.
    """
    of_bytes = node.operator in ("ConvInteger", "QLinearConv")
    if of_bytes or node.operator == "Conv":
        yield from (_integer_convolution_faults if of_bytes else _convolution_faults)(node, shapes)
    weight = None if node.operator.endswith("Pool") else shapes[3 if node.operator[0] == "Q" else 1]
    kernel = tuple(node.attribute("kernel_shape") or (weight or ())[2:])
    stated, mode = tuple(node.attribute("pads") or ()), node.attribute("auto_pad", "NOTSET")
    extents = (shapes[0] or ())[2:]
    if (
        mode in ("NOTSET", "")
        or not stated
        or not len(stated) == 2 * len(kernel) == 2 * len(extents)
    ):
        return
    meant = [*zip(*pads(node, extents, kernel), strict=True)]
    if stated != (*meant[0], *meant[1]):
        yield (
            f"attribute 'pads' is {list(stated)}, and 'auto_pad' is '{mode}', which here means "
            f"{[*meant[0], *meant[1]]}; only one of them may be stated"
        )


def _gemm_faults(node: Node, shapes: Shapes) -> Iterator[str]:
    """What is added broadcasts to the product, and not the other way round."""
    left, right, added = (*shapes, None)[:3]
    if left is None or right is None or added is None or not len(left) == len(right) == 2:
        return
    turned = [bool(node.attribute(name, 0)) for name in ("transA", "transB")]
    product = (left[turned[0]], right[1 - turned[1]])
    pairs = zip(reversed(added), reversed(product), strict=False)
    if len(added) > 2 or any(extent not in (1, whole) for extent, whole in pairs):
        yield (
            f"what is added has the shape {shape_text(added)}, which does not broadcast to that of "
            f"the product, {shape_text(product)}"
        )


def _loss_faults(node: Node, shapes: Shapes) -> Iterator[str]:
    """Labels are as large as the scores without their classes; weights, one for each class."""
    scores, labels, weights = (*shapes, None)[:3]
    if scores is None or labels is None:
        return
    if len(scores) < 2 or labels != (scores[0], *scores[2:]):
        yield (
            f"its scores have the shape {shape_text(scores)} and its labels {shape_text(labels)}; "
            "labels have every axis of the scores but the second"
        )
    elif weights is not None and weights != (scores[1],):
        yield f"its weights have the shape {shape_text(weights)}; {scores[1]} numbers are due"


def _rotary_faults(node: Node, shapes: Shapes) -> Iterator[str]:
    """Cosines and sines are rows by position, or of each batch and position already."""
    given, cosines, sines, positions = (*shapes, None)[:4]
    if given is None or cosines is None or sines is None:
        return
    named = len(node.inputs) > 3 and bool(node.inputs[3])
    rank = 2 if named else 3
    if len(given) not in (3, 4) or len(cosines) != rank or cosines != sines:
        yield (
            f"its input has the shape {shape_text(given)}, its caches {shape_text(cosines)} and "
            f"{shape_text(sines)}; 3 or 4 axes are due, and {rank} of both caches, which are alike"
        )
    elif positions is not None and positions != (given[0], given[-2]):
        due = shape_text((given[0], given[-2]))
        yield f"its positions have the shape {shape_text(positions)}; {due} is due"


def _instance_faults(node: Node, shapes: Shapes) -> Iterator[str]:
    """There is something to normalise over; scale and bias are numbers by channel."""
    given, *others = shapes
    if given is not None and len(given) < 3:
        yield f"its input has the shape {shape_text(given)}; 3 axes and more are due"
    elif given is not None and any(o is not None and o != (given[1],) for o in others):
        texts = " and ".join(shape_text(other) for other in others if other is not None)
        yield f"its scale and bias have the shapes {texts}; {given[1]} numbers each are due"


def _coding_faults(node: Node, shapes: Shapes) -> Iterator[str]:
    """One scale for all, one for each place of `axis`, or one for each block along it; a zero point
    for each (ONNX operators, QuantizeLinear and DequantizeLinear, opset 21)."""
    given, scale, zero = (*shapes, None)[:3]
    if given is None or scale is None:
        return
    if zero is not None and math.prod(zero) != math.prod(scale):
        texts = f"{shape_text(scale)} and its zero points {shape_text(zero)}"
        yield f"its scales have the shape {texts}; both have to be alike"
    if math.prod(scale) == 1:
        return
    axis, block = int(node.attribute("axis", 1)), int(node.attribute("block_size", 0))
    if not -len(given) <= axis < len(given):
        yield f"attribute 'axis' is {axis}; its input has the shape {shape_text(given)}"
        return
    blocks = list(given)
    blocks[axis] = -(-given[axis] // block) if block > 0 else given[axis]
    due = tuple(blocks) if block > 0 else (given[axis],)
    if scale != due:
        yield (
            f"its scales have the shape {shape_text(scale)}; one scale, or scales of the shape "
            f"{shape_text(due)}, are due for an input of the shape {shape_text(given)}"
        )


def _scan_faults(node: Node, shapes: Shapes) -> Iterator[str]:
    """Lists have one entry for each scanned input, or for each output that is stacked (ONNX
    operators, Scan, opset 9)."""
    count = int(node.attribute("num_scan_inputs", 0))
    if not 1 <= count <= len(node.inputs):
        yield f"attribute 'num_scan_inputs' is {count}; it has {len(node.inputs)} inputs"
        return
    stacked = len(node.outputs) - (len(node.inputs) - count)
    for side, due in (("input", count), ("output", stacked)):
        for name in (f"scan_{side}_axes", f"scan_{side}_directions"):
            listed = tuple(node.attribute(name) or ())
            if listed and len(listed) != due:
                yield f"attribute '{name}' has {len(listed)} entries; {due} are due"
            elif name.endswith("directions") and not {*listed} <= {0, 1}:
                yield f"attribute '{name}' is {list(listed)}; 0 is forwards and 1 backwards"
    scanned = zip(node.attribute("scan_input_axes") or (0,) * count, shapes[-count:], strict=True)
    for axis, shape in scanned:
        if shape is not None and not -len(shape) <= axis < len(shape):
            yield f"axis {axis} is scanned of an input of the shape {shape_text(shape)}"


def _frames_faults(node: Node, shapes: Shapes) -> Iterator[str]:
    """A signal has batch, samples and parts; a window, one number for each sample of a frame."""
    signal, _, window = (*shapes, None, None, None)[:3]
    if signal is not None and len(signal) not in (2, 3):
        yield f"its signal has the shape {shape_text(signal)}; batch x samples x 1 or 2 is due"
    if window is not None and len(window) != 1:
        yield f"its window has the shape {shape_text(window)}; one axis is due"


def _diagonal_faults(node: Node, shapes: Shapes) -> Iterator[str]:
    """The diagonal is one number."""
    diagonal = (*shapes, None)[1]
    if diagonal is not None and math.prod(diagonal) != 1:
        yield f"its diagonal 'k' has the shape {shape_text(diagonal)}; one number is due"


SHAPE_FAULTS: Mapping[str, Callable[[Node, Shapes], Iterator[str]]] = {
    "Attention": _attention_faults,
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv", *having("pools")), _windows_faults),
    "ConvTranspose": _convolution_faults,
    "Gemm": _gemm_faults,
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _coding_faults),
    "InstanceNormalization": _instance_faults,
    "NegativeLogLikelihoodLoss": _loss_faults,
    "RotaryEmbedding": _rotary_faults,
    "Scan": _scan_faults,
    "STFT": _frames_faults,
    "SoftmaxCrossEntropyLoss": _loss_faults,
    "Transpose": _transpose_faults,
    "Trilu": _diagonal_faults,
}
"""Operators whose operands' shapes ONNX's inference does not compare."""
