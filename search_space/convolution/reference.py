"""Convolution in numpy: the independent reference of the convolution templates."""

from __future__ import annotations

import numpy as np

from tilesmith.search_space.convolution.geometry import Geometry
from tilesmith.search_space.expressions.dtypes import Array


def convolve(g: Geometry, data: Array, weight: Array, frame: int = 0) -> Array:
    """Cross-correlation, one matrix product for each kernel tap and group.

    Args:
        data: (n, c, h, w).
        weight: (oc, c / groups, kh, kw).
        frame: what stands around the image.

    Returns:
        (n, oc, out_height, out_width), accumulated in at least float32.
    """
    top, left, bottom, right = g.pads
    padded = np.pad(data, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=frame)
    groups, per_group = g.groups, g.channels // g.groups
    result = np.zeros((g.batch, g.out_channels, g.out_height, g.out_width), dtype=data.dtype)
    view = result.reshape(g.batch, groups, g.out_channels // groups, -1)
    weights = weight.reshape(groups, g.out_channels // groups, per_group, *g.kernel)
    for r in range(g.kernel[0]):
        for s in range(g.kernel[1]):
            y, x = r * g.dilation[0], s * g.dilation[1]
            rows = slice(y, y + (g.out_height - 1) * g.stride[0] + 1, g.stride[0])
            columns = slice(x, x + (g.out_width - 1) * g.stride[1] + 1, g.stride[1])
            patch = padded[:, :, rows, columns].reshape(g.batch, groups, per_group, -1)
            view += np.matmul(weights[None, :, :, :, r, s], patch)
    return result
