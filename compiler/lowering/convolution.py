"""Conv -> `conv2d` or `depthwise_conv2d`.

One spatial axis is taken as an image of height one; three were taken apart before
(`decompositions/volumes.py`). Padding may differ on each side; a bias becomes the first step of the
epilogue.
"""

from collections.abc import Sequence

from tilesmith.compiler.graph.access import pads, spatial
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.lower import (
    Parameters,
    as_image,
    from_image,
    is_computable,
    make_kernel,
    rules,
)
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.workloads.epilogue import EpilogueStep
from tilesmith.search_space.workloads.workload import ParameterValue


@rules.register("Conv")
def lower_conv(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    data, weight, bias = node.inputs[0], node.inputs[1], node.input(2)
    if not all(is_computable(rewriter.info(name)) for name in node.reads):
        return None
    epilogue = [(EpilogueStep("bias"), bias)] if bias else []
    if len(rewriter.info(data).dims) not in (3, 4):
        return None
    return convolution(rewriter, node, (data, weight), epilogue)


def convolution(
    rewriter: Rewriter,
    node: Node,
    operands: Sequence[str],
    epilogue: Sequence[tuple[EpilogueStep, str]],
    **stated: ParameterValue,
) -> list[Node]:
    """The kernel of a convolution over one or two spatial axes, and views around it.

    Args:
        node: gives geometry, result and name.
        operands: data, weight and whatever else the template reads.
        epilogue: steps with the tensor each reads ("" for none).
        stated: further parameters of the workload.
    """
    data, weight, *rest = operands
    shape, kernel_shape = rewriter.info(data).dims, rewriter.info(weight).dims
    geometry = window(node, shape[2:], kernel_shape[2:])
    channels, out_channels = shape[1], kernel_shape[0]
    groups = int(node.attribute("group", 1))
    parameters: Parameters = {"n": shape[0], "c": channels, **geometry, **stated}
    operator = "conv2d"
    if groups > 1 and groups == channels == out_channels:
        operator = "depthwise_conv2d"
    else:
        parameters |= {"oc": out_channels, "groups": groups}
    before, source = as_image(rewriter, data)
    after, result = from_image(rewriter, node.writes[0])
    kernel_node = make_kernel(
        rewriter, node, operator, (source, weight, *rest), output=result,
        names=("", "weight"), epilogue=epilogue, **parameters,
    )  # fmt: skip
    return [*before, kernel_node, *after]


def window(node: Node, extents: tuple[int, ...], kernel: tuple[int, ...]) -> Parameters:
    """Parameters h, w, kh, kw, stride, pad and dilation of a sliding window over 1 or 2 axes."""
    rank = len(extents)
    sides = pads(node, extents, kernel)
    strides, dilations = spatial(node, "strides", rank), spatial(node, "dilations", rank)
    if rank == 1:
        extents, kernel, strides = (1, *extents), (1, *kernel), (1, *strides)
        sides, dilations = ((0, 0), *sides), (1, *dilations)
    steps = {"stride": pair_text(strides), "dilation": pair_text(dilations)}
    sizes = dict(zip(("h", "w", "kh", "kw"), (*extents, *kernel), strict=True))
    return {**sizes, **steps, "pad": pad_text(sides)}


def pair_text(values: tuple[int, ...]) -> str:
    """'2' for equal steps, else '2x1'."""
    return str(values[0]) if values[0] == values[1] else f"{values[0]}x{values[1]}"


def pad_text(sides: tuple[tuple[int, int], ...]) -> str:
    """'1', '1x0', or 'TOPxLEFTxBOTTOMxRIGHT': the shortest that says it."""
    (top, bottom), (left, right) = sides
    if (top, left) == (bottom, right):
        return pair_text((top, left))
    return f"{top}x{left}x{bottom}x{right}"
