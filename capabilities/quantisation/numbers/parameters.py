"""`Parameters`: the numbers of a plan, scales of tensors and integers of weights."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tilesmith.capabilities.quantisation.numbers.block_weights import BlockWeights
from tilesmith.capabilities.quantisation.numbers.histograms import Histogram
from tilesmith.capabilities.quantisation.numbers.narrow import NarrowWeights
from tilesmith.capabilities.quantisation.numbers.ranges import Affine, Method
from tilesmith.capabilities.quantisation.numbers.weights import ByteWeights, byte_weights
from tilesmith.capabilities.quantisation.preparation.float_model import FloatModel
from tilesmith.capabilities.quantisation.preparation.plan import QuantisationPlan, WeightedLayer


@dataclass(frozen=True)
class Parameters:
    """See the module's docstring.

    Attributes:
        tensors: scale and zero point of every tensor in bytes.
        layers: by node, the constants of every layer that is not in float32.
    """

    plan: QuantisationPlan
    tensors: Mapping[str, Affine]
    layers: Mapping[str, ByteWeights | BlockWeights | NarrowWeights]


@dataclass(frozen=True)
class Calibration:
    """The observations from which the numbers of any plan follow.

    Attributes:
        seen: the values of every tensor that may be in bytes.
        method: how ranges are taken from them.
        symmetric: whether zero is to be 0.
        even: whether zero is to be even (`ranges.Affine.over`).
    """

    model: FloatModel
    seen: Mapping[str, Histogram]
    method: Method
    symmetric: bool
    even: bool = False
    _weights: dict[tuple[str, float], ByteWeights] = field(default_factory=dict, compare=False)

    def parameters(self, plan: QuantisationPlan) -> Parameters:
        """The scales and integers of a plan whose tensors were all observed."""
        tensors: dict[str, Affine] = {}
        for members in plan.members.values():
            ranges = [self.method.range_of(self.seen[name], self.symmetric) for name in members]
            low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
            affine = Affine.over(low, high, self.symmetric, self.even)
            tensors.update(dict.fromkeys(members, affine))
        layers = {layer.node: self._layer(layer, tensors[layer.source]) for layer in plan.layers}
        return Parameters(plan, tensors, layers)

    def _layer(self, layer: WeightedLayer, source: Affine) -> ByteWeights:
        key = layer.node, float(source.scale)
        if key not in self._weights:
            weights = self.model.constants[layer.weights]
            bias = self.model.constants.get(layer.bias)
            self._weights[key] = byte_weights(layer, weights, bias, source.scale)
        return self._weights[key]


def weight_error(model: FloatModel, chosen: Parameters) -> float:
    """The norm of what all quantised weights differ by, by their norm."""
    difference = norm = 0.0
    for layer in chosen.plan.layers:
        weights = model.constants[layer.weights].astype(np.float64)
        difference += float(((chosen.layers[layer.node].floats() - weights) ** 2).sum())
        norm += float((weights**2).sum())
    return math.sqrt(difference / norm) if norm else 0.0
