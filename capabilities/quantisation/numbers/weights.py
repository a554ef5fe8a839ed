"""Weights in int8, symmetric, with a scale for each output channel, and biases in int32.

    w[c] = q[c] * scale[c],  q in -127..127        b[c] = q[c] * (scale of the input * scale[c])

A bias whose channel has weights so small that it would not fit into int32 widens that channel's
scale; a channel of zeros takes a scale that its bias is exact enough with.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.quantisation.numbers.ranges import SMALLEST
from tilesmith.capabilities.quantisation.preparation.plan import WeightedLayer
from tilesmith.search_space.support.errors import ModelError

_MOST = 127
"""The greatest weight; -128 is left out, so that a scale is symmetric."""

_MOST_BIAS = 2**30
"""Biases stay below, so that sums have room."""

_ZERO_CHANNEL_BIAS = 2**20
"""The steps that the bias of a channel of zeros is written in."""


@dataclass(frozen=True)
class ByteWeights:
    """A layer's constants as integers.

    Attributes:
        values: int8, of the weights' shape.
        scales: float32, one for each output channel.
        axis: of the channels in the values.
        bias: int32, one for each channel; None where there is none.
        source_scale: of the layer's input, which is in the bias's steps.
    """

    values: NDArray[np.int8]
    scales: NDArray[np.float32]
    axis: int
    bias: NDArray[np.int32] | None
    source_scale: np.float32

    @property
    def bias_scales(self) -> NDArray[np.float32]:
        """The steps of the bias."""
        return np.asarray(self.scales * self.source_scale, np.float32)

    def floats(self) -> NDArray[np.float32]:
        """The weights that the bytes mean."""
        along = [1] * self.values.ndim
        along[self.axis] = -1
        return np.asarray(self.values * self.scales.reshape(along), np.float32)

    def float_bias(self) -> NDArray[np.float32] | None:
        """The bias that the integers mean."""
        if self.bias is None:
            return None
        return np.asarray(self.bias.astype(np.float32) * self.bias_scales, np.float32)


def byte_weights(
    layer: WeightedLayer, weights: NDArray[Any], bias: NDArray[Any] | None, source_scale: np.float32
) -> ByteWeights:
    """A layer's constants as integers.

    Args:
        bias: one number for each channel; None where there is none (or it stays in float32).
        source_scale: of the layer's input.

    Raises:
        ModelError: a weight is not finite.
    """
    checked_finite(layer, weights, bias)
    others = tuple(axis for axis in range(weights.ndim) if axis != layer.axis)
    largest = np.abs(weights).max(axis=others, initial=0.0).astype(np.float64)
    steps = largest / _MOST
    if bias is not None:
        magnitude = np.abs(bias).astype(np.float64) / np.float64(source_scale)
        exact = np.where(largest > 0, magnitude / _MOST_BIAS, magnitude / _ZERO_CHANNEL_BIAS)
        steps = np.maximum(steps, exact)
    scales = np.where(steps > 0, np.maximum(steps, SMALLEST), 1.0).astype(np.float32)
    along = [1] * weights.ndim
    along[layer.axis] = -1
    values = np.clip(np.rint(weights / scales.reshape(along)), -_MOST, _MOST).astype(np.int8)
    if bias is None:
        return ByteWeights(values, scales, layer.axis, None, source_scale)
    step = (scales * source_scale).astype(np.float32).astype(np.float64)
    whole = np.clip(np.rint(bias.reshape(-1) / step), -(2**31), 2**31 - 1)
    return ByteWeights(values, scales, layer.axis, whole.astype(np.int32), source_scale)


def checked_finite(layer: WeightedLayer, weights: NDArray[Any], bias: NDArray[Any] | None) -> None:
    """Refuse weights with infinities or not-a-number in a sentence."""
    for what, values in (("weights", weights), ("bias", bias)):
        if values is not None and not np.isfinite(values).all():
            raise ModelError(
                f"the {what} of node '{layer.node}' hold a number that is not finite, which no "
                "scale covers; mend the model, or leave the node out with --keep-node"
            )
