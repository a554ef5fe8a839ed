"""Convolution networks that onnx does not ship, built operator by operator as exporters write them.

EfficientNet-B0 (Tan and Le 2019, table 1: inverted residuals, depthwise 3 x 3 and 5 x 5, SiLU,
squeeze and excite of a quarter of the block's input) and a U-Net for segmentation (Ronneberger et
al. 2015, with padding, `width` channels at full size; upwards pixels are doubled and convolved, as
in networks of diffusion), with seeded random weights.
"""

from __future__ import annotations

import numpy as np
import onnx

from benchmarks.models import Builder
from tilesmith.compiler.graph.seed_weights import seed_weights


def _convolution(
    b: Builder, x: str, channels: tuple[int, int], kernel: int, stride: int = 1, group: int = 1
) -> str:
    weight = b.weight(channels[1], channels[0] // group, kernel, kernel)
    return b.op(
        "Conv", x, weight, b.weight(channels[1]), kernel_shape=[kernel, kernel],
        strides=[stride, stride], pads=[kernel // 2] * 4, group=group,
    )  # fmt: skip


def _silu(b: Builder, x: str) -> str:
    return b.op("Mul", x, b.op("Sigmoid", x))


def _excited(b: Builder, x: str, width: int, squeezed: int) -> str:
    means = b.op("GlobalAveragePool", x)
    inner = _silu(b, _convolution(b, means, (width, squeezed), 1))
    return b.op("Mul", x, b.op("Sigmoid", _convolution(b, inner, (squeezed, width), 1)))


def efficientnet_b0(side: int = 224) -> onnx.ModelProto:
    """Expansion, channels, repeats, stride and kernel of each stage as the paper has them."""
    b = Builder()
    stages = (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
    )  # fmt: skip
    x, width = _silu(b, _convolution(b, "x", (3, 32), 3, 2)), 32
    for expansion, channels, repeats, first_stride, kernel in stages:
        for repeat in range(repeats):
            stride, hidden, y = first_stride if repeat == 0 else 1, width * expansion, x
            if expansion > 1:
                y = _silu(b, _convolution(b, y, (width, hidden), 1))
            y = _silu(b, _convolution(b, y, (hidden, hidden), kernel, stride, group=hidden))
            y = _convolution(b, _excited(b, y, hidden, width // 4), (hidden, channels), 1)
            x = b.op("Add", x, y) if stride == 1 and width == channels else y
            width = channels
    x = _silu(b, _convolution(b, x, (width, 1280), 1))
    x = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    x = b.op("Gemm", x, b.weight(1000, 1280), b.weight(1000), transB=1)
    return seed_weights(b.model("efficientnet_b0", {"x": (1, 3, side, side)}, x))


def unet(side: int = 64, width: int = 32, levels: int = 3) -> onnx.ModelProto:
    """Two convolutions a level, maxima downwards, what was there joined in on the way up."""
    b = Builder()

    def twice(x: str, channels: tuple[int, int]) -> str:
        x = b.op("Relu", _convolution(b, x, channels, 3))
        return b.op("Relu", _convolution(b, x, (channels[1], channels[1]), 3))

    x, before, kept = "x", 3, list[str]()
    for level in range(levels):
        x = twice(x, (before, width << level))
        kept.append(x)
        x, before = b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), width << level
    x = twice(x, (before, width << levels))
    for level in reversed(range(levels)):
        size = [1, width << (level + 1), side >> level, side >> level]
        x = b.op("Resize", x, "", "", b.constant(np.array(size)), mode="nearest")
        x = _convolution(b, x, (width << (level + 1), width << level), 3)
        x = twice(b.op("Concat", x, kept[level], axis=1), (width << (level + 1), width << level))
    x = _convolution(b, x, (width, 2), 1)
    return seed_weights(b.model("unet", {"x": (1, 3, side, side)}, x))
