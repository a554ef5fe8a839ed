"""Convolution and pooling over three spatial axes -> the same over two.

A convolution that spans frames is one over images whose channels are those of all frames that a
window sees, so that every algorithm for images applies; frames are copied as often as windows see
them:

    x'[n d', k c, h, w] = x[n, c, d' stride + k dilation - pad, h, w]           y = Conv(x', w')

Where every channel is by itself, the taps along the depth are as many convolutions of images,
summed. A window of one pixel a frame is one of one column in an image d x (h w), and a window as
deep as the volume sees an image of c d channels: both copy nothing. Pooling is separable: windows
in the frames of c d channels, then windows of one column in d x (h w).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.graph.access import pads, spatial
from tilesmith.compiler.graph.graph import Node
from tilesmith.compiler.rewriting.decomposition import Composer, volumes

_SWAP = (0, 2, 1, 3, 4)
"""Channels and frames change places."""


class _Convolution:
    """A convolution of volumes, taken apart: what its numbers are, and its forms."""

    def __init__(self, composer: Composer, node: Node, weight: NDArray[Any]) -> None:
        self.composer, self.node, self.weight = composer, node, weight
        self.source = node.inputs[0]
        self.bias = node.input(2)
        self.n, self.channels, *extents = composer.dims(self.source)
        self.depth, self.height, self.width = extents
        self.result = composer.dims(node.writes[0])
        self.frames = self.result[2]
        self.groups = int(node.attribute("group", 1))
        self.kernel = weight.shape[2:]
        self.strides = spatial(node, "strides", 3)
        self.dilations = spatial(node, "dilations", 3)
        self.pads = pads(node, tuple(extents), self.kernel)

    def convolved(
        self, source: str, weight: NDArray[Any], axes: slice, bias: str = "", groups: int = 0
    ) -> str:
        """A convolution of images by the numbers of two of the three axes, or of (depth, none)."""
        n = self.composer.dims(source)[0]
        both = axes == slice(1, 3)
        strides, dilations, sides = (
            tuple(numbers[axes]) if both else (numbers[0], rest)
            for numbers, rest in ((self.strides, 1), (self.dilations, 1), (self.pads, (0, 0)))
        )
        extents = self.result[3:] if both else (self.frames, math.prod(self.result[3:]))
        around = tuple(side for pair in zip(*sides, strict=True) for side in pair)
        sources = (source, self.composer.constant(weight), *([bias] if bias else []))
        return self.composer.apply(
            "Conv", *sources, shape=(n, weight.shape[0], *extents),
            kernel_shape=weight.shape[2:], strides=strides, dilations=dilations,
            group=groups or self.groups, pads=around,
        )  # fmt: skip

    def seen(self) -> NDArray[np.int64]:
        """The padded frames that each window sees: (frames, taps)."""
        first = np.arange(self.frames) * self.strides[0]
        return first[:, None] + np.arange(self.kernel[0]) * self.dilations[0]

    def padded(self, source: str, axis: int) -> str:
        before, after = ([0] * 5 for _ in range(2))
        before[axis], after[axis] = self.pads[0]
        return self.composer.pad(source, tuple(before), tuple(after))

    def columns(self) -> str:
        """Windows of one pixel a frame."""
        shape = (self.n, self.channels, self.depth, self.height * self.width)
        weight = self.weight.reshape(*self.weight.shape[:3], 1)
        convolved = self.convolved(
            self.composer.view(self.source, shape), weight, slice(0, 1), self.bias
        )
        return self.composer.view(convolved, self.result)

    def whole(self) -> str:
        """Windows as deep as the volume."""
        shape = (self.n, self.channels * self.depth, self.height, self.width)
        convolved = self.convolved(
            self.composer.view(self.source, shape), self.flat_weight(), slice(1, 3), self.bias
        )
        return self.composer.view(convolved, self.result)

    def flat_weight(self) -> NDArray[Any]:
        """Channels of a group and their taps along the depth as one axis."""
        return self.weight.reshape(len(self.weight), -1, *self.kernel[1:])

    def deep(self) -> str:
        """Images of all frames that a window sees."""
        composer, (taps, size) = self.composer, (self.kernel[0], (self.height, self.width))
        if self.groups == 1:
            frames = self.padded(composer.transpose(self.source, _SWAP), 1)
            picked = composer.gather(frames, self.seen().reshape(-1), 1)
            weight = self.weight.swapaxes(1, 2).reshape(len(self.weight), -1, *self.kernel[1:])
        else:  # a group's channels stay together
            picked = composer.gather(self.padded(self.source, 2), self.seen().reshape(-1), 2)
            cut = (self.n, self.channels, self.frames, taps, math.prod(size))
            picked = composer.transpose(composer.view(picked, cut), _SWAP)
            weight = self.flat_weight()
        images = composer.view(picked, (self.n * self.frames, taps * self.channels, *size))
        convolved = self.convolved(images, np.ascontiguousarray(weight), slice(1, 3), self.bias)
        listed = tuple(self.result[axis] for axis in _SWAP)
        return composer.transpose(composer.view(convolved, listed), _SWAP)

    def depthwise(self) -> str | None:
        """The sum of the taps along the depth; None if the bias is not constant."""
        composer, count = self.composer, self.channels * self.frames
        bias = self.bias
        if bias:
            values = composer.value(bias)
            if values is None:
                return None
            bias = composer.constant(np.repeat(values, self.frames))
        source = self.padded(self.source, 2)
        shape = (self.n, count, self.height, self.width)
        total = ""
        for tap, places in enumerate(self.seen().T):
            images = composer.view(composer.gather(source, places, 2), shape)
            weight = np.repeat(self.weight[:, :, tap], self.frames, axis=0)
            part = self.convolved(images, weight, slice(1, 3), "" if total else bias, count)
            total = composer.pointwise("Add", total, part) if total else part
        return composer.view(total, self.result)


@volumes.register("Conv")
def conv(composer: Composer, node: Node) -> str | None:
    weight = composer.value(node.inputs[1])
    if weight is None or len(composer.dims(node.inputs[0])) != 5:
        return None
    convolution = _Convolution(composer, node, weight)
    if convolution.kernel[1:] == convolution.strides[1:] == (1, 1) and not any(
        map(any, convolution.pads[1:])
    ):
        return convolution.columns()
    if convolution.seen().tolist() == [list(range(convolution.depth))] and not any(
        convolution.pads[0]
    ):
        return convolution.whole()
    alone = convolution.groups == convolution.channels == convolution.result[1] > 1
    return (convolution.depthwise() if alone else None) or convolution.deep()


@volumes.register("MaxPool")
@volumes.register("AveragePool")
def pool(composer: Composer, node: Node) -> str | None:
    shape, result = composer.dims(node.inputs[0]), composer.dims(node.writes[0])
    if len(shape) != 5:
        return None
    n, channels, depth, *image = shape
    frames = composer.view(node.inputs[0], (n, channels * depth, *image))
    after = _pooled(composer, node, frames, slice(1, 3), result[3:])
    columns = composer.view(after, (n, channels, depth, math.prod(result[3:])))
    pooled = _pooled(composer, node, columns, slice(0, 1), (result[2], math.prod(result[3:])))
    return composer.view(pooled, result)


def _pooled(
    composer: Composer, node: Node, source: str, axes: slice, extents: tuple[int, ...]
) -> str:
    """Pooled by the node's numbers of two axes, or of the depth of an image of columns."""
    all_pads = pads(node, composer.dims(node.inputs[0])[2:], tuple(node.attribute("kernel_shape")))
    kernel = spatial(node, "kernel_shape", 3)[axes]
    strides, dilations = (spatial(node, name, 3)[axes] for name in ("strides", "dilations"))
    sides = all_pads[axes]
    if len(kernel) == 1:
        kernel, strides, dilations = (*kernel, 1), (*strides, 1), (*dilations, 1)
        sides = (*sides, (0, 0))
    n, channels = composer.dims(source)[:2]
    further: dict[str, Any] = {"dilations": dilations} if max(dilations) > 1 else {}
    if node.attribute("ceil_mode", 0):
        further["ceil_mode"] = 1
    if node.operator == "AveragePool":
        further["count_include_pad"] = int(node.attribute("count_include_pad", 0))
    if set(kernel) == set(strides) == {1} and not any(map(any, sides)):
        return source
    return composer.apply(
        node.operator, source, shape=(n, channels, *extents), kernel_shape=kernel, strides=strides,
        pads=tuple(side for pair in zip(*sides, strict=True) for side in pair), **further,
    )  # fmt: skip


@volumes.register("GlobalAveragePool")
@volumes.register("GlobalMaxPool")
def global_pool(composer: Composer, node: Node) -> str | None:
    """All axes behind the channels are one."""
    n, channels, *extents = composer.dims(node.inputs[0])
    if len(extents) < 3:
        return None
    image = composer.view(node.inputs[0], (n, channels, extents[0], math.prod(extents[1:])))
    pooled = composer.apply(node.operator, image, shape=(n, channels, 1, 1))
    return composer.view(pooled, composer.dims(node.writes[0]))
