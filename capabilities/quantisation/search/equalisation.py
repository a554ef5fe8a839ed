"""Cross-layer equalisation: channels of one tensor brought to ranges that one scale suits.

Between two layers with nothing but positively homogeneous operators between them (f(s x) = s f(x)
for s > 0), a channel may be divided by a number in the first layer's weights and bias and
multiplied by it in the second's weights; the model computes the same. (Nagel et al. 2019,
"Data-Free Quantization Through Weight Equalization and Bias Correction", section 4.1; with data and
scales for each channel of the weights, the balance of Xiao et al. 2023, "SmoothQuant".) With a the
channel's largest value on calibration data and w the largest weight that multiplies it, the divisor
is

    a            before a depthwise convolution, whose channels have scales of their own
    sqrt(a / w)  before others,

rounded to a power of two, so that not a bit of a float32 result changes. Channels that no sample
reaches stay as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.quantisation.preparation.float_model import FloatModel, attribute
from tilesmith.capabilities.quantisation.preparation.plan import WeightedLayer, layers_of
from tilesmith.capabilities.quantisation.search.emulation import Arrays, Floats
from tilesmith.compiler.graph.operator_traits import having
from tilesmith.search_space.hardware.target import Target

_HOMOGENEOUS = having("homogeneous")
"""Operators that a positive factor of a channel passes through."""

_LEAST = 2.0**-40
"""Channels and weights below are taken for zeros."""


@dataclass(frozen=True)
class _Pair:
    """Two layers, the second on the first's channels.

    Attributes:
        depthwise: whether the second multiplies each channel by weights of its own.
    """

    first: WeightedLayer
    second: WeightedLayer
    depthwise: bool


def equalised(
    model: FloatModel, samples: Sequence[Arrays], target: Target, threads: int = 1
) -> FloatModel:
    """The same model, with channels of like ranges between layers; this one if there are no pairs.

    Args:
        samples: of the model's inputs.
        target: what the model runs on to look at its channels.
    """
    pairs = pairs_of(model)
    if not pairs:
        return model
    seen = tuple(dict.fromkeys(pair.second.source for pair in pairs))
    floats = Floats(model, seen, target, threads)
    largest = {name: np.zeros(1) for name in seen}
    for sample in samples:
        outputs = floats.run(sample)
        for name in seen:
            largest[name] = np.maximum(largest[name], _by_channel(outputs[name]))
    constants = dict(model.constants)
    for pair in pairs:
        _balance(pair, largest[pair.second.source], constants)
    return replace(model, constants=constants)


def _by_channel(values: NDArray[Any]) -> NDArray[np.float64]:
    """The largest absolute value of each channel: axis 1 of images and of rows alike."""
    others = tuple(axis for axis in range(values.ndim) if axis != 1)
    return np.asarray(np.abs(values).max(axis=others), np.float64)


def _balance(pair: _Pair, largest: NDArray[np.float64], constants: dict[str, NDArray[Any]]) -> None:
    weights = constants[pair.second.weights]
    inner = 0 if pair.depthwise else 1 - pair.second.axis
    others = tuple(axis for axis in range(weights.ndim) if axis != inner)
    heaviest = np.abs(weights).max(axis=others).astype(np.float64)
    used = (largest > _LEAST) & (heaviest > _LEAST)
    safe = np.where(used, largest, 1.0)
    wanted = safe if pair.depthwise else np.sqrt(safe / np.where(used, heaviest, 1.0))
    if used.any():
        wanted = wanted / np.exp(np.log(wanted[used]).mean())
    factor = np.where(used, np.exp2(np.rint(np.log2(wanted))), 1.0).astype(np.float32)
    constants[pair.second.weights] = weights * _along(factor, weights, inner)
    first = constants[pair.first.weights]
    constants[pair.first.weights] = first / _along(factor, first, pair.first.axis)
    if pair.first.bias:
        bias = constants[pair.first.bias]
        constants[pair.first.bias] = bias / factor.reshape(bias.shape)


def _along(factor: NDArray[Any], weights: NDArray[Any], axis: int) -> NDArray[Any]:
    shape = [1] * weights.ndim
    shape[axis] = -1
    return factor.reshape(shape)


def pairs_of(model: FloatModel) -> tuple[_Pair, ...]:
    """Every two layers that channels can be balanced between, in the order of the model."""
    layers = {layer.node: layer for layer in layers_of(model)}
    pairs = (_pair(model, layers, second) for second in layers.values())
    return tuple(pair for pair in pairs if pair is not None)


def _pair(
    model: FloatModel, layers: dict[str, WeightedLayer], second: WeightedLayer
) -> _Pair | None:
    tensor = second.source
    maker = model.producers.get(tensor)
    while maker is not None and model.readers[tensor] == 1:
        if maker.name in layers:
            return _checked(model, layers[maker.name], second)
        if maker.op_type not in _HOMOGENEOUS or maker.domain or len(maker.output) != 1:
            return None
        tensor = maker.input[0]
        maker = model.producers.get(tensor)
    return None


def _checked(model: FloatModel, first: WeightedLayer, second: WeightedLayer) -> _Pair | None:
    """The pair, if its constants are its own and its channels are those of axis 1."""
    kinds = {"Conv": 0, "Gemm": 1}
    if first.operator not in kinds or kinds[first.operator] != kinds.get(second.operator):
        return None
    own = (first.weights, second.weights, *filter(None, (first.bias,)))
    if any(model.readers[name] != 1 for name in own):
        return None
    channels = model.constants[first.weights].shape[first.axis]
    if first.bias:
        bias = model.constants.get(first.bias)
        if bias is None or bias.size != channels or bias.dtype != np.float32:
            return None
    group = int(attribute(model.by_name[second.node], "group", 1))
    weights = model.constants[second.weights]
    depthwise = group > 1 and group == channels == weights.shape[0]
    if group > 1 and not depthwise:
        return None
    return _Pair(first, second, depthwise)
