"""MaxPool, AveragePool and the global ones -> `pool2d`.

The greatest of quantised bytes is a byte; the mean of bytes that become numbers first is taken of
the bytes, and becomes a number behind it.

A window as large as an unpadded image, or larger, is the global form. One spatial axis is taken as
an image of height one, between views; MaxPool with indices stays on the host.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilesmith.compiler.graph.access import pads, spatial
from tilesmith.compiler.graph.graph import Node, TensorInfo
from tilesmith.compiler.lowering.convolution import window
from tilesmith.compiler.numerics.quantised import coding_of, is_dequantise
from tilesmith.compiler.rewriting.lower import (
    Parameters,
    as_image,
    from_image,
    is_computable,
    make_kernel,
    rules,
    typed_rules,
)
from tilesmith.compiler.rewriting.rewrite import Rewriter
from tilesmith.search_space.workloads.epilogue import EpilogueStep


@typed_rules.register("MaxPool")
def lower_max_pool(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    return _pool(rewriter, node, "max") if len(node.writes) == 1 else None


@rules.register("AveragePool")
def lower_average_pool(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    return _pool(rewriter, node, "average")


def _pool(rewriter: Rewriter, node: Node, kind: str) -> Sequence[Node] | None:
    info = rewriter.info(node.inputs[0])
    if not _is_pooled(info, kind) or len(info.dims) not in (3, 4):
        return None
    node = _fitted(node, info.dims[2:], rewriter.info(node.writes[0]).dims[2:])
    geometry = window(node, info.dims[2:], tuple(node.attribute("kernel_shape")))
    whole = (geometry["h"], geometry["w"]) == (geometry["kh"], geometry["kw"])
    if whole and geometry["pad"] == "0" and geometry["dilation"] == "1":
        return _global(rewriter, node, kind)
    geometry["ceil"] = int(node.attribute("ceil_mode", 0))
    if kind == "average":
        geometry["count_include_pad"] = int(node.attribute("count_include_pad", 0))
    return _image_kernel(rewriter, node, kind, geometry)


def _fitted(node: Node, extents: tuple[int, ...], counts: tuple[int, ...]) -> Node:
    """The same pooling with no window larger than what it slides over, padding included.

    Along an axis with a single window, the cells that lie behind the padding are left out of it,
    and the step is so long that there is no other; ONNX infers one such window where it exceeds
    the padded axis by less than a step.
    """
    rank = len(extents)
    kernel = list(node.attribute("kernel_shape"))
    sides, strides = pads(node, extents, tuple(kernel)), list(spatial(node, "strides", rank))
    dilations = spatial(node, "dilations", rank)
    exceeding = False
    for axis, (extent, (before, after)) in enumerate(zip(extents, sides, strict=True)):
        room = extent + before + after
        if counts[axis] == 1 and (kernel[axis] - 1) * dilations[axis] + 1 > room > 0:
            exceeding = True
            kernel[axis] = (room - 1) // dilations[axis] + 1
            strides[axis] = max(strides[axis], room)
    if not exceeding:
        return node
    kept = dict(node.attributes) | {"kernel_shape": tuple(kernel), "strides": tuple(strides)}
    kept["pads"] = (*(before for before, _ in sides), *(after for _, after in sides))
    kept["auto_pad"] = "NOTSET"
    return replace(node, attributes=tuple(sorted(kept.items())))


@rules.register("GlobalAveragePool")
def lower_global_average_pool(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    return _global(rewriter, node, "average")


@typed_rules.register("GlobalMaxPool")
def lower_global_max_pool(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    return _global(rewriter, node, "max")


def _global(rewriter: Rewriter, node: Node, kind: str) -> Sequence[Node] | None:
    info = rewriter.info(node.inputs[0])
    if not _is_pooled(info, kind) or len(info.dims) not in (3, 4):
        return None
    height, width = info.dims[2:] if len(info.dims) == 4 else (1, info.dims[2])
    return _image_kernel(rewriter, node, kind, {"h": height, "w": width, "global": 1})


def _is_pooled(info: TensorInfo, kind: str) -> bool:
    bytes_too = kind == "max" and info.known and info.dtype == "uint8" and info.elements > 0
    return bytes_too or is_computable(info)


def _image_kernel(
    rewriter: Rewriter, node: Node, kind: str, geometry: Parameters
) -> Sequence[Node]:
    source, (n, c, *_) = node.inputs[0], rewriter.info(node.inputs[0]).dims
    plain = kind == "average" and not geometry.get("count_include_pad")
    epilogue = _numbers_behind(rewriter, node) if plain else []
    if epilogue:
        source = _dequantised(rewriter, source).inputs[0]  # type: ignore[union-attr]
    before, source = as_image(rewriter, source)
    after, result = from_image(rewriter, node.writes[0])
    kernel = make_kernel(
        rewriter, node, "pool2d", (source,), output=result, epilogue=epilogue,
        kind=kind, n=n, c=c, **geometry,
    )  # fmt: skip
    return [*before, kernel, *after]


def _dequantised(rewriter: Rewriter, name: str) -> Node | None:
    """What makes a tensor of unsigned bytes."""
    node = rewriter.producer(name)
    return node if node is not None and is_dequantise(node) else None


def _numbers_behind(rewriter: Rewriter, node: Node) -> list[tuple[EpilogueStep, str]]:
    """The steps that make numbers of a mean of bytes; none where the mean is of numbers."""
    before = _dequantised(rewriter, node.inputs[0])
    if before is None:
        return []
    coding = coding_of(rewriter, before)
    if coding.dtype != "uint8":
        return []
    count, base = rewriter.info(node.inputs[0]).dims[1], node.writes[0]
    steps = []
    for step, value in (("scale", coding.scale), ("bias", -coding.zero * coding.scale)):
        each = np.full(count, value, np.float32)
        steps.append((EpilogueStep(step), rewriter.add_constant(base, each, "float32")))
    return steps
